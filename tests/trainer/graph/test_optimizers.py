"""What may be given as `optimizer`: a name, a function, a row optimizer alone, several by parameter group."""

import numpy as np
import pytest
from mindspore import nn, ops
from sklearn.datasets import load_breast_cancer

from callbacks import SkipNonFinite
from trainer import Trainer
from trainer.embedding import Embedding, RowAdagrad
from trainer.errors import ConfigurationError


class WideDeep(nn.Cell):
    def __init__(self):
        super().__init__()
        self.wide = nn.Dense(30, 1, weight_init="zeros", bias_init="zeros")
        self.deep = nn.SequentialCell(
            nn.Dense(30, 4, weight_init="ones", bias_init="zeros"),
            nn.ReLU(),
            nn.Dense(4, 1, weight_init="ones", bias_init="zeros"),
        )

    def construct(self, features):
        return self.wide(features) + self.deep(features)


class Factors(nn.Cell):
    """A network of tables alone: a bias for each id and the product of two vectors."""

    def __init__(self):
        super().__init__()
        self.user, self.film = Embedding(4, mode="sparse"), Embedding(4, mode="sparse")
        self.bias = Embedding(1, mode="sparse")

    def construct(self, user, film):
        return ops.sum(self.user(user) * self.film(film), 1, keepdim=True) + self.bias(film)


@pytest.fixture(scope="module")
def table():
    data = load_breast_cancer()
    features = ((data.data - data.data.mean(0)) / data.data.std(0)).astype(np.float32)
    return {"features": features[:512], "label": data.target[:512].astype(np.float32)[:, None]}  # no odd last batch


@pytest.fixture(scope="module")
def ratings():
    random = np.random.default_rng(0)
    user, film = random.integers(0, 20, 768), random.integers(0, 30, 768)
    return {"user": user, "film": film, "label": ((user + film) % 2).astype(np.float32)[:, None]}


def fit(network, optimizer, data, **options):
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), optimizer, **options)
    trainer.fit(data, 3, callbacks=[], batch_size=64, shuffle=False, sink_size=1)
    return trainer


def weights(cell):
    return np.concatenate([np.array(p.asnumpy()).ravel() for p in cell.trainable_params()])


def test_a_name_and_a_function_make_the_optimizer_over_the_networks_parameters(table):
    given = WideDeep()
    fit(given, nn.Adam(given.trainable_params(), learning_rate=1e-2), table)
    for optimizer in (("adam", {"learning_rate": 1e-2}), lambda parameters: nn.Adam(parameters, learning_rate=1e-2)):
        network = WideDeep()
        fit(network, optimizer, table)
        np.testing.assert_array_equal(weights(network), weights(given))


@pytest.mark.parametrize("callbacks", [[], [SkipNonFinite()]], ids=["plain", "guarded"])
def test_two_optimizers_each_update_their_own_part_as_they_would_alone(table, tmp_path, callbacks):
    both, wide, deep = WideDeep(), WideDeep(), WideDeep()
    optimizers = [nn.Momentum(both.wide.trainable_params(), 0.05, 0.9), nn.Adam(both.deep.trainable_params(), 1e-3)]
    one_step = {"callbacks": callbacks, "batch_size": 512, "shuffle": False}
    trainer = Trainer(both, nn.BCEWithLogitsLoss(), optimizers)
    trainer.fit(table, 1, **one_step)
    alone = Trainer(wide, nn.BCEWithLogitsLoss(), nn.Momentum(wide.wide.trainable_params(), 0.05, 0.9))
    alone.fit(table, 1, **one_step)
    other = Trainer(deep, nn.BCEWithLogitsLoss(), nn.Adam(deep.deep.trainable_params(), 1e-3))
    other.fit(table, 1, **one_step)
    np.testing.assert_allclose(weights(both.wide), weights(wide.wide), rtol=1e-6)
    np.testing.assert_allclose(weights(both.deep), weights(deep.deep), rtol=1e-6)
    assert trainer.learning_rate == pytest.approx(0.05)

    trainer.save(tmp_path)
    trainer.fit(table, 1, **one_step)
    again = WideDeep()
    optimizers = [nn.Momentum(again.wide.trainable_params(), 0.05, 0.9), nn.Adam(again.deep.trainable_params(), 1e-3)]
    resumed = Trainer(again, nn.BCEWithLogitsLoss(), optimizers)
    resumed.fit(table, 2, resume=tmp_path, **one_step)
    np.testing.assert_allclose(weights(again), weights(both), rtol=1e-6)


@pytest.mark.parametrize("optimizer", [RowAdagrad(lr=0.5), ("adam", {"learning_rate": 0.05}), "adagrad"])
def test_a_network_of_tables_alone_trains(ratings, optimizer):
    trainer = fit(Factors(), optimizer, ratings)
    losses = trainer.history.history["loss"]
    assert losses[-1] < losses[0]


def test_mistakes_are_named(table):
    with pytest.raises(ConfigurationError, match="no optimizer 'adamm'; did you mean 'adam'"):
        Trainer(WideDeep(), nn.BCEWithLogitsLoss(), "adamm")
    with pytest.raises(ConfigurationError, match="RowAdagrad updates rows of tables, and the network has dense"):
        Trainer(WideDeep(), nn.BCEWithLogitsLoss(), RowAdagrad())
    network = WideDeep()
    twice = [nn.Adam(network.trainable_params()), nn.SGD(network.wide.trainable_params())]
    with pytest.raises(ConfigurationError, match=r"wide\.weight is in two"):
        Trainer(network, nn.BCEWithLogitsLoss(), twice)
