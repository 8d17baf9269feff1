"""However many rows are asked for at once, a served model has the bits of `Trainer.predict`."""

import numpy as np
import pytest
from mindspore import nn

from trainer import Trainer
from trainer.embedding import Embedding
from trainer.features import Categorical, Features, ListFeature, Numeric
from trainer.models import DeepFM
from trainer.serving import Publish, ServedModel

COUNTS = [*range(1, 65), 127, 128, 129, 200, 255, 256]
RNG = np.random.default_rng(0)
ROWS = 256


class Dense(nn.Cell):
    rows_are_independent = True

    def __init__(self):
        super().__init__()
        self.layers = nn.SequentialCell(nn.Dense(40, 64), nn.ReLU(), nn.Dense(64, 32), nn.ReLU(), nn.Dense(32, 1))

    def construct(self, x):
        return self.layers(x)


class Sparse(Dense):
    def __init__(self):
        super().__init__()
        self.table = Embedding(8, mode="sparse", scale=1.0)

    def construct(self, ids):
        return self.layers(self.table(ids).reshape(-1, 40))


def dense():
    return Dense(), None, {"x": RNG.normal(size=(ROWS, 40)).astype(np.float32)}


def sparse():
    return Sparse(), None, {"ids": RNG.integers(0, 60, (ROWS, 5))}


def raw_rows():
    columns = {
        "user": RNG.integers(0, 60, ROWS),
        "age": RNG.normal(size=ROWS),
        "tags": np.array(["|".join(RNG.choice(list("abcdef"), 1 + n % 3, replace=False)) for n in range(ROWS)]),
    }
    tags = ListFeature("tags", separator="|", max_length=3)
    features = Features([Categorical("user", dtype="int64"), Numeric("age"), tags], label="y")
    features.fit({**columns, "y": np.zeros(ROWS)})
    return DeepFM(features, 8, (64, 32)), features, columns


@pytest.mark.long(but=["dense"])
@pytest.mark.parametrize("make", [dense, sparse, raw_rows])
def test_each_number_of_rows_has_the_trainers_bits(make, tmp_path):
    network, features, columns = make()
    labels = (RNG.random(ROWS) < 0.5).astype(np.float32)
    shape = (ROWS,) if features is not None else (ROWS, 1)
    trainer = Trainer(
        network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 0.01), features=features, seed=0
    )
    trainer.fit({**columns, "y": labels.reshape(shape)}, batch_size=64, callbacks=[Publish(tmp_path / "published")])
    with ServedModel(tmp_path / "published", follow=False) as model:
        before = trainer.builder.programs
        for count in COUNTS:
            asked = {name: column[:count] for name, column in columns.items()}
            answers = model.predict(asked)
            np.testing.assert_array_equal(answers, trainer.predict(asked), err_msg=f"{count} rows")
            if count in (1, 7, 64):  # the bits of a row do not depend on how many other rows are asked for
                np.testing.assert_array_equal(answers[:1], model.predict({n: c[:1] for n, c in columns.items()}))
        assert trainer.builder.programs - before == 2
        many = {name: np.concatenate([column] * 3) for name, column in columns.items()}
        np.testing.assert_array_equal(model.predict(many), trainer.predict(many, batch_size=256))
