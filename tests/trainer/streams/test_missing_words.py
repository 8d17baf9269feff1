"""Words such as "n/a" that stand for a missing value mean so by every way in, if they are declared."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from trainer.errors import ConfigurationError, DataError
from trainer.features import Categorical, Features, ListFeature, Numeric, Time, WeightedList
from trainer.features.feature_data import rows_of
from trainer.streams import FileStream, Schema
from trainer.streams.formats.coercion import without_words
from trainer.streams.formats.csv_format import CsvFormat
from trainer.streams.formats.csv_sniffing import sniff
from trainer.streams.formats.ragged_column import Ragged

COLUMNS = [
    Numeric("age", indicator=True),
    Categorical("city"),
    Time("at", parts=["hour"]),
    ListFeature("tags", separator="|", max_length=2),
    ListFeature("shares", dtype="int64", separator="|", max_length=2),
]
WORDS = ["n/a", "-"]
ROWS = {
    "age": ["31", "n/a", "47.5", "", "-"],
    "city": ["a", "-", "n/a", "b", ""],
    "at": ["2024-05-01 09:30", "n/a", "2024-05-02 10:30", "", "-"],
    "tags": ["x|y", "-", "x", "n/a", ""],
    "shares": ["1|2", "n/a", "3", "", "-"],
}


def declared(**options):
    return Features([feature for feature in COLUMNS if feature.name in ROWS], csv={"missing": WORDS, **options})


def ways(folder):
    """Return the rows in every form, by name."""
    rows = [dict(zip(ROWS, row, strict=True)) for row in zip(*ROWS.values(), strict=True)]
    pd.DataFrame(ROWS).to_csv(folder / "rows.csv", index=False)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pa.parquet.write_table(pa.table(ROWS), folder / "rows.parquet")
    files = {name: str(folder / name) for name in ("rows.csv", "rows.jsonl", "rows.parquet")}
    frames = {"frame": pd.DataFrame(ROWS), "string": pd.DataFrame(ROWS, dtype="string"), "arrow": pa.table(ROWS)}
    arrays = {"arrays": {name: np.array(values) for name, values in ROWS.items()}}
    return {"columns": ROWS, "rows": rows, **arrays, **frames, **files}


def test_a_declared_word_is_a_missing_value_by_every_way_in(tmp_path):
    empty = {name: ["" if value in WORDS else value for value in values] for name, values in ROWS.items()}
    features = declared()
    features.fit(empty)
    wanted = features.read(empty, labelled=False).columns
    for name, data in ways(tmp_path).items():
        (rows,) = rows_of(features, data, labelled=False)
        given = rows.columns
        for column, values in wanted.items():
            for part in ("values", "offsets") if isinstance(values, Ragged) else ("data",):
                found, expected = (np.asarray(getattr(array, part)) for array in (given[column], values))
                np.testing.assert_array_equal(found, expected, f"{name}: {column}")
    again = Features.from_declaration(json.loads(json.dumps(features.declaration())))
    assert again.csv == CsvFormat(missing=("n/a", "-"))


def test_a_declared_word_within_a_list_is_a_missing_value_too(tmp_path):
    columns = {
        "tags": [["x", "n/a", "y"], ["-"], []],
        "shares": [[1, 2], ["n/a", 3], []],
        "weights": [["n/a", 0.5], [], []],
    }
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    declared = [
        ListFeature("tags"),
        ListFeature("shares", dtype="int64"),
        WeightedList("weighted", column="shares", dtype="int64", weights="weights"),
    ]
    features = Features(declared, csv={"missing": WORDS})
    nulls = [{name: [None if value in WORDS else value for value in row[name]] for name in columns} for row in rows]
    (wanted,) = rows_of(features, nulls, labelled=False)
    for data in (rows, str(tmp_path / "rows.jsonl"), pa.table({"tags": columns["tags"]})):
        (read,) = rows_of(features, data, labelled=False)
        assert not read.bad
        for name in columns if not isinstance(data, pa.Table) else ["tags"]:
            np.testing.assert_array_equal(read.columns[name].values, wanted.columns[name].values)
            np.testing.assert_array_equal(read.columns[name].offsets, wanted.columns[name].offsets)
    assert features.features[0].lists(wanted.columns).values.tolist() == ["x", "y"]


@pytest.mark.parametrize("quoted", [False, True])  # a quote within a field: the file is read line by line
def test_a_stream_sets_no_such_row_aside(tmp_path, quoted):
    schema = Schema(
        {"age": {"dtype": "float32", "coerce": True, "default": -1.0}, "raw": "str"}, csv={"missing": ["n/a"]}
    )
    lines = ["age,raw", "3,n/a", "n/a,b", 'n/a,c"d' if quoted else "n/a,c"]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    batch = FileStream(tmp_path / "rows.csv", schema, end="at_last").poll(10, 1.0)
    assert batch.columns["age"].tolist() == [3, -1, -1]
    assert batch.columns["raw"].tolist()[0] == "n/a"  # a column that takes text as it is
    undeclared = FileStream(tmp_path / "rows.csv", Schema(schema.columns), end="at_last", max_bad_share=1.0)
    assert undeclared.poll(10, 1.0).columns["age"].tolist() == [3]


@pytest.mark.parametrize("wrong", ["n/a", [-999], ["-999"], [""], [" n/a"], [None], [True]])
def test_what_is_no_list_of_words_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="csv: missing takes"):
        CsvFormat.of({"missing": wrong})


def test_words_are_found_in_masked_arrays_too():
    masked = np.ma.MaskedArray(["n/a", "x", "y"], [False, False, True])
    assert np.ma.getmaskarray(without_words(masked, ("n/a",))).tolist() == [True, False, True]
    plain = np.array(["x", "y"])
    assert without_words(plain, ("n/a",)) is plain


@pytest.mark.parametrize(
    ("header", "encoding"),
    [("Größe;Alter", "cp1252"), ("Größe;Wert", "latin-1"), ("création;créée", "cp1252"), ("Цена;Дата", "cp1251")],
)
def test_letters_in_the_header_alone_tell_western_text(tmp_path, header, encoding):
    (tmp_path / "rows.csv").write_bytes(f"{header}\n1;2\n".encode(encoding))
    if encoding == "cp1251":
        with pytest.raises(DataError, match="give --encoding NAME"):
            sniff(tmp_path / "rows.csv")
    else:
        assert sniff(tmp_path / "rows.csv").encoding == "cp1252"
