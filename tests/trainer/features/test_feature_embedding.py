"""What `FeatureEmbedding` gives a network equals rows of its tables, put together in NumPy."""

import numpy as np
import pytest
from mindspore import nn, ops

from trainer import Trainer
from trainer.embedding import EmbeddingGroup
from trainer.errors import ConfigurationError
from trainer.features import Categorical, FeatureEmbedding, Features, ListFeature, Numeric, WeightedList

FEATURES = Features(
    [
        Categorical("home", table="cities"),
        Categorical("work", table="cities"),
        Categorical("item", table="items"),
        ListFeature("genres", pooling="mean"),
        WeightedList("tags", weights="tag_weights", pooling="sum"),
        ListFeature("history", table="items", pooling=None),
        Numeric("age", indicator=True),
    ],
    label="y",
)
ROWS = [
    {"home": "a", "work": "b", "item": "i", "genres": ["x", "y"], "tags": ["t"], "history": ["j", "i"], "age": 3.0},
    {"home": "b", "work": "b", "item": None, "genres": [], "tags": ["t", "u"], "history": None, "age": None},
    {"home": None, "work": "a", "item": "j", "genres": ["y"], "tags": None, "history": ["i", "k", "j"], "age": -1.0},
]
for row in ROWS:
    row |= {"tag_weights": [0.5, 2.0] if row["tags"] and len(row["tags"]) > 1 else [3.0], "y": 1.0}


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embedding = FeatureEmbedding(FEATURES, 4, initializer="uniform", scale=1.0)
        self.wide = FeatureEmbedding(FEATURES, 1, prefix="wide_")
        self.bias = nn.Dense(2, 1)

    def construct(self, *columns):
        fields, numbers, sequences = self.embedding(*columns)
        vectors, mask = sequences[0]
        wide, _, _ = self.wide(*columns)
        score = fields.sum((1, 2)) + vectors.sum((1, 2)) + wide.sum((1, 2)) + self.bias(numbers)[:, 0]
        return score, fields, numbers, vectors, mask


class Loss(nn.Cell):
    def construct(self, outputs, label):
        return ops.square(outputs[0] - label).mean()


@pytest.fixture(scope="module")
def network():
    net = Net()
    trainer = Trainer(net, Loss(), nn.SGD(net.trainable_params(), 0.01), features=FEATURES)
    trainer.fit(ROWS, epochs=2, batch_size=3, callbacks=[])
    return trainer, net


def table(cell, ids):
    """Return the rows of raw ids, [n, 4]."""
    table = cell.host_table()
    rows = np.zeros((len(ids), 4), np.float32)
    table.store.read_part(table.lookup(np.asarray(ids, np.int64), None), rows)
    return rows


def test_outputs_are_rows_of_the_tables(network):
    trainer, net = network
    _, fields, numbers, vectors, mask = trainer.predict(ROWS)
    inputs = FEATURES.transform(ROWS)
    home, work, item = net.embedding.categories.members
    for number, cell in enumerate((home, work, item)):
        np.testing.assert_array_equal(fields[:, number], table(cell, inputs["ids"][:, number]))
    np.testing.assert_array_equal(table(home, inputs["ids"][:1, 1]), table(work, inputs["ids"][:1, 1]))
    assert [cell.spec.name for cell in (home, item)] == ["cities", "items"]
    genres, tags, history = inputs["genres"], inputs["tags"], inputs["history"]
    x_y = table(net.embedding.bags[0], genres.values)
    np.testing.assert_allclose(fields[:, 3], [x_y[:2].mean(0), np.zeros(4), x_y[2]], rtol=1e-5)
    t_u = table(net.embedding.bags[1], tags.values)
    np.testing.assert_allclose(fields[:, 4], [3 * t_u[0], 0.5 * t_u[1] + 2 * t_u[2], np.zeros(4)], rtol=1e-5)
    np.testing.assert_array_equal(numbers, inputs["numbers"])
    rows = table(item, history.values)
    np.testing.assert_array_equal(vectors[0, :2], rows[:2])
    np.testing.assert_array_equal(vectors[2, :3], rows[2:])
    np.testing.assert_array_equal(mask.sum(1), [2, 0, 3])
    assert not vectors[~mask.astype(bool)].any()


def test_fields_are_found_by_name(network):
    embedding = network[1].embedding
    assert embedding.field_names == ("home", "work", "item", "genres", "tags")
    assert embedding.sequence_names == ("history",)
    assert embedding.field_index("genres") == 3
    with pytest.raises(ConfigurationError, match="did you mean 'genres'"):
        embedding.field_index("genre")
    with pytest.raises(ConfigurationError, match="dim=8"):
        FeatureEmbedding(Features([Categorical("a", dim=8)]), 4)


LEARNED, BIG = {"vocabulary": "learn"}, {"options": {"capacity": 10**7}}


@pytest.mark.parametrize(
    ("item", "history", "message"),
    [
        (
            LEARNED,
            LEARNED,
            "vocabulary='learn'.*Declare both alike, without a learned vocabulary, or give each its own",
        ),
        ({"vocabulary": ["a", "b"]}, {"vocabulary": ["a", "c"]}, "share the table 'items'.*another row in each"),
        ({"dtype": "int64"}, {}, "'item' is declared with dtype='int64'.*'history' with dtype='str'"),
        ({"hash_buckets": 10}, {"hash_buckets": 20}, "hash_buckets=10.*hash_buckets=20"),
        ({}, BIG, "feature 'history' has options=.*give 'item' these options"),
    ],
)
def test_features_that_share_a_table_give_a_value_one_row(item, history, message):
    features = Features([Categorical("item", table="items", **item), ListFeature("history", table="items", **history)])
    with pytest.raises(ConfigurationError, match=message):
        FeatureEmbedding(features, 4)
    FeatureEmbedding(features, 4, exclude=["history"])  # then only one feature reads the table


def test_features_that_share_a_table_may_be_declared_alike():
    for options in ({"vocabulary": ["a", "b"]}, {"hash_buckets": 9}, BIG):
        parts = [Categorical("item", table="items", **options), ListFeature("history", table="items", **options)]
        layer = FeatureEmbedding(Features(parts), 4)
        assert layer.bags[0].spec is layer.categories.members[0].spec


def test_a_sequence_declared_first_gives_its_options_to_a_pooled_list_of_the_same_table():
    parts = [ListFeature("history", table="items", pooling=None, **BIG), ListFeature("liked", table="items")]
    layer = FeatureEmbedding(Features(parts), 4)
    assert layer.rows[0].spec is layer.bags[0].spec
    assert layer.bags[0].spec.capacity == BIG["options"]["capacity"]


def test_a_misspelt_option_of_a_table_is_named():
    for feature in (Categorical("item", options={"capcity": 9}), ListFeature("item", options={"capcity": 9})):
        with pytest.raises(ConfigurationError, match=r"feature 'item': an argument in options.*mean 'capacity'"):
            FeatureEmbedding(Features([feature]), 4)
    with pytest.raises(ConfigurationError, match=r"argument of the table 'a'.*mean 'capacity'"):
        EmbeddingGroup(4, {"a": {"capcity": 9}})
