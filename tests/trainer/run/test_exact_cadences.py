"""Calls of many steps end where a cadence in steps is due; what is learned stays the same to the last bit."""

import mindspore.dataset as ms_dataset
import numpy as np
import pytest
from mindspore import nn

from callbacks import Callback, CSVLogger, History, LossMonitor, ModelCheckpoint
from trainer import Trainer
from trainer.cadence import Every

X = np.random.default_rng(1).normal(size=(100, 3)).astype(np.float32)
Y = X @ np.array([[1.0], [-2.0], [0.5]], np.float32)
PAIRS = [(X[first : first + 4], Y[first : first + 4]) for first in range(0, 100, 4)]
KINDS = {
    "arrays": lambda: ((X, Y), {"batch_size": 4}),
    "a pipeline": lambda: (ms_dataset.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).batch(4), {}),
    "a list of batches": lambda: (PAIRS, {}),
}


class Steps(Callback):
    """Notes the step after every call, and those at which its own cadence and the validation come."""

    def __init__(self, every=None):
        self.every = every
        self.calls, self.due, self.validated, self.shapes = [], [], [], set()

    def on_train_step_end(self, trainer):
        progress = trainer.state.progress
        self.calls.append(progress.global_step)
        self.shapes.add(trainer.state.outputs.chunk.signature)
        if self.every is not None and self.every.due(progress):
            self.due.append(progress.global_step)

    def on_eval_end(self, trainer):
        self.validated.append(trainer.state.progress.global_step)


def make(accumulate=1):
    network = nn.Dense(3, 1, weight_init="ones", bias_init="zeros")
    optimizer = nn.Momentum(network.trainable_params(), 0.05, 0.9)
    return Trainer(network, nn.MSELoss(), optimizer, gradient_accumulation_steps=accumulate)


def weights(trainer):
    return np.concatenate([parameter.asnumpy().ravel() for parameter in trainer.network.get_parameters()])


@pytest.fixture(scope="module", params=[1, 3], ids=["each batch a step", "three batches a step"])
def uncut(request):
    trainer, steps = make(request.param), Steps()
    trainer.fit((X, Y), 2, batch_size=4, shuffle=False, callbacks=[steps])
    return request.param, weights(trainer), steps.calls[-1]


@pytest.mark.long(but=["each batch a step-a pipeline"])
@pytest.mark.parametrize("kind", KINDS)
def test_validation_callbacks_and_snapshots_come_at_their_steps(uncut, kind, tmp_path):
    accumulate, expected, last = uncut
    trainer, steps, (data, options) = make(accumulate), Steps(Every(steps=5)), KINDS[kind]()
    options |= {"shuffle": False} if kind == "arrays" else {}
    logger = CSVLogger(tmp_path / "log.csv", every=Every(steps=7))
    saver = ModelCheckpoint(tmp_path / "snapshots", every=6, keep_last=99, save_on_exit=False)
    trainer.fit(
        data, 2, valid_dataset=PAIRS[:1], valid_every=4, max_steps=last - 1, callbacks=[steps, saver, logger], **options
    )
    assert steps.validated == list(range(4, last, 4))
    assert steps.due == list(range(5, last, 5))
    saved = sorted(int(folder.name[5:]) for folder in (tmp_path / "snapshots").glob("step_*"))
    assert saved == list(range(6, last, 6))
    logged = [int(line.split(",")[0]) for line in (tmp_path / "log.csv").read_text().splitlines()[1:]]
    assert set(range(7, last, 7)) <= set(logged)
    trainer.fit(data, 2, valid_dataset=PAIRS[:1], valid_every=4, resume=tmp_path / "snapshots", callbacks=[], **options)
    np.testing.assert_array_equal(weights(trainer), expected)
    assert len(steps.shapes) == 1  # one program for calls of all lengths


def test_a_resumed_run_keeps_to_the_same_steps(tmp_path):
    options = {"batch_size": 4, "valid_dataset": PAIRS[:1], "valid_every": 4}
    make().fit((X, Y), 2, max_steps=7, callbacks=[ModelCheckpoint(tmp_path)], **options)
    steps = Steps(Every(steps=10))
    make().fit((X, Y), 1, callbacks=[steps], resume=tmp_path, **options)
    assert steps.validated == [8, 12, 16, 20, 24]
    assert steps.due == [10, 20]


def test_steps_of_a_stream(tmp_path):
    steps = Steps(Every(steps=3))
    trainer = make()
    saver = ModelCheckpoint(tmp_path, every=5, keep_last=99, save_on_exit=False)
    trainer.online_train(PAIRS, callbacks=[steps, saver], sink_size=8)
    assert steps.due == list(range(3, 25, 3))
    assert sorted(int(folder.name[5:]) for folder in tmp_path.glob("step_*")) == [5, 10, 15, 20, 25]
    whole = make()
    whole.online_train(PAIRS, callbacks=[], sink_size=8)
    np.testing.assert_array_equal(weights(trainer), weights(whole))


@pytest.mark.long
def test_a_cadence_that_was_not_asked_for_cuts_no_call():
    steps = Steps()
    make().fit((X, Y), 4, batch_size=4, callbacks=[steps, History(), LossMonitor()])
    assert steps.calls == [25, 50, 75, 100]
    asked = Steps()
    make().fit((X, Y), 1, batch_size=4, callbacks=[asked, LossMonitor(every=20)])
    assert asked.calls == [20, 25]


def test_calls_up_to_a_mark_have_about_one_size():
    steps = Steps(Every(steps=10))
    make().fit((X, Y), 1, batch_size=4, sink_size=8, callbacks=[steps])
    assert steps.calls == [5, 10, 15, 20, 25]
