"""Real data, tiny networks with repeatable weights, and ways to look at what a run did to them."""

import numpy as np
import pytest
from mindspore import Tensor, nn

from callbacks import Callback


@pytest.fixture(scope="session")
def cancer():
    """Breast cancer, 569 rows: standardised features [569, 30] float32 and labels [569, 1] float32."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    return {"x": ((x - x.mean(0)) / x.std(0)).astype(np.float32), "y": y[:, None].astype(np.float32)}


@pytest.fixture(scope="session")
def batches(cancer):
    """The same as a list of batches; `bad` names those whose first feature is infinite."""

    def make(size=32, count=None, bad=(), columns=("x", "y")):
        made = []
        for index, first in enumerate(range(0, len(cancer["y"]), size)):
            batch = [np.array(cancer[name][first : first + size]) for name in columns]
            if index in bad:
                batch[0][0, 0] = np.inf
            made.append(tuple(batch))
        return made[:count]

    return make


def _set_weights(cell, seed):
    rng = np.random.default_rng(seed)
    for parameter in cell.trainable_params():
        if "gamma" not in parameter.name:
            parameter.set_data(Tensor(rng.normal(0, 0.3, parameter.shape).astype(np.float32)))
    return cell


@pytest.fixture(scope="session")
def linear():
    """Return a new logistic regression 30 -> 1, whose gradient has a closed form."""
    return lambda seed=0: _set_weights(nn.SequentialCell(nn.Dense(30, 1)), seed)


@pytest.fixture(scope="session")
def mlp():
    """Return a new network 30 -> 8 -> 1 with BatchNorm."""
    return lambda seed=0: _set_weights(
        nn.SequentialCell(nn.Dense(30, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dense(8, 1)), seed
    )


@pytest.fixture(scope="session")
def values():
    """Return a function: cells -> every parameter by name, copied."""

    def read(*cells):
        return {
            f"{place}.{parameter.name}": np.array(parameter.asnumpy())
            for place, cell in enumerate(cells)
            for parameter in cell.get_parameters()
        }

    return read


@pytest.fixture(scope="session")
def same():
    """Return a function that tells which of two sets of values differ in any bit."""

    def differing(one, other):
        assert one.keys() == other.keys()
        return [name for name in one if one[name].tobytes() != other[name].tobytes()]

    return lambda one, other: differing(one, other) == []


class Recorder(Callback):
    """Notes the losses of every step and, when asked, every parameter after each call."""

    def __init__(self, look=None):
        self.look = look
        self.losses, self.looks, self.steps = [], [], []

    def on_train_begin(self, trainer):
        if self.look:
            self.looks.append(self.look())

    def on_train_step_end(self, trainer):
        self.losses.extend(trainer.state.outputs.losses.tolist())
        self.steps.append(trainer.state.progress.global_step)
        if self.look:
            self.looks.append(self.look())


@pytest.fixture(scope="session")
def recorder():
    return Recorder
