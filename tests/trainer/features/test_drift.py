"""Rows that differ from those that features learned from are named by column, from a snapshot too."""

import numpy as np
import pandas as pd
import pytest

from callbacks import ModelCheckpoint
from tests.trainer.features.every_kind import as_columns, make_features, make_rows
from tests.trainer.features.test_training import make_trainer
from trainer.errors import ConfigurationError
from trainer.features import Bucketized, Categorical, Features, ListFeature, Numeric, Vector
from trainer.features.profiles import ColumnProfile, ProfileBuckets, stability_index

ROWS = make_rows(3000)


@pytest.fixture(scope="module")
def fitted():
    features = make_features()
    features.fit(ROWS)
    return features


def test_rows_of_the_same_kind_have_not_drifted(fitted):
    drift = fitted.drift(make_rows(3000, seed=1))
    assert set(drift) == set(fitted.columns)
    assert max(drift.values()) < 0.1
    assert list(drift.values()) == sorted(drift.values(), reverse=True)


@pytest.mark.parametrize(
    ("column", "change"),
    [
        ("age", lambda value: value and value + 15),
        ("income", lambda value: None),
        ("city", lambda value: "abroad"),
        ("user", lambda value: value and value % 3),
        ("history", lambda value: ["i1"]),
        ("face", lambda value: value and [number + 2 for number in value]),
    ],
)
def test_a_column_that_changed_comes_first(fitted, column, change):
    changed = [{**row, column: change(row[column])} for row in make_rows(3000, seed=1)]
    drift = fitted.drift(changed)
    assert next(iter(drift)) == column
    assert drift[column] > 0.25
    assert sorted(drift.values())[-2] < 0.1


def test_the_index_is_that_of_its_formula():
    features = Features([Categorical("c")])
    features.fit({"c": ["a"] * 50 + ["b"] * 30 + [None] * 20})
    drift = features.drift({"c": ["a"] * 20 + ["b"] * 60 + ["new"] * 20})
    expected = np.array([0.5, 0.3, 0.2, 1e-4])
    actual = np.array([0.2, 0.6, 1e-4, 0.2])
    assert drift["c"] == pytest.approx(((actual - expected) * np.log(actual / expected)).sum())


@pytest.mark.long
def test_a_snapshot_holds_what_drift_is_measured_from(tmp_path):
    trainer = make_trainer()
    trainer.fit(ROWS[:600], epochs=1, batch_size=64, callbacks=[ModelCheckpoint(tmp_path / "s", every=5)])
    restored = make_trainer()
    restored.load(tmp_path / "s")
    new = pd.DataFrame(as_columns(make_rows(500, seed=2)))
    new["age"] += 20
    assert restored.features.drift(new) == trainer.features.drift(new)
    assert next(iter(restored.features.drift(new))) == "age"
    path = tmp_path / "new.csv"
    new[["age", "city"]].to_csv(path, index=False)
    drift = restored.features.drift(path)
    assert drift["city"] < 0.25 < drift["age"]
    assert drift["face"] > 0.25  # a column that is absent is missing in every row


def test_features_that_learn_nothing_are_profiled_all_the_same():
    features = Features([Numeric("x"), Bucketized("y", boundaries=[0.0]), Vector("v", width=2), ListFeature("l")])
    with pytest.raises(ConfigurationError, match=r"call features\.fit"):
        features.drift({"x": [1.0]})
    rows = {"x": [1.0, None, 3.0], "y": [1, 2, 3], "v": [[1, 2], None, [3, 4]], "l": [["a"], [], None]}
    features.fit(rows)
    assert set(features.drift(rows).values()) == {0.0}


@pytest.mark.parametrize("feature", [Numeric("v"), Categorical("v")])
def test_a_column_without_any_value_can_be_compared(feature):
    features = Features([Numeric("x"), feature])
    features.fit({"x": [1.0, 2.0, 3.0], "v": [None] * 3})
    assert features.drift({"x": [1.0, 2.0, 3.0], "v": [None] * 3})["v"] == 0
    value = 1.0 if isinstance(feature, Numeric) else "a"
    assert features.drift({"x": [1.0, 2.0, 3.0], "v": [value] * 3})["v"] > 0.25


def test_many_rare_ids_of_one_distribution_have_not_drifted():
    """More distinct ids than a profile counts, on both sides."""
    rng = np.random.default_rng(0)
    first, second = (rng.zipf(1.2, 60_000) % 500_000 for _ in range(2))
    column = Features([Categorical("id")]).columns["id"]
    reference, other = ColumnProfile(column), ColumnProfile(column)
    for part in np.split(first, 10):
        reference.add(part.astype(str))
    other.add(second.astype(str))
    buckets = ProfileBuckets(reference)
    assert stability_index(buckets.shares, buckets.shares_of(other)) < 0.02
    assert buckets.shares.sum() == pytest.approx(1)
