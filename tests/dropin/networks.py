"""Cases: datasets, networks and training cells."""

import mindspore
import mindspore.dataset as ms_dataset
import numpy as np
from mindspore import nn

import trainer
from tests.dropin.cases import Recorder, case, linear, optimizer, pipeline, weights


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


@case("CrossEntropyLoss: the losses of every step", differs="the last digit: ours is one sum with its own gradient")
def _(kind, folder):
    random, recorder = np.random.default_rng(1), Recorder()
    columns = {"x": random.normal(size=(32, 6)).astype(np.float32), "y": random.integers(0, 3, 32).astype(np.int32)}
    first = mindspore.Tensor(random.normal(size=(3, 6)).astype(np.float32))
    network = nn.Dense(6, 3, weight_init=first, bias_init="zeros")
    made = kind(network, nn.CrossEntropyLoss(), optimizer(network))
    made.train(2, pipeline(32, 16, **columns), callbacks=[recorder])
    losses = [seen["net_outputs"][2] for name, seen in recorder.seen if name == "on_train_step_end"]
    return losses
