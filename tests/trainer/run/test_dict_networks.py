"""Networks that take a batch as one dict, `construct(self, batch)`, in every verb."""

import mindspore.dataset as ms_dataset
import numpy as np
import pytest
from mindspore import nn, ops

from trainer import Trainer
from trainer.data.ragged import Ragged
from trainer.embedding import Embedding
from trainer.errors import ConfigurationError, DataError
from trainer.mindspore_internals.dict_networks import batch_keys
from trainer.serving.publisher import Publish
from trainer.serving.served_model import ServedModel

random = np.random.default_rng(0)
A, B = random.normal(size=(12, 3)).astype(np.float32), random.normal(size=(12, 2)).astype(np.float32)
DATA = {"a": A, "b": B, "y": (A.sum(1, keepdims=True) > 0).astype(np.float32)}


class ByPosition(nn.Cell):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Dense(3, 1), nn.Dense(2, 1)
        for number, parameter in enumerate(self.trainable_params()):
            parameter.asnumpy()[...] = np.random.default_rng(number).normal(0, 0.3, parameter.shape)

    def construct(self, a, b):
        return self.left(a) + self.right(b)


class ByName(ByPosition):
    batch_keys = ("a", "b")

    def construct(self, batch):
        return self.left(batch["a"]) + self.right(batch["b"])


class Loops(ByName):
    def construct(self, batch):
        total = 0
        for name in ("a", "b"):
            total = total + batch[name].sum(axis=1, keepdims=True) * self.left.bias
        return total


class Computed(Loops):
    @property
    def batch_keys(self):
        return ("b", "a")


class WithTable(nn.Cell):
    """An id whose row is weighted by the mask of a list of prices."""

    batch_keys = ("prices", "prices_mask", "item")

    def __init__(self):
        super().__init__()
        self.table = Embedding(4, name="items")
        self.top = nn.Dense(5, 1)

    def construct(self, batch):
        prices = (batch["prices"] * ops.cast(batch["prices_mask"], batch["prices"].dtype)).sum(1).expand_dims(1)
        return self.top(ops.concat((self.table(batch["item"]), prices), 1))


def trainer_of(network, loss=None, **options):
    return Trainer(
        network, loss or nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 0.01), seed=1, **options
    )


@pytest.fixture(scope="module")
def trained():
    trainer = trainer_of(ByName(), metrics={"auc"})
    trainer.fit(DATA, 2, batch_size=4)
    return trainer


def test_the_keys_are_those_that_the_network_declares():
    assert batch_keys(ByPosition()) == batch_keys(nn.Dense(1, 1)) == batch_keys(nn.SequentialCell(ByPosition())) == ()
    assert batch_keys(ByName()) == batch_keys(ByName) == batch_keys(Loops()) == ("a", "b")
    assert batch_keys(Computed()) == ("b", "a")


def test_training_equals_that_of_a_network_of_two_arguments(trained):
    other = trainer_of(ByPosition(), metrics={"auc"})
    other.fit(DATA, 2, batch_size=4)
    mixed = {name: DATA[name] for name in ("b", "y", "a")}
    assert trained.evaluate(DATA) == other.evaluate(DATA)
    assert trained.predict({"b": B, "a": A}).tolist() == trained.predict(mixed).tolist() == other.predict(A, B).tolist()


@pytest.mark.long
def test_pipelines_and_streams_are_read_by_name(trained):
    reordered = {name: DATA[name] for name in ("b", "a", "y")}
    pipeline = ms_dataset.NumpySlicesDataset(reordered, shuffle=False).batch(6)
    assert trained.evaluate(pipeline)["loss"] == pytest.approx(trained.evaluate(DATA)["loss"], abs=1e-7)
    one, other = trainer_of(ByName()), trainer_of(ByPosition())
    one.online_train([reordered, DATA])
    other.online_train([DATA, DATA])
    assert one.predict(DATA).tolist() == other.predict(A, B).tolist()


@pytest.mark.long
def test_lower_precision_an_evaluation_cell_and_a_network_that_runs_operator_by_operator():
    class Evaluation(nn.Cell):
        batch_keys = ("a", "b", "y")

        def __init__(self, network):
            super().__init__()
            self.network = network

        def construct(self, batch):
            prediction = self.network(batch)
            return ops.square(prediction - batch["y"]).mean(), prediction, batch["y"]

    network = ByName()
    trainer = trainer_of(
        network, amp_level="O2", eval_network=Evaluation(network), eval_indexes=(0, 1, 2), metrics={"loss"}
    )
    trainer.fit(DATA, 1, batch_size=4)
    results = trainer.evaluate(DATA)
    predictions = trainer.predict({"a": A, "b": B})
    assert results["loss"] == pytest.approx(np.square(predictions - DATA["y"]).mean(), rel=1e-2)
    eager = trainer_of(ByName(), compile=False)
    eager.fit(DATA, 1, batch_size=4, shuffle=False)
    compiled = trainer_of(ByName())
    compiled.fit(DATA, 1, batch_size=4, shuffle=False)
    assert eager.predict(DATA) == pytest.approx(compiled.predict(DATA), abs=1e-6)


@pytest.mark.long
def test_a_network_that_returns_its_loss_reads_the_label_too():
    class OwnLoss(ByName):
        batch_keys = ("a", "b", "y")

        def construct(self, batch):
            logits = self.left(batch["a"]) + self.right(batch["b"])
            return ops.binary_cross_entropy_with_logits(
                logits, batch["y"], ops.ones_like(logits), ops.ones_like(logits)
            )

    network, twin = OwnLoss(), trainer_of(ByPosition())
    trainer = Trainer(network, None, nn.Adam(network.trainable_params(), 0.01), seed=1)
    trainer.fit(DATA, 1, batch_size=4)
    twin.fit(DATA, 1, batch_size=4)
    assert network.left.weight.asnumpy() == pytest.approx(twin.network.left.weight.asnumpy(), abs=1e-6)


@pytest.mark.long
def test_sparse_tables_lists_and_served_models(tmp_path):
    items = np.array(["shoe", "hat", "coat"])[np.arange(12) % 3]
    prices = Ragged.of([[float(i)] * (i % 3) for i in range(12)], max_length=2)
    network = WithTable()
    trainer = trainer_of(network)
    data = {"y": DATA["y"], "item": items, "prices": prices}
    stream = [{"item": items, "prices": prices, "y": DATA["y"]}] * 3
    trainer.online_train(stream, callbacks=Publish(tmp_path, every=100.0, batch=5))
    assert trainer.tables.tables.planner.tables[0].spec.name == "items"
    predictions = trainer.predict(data)
    with ServedModel(tmp_path, follow=False) as served:
        assert served.predict({"prices": [list(row) for row in prices], "item": items}) == pytest.approx(
            predictions, abs=1e-6
        )


def test_columns_that_the_dict_lacks_are_named():
    trainer = trainer_of(ByName())
    for verb in (lambda data: trainer.fit(data, batch_size=4), trainer.evaluate, trainer.predict):
        with pytest.raises(DataError, match=r"ByName.construct reads 'a', 'b' of its batch by name; no column 'b'"):
            verb({"a": A, "bb": B, "y": DATA["y"]})
    with pytest.raises(DataError, match="no column 'a', 'b' among column_0, column_1"):
        trainer.predict(A, B)
    with pytest.raises(DataError, match="did you mean 'bb'"):
        trainer.online_train([{"a": A, "bb": B, "y": DATA["y"]}])


def test_a_network_that_reads_by_name_without_keys_is_refused_before_it_is_compiled():
    class Unnamed(ByName):
        batch_keys = None

    class Rebuilt(ByPosition):
        def construct(self, batch):
            batch = {"a": batch}
            return self.left(batch["a"])

    trainer = trainer_of(Unnamed())
    for verb in (lambda data: trainer.fit(data, batch_size=4), trainer.evaluate, trainer.predict):
        for data in (DATA, {"a": A, "y": DATA["y"]}):
            with pytest.raises(ConfigurationError, match=r"reads 'a' of 'batch' by name.*batch_keys = \('a', 'b'\)"):
                verb(data)
    for array in (A, {"a": A}):
        with pytest.raises(ConfigurationError, match="reads 'a' of 'batch' by name"):
            trainer.predict(array)
    assert trainer_of(Rebuilt()).predict(A).shape == (12, 1)


@pytest.mark.long
def test_a_network_that_does_not_declare_its_keys_gets_a_hint():
    class Untold(Loops):
        batch_keys = None

    with pytest.raises(DataError, match=r"Untold.batch_keys = \('a', ...\)"):
        trainer_of(Untold()).fit(DATA, 1, batch_size=4)
    trainer_of(Loops()).fit(DATA, 1, batch_size=4)
    Untold.batch_keys = "ab"
    with pytest.raises(ConfigurationError, match=r"Untold.batch_keys takes the names .* as \('user', 'item'\)"):
        trainer_of(Untold())
