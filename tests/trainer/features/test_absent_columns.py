"""A declared column that no row has is named, with what the data have instead."""

import csv
import json
import logging

import numpy as np
import pytest

from trainer.features import Categorical, Features, ListFeature, Numeric
from trainer.features.feature_data import inputs_of
from trainer.features.stream_rows import BatchTransform
from trainer.streams import FileStream, IterableStream, Schema

FEATURES = [Categorical("vip"), Numeric("age"), Categorical("shop", dtype="int64"), ListFeature("tags")]
ROWS = [{"vip": "yes", "age": 30 + n, "shop": n, "tags": ["a"], "bought": n % 2} for n in range(20)]


def renamed(**names):
    return [{names.get(name, name): value for name, value in row.items()} for row in ROWS]


def as_csv(rows, folder):
    with open(folder / "rows.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({**row, **{k: "|".join(v) for k, v in row.items() if isinstance(v, list)}} for row in rows)
    return folder / "rows.csv"


def as_jsonl(rows, folder):
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "rows.jsonl"


def as_parquet(rows, folder):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")
    return folder / "rows.parquet"


def as_arrays(rows, _):
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return {name: value if isinstance(value[0], list) else np.array(value) for name, value in columns.items()}


@pytest.mark.parametrize("form", [as_csv, as_jsonl, as_parquet, as_arrays, lambda rows, _: rows])
def test_a_column_of_another_name_is_named(form, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        inputs_of(Features(FEATURES, label="bought"), form(renamed(vip="VIP", tags="tagz"), tmp_path))
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "features: 'vip' is missing in all 20 rows; the data have VIP, age, shop, tagz, bought; did you mean 'VIP'?",
        "features: 'tags' is missing in all 20 rows; the data have VIP, age, shop, tagz, bought; did you mean 'tagz'?",
    ]


@pytest.mark.parametrize("column", ["vip", "age", "shop", "tags"])
def test_one_value_is_enough(column, tmp_path, caplog):
    rows = [{name: value for name, value in row.items() if name != column or n == 7} for n, row in enumerate(ROWS)]
    with caplog.at_level(logging.WARNING):
        inputs_of(Features(FEATURES, label="bought"), rows)
        inputs_of(Features(FEATURES, label="bought"), as_jsonl(rows, tmp_path))
    assert caplog.records == []


def test_an_empty_column_is_named_without_a_guess(caplog):
    with caplog.at_level(logging.WARNING):
        inputs_of(Features(FEATURES, label="bought"), [row | {"vip": ""} for row in ROWS])
        inputs_of(Features(FEATURES, label="bought"), ROWS[:5], fit=False)
    assert [record.getMessage() for record in caplog.records] == ["features: 'vip' is missing in all 20 rows"]


def test_a_column_that_the_schema_of_a_stream_lacks_is_named(tmp_path, caplog):
    as_jsonl(ROWS, tmp_path)
    features = Features(FEATURES, label="bought")
    columns = {name: column for name, column in features.schema.columns.items() if name != "tags"}
    BatchTransform(features, FileStream(tmp_path, Schema(columns, label="bought")))
    assert "features: the schema of FileStream lacks 'tags', so every row misses them" in caplog.text
    caplog.clear()
    stream = FileStream(tmp_path)
    stream.declare(features.schema)
    BatchTransform(features, stream)
    assert not caplog.text


@pytest.mark.parametrize("kind", ["in memory", "file"])
def test_a_column_that_a_stream_lacks_is_named_once(kind, tmp_path, caplog):
    """After a thousand rows, because a stream may have few of a value."""
    features, rows = Features(FEATURES, label="bought"), renamed(vip="VIP") * 120
    as_jsonl(rows, tmp_path)
    stream = FileStream(tmp_path) if kind == "file" else IterableStream(rows)
    if kind == "file":
        stream.declare(features.schema)
    transform, said = BatchTransform(features, stream), []
    for _ in range(20):
        transform(stream.poll(100, 1.0))
        said.append(len(caplog.messages))
    assert said == [0] * 9 + [1] * 11
    assert "features: 'vip' is missing in the first 1,000 rows" in caplog.text
    assert ("did you mean 'VIP'?" in caplog.text) == (kind == "in memory")
