"""`mindspore.Model` and `trainer.Model` on the same data: the same calls in the same order, the same values to the bit.

Every case is a function of the class. `differs` names what stays different, and docs/migrating.md says why; a
difference that goes away fails here as well.
"""

import re
from pathlib import Path

import mindspore
import mindspore.dataset as ms_dataset
import numpy as np
import pytest
from mindspore import Tensor, nn
from mindspore import train as ms

import trainer
from tests.dropin.cases import Recorder, X, Y, linear, model, optimizer, pipeline, plain, weights

CASES = {}
BOTH = {"mindspore": mindspore.Model, "ours": trainer.Model}


def case(name, differs=""):
    """Register a case: a function that takes the class (and a scratch folder) and returns what is compared."""

    def register(function):
        CASES[name] = (function, differs)
        return function

    return register


# -- methods -----------------------------------------------------------------------------------------------------------


@case("train: hooks and what they see")
def _(kind, folder):
    made, recorder = model(kind), Recorder()
    made.train(2, pipeline(), callbacks=[recorder])
    return recorder.seen, weights(made.predict_network)


@case("train twice: epochs and steps start again")
def _(kind, folder):
    made, recorder = model(kind), Recorder()
    made.train(1, pipeline(), callbacks=[recorder])
    made.train(2, pipeline(), callbacks=[recorder])
    return recorder.seen, weights(made.predict_network)


@case("train(initial_epoch=2)")
def _(kind, folder):
    made, recorder = model(kind), Recorder()
    made.train(3, pipeline(), callbacks=[recorder], initial_epoch=2)
    return recorder.seen


@case("train(dataset_sink_mode=True) on CPU: hooks at every step")
def _(kind, folder):
    made, recorder = model(kind), Recorder()
    made.train(1, pipeline(), callbacks=[recorder], dataset_sink_mode=True)
    return recorder.seen


@case("fit with validation: hooks and what they see")
def _(kind, folder):
    made, recorder = model(kind), Recorder()
    made.fit(2, pipeline(), pipeline(8), callbacks=[recorder])
    return recorder.seen, weights(made.predict_network)


@case("fit(valid_frequency=[1, 3])")
def _(kind, folder):
    made, recorder = model(kind), Recorder()
    made.fit(3, pipeline(8), pipeline(8), [1, 3], callbacks=[recorder])
    return recorder.seen


@case("fit(valid_frequency=2)")
def _(kind, folder):
    made, recorder = model(kind), Recorder()
    made.fit(4, pipeline(8), pipeline(8), 2, callbacks=[recorder])
    return [name for name, _ in recorder.seen]


@case("eval: hooks, what they see, and the metrics asked for")
def _(kind, folder):
    made, recorder = model(kind, ["mae", "mse"]), Recorder()
    results = made.eval(pipeline(), callbacks=[recorder])
    return recorder.seen, dict(sorted(results.items()))


@case("eval gives arrays and tables as they are")
def _(kind, folder):
    metrics = {"table": ms.ConfusionMatrix(2), "precision": ms.Precision(), "fbeta": ms.Fbeta(1.0)}
    network = nn.Dense(3, 2, weight_init=Tensor(np.eye(2, 3, dtype=np.float32)), bias_init="zeros")
    made = kind(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True), optimizer(network), metrics=metrics)
    results = made.eval(pipeline(x=X, y=Y[:, 0].astype(np.int32)))
    return [(name, type(value).__name__, plain(value)) for name, value in results.items()]


@case("train with a loss of one number per row", differs="refused here, with the cure; MindSpore adds the rows up")
def _(kind, folder):
    made = model(kind, None, nn.MSELoss(reduction="none"))
    try:
        made.train(1, pipeline())
    except RuntimeError as error:
        return "reduction='mean'" in str(error)


@case("eval without metrics is a ValueError")
def _(kind, folder):
    with pytest.raises(ValueError, match="metrics"):
        model(kind, None).eval(pipeline())


@case("eval_network and eval_indexes")
def _(kind, folder):
    network = linear()

    class Evaluate(nn.Cell):
        def __init__(self):
            super().__init__(auto_prefix=False)
            self.network = network

        def construct(self, x, y):
            return y, self.network(x), y.sum()

    made = kind(network, nn.MSELoss(), optimizer(network), {"mae"}, Evaluate(), [2, 1, 0])
    return made.eval(pipeline())


@case("predict: Tensors from Tensors")
def _(kind, folder):
    found = model(kind).predict(Tensor(X))
    return type(found).__name__, plain(found)


class TwoOutputs(nn.Cell):
    def construct(self, x):
        return x * 2, (x.sum(), x.sum(1))


@case("predict: tuples within tuples, scalars")
def _(kind, folder):
    return plain(kind(TwoOutputs()).predict(Tensor(X)))


@case("predict(backend='lite') falls back, another backend is a ValueError")
def _(kind, folder):
    made = model(kind)
    with pytest.raises(ValueError, match="backend"):
        made.predict(Tensor(X), backend="heavy")
    return plain(made.predict(Tensor(X), backend="lite", config={"configPath": ""}))


@case("wrong kinds of arguments are a TypeError")
def _(kind, folder):
    for call in (
        lambda: model(kind).train(1, pipeline(), dataset_sink_mode="valid"),
        lambda: model(kind).fit(1, pipeline(), pipeline(), dataset_sink_mode="valid"),
        lambda: model(kind).eval(pipeline(), dataset_sink_mode="valid"),
    ):
        with pytest.raises(TypeError):
            call()


@case("layouts of automatic parallelism are refused without it")
def _(kind, folder):
    for call in (
        lambda: model(kind).infer_train_layout(pipeline()),
        lambda: model(kind).infer_predict_layout(Tensor(X)),
    ):
        with pytest.raises((RuntimeError, ValueError)):
            call()


@case("a dataset may be used by a second model", differs="refused by MindSpore")
def _(kind, folder):
    data = pipeline()
    model(kind).train(1, data)
    try:
        model(kind).train(1, data)
    except RuntimeError:
        return "refused"


@case("eval_loss of a validation", differs="the last batch's in MindSpore, the mean over rows here")
def _(kind, folder):
    made, seen = model(kind), []
    note = ms.LambdaCallback(on_train_epoch_end=lambda c: seen.append(c.original_args().eval_results["eval_loss"]))
    made.fit(1, pipeline(8), pipeline(), callbacks=[note])
    return seen


@case("the metric 'loss' with a short last batch", differs="mean of batches in MindSpore, of rows here")
def _(kind, folder):
    return model(kind, ["loss"]).eval(pipeline())


@case("float16 with a scaler on CPU", differs="refused by MindSpore")
def _(kind, folder):
    try:
        model(kind, amp_level="O2").train(1, pipeline())
    except (ValueError, RuntimeError):
        return "refused"


# -- callbacks of MindSpore, one by one --------------------------------------------------------------------------------


@case("LossMonitor prints")
def _(kind, folder, capsys):
    model(kind).fit(2, pipeline(), pipeline(8), callbacks=[ms.LossMonitor(2)])
    return capsys.readouterr().out


@case("TimeMonitor prints, its evaluation lines too")
def _(kind, folder, capsys):
    model(kind).fit(2, pipeline(), pipeline(8), callbacks=[ms.TimeMonitor()])
    return re.sub(r"[\d.]+ ms", "# ms", capsys.readouterr().out)


@case("History")
def _(kind, folder):
    history = ms.History()
    model(kind).fit(2, pipeline(), pipeline(8), callbacks=[history])
    losses = {"eval_loss": 0.0}
    return history.epoch, {name: plain(values) for name, values in history.history.items() if name not in losses}


@case("LambdaCallback")
def _(kind, folder):
    seen = []
    note = ms.LambdaCallback(
        on_train_epoch_begin=lambda c: seen.append(c.original_args().cur_epoch_num),
        on_train_step_end=lambda c: seen.append(plain(c.original_args().net_outputs)),
        on_train_end=lambda c: seen.append("end"),
    )
    model(kind).train(2, pipeline(), callbacks=note)
    return seen


@case("ModelCheckpoint writes the same files")
def _(kind, folder):
    config = ms.CheckpointConfig(save_checkpoint_steps=2, keep_checkpoint_max=9)
    made = model(kind)
    made.train(2, pipeline(), callbacks=[ms.ModelCheckpoint("net", str(folder), config)])
    files = sorted(path.name for path in Path(folder).glob("*.ckpt"))
    return files, {name: plain(mindspore.load_checkpoint(str(folder / files[-1]))[name]) for name in ("weight", "bias")}


@case("EarlyStopping stops at the same epoch")
def _(kind, folder):
    made, recorder = model(kind), Recorder()
    stop = ms.EarlyStopping("mae", patience=1, min_delta=10.0)
    made.fit(5, pipeline(), pipeline(8), callbacks=[stop, recorder])
    return stop.stopped_epoch, sum(name == "on_train_epoch_end" for name, _ in recorder.seen)


@case("ReduceLROnPlateau lowers the same rates")
def _(kind, folder):
    made = model(kind)
    made.fit(4, pipeline(), pipeline(8), callbacks=[ms.ReduceLROnPlateau("mae", 0.5, patience=1, min_delta=10.0)])
    return plain(made.train_network.optimizer.learning_rate.value())


@case("LearningRateScheduler sets the same rates")
def _(kind, folder):
    made = model(kind)
    made.train(1, pipeline(), callbacks=[ms.LearningRateScheduler(lambda rate, step: rate / (1 + step))])
    return plain(made.train_network.optimizer.learning_rate.value()), weights(made.predict_network)


@case("OnRequestExit is quiet until asked")
def _(kind, folder):
    made = model(kind)
    made.train(1, pipeline(), callbacks=[ms.OnRequestExit(save_ckpt=False, save_mindir=False, directory=str(folder))])
    return weights(made.predict_network)


@case("BackupAndRestore")
def _(kind, folder):
    made = model(kind)
    made.train(2, pipeline(), callbacks=[ms.BackupAndRestore(str(folder / "backup"), 1, True)])
    return weights(made.predict_network), sorted(path.name for path in Path(folder).rglob("*") if path.is_file())


@case("request_stop in a step")
def _(kind, folder):
    class Stop(ms.Callback):
        def on_train_step_end(self, run_context):
            if run_context.original_args().cur_step_num == 2:
                run_context.request_stop()

    made, recorder = model(kind), Recorder()
    made.train(3, pipeline(12), callbacks=[Stop(), recorder])
    return [name for name, _ in recorder.seen]


@case("callbacks of the older names")
def _(kind, folder):
    seen = []

    class Old(ms.Callback):
        def begin(self, c):
            seen.append("begin")

        def epoch_begin(self, c):
            seen.append(c.original_args().get("cur_epoch_num"))

        def step_end(self, c):
            seen.append(plain(c.original_args()["net_outputs"]))

        def end(self, c):
            seen.append("end")

    made = model(kind)
    made.train(1, pipeline(), callbacks=[Old()])
    made.eval(pipeline(8), callbacks=[Old()])
    return seen


# -- datasets and cells ------------------------------------------------------------------------------------------------


@case("batches of changing shape")
def _(kind, folder):
    lengths = [3, 5, 3, 4]
    made = linear_mean(kind)
    recorder = Recorder()
    rows = [(np.full((2, n, 3), n, np.float32), np.ones((2, 1), np.float32)) for n in lengths]
    data = ms_dataset.GeneratorDataset(lambda: iter(rows), ["x", "y"], shuffle=False, num_parallel_workers=1)
    made.train(1, data if kind is trainer.Model else Sized(data, len(rows)), callbacks=[recorder])
    return [seen["net_outputs"] for name, seen in recorder.seen if name == "on_train_step_end"]


class Sized:
    """A pipeline over a generator with the size that MindSpore's Model asks it for."""

    def __new__(cls, data, size):
        data.dataset_size = size
        return data


class Mean(nn.Cell):
    def __init__(self):
        super().__init__()
        self.head = linear()

    def construct(self, x):
        return self.head(x.mean(1))


def linear_mean(kind):
    network = Mean()
    return kind(network, nn.MSELoss(), optimizer(network))


class OwnLoss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.head = linear()

    def construct(self, x, y):
        return ((self.head(x) - y) ** 2).mean()


@case("a network that returns its loss")
def _(kind, folder):
    network, recorder = OwnLoss(), Recorder()
    kind(network, None, optimizer(network)).train(1, pipeline(), callbacks=[recorder])
    return recorder.seen, weights(network)


class LossAndPrediction(OwnLoss):
    def construct(self, x, y):
        prediction = self.head(x)
        return ((prediction - y) ** 2).mean(), prediction


@case(
    "a network that returns loss and prediction",
    differs="MindSpore adds the gradient of the prediction to that of the loss",
)
def _(kind, folder):
    network, recorder = LossAndPrediction(), Recorder()
    kind(network, None, optimizer(network)).train(1, pipeline(), callbacks=[recorder])
    shapes = [[part[1] for part in seen["net_outputs"]] for name, seen in recorder.seen if name == "on_train_step_end"]
    assert shapes == [[(), (4, 1)], [(), (4, 1)], [(), (2, 1)]]  # (loss, prediction) either way
    return weights(network)


class OwnStep(nn.TrainOneStepCell):
    """A training cell that returns more than the loss, as MindRec's do for two networks."""

    def construct(self, x, y):
        loss = self.network(x, y)
        gradients = self.grad(self.network, self.weights)(x, y, self.sens_value())
        loss = mindspore.ops.depend(loss, self.optimizer(gradients))
        return loss, x.sum(), loss * 2

    def sens_value(self):
        return mindspore.ops.ones((), mindspore.float32)


@case("a training cell: all that it returns")
def _(kind, folder):
    recorder = Recorder()
    network = linear()
    step = OwnStep(nn.WithLossCell(network, nn.MSELoss()), optimizer(network))
    kind(step).train(1, pipeline(), callbacks=[recorder])
    return recorder.seen, weights(network)


# -- the comparison ----------------------------------------------------------------------------------------------------


def outcome(function, kind, folder, capsys):
    folder.mkdir()
    wanted = function.__code__.co_varnames[: function.__code__.co_argcount]
    return function(kind, folder, *([capsys] if "capsys" in wanted else []))


@pytest.mark.parametrize("name", CASES)
def test_as_mindspores_own(name, tmp_path, capsys):
    function, differs = CASES[name]
    theirs, ours = (outcome(function, BOTH[whose], tmp_path / whose, capsys) for whose in BOTH)
    if differs:
        assert ours != theirs, "the same by now: take the difference out of the table"
        return
    compare(ours, theirs)


def compare(ours, theirs, in_metrics=True):
    """What MindSpore gives is given; hooks may see more than it shows them.

    Figures of metrics may differ in the eighth digit: ours add up in double precision.
    """
    if in_metrics and isinstance(theirs, float):
        assert ours == pytest.approx(theirs, rel=1e-6)
    elif in_metrics and isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            compare(ours[key], theirs[key], not key.endswith(("weight", "bias")))
    elif isinstance(theirs, str) and "metrics: " in theirs and len(_numbers(theirs)) > 1:
        compare(*([_numbers(text) for text in (ours, theirs)]))
    elif _is_hook(theirs):
        assert ours[0] == theirs[0]
        for key, value in theirs[1].items():
            compare(ours[1].get(key), value, in_metrics=key in ("metrics", "eval_results"))
    elif isinstance(theirs, tuple | list) and len(ours) == len(theirs):
        for one, other in zip(ours, theirs, strict=True):
            compare(one, other, in_metrics)
    else:
        assert ours == theirs


def _numbers(text):
    return [float(part) if part[:1].isdigit() else part for part in re.split(r"(\d+\.\d+)", text)]


def _is_hook(value):
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], dict)


def test_the_table_of_the_documentation_is_this_one(project_root):
    lines = (project_root / "docs" / "migrating.md").read_text().splitlines()
    table = [line for line in lines if line.startswith("| ") and not line.startswith("| Case")]
    expected = [f"| {name} | {differs or 'same'} |" for name, (_, differs) in CASES.items()]
    assert [line for line in table if line in expected] == expected
