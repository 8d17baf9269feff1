"""`train_network` and `eval_network`, and what callbacks do with them, beside those of `mindspore.Model`."""

import os
import signal

import mindspore
import mindspore.dataset as ms_dataset
import numpy as np
import pytest
from mindspore import Model, Tensor, nn
from mindspore.train import OnRequestExit

from trainer import Model as OurModel

X = np.ones((16, 3), np.float32)
Y = np.zeros((16, 1), np.float32)
KINDS = (Model, OurModel)


def rows():
    return ms_dataset.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).batch(4)


def parts():
    network = nn.Dense(3, 1, weight_init="ones", bias_init="ones")
    return network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1)


def plain(outputs):
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return [output.asnumpy().tolist() for output in outputs]


def test_train_and_eval_network_are_called_as_in_mindspore():
    results = []
    for kind in KINDS:
        network, loss, optimizer = parts()
        model = kind(network, loss, optimizer, metrics={"mae"})
        evaluated = plain(model.eval_network(Tensor(X), Tensor(Y)))
        trained = [plain(model.train_network(Tensor(X), Tensor(Y))) for _ in range(2)]
        names = [type(getattr(model.train_network, name)) for name in ("network", "optimizer", "weights", "sens")]
        results.append((evaluated, trained, names, network.weight.asnumpy().tolist()))
    assert results[1] == results[0]


class Reader(mindspore.train.Callback):
    def __init__(self):
        self.seen = []

    def on_train_step_end(self, run_context):
        params = run_context.original_args()
        cell = params.train_network
        self.seen.append([type(part) for part in (cell.optimizer, cell.network, cell.network.backbone_network)])
        self.seen.append([params.loss_scale_mananger, params["cur_step_num"]])


@pytest.mark.parametrize("in_a_cell", [False, True], ids=["network, loss and optimizer", "a training cell"])
def test_callbacks_find_optimizer_and_network_in_the_training_cell(in_a_cell):
    results = []
    for kind in KINDS:
        network, loss, optimizer = parts()
        cell = nn.TrainOneStepCell(nn.WithLossCell(network, loss), optimizer)
        reader = Reader()
        (kind(cell) if in_a_cell else kind(network, loss, optimizer)).train(1, rows(), callbacks=[reader])
        results.append(reader.seen)
    assert results[1] == results[0]


class Terminate(mindspore.train.Callback):
    def __init__(self):
        self.seen = []

    def on_train_step_end(self, run_context):
        self.seen.append(run_context.original_args().cur_step_num)
        if len(self.seen) == 2:
            os.kill(os.getpid(), signal.SIGTERM)


def test_on_request_exit_ends_the_run_and_saves(tmp_path, monkeypatch):
    monkeypatch.setenv("MS_ENABLE_GRACEFUL_EXIT", "1")
    before, results = signal.getsignal(signal.SIGTERM), []
    for kind in KINDS:
        folder, terminate = tmp_path / kind.__module__, Terminate()
        folder.mkdir()
        leaving = OnRequestExit(save_ckpt=True, save_mindir=False, file_name="net", directory=str(folder))
        try:
            kind(*parts()).train(2, rows(), callbacks=[terminate, leaving])
        finally:
            signal.signal(signal.SIGTERM, before)
        files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.ckpt"))
        values = {
            name: value.asnumpy().tolist() for name, value in mindspore.load_checkpoint(str(folder / files[0])).items()
        }
        results.append((terminate.seen, files, values))
    assert results[1] == results[0]
    assert len(results[0][0]) < 8


class Printing(mindspore.train.Metric):
    read = 0

    def clear(self):
        pass

    def update(self, *inputs):
        pass

    def eval(self):
        self.read += 1
        return 0.5


def test_each_metric_is_read_once_an_evaluation():
    counts = []
    for kind in KINDS:
        metric, reader = Printing(), Reader()
        model = kind(*parts(), metrics={"p": metric})
        assert model.eval(rows()) == {"p": 0.5}
        model.fit(2, rows(), rows(), callbacks=[reader])
        counts.append(metric.read)
    assert counts[1] == counts[0]


class Lookalike:
    """Has some of the names of a pipeline, as in MindSpore's own tests."""

    def get_dataset_size(self):
        return 4

    def create_tuple_iterator(self, num_epochs=-1, do_copy=True):
        return iter([(X[:4], Y[:4])] * 4)


class IterableLookalike(Lookalike):
    def __iter__(self):
        return self.create_tuple_iterator()


@pytest.mark.parametrize("kind", [Lookalike, IterableLookalike])
def test_what_resembles_a_dataset_is_read_as_an_iterable(kind):
    model = OurModel(*parts())
    model.train(2, kind(), callbacks=[])
    assert model.state.progress.global_step == 8
