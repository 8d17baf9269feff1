"""A row alone gets the inputs that it gets among many, to the bit, whatever its values are."""

import datetime

import numpy as np
import pytest

from tests.trainer.features.every_kind import make_features, make_rows
from trainer.data.ragged import Ragged
from trainer.errors import DataError
from trainer.features import Categorical, Features, Numeric

COUNT = 300
TREATMENTS = {
    "plain": {},
    "standard": {"normalize": "standard", "indicator": True},
    "filled": {"normalize": "standard", "missing": "mean"},
    "range": {"normalize": "min_max", "missing": "mean", "transform": "log1p", "clip": (-1, 4)},
    "root": {"transform": "sqrt", "missing": -3.0, "normalize": "min_max"},
    "mean": {"missing": "mean"},
}
IDS = {"text": {}, "hashed": {"hash_buckets": 11}, "whole": {"dtype": "int64"}, "known": {"vocabulary": "learn"}}


def many_columns():
    """Return three features of each treatment, and rows for them, a third of the values missing."""
    rng = np.random.default_rng(3)
    features, columns = [], {}
    for n in range(3):
        for name, options in TREATMENTS.items():
            features.append(Numeric(f"{name}-{n}", **options))
            columns[f"{name}-{n}"] = (10.0**n * rng.lognormal(size=COUNT)).tolist()
        for name, options in IDS.items():
            features.append(Categorical(f"{name}-{n}", **options))
            ids = rng.integers(0, 10 ** (n + 1), COUNT)
            columns[f"{name}-{n}"] = ids.tolist() if name == "whole" else [f"id {one}" for one in ids]
    features.append(Numeric("constant", normalize="min_max"))
    columns["constant"] = [2.5] * COUNT
    for values in columns.values():
        for row in np.flatnonzero(rng.random(COUNT) < 0.3):
            values[row] = None
    return Features(features), [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def of_every_kind():
    rows = [{name: value for name, value in row.items() if name != "click"} for row in make_rows(COUNT, missing=0.2)]
    return make_features(max_length=8), rows


def assert_same_rows(inputs, expected, chosen):
    assert list(inputs) == list(expected)
    for name, column in inputs.items():
        if isinstance(column, Ragged):
            assert [row.tolist() for row in column] == [row.tolist() for row in expected[name][chosen]]
        else:
            assert column.dtype == expected[name].dtype
            np.testing.assert_array_equal(column, expected[name][chosen])


@pytest.mark.parametrize("make", [many_columns, of_every_kind])
def test_rows_alone_and_few_have_the_inputs_of_many(make):
    features, rows = make()
    features.fit([{**row, "click": 1.0} for row in rows])
    together = features.transform(rows)
    for row in range(COUNT):
        assert_same_rows(features.transform(rows[row]), together, np.array([row]))
    for first in range(0, COUNT, 20):
        chosen = np.arange(first, first + 20)
        assert_same_rows(features.transform(rows[first : first + 20]), together, chosen)


NUMBERS = {
    "a float": 0.25,
    "a whole number": 7,
    "a large whole number": 2**63 - 1,
    "one that no integer of NumPy holds": -(2**70),
    "text": " 1.5 ",
    "true": True,
    "a NumPy number": np.float32(0.1),
    "infinite": float("inf"),
    "no number": float("nan"),
    "missing": None,
}


@pytest.mark.parametrize("value", NUMBERS.values(), ids=NUMBERS.keys())
def test_a_value_is_read_beside_others_as_it_is_alone(value):
    """Three columns of one declaration, of which one has the value."""
    names = ["a", "b", "c"]
    together, alone = Features([Numeric(name) for name in names]), Features([Numeric("b")])
    row = together.transform({"a": 0.5, "b": value, "c": 3})["numbers"][0]
    np.testing.assert_array_equal(row, [0.5, *alone.transform({"b": value})["numbers"][0], 3])
    ids = [value, "x", 5, None, 2.0]
    texts = Features([Categorical(f"t{n}") for n in range(len(ids))])
    own = [Features([Categorical("t")]).transform({"t": one})["ids"][0, 0] for one in ids]
    assert texts.transform({f"t{n}": one for n, one in enumerate(ids)})["ids"][0].tolist() == own


@pytest.mark.parametrize("value", ["fast", 10**400, {"x": 1}, datetime.timedelta(1)])
def test_a_value_that_is_no_number_is_named_with_its_column(value):
    features = Features([Numeric(name) for name in "abc"])
    with pytest.raises(DataError) as alone:
        Features([Numeric("b")]).transform({"b": value})
    with pytest.raises(DataError) as beside:
        features.transform({"a": 0.5, "b": value, "c": 3})
    assert str(beside.value) == str(alone.value)
    assert "column 'b' " in str(alone.value)


def test_columns_absent_from_the_rows_are_missing_beside_present_ones():
    features = Features(
        [Numeric("a", indicator=True), Numeric("b", indicator=True), Categorical("c"), Categorical("d")]
    )
    inputs, full = features.transform({"b": 2.0, "d": "x"}), features.transform({"a": 1.0, "b": 2, "c": "", "d": "x"})
    np.testing.assert_array_equal(inputs["numbers"], [[0, 1, 2, 0]])
    np.testing.assert_array_equal(inputs["ids"], full["ids"])


@pytest.mark.parametrize("value", [None, float("inf"), ""])
def test_a_required_value_is_missed_beside_others_required_or_not(value):
    numbers = [Numeric("a"), Numeric("b", required=True), Numeric("c", required=True), Numeric("d")]
    features = Features([*numbers, Categorical("t", required=True), Categorical("u", required=True), Categorical("v")])
    row = {"a": None, "b": 1.0, "c": 2, "d": None, "t": "x", "u": "y", "v": None}
    assert features.transform(row)["numbers"].tolist() == [[0, 1, 2, 0]]
    with pytest.raises(DataError, match=r"row 0: column 'c' (is missing|takes )"):
        features.transform({**row, "c": value})
    if value != float("inf"):
        with pytest.raises(DataError, match="row 0: column 't' is missing"):
            features.transform({**row, "t": value})
