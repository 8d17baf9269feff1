"""The same bits from every form of data, statistics of parts, state, and mistakes in a declaration."""

import json
import logging
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tests.trainer.features.every_kind import as_columns, make_features, make_rows
from trainer.data.ragged import Ragged
from trainer.errors import CheckpointMismatchError, ConfigurationError, DataError
from trainer.features import (
    Bucketized,
    Categorical,
    Custom,
    Expression,
    Features,
    ListFeature,
    Numeric,
    Time,
    WeightedList,
)
from trainer.features.feature_data import inputs_of

ROWS = make_rows(400)


@pytest.fixture(scope="module")
def fitted():
    features = make_features()
    features.fit(ROWS)
    return features


def assert_same(first, second):
    assert list(first) == list(second)
    for name, column in first.items():
        other = second[name]
        if isinstance(column, Ragged):
            np.testing.assert_array_equal(column.offsets, other.offsets)
            column, other = column.values, other.values
        assert column.dtype == other.dtype
        np.testing.assert_array_equal(column, other)


def write_csv(rows, path):
    def cell(value):
        return "" if value is None else " ".join(map(str, value)) if isinstance(value, list) else value

    pd.DataFrame([{name: cell(value) for name, value in row.items()} for row in rows]).to_csv(path, index=False)


def write_json(rows, path):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


FILES = {
    "a.csv": write_csv,
    "a.jsonl": write_json,
    "a.parquet": lambda rows, path: pd.DataFrame(as_columns(rows)).to_parquet(path),
}
TABLES = {
    "pandas": lambda rows: pd.DataFrame(as_columns(rows)),
    "arrow": lambda rows: pa.table(as_columns(rows)),
    "columns": as_columns,
    "rows": lambda rows: rows,
}


@pytest.mark.parametrize("form", [*TABLES, *FILES])
def test_every_form_of_data_gives_the_same_bits(fitted, form, tmp_path):
    if form in TABLES:
        data = TABLES[form](ROWS)
    else:
        data = tmp_path / form
        FILES[form](ROWS, data)
    again = make_features()
    assert_same(inputs_of(again, data, fit=True), inputs_of(fitted, ROWS))


def test_one_row_gives_the_bits_of_its_batch(fitted):
    whole = fitted.transform(ROWS)
    for row in (0, 1, 17):
        one = fitted.transform(ROWS[row])
        assert_same(one, {name: column[row : row + 1][:] for name, column in whole.items()})


def test_numbers_as_ids_are_the_same_text_everywhere(tmp_path):
    features = Features([Categorical("u"), Categorical("n", column="u2", dtype="int64")])
    whole = features.transform({"u": ["1", "", "3", "2.5"], "u2": [1, None, 3, None]})["ids"]
    frame = pd.DataFrame({"u": [1, None, 3, 2.5], "u2": [1, None, 3, None]})
    rows = [{"u": 1, "u2": "1"}, {"u": None}, {"u": 3.0, "u2": 3.0}, {"u": 2.5, "u2": ""}]
    for data in (frame, frame.astype({"u2": "Int64"}), rows, pa.Table.from_pandas(frame)):
        np.testing.assert_array_equal(features.transform(data)["ids"], whole)


def test_a_folder_of_files_is_read_in_order(fitted, tmp_path):
    write_csv(ROWS[:150], tmp_path / "1.csv")
    write_json(ROWS[150:], tmp_path / "2.jsonl")
    assert_same(inputs_of(fitted, tmp_path), inputs_of(fitted, ROWS))


def test_statistics_of_parts_are_those_of_the_whole(fitted):
    parts = [make_features() for _ in range(2)]
    parts[0].fit(ROWS[:100])
    parts[1].fit(ROWS[100:])
    parts[0].merge(parts[1])
    merged, whole = parts[0].transform(ROWS), fitted.transform(ROWS)
    np.testing.assert_allclose(merged.pop("numbers"), whole.pop("numbers"), rtol=1e-6)
    assert_same(merged, whole)


def test_what_was_learned_is_restored_exactly(fitted):
    again = make_features()
    state = fitted.state_dict()
    again.load_state_dict({"json": json.loads(json.dumps(state["json"])), "arrays": state["arrays"]})
    assert_same(again.transform(ROWS), fitted.transform(ROWS))
    with pytest.raises(CheckpointMismatchError, match="age"):
        Features([Numeric("other", normalize="standard")]).load_state_dict(state)


@pytest.mark.parametrize(
    "now",
    [
        Numeric("age", normalize="min_max"),
        Numeric("age", normalize="standard", transform="log1p"),
        Numeric("age", normalize="standard", clip=(0, 80)),
    ],
    ids=["normalize", "transform", "clip"],
)
def test_numbers_of_another_scale_are_refused(now):
    before = Features([Numeric("age", normalize="standard")])
    before.fit({"age": [20.0, 30, 40]})
    state = before.state_dict()
    state = {"json": json.loads(json.dumps(state["json"])), "arrays": state["arrays"]}
    Features([Numeric("age", normalize="standard", missing=5)]).load_state_dict(state)
    with pytest.raises(CheckpointMismatchError, match=r"'age' is declared with .*trained on .*'standard'.*as before"):
        Features([now]).load_state_dict(state)
    del state["json"]["numbers"]  # of an earlier version
    Features([now]).load_state_dict(state)


def test_only_what_is_forbidden_is_set_aside(caplog, tmp_path):
    data = {"x": [1.0, None, 3, 4, None], "c": ["a", "", "b", None, None], "y": [1, 0, 1, 1, None]}
    strict = Features([Numeric("x", required=True), Categorical("c")], label="y")
    pd.DataFrame(data).to_csv(tmp_path / "a.csv", index=False)
    for form, place in ((data, "row 1"), (tmp_path / "a.csv", "line 3 of a.csv")):
        with caplog.at_level(logging.WARNING):
            inputs = inputs_of(strict, form)
        assert inputs["numbers"][:, 0].tolist() == [1, 3, 4]
        assert inputs["y"].tolist() == [1, 1, 1]
        assert f"2 of 5 rows set aside: x is missing 2; the first is {place}" in caplog.text
        caplog.clear()
    with pytest.raises(DataError, match="no good rows: 1 of 1 rows set aside: x is missing"):
        inputs_of(strict, {"x": None, "c": "a", "y": 1})


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: Features([{"kind": "numerc", "name": "a"}]), "did you mean 'numeric'"),
        (lambda: Features([{"kind": "numeric", "name": "a", "normalise": "standard"}]), "did you mean 'normalize'"),
        (lambda: Features([Numeric("a"), Categorical("a")]), "two features are named 'a'"),
        (lambda: Features([Numeric("a"), Categorical("b", column="a")]), "reads column 'a' as"),
        (lambda: Features([]), "at least one feature"),
        (lambda: Features([ListFeature("y", column="a")], label="y"), "input of the network (y)"),
        (lambda: Features([WeightedList("a", weights="w")], weight="a_weights"), "'a_weights' is the name of a label"),
        (lambda: Features([Numeric("a")], group="numbers"), "input of the network (numbers)"),
        (lambda: Numeric("a", normalize="standart"), "did you mean 'standard'"),
        (lambda: Categorical("a", vocabulary="nowhere.txt"), "nowhere.txt"),
        (lambda: Categorical("a", vocabulary=["x"], hash_buckets=3), "not both"),
        (lambda: Categorical("a", min_count=3), 'vocabulary="learn"'),
        (lambda: ListFeature("a", pooling="max"), "mean"),
        (lambda: Expression("a", expression="__import__('os')"), "no function '__import__'"),
        (lambda: Expression("a", expression="x.real + 1"), "is not arithmetic"),
        (lambda: Expression("a", expression="min(x, y, z)"), "min takes 2 arguments, received 3"),
        (lambda: Expression("a", expression="log(x, y)"), "log takes 1 argument, received 2"),
        (lambda: Expression("a", expression="where(x > 1, y)"), "where takes 3 arguments, received 2"),
        (lambda: Numeric("a", missing=float("inf")), 'Numeric(missing=...) takes "mean" or a number'),
        (lambda: Expression("a", expression="x + 1", missing=1e39), "Expression(missing=...) takes a number"),
        (lambda: Numeric("a", clip=(5, 1)), "Numeric(clip=...) takes (lowest, highest)"),
        (lambda: Numeric("a", clip=("a", 1)), "Numeric(clip=...) takes a number"),
        (lambda: Numeric("a", clip=(None, None)), "Numeric(clip=...) takes (lowest, highest)"),
        (lambda: Time("a", offset=float("nan")), "Time(offset=...) takes a number of hours"),
        (lambda: Bucketized("a", boundaries=["low", "high"]), "buckets are open); received ['low', 'high']"),
        (lambda: Bucketized("a", boundaries=[0, float("inf")]), "ascending numbers (the outer buckets are open)"),
        (lambda: Numeric("a", clip=(float("-inf"), float("inf"))), "Numeric(clip=...) takes (lowest, highest)"),
        (lambda: Numeric("a", clip=(float("inf"), 1)), "Numeric(clip=...) takes (lowest, highest)"),
    ],
)
def test_a_mistake_is_named_at_construction(declare, message):
    with pytest.raises(ConfigurationError) as error:
        declare()
    assert message in str(error.value)


@pytest.mark.parametrize(("normalize", "mean"), [(None, 2.0), ("min_max", 0.5), ("standard", 0.0)])
def test_values_beyond_float32_are_missing_and_no_part_of_the_mean(normalize, mean):
    features = Features([Numeric("x", missing="mean", normalize=normalize)])
    rows = {"x": [1.0, None, 1e200, 3.0]}
    features.fit(rows)
    assert features.transform(rows)["numbers"][1:3, 0].tolist() == [mean, mean]


def test_an_infinite_edge_to_clip_at_is_none():
    assert Numeric("x", clip=(0, float("inf"))).clip == (0, None)
    assert Numeric("x", clip=(float("-inf"), 5)).clip == (None, 5)


def test_arguments_may_be_numpy_values():
    features = [
        Bucketized("x", boundaries=np.array([1, 2])),
        Bucketized("z", column="x", boundaries=np.int64(2)),
        Categorical("c", vocabulary=pd.Series(["a", "b"])),
        Categorical("d", column="c", vocabulary=np.array(["b", "a"])),
    ]
    features = Features(features)
    rows = {"x": [0.5, 1.5, 9.0], "c": ["b", "a", None]}
    features.fit(rows)
    ids = features.transform(rows)["ids"]
    assert ids[:, 0].tolist() == [1, 2, 3]
    assert ids[:, 2].tolist() == ids[:, 3].tolist() == [3, 2, 0]
    again = Features.from_declaration(json.loads(json.dumps(features.declaration())))
    again.load_state_dict(features.state_dict())
    assert np.array_equal(again.transform(rows)["ids"], ids)


@pytest.mark.parametrize("city", ["ab", 1.0, None, {"a", "b"}, np.array("ab"), iter("ab")])
def test_a_single_value_beside_columns_of_rows_is_named(city):
    """A text of as many letters as there are rows would be a letter for each."""
    with pytest.raises(DataError, match=r"column 'city' is a .* a value for each row"):
        Features([Numeric("x"), Categorical("city")]).transform({"x": [1.0, 2.0], "city": city})
    one = {"x": np.array(1.0), "city": "ab"}
    assert Features([Numeric("x")]).transform(one)["numbers"].tolist() == [[1]]
    assert Features([Numeric("x")]).transform({"x": {"a": 1, "b": 2}.values()})["numbers"].tolist() == [[1], [2]]


def test_a_function_that_changes_its_argument_changes_no_other_feature():
    def filled(x):
        x[np.isnan(x)] = 7
        return x

    features = Features([Custom("f", function=filled, columns=["x"]), Numeric("x", indicator=True)])
    rows = {"x": np.array([1.0, np.nan])}
    assert features.transform(rows)["numbers"].tolist() == [[1, 1, 0], [7, 0, 1]]
    assert np.isnan(rows["x"][1])


def test_mistakes_in_the_data_are_named(tmp_path):
    features = Features([Numeric("age", normalize="standard", required=True)], label="click")
    with pytest.raises(ConfigurationError, match="age learn"):
        features.transform({"age": [1.0]})
    with pytest.raises(DataError, match="no column 'click'"):
        features.fit({"age": [1.0], "clicks": [1]})
    with pytest.raises(DataError, match="none of the declared columns"):
        features.fit(pd.DataFrame({"ages": [1.0]}))
    with pytest.raises(DataError, match="no such file"):
        features.fit(tmp_path / "nothing.csv")


@pytest.mark.parametrize(
    ("times", "options"),
    [
        ([1_700_000_000_000, 1_700_000_003_000], {}),
        (["2024-05-01 09:30", "2024-05-01 09:31"], {}),
        ([5_000_000, 9_000_000], {"event_time_unit": "ms"}),
        (["03/02/2024 10:00", "04/02/2024 11:00"], {"event_time_day_first": True}),
    ],
)
def test_a_feature_reads_event_times_in_serving_as_in_training(times, options):
    declared = [Numeric("ts"), Expression("hours", expression="(ts - 100) / 3600"), Time("part", column="ts")]
    features = Features(declared, label="y", event_time="ts", **options)
    trained = features.batch(features.read({"ts": times, "y": [0, 1]}).columns)
    served = features.transform([{"ts": time} for time in times])
    for name in ("numbers", "ids"):
        np.testing.assert_array_equal(served[name], trained[name])
    assert features.transform({"ts": None})["ids"].tolist() == [[0, 0]]  # which a served row may lack
    with pytest.raises(ConfigurationError, match=r"event_time='ts'\): a feature reads this column as <U0"):
        Features([Categorical("ts")], label="y", event_time="ts", **options)


def test_values_beyond_every_number_are_named_or_kept_as_text():
    weighted = Features([Numeric("w")], label="y", weight="w")
    rows = weighted.read({"w": [1e300, 1.0], "y": [0, 1]})
    assert "takes finite float64 from 0 to 3.4" in rows.bad[0]
    ids = Features([Categorical("c")]).transform({"c": [Decimal("Infinity"), float("inf"), Decimal(1)]})["ids"]
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.parametrize("city", ["a", 'a"b'])  # a quote within a field: the file is read line by line
def test_a_required_list_is_missing_where_its_cell_is_empty(city, tmp_path):
    features = Features([ListFeature("tags", required=True), Categorical("city")], label="y")
    rows = [{"tags": ["x", "y"], "city": city, "y": 1}, {"tags": None, "city": city, "y": 0}]
    (tmp_path / "a.csv").write_text(f"tags,city,y\nx y,{city},1\n,{city},0\n")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for data in (rows, pd.DataFrame(rows), tmp_path / "a.jsonl", tmp_path / "a.csv"):
        inputs = inputs_of(features, data)
        assert (inputs["y"].tolist(), len(inputs["tags"])) == ([1], 1)
        assert "1 of 2 rows set aside: tags is missing" in inputs.set_aside
