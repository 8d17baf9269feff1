"""Frames and tensors of other libraries, whole and as batches; what cannot be taken is refused with the cure.

torch is no dependency, and its packages are large: its case runs where it is installed.
"""

import numpy as np
import pandas
import pyarrow
import pytest
from mindspore import nn, ops

from trainer import Trainer
from trainer.errors import ConfigurationError, DataError
from trainer.streams import IterableStream, ReplayStream

COLUMNS = {"a": np.arange(8.0), "b": np.arange(8.0)[::-1].copy(), "label": np.ones(8)}


class Sum(nn.Cell):
    def __init__(self):
        super().__init__()
        self.top = nn.Dense(2, 1, weight_init="ones", bias_init="zeros")

    def construct(self, a, b):
        return self.top(ops.stack((a, b), 1)).reshape(-1)


def trainer(network=None):
    network = network or Sum()
    return Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 1e-3))


def fitted(data, network=None, **options):
    made = trainer(network)
    made.fit(data, callbacks=[], shuffle=False, **options)
    return made.state.train_loss


@pytest.fixture(scope="module")
def expected():
    return fitted(COLUMNS, batch_size=4)


def frame(kind):
    if kind == "arrow":
        return pyarrow.table(COLUMNS)
    return pandas.DataFrame(COLUMNS)


@pytest.mark.long(but=["pandas"])
@pytest.mark.parametrize("kind", ["arrow", "pandas"])
def test_a_frame_is_its_columns_as_a_whole_in_batches_and_in_streams(kind, expected):
    table = frame(kind)
    halves = [table[:4], table[4:]] if kind == "pandas" else [table.slice(0, 4), table.slice(4)]
    assert fitted(table, batch_size=4) == expected
    assert fitted(halves) == expected
    for stream in (ReplayStream(table), IterableStream(halves)):
        made = trainer()
        made.online_train(stream, [], batch_size=4)
        assert made.state.window["window_loss"] == pytest.approx(expected)


def test_pandas_columns_in_other_places():
    table = pandas.DataFrame(COLUMNS)
    whole = fitted(COLUMNS, batch_size=4)
    assert fitted((table["a"], table["b"], table["label"]), batch_size=4) == whole
    assert fitted((table[["a", "b"]], table[["label"]]), nn.Dense(2, 1), batch_size=4) > 0
    times = table.assign(a=pandas.date_range("2020", periods=8))
    with pytest.raises(DataError, match=r"datetime64.*turn times into numbers first"):
        fitted(times, batch_size=4)


def test_torch_tensors_bfloat16_included(expected):
    torch = pytest.importorskip("torch")
    tensors = {name: torch.tensor(column, dtype=torch.bfloat16) for name, column in COLUMNS.items()}
    assert fitted(tensors, batch_size=4) == expected


def test_a_list_of_columns_is_refused_with_the_cure():
    x, y = np.ones((8, 3), np.float32), np.ones((8, 1), np.float32)
    with pytest.raises(ConfigurationError, match="columns are given as a tuple or dict"):
        fitted([x, y], nn.Dense(3, 1), batch_size=4)
    with pytest.raises(DataError, match=r"a list is read as a list of batches: pass columns as a tuple or dict"):
        fitted([x, y], nn.Dense(3, 1))
