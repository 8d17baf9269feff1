"""One value has one id: every way in gives a value the same bits, or sets it aside everywhere."""

import datetime
import json
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from scripts.value_ways import WAYS, UnsupportedError
from trainer.errors import ConfigurationError, DataError
from trainer.features import (
    Bucketized,
    Categorical,
    Cross,
    Custom,
    Expression,
    Features,
    ListFeature,
    Lookup,
    Numeric,
    Overlap,
    Text,
    Time,
    Vector,
    WeightedList,
)

FEATURES = {
    "text ids": [Categorical("x"), Categorical("h", column="x", hash_buckets=1 << 30), Text("w", column="x")],
    "texts": [Overlap("o", columns=["x", "y"]), Lookup("l", column="y", key="x"), Cross("c", columns=["x", "y"])],
    "integer ids": [Categorical("x", dtype="int64"), Cross("c", columns=["x", "y"], dtype=["int64", "str"])],
    "numbers": [
        Numeric("x", indicator=True),
        Bucketized("b", column="x", boundaries=[0, 1e9]),
        Expression("e", expression="x / 3"),
        Custom("f", function=np.negative, columns=["x"]),
    ],
    "times": [Time("x", parts=["hour", "weekday", "hour_of_week", "day", "month"])],
}
LISTS = {
    "texts": [ListFeature("x"), Cross("c", columns=["x", "y"], elements="x")],
    "integers": [ListFeature("x", dtype="int64"), WeightedList("w", column="x", dtype="int64", weights="y")],
    "vectors": [Vector("x", width=2)],
}
FLOATS = {"allow_nan": False, "allow_infinity": False}
edges = st.sampled_from(
    [sign * (2**power + step) for power in (53, 60, 63, 64) for step in (-1, 0, 1) for sign in (1, -1)]
)
epochs = st.integers(10**9, 9 * 10**9).flatmap(lambda s: st.sampled_from([s, s * 10**3, s * 10**6, s * 10**9, s * 10]))
integers = st.one_of(st.integers(), edges, epochs, st.integers(19_000_000, 22_000_000), st.integers(10**19, 10**25))
texts = st.one_of(
    st.text(st.characters(blacklist_categories=["C", "Z"]), max_size=6),
    st.sampled_from(
        ["True", "FALSE", "12", " 7 ", "-3", "5.0", "1e3", "20240203", "2024-02-03T17:18:00+02:00", "3 Feb 2024"]
    ),
)
years = {"min_value": datetime.datetime(1950, 1, 1), "max_value": datetime.datetime(2200, 1, 1)}
VALUES = {
    "integers": integers,
    "floats": st.one_of(st.floats(**FLOATS), st.integers(-(2**53), 2**53).map(float)),
    "truth": st.booleans(),
    "texts": texts,
    "timestamps": st.datetimes(**years),
    "dates": st.dates(datetime.date(1950, 1, 1), datetime.date(2200, 1, 1)),
    "decimals": st.decimals(-(10**9), 10**9, places=3).map(lambda d: d.normalize() + Decimal(0)),
}
ELEMENTS = {
    "integers": st.one_of(st.integers(-(2**63), 2**63 - 1), edges),
    "floats": st.floats(**FLOATS),
    "texts": texts,
}
IN_CSV = {  # a cell is text, so what its text does not tell is not asked of it
    ("text ids", "floats"), ("texts", "floats"), ("text ids", "decimals"), ("texts", "decimals"),
    ("text ids", "timestamps"), ("texts", "timestamps"), ("numbers", "timestamps"), ("numbers", "dates"),
    ("times", "integers"),
}  # fmt: skip


def assert_all_ways_agree(features, values, folder, left_out=()):
    expected = WAYS["a list of rows"](features, values, folder)
    tried = 0
    for name, way in WAYS.items():
        if name.startswith(tuple(left_out)):
            continue
        try:
            found = way(features, values, folder)
        except UnsupportedError:
            continue
        tried += 1
        assert found == expected, (name, values, [v for v, a, b in zip(values, found, expected, strict=True) if a != b])
    assert tried >= 3


bounded = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def columns_of(kinds):
    """Return a strategy of (kind, values)."""

    def values(kind):
        return st.tuples(st.just(kind), st.lists(st.one_of(st.none(), kinds[kind]), min_size=1, max_size=6))

    return st.sampled_from(list(kinds)).flatmap(values)


@pytest.mark.parametrize("reader", FEATURES)
@bounded
@given(drawn=columns_of(VALUES))
@example(drawn=("integers", [2**62 + 1, None, -5]))
@example(drawn=("integers", [89 * 10**20 + 7, 89 * 10**20 + 14]))
@example(drawn=("integers", [-(2**63), -(2**63) + 1, 1152921573326323713, 1706980680123]))
@example(drawn=("floats", [0.5, None, 2.0]))
@example(drawn=("truth", [True, None]))
@example(drawn=("timestamps", [datetime.datetime(2024, 2, 3, 17, 18), None]))
def test_a_single_value_is_the_same_by_every_way_in(reader, drawn, tmp_path):
    kind, values = drawn
    left_out = ["CSV"] if (reader, kind) in IN_CSV else []
    assert_all_ways_agree(Features(FEATURES[reader]), values, tmp_path, left_out)


@pytest.mark.parametrize("reader", LISTS)
@bounded
@given(data=st.data(), kind=st.sampled_from(list(ELEMENTS)))
def test_a_list_is_the_same_by_every_way_in(reader, kind, data, tmp_path):
    element = st.one_of(st.none(), ELEMENTS[kind])
    rows = st.lists(element, min_size=2, max_size=2) if reader == "vectors" else st.lists(element, max_size=4)
    values = data.draw(st.lists(st.one_of(st.none(), rows), min_size=1, max_size=5))
    if not any(value for value in values):
        values.append([data.draw(ELEMENTS[kind])] * 2)
    assert_all_ways_agree(Features(LISTS[reader]), values, tmp_path)


def ids(feature, rows):
    return Features([feature]).transform([{"x": row} for row in rows])["ids"][:, 0].tolist()


def test_different_integers_are_different_ids_whatever_their_size():
    long = [89 * 10**20 + 7 * n for n in range(100)]
    assert len(set(ids(Categorical("x"), long))) == 100
    rows = json.dumps({"rows": [{"x": value} for value in long]}).encode()
    from trainer.serving.http.request_rows import rows_of_body

    assert [row["x"] for row in rows_of_body(rows, "application/json").rows] == long


@pytest.mark.parametrize("value", [-(2**63), -(2**63) + 1, 2**63, 2.0**53, 1.5])
def test_a_value_that_no_id_can_be_is_refused_by_name(value):
    """The two least integers mark missing ids and padding; a float of 2**53 and more is several integers."""
    with pytest.raises(DataError, match=r"row 0: column 'x' takes int64.*received"):
        ids(Categorical("x", dtype="int64"), [value])
    assert ids(Categorical("x", dtype="int64"), [-(2**63) + 2, 2**63 - 1]) == [-(2**63) + 2, 2**63 - 1]
    with pytest.raises(ConfigurationError, match=r"vocabulary=...\): a value takes int64"):
        Features([Categorical("x", dtype="int64", vocabulary=[1, value])])


def test_a_text_id_is_no_float_that_stands_for_several_integers():
    with pytest.raises(DataError, match="received a float too large to be an exact integer"):
        ids(Categorical("x"), [float(2**60)])
    frame = pd.DataFrame({"x": pd.Series([2**60 + 1, None], dtype="Int64")})
    assert Features([Categorical("x")]).transform(frame)["ids"][0, 0] == ids(Categorical("x"), [2**60 + 1])[0]


def test_a_vocabulary_is_read_as_the_column_is():
    for vocabulary in ([2**62 + 1, -1], [2**63, -1], [5.0, True, "x"]):
        known = Categorical("x", vocabulary=vocabulary)
        assert sorted(ids(known, vocabulary)) == list(range(2, 2 + len(vocabulary)))
