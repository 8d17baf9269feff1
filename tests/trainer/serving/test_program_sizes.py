"""A published model with programs for several numbers of rows: each request runs the smallest that holds it."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops

from trainer import Trainer
from trainer.data.ragged import Ragged
from trainer.embedding import Embedding, EmbeddingBag
from trainer.errors import CheckpointDamagedError, ConfigurationError
from trainer.serving import Publish, ServedModel

SIZES = (2, 8, 32)
COUNTS = [1, 2, 3, 8, 9, 31, 33, 40, 70]


class Net(nn.Cell):
    """A table, lists as mask and as offsets, numbers; and how many rows the program has."""

    def __init__(self):
        super().__init__()
        self.users = Embedding(4, mode="sparse", name="users")
        self.films = Embedding(4, mode="sparse", name="films")
        self.tags = EmbeddingBag(3, name="tags")
        self.head = nn.Dense(4 + 4 + 3 + 1, 1)

    def construct(self, user, history, history_mask, tags, tags_offsets, number):
        films = (self.films(history) * ops.cast(history_mask, number.dtype).expand_dims(-1)).sum(1)
        parts = (self.users(user), films, self.tags(tags, None, tags_offsets), number)
        return self.head(ops.concat(parts, 1)).reshape(-1), ops.zeros_like(number) + number.shape[0]


class First(nn.Cell):
    """The loss of the first output."""

    def __init__(self):
        super().__init__()
        self.loss = nn.BCEWithLogitsLoss()

    def construct(self, outputs, label):
        return self.loss(outputs[0], label)


def rows(count, seed=0):
    rng = np.random.default_rng(seed)
    history = [[f"film-{n}" for n in rng.integers(0, 20, rng.integers(0, 5))] for _ in range(count)]
    tags = [rng.integers(0, 9, rng.integers(0, 5)).tolist() for _ in range(count)]
    return {
        "user": rng.integers(0, 30, count),
        "history": Ragged.of(history, max_length=6),
        "tags": Ragged.of(tags, max_length=6),
        "number": rng.normal(size=(count, 1)).astype(np.float32),
    }


def batches():
    for seed in range(1000):
        yield {**rows(16, seed), "label": np.float32(np.arange(16) % 2)}


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Publish a version, and a second one later; return the trainer and the folder."""
    ms.set_seed(0)
    network = Net()
    trainer = Trainer(network, First(), nn.Adam(network.trainable_params(), 0.05))
    publish = Publish(tmp_path_factory.mktemp("sizes"), every=1e-6, batch=SIZES, on_error="raise")
    trainer.online_train(batches, max_steps=3, callbacks=[publish])
    return trainer, publish


def assert_answers(model, trainer):
    for count in COUNTS:
        asked = rows(count, 99)
        answers, size = model.predict(asked)
        expected, _ = trainer.predict(asked, batch_size=count)
        np.testing.assert_allclose(answers, expected, rtol=1e-4, atol=1e-6)
        left = count % 32
        smallest = next((size for size in SIZES if left <= size), 32) if left else 32
        np.testing.assert_array_equal(size[:, 0], [32] * (count - left) + [smallest] * left)


@pytest.mark.long
def test_rows_run_the_smallest_program_that_holds_them(published):
    trainer, publish = published
    with ServedModel(publish.root, follow=False) as model:
        assert_answers(model, trainer)


@pytest.mark.long
def test_every_program_has_the_weights_and_rows_of_the_version(published):
    trainer, publish = published
    with ServedModel(publish.root, follow=False) as model:
        before = model.predict(rows(1, 99))[0]
        trainer.online_train(batches, max_steps=3, callbacks=[publish])
        publish.wait()
        assert model.refresh()
        assert abs(model.predict(rows(1, 99))[0] - before) > 1e-3
        assert_answers(model, trainer)


@pytest.mark.long
def test_damage_of_any_program_is_named(published):
    root = published[1].root
    with ServedModel(root, follow=False) as model:
        file = root / model.current.graph.name / "network-8.mindir"
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    with pytest.raises(CheckpointDamagedError, match=r"network-8\.mindir"):
        ServedModel(root, follow=False)
    file.write_bytes(content)


@pytest.mark.parametrize("batch", [0, (1, 0), (), 2.5, "many", (1, None)])
def test_numbers_of_rows_that_cannot_be_are_refused(tmp_path, batch):
    with pytest.raises(ConfigurationError, match=r"Publish\(batch=\.\.\.\).* or several such numbers"):
        Publish(tmp_path, batch=batch)
