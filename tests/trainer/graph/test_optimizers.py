"""What may be given as `optimizer`: a name, a function, a row optimizer alone, several by parameter group."""

import itertools

import numpy as np
import pytest
from mindspore import experimental, nn, ops
from sklearn.datasets import load_breast_cancer

from callbacks import SkipNonFinite
from trainer import Callback, Trainer
from trainer.embedding import Embedding, RowAdagrad
from trainer.errors import ConfigurationError
from trainer.graph.optimizers import OptimizerGroups, get_learning_rate, set_learning_rate


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


@pytest.mark.long
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


@pytest.mark.parametrize("release", ["0.6", "this"])
def test_two_optimizers_keep_the_names_of_their_state_in_a_further_trainer(tmp_path, release):
    """As where the first Trainer has looked for a learning rate."""

    def make(trainers):
        network = WideDeep()
        optimizers = [nn.SGD(network.wide.trainable_params(), 0.5), nn.Adam(network.deep.trainable_params(), 0.25)]
        return [Trainer(network, nn.BCEWithLogitsLoss(), optimizers) for _ in range(trainers)][-1]

    saved, loaded = make(2), make(1)
    saved.learning_rates = [0.125, 0.0625]
    for parameter in saved.optimizer.get_parameters() if release == "0.6" else ():
        if parameter.name.startswith("group_"):
            parameter.name = f"{parameter.name[:8]}{parameter.name}"
    saved.save(tmp_path)
    loaded.load(tmp_path)
    assert loaded.learning_rates == [0.125, 0.0625]


@pytest.mark.long
@pytest.mark.parametrize("optimizer", [RowAdagrad(lr=0.5), ("adam", {"learning_rate": 0.05}), "adagrad"])
def test_a_network_of_tables_alone_trains(ratings, optimizer):
    trainer = fit(Factors(), optimizer, ratings)
    losses = trainer.history.history["loss"]
    assert losses[-1] < losses[0]


def test_mistakes_are_named(table):
    with pytest.raises(
        ConfigurationError, match=r"optimizer.* takes .*'adam'.*; received 'adamm'; did you mean 'adam'"
    ):
        Trainer(WideDeep(), nn.BCEWithLogitsLoss(), "adamm")
    with pytest.raises(ConfigurationError, match="RowAdagrad updates rows of tables, and the network has dense"):
        Trainer(WideDeep(), nn.BCEWithLogitsLoss(), RowAdagrad())
    network = WideDeep()
    twice = [nn.Adam(network.trainable_params()), nn.SGD(network.wide.trainable_params())]
    with pytest.raises(ConfigurationError, match=r"wide\.weight is in two"):
        Trainer(network, nn.BCEWithLogitsLoss(), twice)


def groups(network):
    return [{"params": [network[0].weight], "lr": 0.3}, {"params": [network[0].bias], "lr": 0.1}]


@pytest.mark.parametrize(
    ("make", "rate"),
    [
        (lambda network: nn.SGD(network.trainable_params(), 0.25), 0.25),
        (lambda network: nn.Adam(network.trainable_params(), 0.25), 0.25),
        (lambda network: nn.Momentum(groups(network), 0.5, 0.9), 0.3),
        (lambda network: experimental.optim.Adam(network.trainable_params(), 0.25), 0.25),
        (lambda network: nn.SGD(network.trainable_params(), [0.5, 0.4, 0.3]), 0.5),
        (lambda network: nn.SGD(network.trainable_params(), nn.ExponentialDecayLR(0.5, 0.9, 1)), 0.5),
    ],
    ids=["SGD", "Adam", "groups", "experimental", "list", "schedule"],
)
def test_reads_any(make, rate, linear):
    assert get_learning_rate(make(linear())) == pytest.approx(rate)
    assert get_learning_rate(None) is None


def test_sets_constants_of_every_group(linear):
    network = linear()
    optimizer = nn.Momentum(groups(network), 0.5, 0.9)
    set_learning_rate(optimizer, 0.125)
    assert [float(rate.asnumpy()) for rate in optimizer.learning_rate] == [0.125, 0.125]


@pytest.mark.parametrize("optimizer", ["schedule", None])
def test_a_schedule_cannot_be_set(optimizer, linear):
    made = nn.SGD(linear().trainable_params(), nn.ExponentialDecayLR(0.5, 0.9, 1)) if optimizer else None
    with pytest.raises(ConfigurationError, match="has no constant learning rate to set"):
        set_learning_rate(made, 0.1)


@pytest.mark.parametrize("options", [{}, {"loss_scale": 8}], ids=["plain", "with a branch in the step"])
def test_a_new_rate_counts_from_the_next_step(options, linear, batches, values):
    network = linear()
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.5), **options)
    weights = [values(network)["0.0.weight"]]

    class Stop(Callback):
        def on_train_step_end(self, trainer):
            weights.append(values(network)["0.0.weight"])
            trainer.learning_rate = {1: 0.5, 2: 0.0, 3: 0.5}.get(trainer.state.progress.global_step, 0.5)

    trainer.fit(batches(64, 4), callbacks=Stop(), sink_size=1)
    moved = [not (before == after).all() for before, after in itertools.pairwise(weights)]
    assert moved == [True, True, False, True]
    assert trainer.learning_rate == 0.5
    assert np.isfinite(weights[-1]).all()


class TwoLayers(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Dense(2, 1, weight_init="ones", has_bias=False) for _ in range(2))

    def construct(self, x):
        return (self.first(x) + self.second(x)).reshape(-1)


def test_several_optimizers_keep_the_loss_scale_they_were_made_with():
    def weights(listed):
        network = TwoLayers()
        parameters = network.trainable_params()
        parts = [parameters[:1], parameters[1:]] if listed else [parameters]
        made = [nn.Momentum(part, 0.01, 0.0, loss_scale=128.0) for part in parts]
        trainer = Trainer(network, nn.MSELoss(), made if listed else made[0], loss_scale=128.0)
        trainer.fit((np.ones((4, 2), np.float32), np.zeros(4, np.float32)), 1, batch_size=4, callbacks=[])
        return [parameter.asnumpy() for parameter in parameters]

    np.testing.assert_array_equal(weights(listed=True), weights(listed=False))
    parameters = TwoLayers().trainable_params()
    with pytest.raises(ConfigurationError, match="take one loss_scale; received 1, 128"):
        OptimizerGroups([nn.SGD(parameters[:1]), nn.Momentum(parameters[1:], 0.1, 0.9, loss_scale=128.0)])


@pytest.mark.parametrize("listed", [False, True])
def test_an_option_that_mindspore_ignores_is_named(listed, linear, batches, caplog):
    network = linear()
    weight, bias = network.trainable_params()
    momentum = nn.Momentum([weight] if listed else [weight, bias], 0.1, 0.9, use_nesterov=True)
    optimizer = [momentum, nn.SGD([bias], 0.1)] if listed else momentum
    Trainer(network, nn.BCEWithLogitsLoss(), optimizer).fit(batches(count=1), callbacks=[])
    assert "MindSpore ignores use_nesterov on the CPU; nn.SGD(momentum=..., nesterov=True)" in caplog.text
