"""Times of every spelling and unit: recognised where they are plain, refused by name where they are not."""

import dataclasses
import datetime
import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trainer.errors import ConfigurationError, DataError
from trainer.features import Categorical, Features, Numeric, Time
from trainer.features.stream_rows import BatchTransform
from trainer.streams import Column, DelayedLabelJoin, FileStream, IterableStream, Schema
from trainer.streams.formats.times import UnclearTimeError, seconds_of, seconds_of_array, seconds_of_number

NOON = 1_706_961_600.0  # 2024-02-03 12:00 UTC, a Saturday
SPELLINGS = """
2024-02-03 12:00 | 2024-02-03T12:00:00Z | 2024-02-03T14:00:00+02:00 | 2024-02-03 06:30-0530 | 2024/2/3 12:00
2024.02.03 12 | 3 Feb 2024 12:00 | 3-Feb-2024 12:00 PM | February 3, 2024, 12:00 | Feb. 3 2024 12:00 GMT
20240203T120000Z | 20240203120000 |  2024-02-03 12:00:00.000
1706961600 | 1706961600.0 | 1706961600000 | 1706961600000000 | 1706961600000000000
1.7069616e9
"""


@pytest.mark.parametrize("text", [text for line in SPELLINGS.strip().splitlines() for text in line.split(" | ")])
def test_a_plain_time_is_recognised(text):
    assert seconds_of(text) == NOON
    column = Column("float64", coerce=True, times=True)
    array, bad = column.convert([text])
    assert (array.tolist(), bad) == ([NOON], {})


@pytest.mark.parametrize(
    "text", ["tomorrow", "2024-13-01", "31.02.2024", "2024-02-03 25:00", "13 Foo 2024", "2024-02", "3/2-2024"]
)
def test_what_is_no_time_is_none(text):
    assert seconds_of(text) is None


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("03/02/2024", "2024-02-03 or 2024-03-02: declare day_first"),
        ("03.02.2024 17:18", "2024-02-03 or 2024-03-02"),
        (20240203, "a date, or seconds in 1970: declare 'yyyymmdd' or 's' as its unit"),
        ("20241399", "not a date"),
        (17069616000, "declare one of 's', 'ms', 'us', 'ns', 'yyyymmdd' as its unit, Time"),
        ("17069616000", "event_time_unit"),
        (170696160000, "unit is unclear"),
    ],
)
def test_a_value_that_could_be_two_times_is_refused_by_name(value, reason):
    with pytest.raises(UnclearTimeError, match=reason):
        seconds_of(value) if isinstance(value, str) else seconds_of_number(value)
    with pytest.raises(DataError, match=reason):
        Features([Time("t")]).transform({"t": [value]})


def hour_day_month(values, **options):
    return (
        Features([Time("t", parts=["hour", "day", "month"], **options)]).transform({"t": values})["ids"] - 1
    ).tolist()


def test_what_is_declared_decides():
    assert hour_day_month(["03/02/2024 17:18", "13/02/2024"], day_first=True) == [[17, 2, 1], [0, 12, 1]]
    assert hour_day_month(["03/02/2024 17:18", "02/13/2024"], day_first=False) == [[17, 1, 2], [0, 12, 1]]
    for contrary, day_first in (("02/13/2024", True), ("13/02/2024", False)):
        with pytest.raises(DataError, match="text that is not a time"):
            hour_day_month([contrary], day_first=day_first)
    assert hour_day_month([20240203, "20240203", np.datetime64("2024-02-03")], unit="yyyymmdd") == [[0, 2, 1]] * 3
    assert hour_day_month(["20240203"]) == [[0, 2, 1]]
    assert hour_day_month(["20240203", 20240203], unit="s") == [[6, 22, 7]] * 2
    assert hour_day_month(np.array([170696160000, 1706961600000]), unit="ms") == [[15, 29, 4], [12, 2, 1]]
    with pytest.raises(ConfigurationError, match=r"did you mean 'ms'|takes 's', 'ms'"):
        Time("t", unit="mss")
    with pytest.raises(ConfigurationError, match=r"column 't'.*time_unit"):
        Features([Time("a", column="t", unit="ms"), Time("b", column="t", unit="s")])


@settings(max_examples=200, deadline=None)
@example(unit=None, values=[10**16 - 1, 10**13 - 1, 10**18, -(2**63)])
@given(
    unit=st.sampled_from([None, "s", "ms", "us", "ns"]),
    values=st.lists(
        st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(0, 10**10), st.floats(-1e19, 1e19)), min_size=1
    ),
)
def test_an_array_is_read_as_its_values_are(unit, values):
    for array in (
        np.array(values, np.float64),
        np.array([int(value) for value in values if abs(value) < 2**63], np.int64),
    ):
        found = seconds_of_array(array, unit)
        try:
            alone = [seconds_of_number(value, unit) for value in array.tolist()]
        except UnclearTimeError:
            assert found is None
        else:
            assert found is not None or any(19_000_101 <= abs(value) <= 21_991_231 for value in array.tolist())
            assert found is None or found.tolist() == alone


@pytest.mark.parametrize("unit", ["ms", None])
def test_event_times_of_a_stream_are_read_once(tmp_path, unit):
    """By the features' schema as the stream reads, and not again; an iterable's by the features."""
    features = Features([Numeric("x"), Time("t", unit=unit)], label="y", event_time="t", event_time_unit=unit)
    scaled = int(NOON) * 1000
    (tmp_path / "a.csv").write_text(f"x,t,y\n1,{scaled},0\n2,2024-02-03 12:00,1\n")
    stream = FileStream(tmp_path, end="at_last")
    stream.declare(features.schema)
    items = IterableStream([{"x": np.ones(2), "t": np.array([scaled] * 2), "y": np.zeros(2)}])
    for source in (stream, items):
        transform = BatchTransform(features, source)
        transform.begin()
        batch = transform(source.poll(10, 1.0))
        assert batch.event_time.tolist() == [NOON] * 2
        assert (batch.columns["ids"] - 1).tolist() == [[12, 5]] * 2
    stream.close()


def test_times_that_another_schema_has_read_are_read_once(tmp_path):
    """A schema of one's own, wider than the features', alone and before a join; and numbers that no schema has read."""
    columns = [Numeric("x"), Time("seen", unit="ms")]
    features = Features(columns, label="y", event_time="t", event_time_unit="ms")
    for name in ("rows", "outcomes"):
        (tmp_path / name).mkdir()
        row = {"id": "a", "x": 1, "t": NOON * 1000, "seen": NOON * 1000, "y": 1}
        (tmp_path / name / "0.jsonl").write_text(json.dumps(row) + "\n")
    wide = dataclasses.replace(features.schema, columns={**features.schema.columns, "id": Column(np.str_)})
    plain = {"id": "str", "x": "float32", "seen": "float64", "y": "float32"}

    def rows(schema, name="rows"):
        return FileStream(tmp_path / name, schema, end="at_last")

    numbers = Schema(plain, event_time="t", event_time_unit="ms")
    for schema in (wide, numbers):
        joined = DelayedLabelJoin(rows(schema), rows(numbers, "outcomes"), "id", 10.0, label="y")
        for stream in (rows(schema), joined):
            stream.declare(features.schema)
            transform = BatchTransform(features, stream)
            transform.begin()
            batch = transform(stream.poll(10, 1.0))
            stream.close()
            assert batch.event_time.tolist() == [NOON]
            assert (batch.columns["ids"] - 1).tolist() == [[12, 5]]


def test_event_times_of_a_schema_are_numbers_in_its_unit_texts_or_timestamps():
    for unit, values in {
        None: [NOON, NOON * 1e3, "2024-02-03T12:00Z", datetime.datetime(2024, 2, 3, 12)],
        "ms": [NOON * 1e3, str(int(NOON * 1e3)), np.datetime64("2024-02-03T12:00")],
        "yyyymmdd": [datetime.datetime(2024, 2, 3, 12)],
    }.items():
        schema = Schema({"x": "int64"}, event_time="t", event_time_unit=unit)
        decoded = schema.convert({"x": list(range(len(values))), "t": values}, len(values))
        assert decoded.event_time.tolist() == [NOON] * len(values)
    plain = Schema({"t": "int64"}, event_time="t").convert({"t": [int(NOON) * 1000, 17069616000]}, 2)
    assert (plain.event_time.tolist(), plain.columns["t"].tolist()) == ([NOON], [int(NOON) * 1000])
    assert "unit is unclear" in plain.bad[0].reason


def test_a_feature_of_the_event_times_column_decides_how_it_is_read():
    features = Features([Time("t", day_first=True), Categorical("c")], label="y", event_time="t")
    assert features.schema.fields["t"].day_first is True
    rows = features.read({"t": ["03/02/2024 12:00"], "c": ["a"], "y": [1]})
    assert rows.columns["t"].tolist() == [NOON]
    assert Features.from_declaration(features.declaration()).schema.fields["t"].day_first is True
