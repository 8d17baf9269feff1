"""What decides the ids of a table is saved with the features, and compared before its rows are taken."""

import json

import pytest

from tests.trainer.features.every_kind import make_features
from trainer.errors import CheckpointMismatchError
from trainer.features import (
    Bucketized,
    Categorical,
    Cross,
    Custom,
    Features,
    ListFeature,
    Text,
    Time,
    WeightedList,
)


def saved(*features):
    """Return the state of the features as a snapshot holds it."""
    state = Features(features).state_dict()
    return {"json": json.loads(json.dumps(state["json"])), "arrays": state["arrays"]}


SAME = [
    (Categorical("shop"), Categorical("shop", column="shop_name", dim=8, required=True)),
    (
        Categorical("shop", vocabulary="learn", min_count=2),
        Categorical("shop", vocabulary="learn", min_count=5, max_size=9),
    ),
    (Categorical("shop", vocabulary=["a", "b"]), Categorical("shop", vocabulary=["b", "a"])),
    (Categorical("item", table="items"), ListFeature("history", table="items")),
    (WeightedList("tags", weights="w"), ListFeature("tags", separator="|")),
    (Time("at", parts=["hour"]), Time("at", parts=["hour", "month"])),
    (Bucketized("age", boundaries=[1, 2]), Bucketized("age", boundaries=(1.0, 2.0))),
]
DIFFERENT = [
    (Categorical("shop"), Categorical("shop", dtype="int64")),
    (Categorical("shop"), Categorical("shop", vocabulary="learn")),
    (Categorical("shop", vocabulary=["a", "b"]), Categorical("shop", vocabulary=["a", "c"])),
    (Categorical("shop", hash_buckets=5), Categorical("shop", hash_buckets=6)),
    (Categorical("item", table="items"), ListFeature("history", table="items", dtype="int64")),
    (Text("title"), Text("title", hash_buckets=10)),
    (Cross("c", columns=["a", "b"]), Cross("c", columns=["b", "a"])),
    (Cross("c", columns=["a", "b"]), Cross("c", columns=["a", "b"], dtype=["str", "int64"])),
    (Cross("shop", columns=["a", "b"]), Categorical("shop")),
    (Time("at", parts=["hour"]), Time("at", parts=["hour"], offset=2)),
    (Bucketized("age", boundaries=4), Bucketized("age", boundaries=8)),
    (
        Custom("c", function=len, columns=["a"], dtype="str", output="ids"),
        Custom("c", function=len, columns=["a"], dtype="int64", output="ids"),
    ),
]


def name_of(pair):
    return f"{type(pair[0]).__name__}-{type(pair[1]).__name__}"


@pytest.mark.parametrize("pair", SAME, ids=name_of)
def test_the_same_ids_are_taken_over(pair):
    before, now = (Features([feature]) for feature in pair)
    state = now.state_dict()
    state["json"]["ids"] = before.state_dict()["json"]["ids"]
    now.load_state_dict(state)


@pytest.mark.parametrize("pair", DIFFERENT, ids=name_of)
def test_other_ids_are_refused(pair):
    before, now = pair
    with pytest.raises(CheckpointMismatchError, match=rf"feature '{now.name}' is declared with .*Declare it as it was"):
        Features([now]).load_state_dict(saved(before))


def test_a_state_that_does_not_record_them_is_taken():
    state = saved(Categorical("shop"))
    del state["json"]["ids"]
    Features([Categorical("shop", dtype="int64")]).load_state_dict(state)


def test_every_kind_is_taken_over_by_itself_and_by_what_a_server_reads():
    features = make_features()
    state = features.state_dict()
    state["json"] = json.loads(json.dumps(state["json"]))
    make_features().load_state_dict(state)
    Features.from_declaration(json.loads(json.dumps(features.declaration()))).load_state_dict(state)
