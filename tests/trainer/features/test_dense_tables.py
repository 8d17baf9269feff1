"""Tables of features as ordinary parameters, and layers that leave features out."""

import numpy as np
import pytest
from mindspore import nn

from trainer import Trainer
from trainer.errors import ConfigurationError
from trainer.features import Bucketized, Categorical, Cross, FeatureEmbedding, Features, ListFeature, Time
from trainer.models import WideDeep

DENSE = {"mode": "dense"}
TABLE = {
    "user": [f"u{n % 7}" for n in range(64)],
    "genres": [["a", "b", "c"][: n % 4] for n in range(64)],
    "age": [float(n % 50) if n % 5 else None for n in range(64)],
    "ts": [1.6e9 + 3600.0 * n for n in range(64)],
    "click": [float(n % 7 > 3) for n in range(64)],
}


def test_every_row_of_a_dense_table_decays_and_its_size_follows_from_the_feature():
    features = Features(
        [
            Categorical("user", vocabulary="learn", max_size=9, options=DENSE),
            Bucketized("age", boundaries=[10, 20], options=DENSE),
            Time("ts", parts=["hour"], options=DENSE),
            ListFeature("genres", hash_buckets=5, max_length=3, options=DENSE),
        ],
        label="click",
    )
    net = WideDeep(features, dim=4, hidden=[8])
    user, age, hour = net.embedding.categories.members
    (genres,) = net.embedding.bags
    assert [cell.weight.shape for cell in (user, age, hour, genres)] == [(11, 4), (4, 4), (25, 4), (6, 4)]
    before = user.weight.asnumpy().copy()
    optimizer = nn.SGD(net.trainable_params(), 0.1, weight_decay=1.0)
    trainer = Trainer(net, nn.BCEWithLogitsLoss(), optimizer, features=features, seed=0)
    trainer.fit(TABLE, epochs=2, batch_size=32)
    assert np.isfinite(trainer.predict({"user": "never seen", "genres": ["z"], "age": None, "ts": None})).all()
    # 7 of 9 ids occur, after the rows for missing and unseen; the others decay in each of 4 steps
    np.testing.assert_allclose(user.weight.asnumpy()[9:], before[9:] * 0.9**4, rtol=1e-5)
    assert not np.allclose(user.weight.asnumpy()[2:9], before[2:9] * 0.9**4, rtol=1e-3)


def test_a_dense_table_without_a_known_size_is_refused():
    features = Features([Categorical("user", vocabulary="learn", options=DENSE)])
    with pytest.raises(ConfigurationError, match=r"feature 'user': mode='dense' needs the number of ids.*max_size"):
        FeatureEmbedding(features, 4)
    features = Features([Categorical("user", dtype="int64", options={**DENSE, "capacity": 3})])
    assert FeatureEmbedding(features, 4).categories.members[0].weight.shape == (3, 4)


def test_crosses_are_the_linear_model_s_alone():
    features = Features(
        [
            Cross("user_age", columns=["user", "city"]),
            Categorical("user"),
            Cross("user_genres", columns=["user", "genres"], elements="genres", max_length=3),
            ListFeature("genres", max_length=3),
        ],
        label="click",
    )
    table = {**TABLE, "city": [f"c{n % 3}" for n in range(64)]}
    net = WideDeep(features, dim=4, hidden=[8])
    assert net.embedding.field_names == ("user", "genres")
    assert net.wide.weights.field_names == ("user_age", "user", "user_genres", "genres")
    trainer = Trainer(net, nn.BCEWithLogitsLoss(), nn.Adam(net.trainable_params(), 1e-2), features=features, seed=0)
    trainer.fit(table, epochs=2, batch_size=32)
    tables = trainer.tables.tables.tables
    assert set(tables) == {"user", "genres", "linear.user_age", "linear.user", "linear.user_genres", "linear.genres"}
    inputs = features.transform(table)
    assert features.inputs == ("ids", "user_genres", "genres")
    user = net.embedding.categories.members[0].host_table()
    of_user_age, of_user = net.wide.weights.categories.members
    crossed, ids = inputs["ids"].T
    assert len(user) == len(of_user.host_table()) == len(np.unique(ids)) == 7
    assert len(of_user_age.host_table()) == len(np.unique(crossed)) == 21


def test_what_is_left_out_must_be_there():
    features = Features([Categorical("user"), ListFeature("genres")])
    with pytest.raises(ConfigurationError, match=r"takes 'user', 'genres'.*did you mean 'genres'"):
        FeatureEmbedding(features, 4, exclude=["genre"])
