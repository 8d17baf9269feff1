"""A training begins with what another one has learned: weights, rows of tables, statistics of features."""

import mindspore
import numpy as np
import pytest
from mindspore import nn

from tests.trainer.models.tables import make_rows
from trainer import Trainer
from trainer.errors import CheckpointMismatchError, CheckpointNotFoundError, ConfigurationError
from trainer.features import Categorical, Features, Numeric
from trainer.models import DeepFM
from trainer.serving import Publish

ROWS = {name: column for name, column in make_rows().items() if name in ("age", "item", "user", "click")}


def make_trainer(optimizer=nn.Adam, dim=4, seed=0, model=DeepFM):
    mindspore.set_seed(seed)
    columns = [
        Numeric("age", normalize="standard"),
        Categorical("item", dtype="int64"),
        Categorical("user", dtype="int64"),
    ]
    features = Features(columns, label="click")
    net = model(features, dim=dim, hidden=[4])
    rate = {"learning_rate": 0.05}
    return Trainer(net, nn.BCEWithLogitsLoss(), optimizer(net.trainable_params(), **rate), features=features)


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A trainer that has learned, and a folder with its snapshot (deltas included), a .ckpt and its published model."""
    folder = tmp_path_factory.mktemp("learned")
    trainer = make_trainer()
    trainer.fit(ROWS, epochs=2, batch_size=64, callbacks=[Publish(folder / "published", every=0.001)])
    trainer.save(folder / "run" / "checkpoints")
    trainer.fit({name: column[:64] for name, column in ROWS.items()}, batch_size=64, callbacks=[])
    trainer.save(folder / "run" / "checkpoints")
    mindspore.save_checkpoint(trainer.network, str(folder / "weights.ckpt"))
    return trainer, folder, trainer.predict(ROWS)


@pytest.mark.long
def test_a_snapshot_gives_the_same_predictions_with_another_optimizer(learned):
    _, folder, scores = learned
    trainer = make_trainer(nn.Adagrad, seed=1)
    trainer.init_from(folder / "run")
    assert np.array_equal(trainer.predict(ROWS), scores)
    assert trainer.state.progress.global_step == 0
    trainer.fit(ROWS, batch_size=64, callbacks=[])
    assert trainer.state.progress.global_step == 4
    assert not np.array_equal(trainer.predict(ROWS), scores)


@pytest.mark.long
def test_a_stream_goes_on_from_what_finite_data_taught(learned):
    """What the features learned is there, so that a stream, which has no end to learn from, can be read."""
    trainer = make_trainer(seed=1)
    with pytest.raises(ConfigurationError, match="learn from data first"):
        trainer.online_train([ROWS], batch_size=64, callbacks=[])
    trainer.init_from(learned[1] / "run")
    from trainer.streams import ReplayStream

    trainer.online_train(ReplayStream({**ROWS, "age": np.array(ROWS["age"], float)}), batch_size=64, callbacks=[])
    assert trainer.state.progress.samples_seen == 256


@pytest.mark.long
def test_a_published_model_gives_the_scores_that_it_serves(learned):
    _, folder, _ = learned
    from trainer.serving import ServedModel

    trainer = make_trainer(seed=2)
    trainer.init_from(folder / "published")
    with ServedModel(folder / "published") as model:
        rows = {name: column for name, column in ROWS.items() if name != "click"}
        assert np.array_equal(trainer.predict(ROWS), model.predict(rows))


def test_a_ckpt_gives_the_weights_alone(learned):
    teacher, folder, _ = learned
    trainer = make_trainer(seed=1)
    trainer.init_from(folder / "weights.ckpt")
    for own, theirs in zip(trainer.network.get_parameters(), teacher.network.get_parameters(), strict=True):
        assert np.array_equal(own.asnumpy(), theirs.asnumpy())


class Student(nn.Cell):
    """The same network under another name, with a head of its own."""

    def __init__(self, features, dim, hidden):
        super().__init__()
        self.body = DeepFM(features, dim, hidden)
        self.head = nn.Dense(1, 1)

    def construct(self, *columns):
        return self.head(self.body(*columns).reshape(-1, 1)).reshape(-1)


def test_names_are_mapped_and_a_new_head_is_left_as_it_is(learned):
    _, folder, scores = learned
    trainer = make_trainer(seed=1, model=Student)
    with pytest.raises(CheckpointMismatchError, match=r"head.weight[^$]*parameter_map="):
        trainer.init_from(folder / "run", {"body.": ""})
    trainer.init_from(folder / "run", {"body.": "", "head.": None})
    weight, bias = (parameter.asnumpy() for parameter in trainer.network.head.get_parameters())
    np.testing.assert_allclose(trainer.predict(ROWS), scores * weight[0, 0] + bias[0], rtol=1e-5, atol=1e-6)


def test_what_does_not_fit_is_named_and_nothing_has_changed(learned):
    _, folder, _ = learned
    trainer = make_trainer(dim=8, seed=1)
    before = [parameter.asnumpy().copy() for parameter in trainer.network.get_parameters()]
    with pytest.raises(CheckpointMismatchError, match="differently shaped"):
        trainer.init_from(folder / "run")
    deep = dict.fromkeys(("deep.", "embedding."))
    with pytest.raises(CheckpointMismatchError, match="vectors of length 4 in table 'item', not of 8"):
        trainer.init_from(folder / "run", deep)
    assert all(map(np.array_equal, before, [p.asnumpy() for p in trainer.network.get_parameters()]))
    assert not trainer.features.is_fitted
    trainer.init_from(folder / "run", strict=False)
    assert trainer.features.is_fitted
    for wrong in ({"a": 3}, ["a"]):
        with pytest.raises(ConfigurationError, match="takes a mapping from names or prefixes of names in this network"):
            trainer.init_from(folder / "run", wrong)
    with pytest.raises(CheckpointNotFoundError):
        trainer.init_from(folder / "nothing")


def make_other(**item):
    """Return a trainer whose ids of `item` are declared differently, as text for example."""
    features = Features(
        [Numeric("age", normalize="standard"), Categorical("item", **item), Categorical("user", dtype="int64")],
        label="click",
    )
    net = DeepFM(features, dim=4, hidden=[4])
    return Trainer(net, nn.BCEWithLogitsLoss(), nn.Adam(net.trainable_params(), 0.05), features=features)


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"dtype": "str"}, "dtype='str'"),
        ({"dtype": "int64", "vocabulary": [1, 2, 3]}, "vocabulary='3 values"),
        ({"dtype": "int64", "hash_buckets": 8}, "hash_buckets=8"),
    ],
)
def test_rows_of_ids_that_mean_something_else_are_refused(learned, item, words):
    _, folder, _ = learned
    trainer = make_other(**item)
    for source in ("run", "published"):
        with pytest.raises(CheckpointMismatchError, match=rf"'item' is declared with .*{words}.*dtype='int64', vocab"):
            trainer.init_from(folder / source)
    with pytest.raises(CheckpointMismatchError, match=r"'item'.*Declare it as it was"):
        trainer.load(folder / "run" / "checkpoints")
    with pytest.raises(CheckpointMismatchError, match=r"'item'.*Declare it as it was"):
        trainer.fit(ROWS, epochs=9, batch_size=64, resume=folder / "run" / "checkpoints", callbacks=[])
    assert not trainer.features.is_fitted


@pytest.mark.parametrize("options", [{"strict": False}, {"parameter_map": {"item": None, "linear.item": None}}])
def test_a_table_of_other_ids_starts_empty_where_that_is_wanted(learned, options):
    _, folder, _ = learned
    trainer = make_other(dtype="str")
    trainer.init_from(folder / "run", **options)
    trainer.fit(ROWS, epochs=1, batch_size=64, callbacks=[])
    sizes = {table.spec.name: len(table) for table in trainer.tables.tables.planner.tables}
    items, users = (len(np.unique(ROWS[name])) for name in ("item", "user"))
    assert sizes == {"item": items, "linear.item": items, "user": users, "linear.user": users}


def test_the_linear_table_alone_is_not_filled_with_other_ids(learned):
    with pytest.raises(CheckpointMismatchError, match="'item'"):
        make_other(dtype="str").init_from(learned[1] / "run", {"item": None})
