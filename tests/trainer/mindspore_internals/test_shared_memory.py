"""Tables are trained through shared memory where there is any, and to the same bits where there is none."""

import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype

from trainer import Trainer
from trainer.embedding import Embedding
from trainer.mindspore_internals.shared_memory import HostMirror, overwrite, views_are_live

ROWS, FIELDS = 96, 3


class Model(nn.Cell):
    def __init__(self):
        super().__init__()
        self.table = Embedding(4, name="items", seed=3, mode="sparse")
        self.frozen = Embedding(4, name="groups", seed=5, mode="sparse")
        self.head = nn.Dense(4 * FIELDS, 1, weight_init="ones", bias_init="zeros")

    def construct(self, ids, group):
        mixed = self.table(ids) + self.frozen(group).expand_dims(1)
        return self.head(mixed.reshape(ids.shape[0], -1))


def train():
    """Return losses, predictions and all weights of a small training over tables that grow."""
    rng = np.random.default_rng(0)
    data = {
        "ids": rng.zipf(1.3, (ROWS, FIELDS)).astype(np.int64) % 1000,
        "group": rng.integers(0, 7, ROWS),
        "label": rng.normal(size=(ROWS, 1)).astype(np.float32),
    }
    network = Model()
    optimizer = nn.Adam(network.trainable_params(), 0.05)
    trainer = Trainer(network, nn.MSELoss(), optimizer)
    trainer.fit(data, 2, batch_size=16, callbacks=[], sink_size=2)
    loss = trainer.evaluate(data, batch_size=16, callbacks=[])["loss"]
    scores = trainer.predict({key: data[key] for key in ("ids", "group")}, batch_size=16)
    return np.float32(loss), scores, network.table(Tensor(data["ids"])).asnumpy(), network.head.weight.asnumpy().copy()


@pytest.fixture(scope="module")
def expected():
    return train()


def bits(results):
    return [value.tobytes() for value in results]


@pytest.fixture
def copying(monkeypatch):
    """A MindSpore whose `asnumpy` copies."""
    views = Tensor.asnumpy
    monkeypatch.setattr(Tensor, "asnumpy", lambda tensor: np.array(views(tensor)))


@pytest.mark.usefixtures("copying")
def test_with_copies_in_place_of_views_training_gives_the_same_bits_and_says_so_once(expected, caplog):
    assert not views_are_live()
    assert bits(train()) == bits(expected)
    assert caplog.text.count("does not share memory with the parameter") == 1


@pytest.mark.long
def test_the_user_can_ask_for_public_functions_alone(expected, monkeypatch, caplog):
    monkeypatch.setenv("TRAINER_PUBLIC_MINDSPORE", "1")
    assert not views_are_live()
    assert bits(train()) == bits(expected)
    assert "unlike" not in caplog.text


class AddTen(nn.Cell):
    def __init__(self):
        super().__init__()
        self.rows = Parameter(Tensor(np.zeros((4, 2), np.float32)), name="rows")

    def construct(self, flag):
        if flag:
            ops.assign_add(self.rows, ops.ones_like(self.rows) * 10)
        return self.rows.sum()


@pytest.mark.parametrize("shared", [True, False])
def test_a_mirror_exchanges_rows_with_a_compiled_graph_both_ways(shared, monkeypatch):
    monkeypatch.setenv("TRAINER_PUBLIC_MINDSPORE", "0" if shared else "1")
    cell = AddTen()
    mirror = HostMirror(cell.rows)
    assert mirror.live == shared
    for round_ in range(3):
        array = mirror.array(4)
        array[:] = round_
        mirror.push()
        cell.compile_and_run(Tensor(True))
        assert (mirror.pull() == round_ + 10).all()
    overwrite(cell.rows, np.full((4, 2), 5, np.float32))
    assert float(cell.compile_and_run(Tensor(False))) == 40


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", ["float16", "bool", "int64", "float32 of another order", "scalar"])
def test_parameters_of_any_kind_take_a_value_of_another_dtype(kind, shared, monkeypatch):
    monkeypatch.setenv("TRAINER_PUBLIC_MINDSPORE", "0" if shared else "1")
    values = np.array([[0, 1, 2], [3, 0, 1]], np.float64)
    if kind == "float32 of another order":
        start = Tensor(np.zeros((3, 2), np.float32)).T
    elif kind == "scalar":
        start, values = Tensor(0.0, mstype.float32), np.array(2.0)
    else:
        start = Tensor(np.zeros((2, 3), kind))
    parameter = Parameter(start, name="value", requires_grad=False)
    dtype = parameter.asnumpy().dtype
    overwrite(parameter, values)
    seen = ops.stack((parameter, parameter))[0]  # by an operator
    np.testing.assert_array_equal(seen.asnumpy(), values.astype(dtype))


def test_a_parameter_that_is_copied_after_all_takes_a_value_too(request):
    assert views_are_live()
    request.getfixturevalue("copying")
    cell = AddTen()
    cell.compile_and_run(Tensor(False))
    overwrite(cell.rows, np.full((4, 2), 5, np.float32))
    assert float(cell.compile_and_run(Tensor(False))) == 40
