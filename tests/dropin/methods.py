"""Cases: the methods of `mindspore.Model`, one by one."""

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from mindspore import train as ms

from tests.dropin.cases import Recorder, X, Y, case, linear, model, optimizer, pipeline, plain, weights


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


@case("train(dataset_sink_mode=True, sink_size=2) on CPU: hooks at every step")
def _(kind, folder):
    made, recorder = model(kind), Recorder()
    made.train(2, pipeline(), callbacks=[recorder], dataset_sink_mode=True, sink_size=2)
    for _, seen in recorder.seen:
        del seen["batch_num"]  # `sink_size` there, though the epochs have all their batches
    return recorder.seen, weights(made.predict_network)


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


class Applied(nn.Cell):
    """Applies a function that it was given."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def construct(self, x):
        return self.function(x)


@case("multilabel metrics of an eval_network that MindSpore cannot compile: a lambda inside a call")
def _(kind, folder):
    network = nn.Dense(3, 3, weight_init=Tensor(np.eye(3, dtype=np.float32)), bias_init="zeros")
    several = (X > 0.5).astype(np.float32)

    class Evaluate(nn.Cell):
        def __init__(self):
            super().__init__(auto_prefix=False)
            self.network = network
            self.decide = Applied(lambda logits: ops.cast(logits > 0, mindspore.float32))

        def construct(self, x, y):
            predicted = self.decide(self.network(x))
            return ops.square(predicted - y).mean(), predicted, y

    metrics = {name: getattr(ms, name)("multilabel") for name in ("Accuracy", "Precision", "Recall")}
    metrics["hamming"] = ms.MAE()  # of zeros and ones: the labels of a row that differ
    made = kind(network, nn.MSELoss(), optimizer(network), metrics, Evaluate(), [0, 1, 2])
    return {name: np.asarray(value).tolist() for name, value in made.eval(pipeline(x=X, y=several)).items()}


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
    model(kind, ["mae"]).train(1, data)
    try:
        model(kind, ["mae"]).train(1, data)  # another one, see `model`
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
