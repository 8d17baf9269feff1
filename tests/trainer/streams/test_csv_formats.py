"""CSV files as they come: delimiters, encodings, signs within numbers; each is read to the same rows or refused."""

import csv
import io
import itertools

import numpy as np
import pytest

from trainer.errors import ConfigurationError, DataError, StreamError
from trainer.features import Categorical, Features, Numeric
from trainer.features.feature_data import rows_of
from trainer.streams import DeadLetter, FileStream, Schema
from trainer.streams.formats.csv_format import CsvFormat
from trainer.streams.formats.csv_sniffing import sniff
from trainer.streams.formats.number_signs import problem_of, with_signs

ENCODINGS = ("utf-8", "utf-8-sig", "cp1252", "utf-16", "utf-16-le", "utf-16-be", "gb18030")
# the same numbers with the signs of several countries
NUMBERS = {
    (".", None): ["1234.56", "-2.5", "7", "1000000", ""],
    (",", None): ["1234,56", "-2,5", "7", "1000000", ""],
    (",", "."): ["1.234,56", "-2,5", "7", "1.000.000", ""],
    (".", ","): ["1,234.56", "-2.5", "7", "1,000,000", ""],
    (",", " "): ["1 234,56", "-2,5", "7", "1\xa0000\xa0000", ""],
    (".", "'"): ["1'234.56", "-2.5", "7", "1'000'000", ""],
}
VALUES = [1234.56, -2.5, 7.0, 1e6, np.nan]
REPEATED = 400


def texts(encoding):
    """Return texts with what is special in CSV, in letters that the encoding has."""
    letters = "城市 北京" if encoding == "gb18030" else "Köln Größe"
    return [letters, "a;b,c|d\te", 'say "hi"\nand go', "plain", "x"]


def write(path, rows, delimiter, encoding, line_end="\r\n"):
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter, lineterminator=line_end).writerows(rows)
    path.write_bytes(text.getvalue().encode(encoding))
    return path


def read_all(stream, rows=97):
    """Return the columns, and the position after each batch."""
    parts, positions = [], []
    while not stream.exhausted:
        batch = stream.poll(rows, 1.0)
        if batch is not None:
            parts.append(batch.columns)
            positions.append(stream.position())
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, positions


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_way_to_write_a_table_gives_the_same_rows(tmp_path, encoding):
    for (signs, numbers), delimiter in zip(NUMBERS.items(), itertools.cycle(";\t|,"), strict=False):
        columns = [numbers * REPEATED, texts(encoding) * REPEATED]
        path = write(tmp_path / "t.csv", [[" a", "b "], *zip(*columns, strict=True)], delimiter, encoding)
        declared = {"delimiter": delimiter, "encoding": encoding, "decimal": signs[0], "thousands": signs[1]}
        if encoding != "gb18030":  # which has to be given
            found = with_signs(sniff(path), {"a": numbers})
            assert found == with_signs(CsvFormat.of({**declared, "delimiter": found.delimiter}), {})
            assert (found.delimiter or ",") == delimiter
        schema = Schema({"a": {"dtype": "float64", "coerce": True, "default": np.nan, "allow_nan": True}, "b": "str"})
        schema = Schema(schema.columns, csv=declared)
        read, positions = read_all(FileStream(path, schema, end="at_last"))
        np.testing.assert_array_equal(read["a"], VALUES * REPEATED)
        assert read["b"].tolist() == texts(encoding) * REPEATED
        half = len(positions) // 2
        resumed = FileStream(path, schema, end="at_last")
        resumed.seek(positions[half])
        rest, _ = read_all(resumed)
        assert len(rest["a"]) == len(read["a"]) - 97 * (half + 1)
        assert rest["b"].tolist() == read["b"].tolist()[97 * (half + 1) :]


@pytest.mark.parametrize("encoding", ["gb18030", "utf-16-le"])
def test_a_block_that_ends_within_a_character_costs_no_byte(tmp_path, encoding):
    unit, character = (1, "城") if encoding == "gb18030" else (2, "\U0001f600")
    lines = ["x" * (1024 // unit - 1)] * 1023 + ["y" * (1023 // unit - 1)]  # almost a block
    rest = [character * 10, "z", character]
    path = tmp_path / "t.csv"
    path.write_bytes("\n".join(["a", *lines, *rest, ""]).encode(encoding))
    read, _ = read_all(FileStream(path, Schema({"a": "str"}, csv={"encoding": encoding}), end="at_last"), 10_000)
    assert read["a"].tolist() == [*lines, *rest]


def test_a_growing_file_may_end_within_its_byte_order_mark_or_a_character(tmp_path):
    path, data = tmp_path / "t.csv", "a\nx\n\U0001f600\n".encode("utf-16")
    path.touch()
    stream, texts = FileStream(path, Schema({"a": "str"}, csv={"encoding": "utf-16"}), poll_interval=0.0), []
    for end in range(1, len(data) + 1):
        path.write_bytes(data[:end])
        batch = stream.poll(10, 0.0)
        texts += [] if batch is None else batch.columns["a"].tolist()
    assert texts == ["x", "\U0001f600"]


def test_numbers_as_text_are_the_same_from_every_way_in(tmp_path):
    features = Features([Numeric("a"), Categorical("b")], csv={"decimal": ",", "thousands": ".", "delimiter": ";"})
    numbers = NUMBERS[",", "."][:4]
    path = write(tmp_path / "t.csv", [["a", "b"], *([number, "x"] for number in numbers)], ";", "utf-8")
    (rows,) = rows_of(features, str(path), labelled=False)
    again = Features.from_declaration(features.declaration())
    from_text = again.read({"a": numbers, "b": ["x"] * 4}, labelled=False)
    from_numbers = again.read({"a": VALUES[:4], "b": ["x"] * 4}, labelled=False)
    for read in (rows, from_text, from_numbers):
        assert read.columns["a"].tolist() == VALUES[:4]


@pytest.mark.parametrize(
    ("declared", "text", "why"),
    [
        ({}, "1,5", r"received a number with a comma, and csv: {decimal: ','} is not declared"),
        ({"decimal": ","}, "1.5", "a number with '.', and its decimal sign is declared as ','"),
        ({"decimal": ",", "thousands": "."}, "1.5", "not a number with groups of three digits between '.'"),
        ({"thousands": ","}, "12,34", "not a number with groups of three digits between ','"),
        ({"decimal": ","}, "1,2,3", "text that is not a number"),
    ],
)
def test_a_number_with_other_signs_is_refused_by_name(declared, text, why):
    with pytest.raises(DataError, match=why):
        Features([Numeric("a")], csv=declared).transform({"a": [text]})


def test_signs_that_could_be_two_numbers_are_named_and_none_is_guessed():
    plain = CsvFormat()
    for numbers in (["1,234", "2,345"], ["1,234", "17"]):
        assert with_signs(plain, {"a": numbers}) == plain
        assert problem_of(numbers, plain) == "1,234 is 1234 or 1.234; give --decimal , or --thousands ,"
    commas = with_signs(plain, {"a": ["1,5"], "b": ["1.234", "2.345"]})
    assert commas.decimal == ","
    assert problem_of(["1.234"], commas) == "1.234 is 1234 or 1.234; give --thousands . or --decimal ."
    both = with_signs(plain, {"a": ["1,5"], "b": ["1.5"]})
    assert both == plain
    assert "1,5: other numbers of the table have '.' as decimal sign" in problem_of(["1,5"], both)
    assert "numbers with '€'" in problem_of(["12,50 €", "3 €"], plain)


def test_a_file_that_is_written_otherwise_is_named_with_what_to_declare(tmp_path):
    rows = [["age", "city"], *([str(n), "Köln"] for n in range(50))]
    schema = Schema({"age": "float64", "city": "str"})
    for delimiter, encoding, remedy in (
        (";", "utf-8", r"received 'age;city'; this file fits csv: {delimiter: ';'}"),
        ("\t", "utf-16", r"damaged: its first line has no names: .*{delimiter: '\\t', encoding: 'utf-16'}"),
    ):
        path = write(tmp_path / "t.csv", rows, delimiter, encoding)
        with pytest.raises(StreamError, match=remedy):
            FileStream(path, schema, end="at_last").poll(10, 1.0)
    headless = write(tmp_path / "headless.csv", rows[1:], ",", "utf-8")
    with pytest.raises(StreamError, match="names none of the declared columns age, city; received '0', 'Köln'"):
        FileStream(headless, schema, end="at_last").poll(10, 1.0)
    letters = DeadLetter(tmp_path / "bad.jsonl", max_bad_share=1.0)
    path = write(tmp_path / "t.csv", rows, ",", "cp1252")
    stream = FileStream(path, schema, end="at_last", dead_letter=letters)
    assert stream.poll(10, 1.0) is None
    assert "takes utf-8 text" in next(iter(letters.reasons))
    read, _ = read_all(FileStream(path, Schema(schema.columns, csv={"encoding": "cp1252"}), end="at_last"))
    assert set(read["city"]) == {"Köln"}


def test_a_bad_line_is_named_by_its_number_and_its_fields(tmp_path):
    lines = ["a,b", "1,x", "", '2,"two', 'lines"', "3,y,z", "4", "5,w", "six,v"]
    for encoding in ("utf-8", "utf-16"):
        path = tmp_path / f"{encoding}.csv"
        path.write_bytes("\n".join([*lines, *["7,u"] * 3000, "8"]).encode(encoding))
        letters = DeadLetter(None, max_bad_share=1.0)
        schema = Schema({"a": "float64", "b": "str"}, csv={"encoding": encoding})
        read, _ = read_all(FileStream(path, schema, end="at_last", dead_letter=letters), 100)
        assert read["a"].tolist() == [1, 2, 5] + [7] * 3000
        assert letters.report() == (
            f"4 of 3007 rows set aside: takes a line of 2 fields 3, a takes float64 1; the first is line 6 of "
            f"{path.name}, received one of 3"
        )


def test_spaces_around_fields_are_dropped_where_that_is_declared(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('a, b ,c\n 1, Bonn ,"x, y"\n2,Köln , "z "\n' * 1 + " 3 , Ulm,w\n" * 2000)
    found = sniff(path)
    assert found == CsvFormat(strip=True)
    read, _ = read_all(FileStream(path, Schema({"a": "int64", "b": "str", "c": "str"}, csv=found), end="at_last"))
    assert read["a"].tolist() == [1, 2] + [3] * 2000
    assert read["b"].tolist() == ["Bonn", "Köln"] + ["Ulm"] * 2000
    assert read["c"].tolist() == ["x, y", "z"] + ["w"] * 2000


def test_empty_fields_between_tabs_stay_when_spaces_are_dropped(tmp_path):
    path = tmp_path / "t.tsv"
    path.write_text("a\tb\tc\n1\t\t x\n" + " 2\t\t\n" * 2000)
    read, _ = read_all(FileStream(path, Schema(dict.fromkeys("abc", "str"), csv={"strip": True}), end="at_last"))
    assert [set(read[name]) for name in "abc"] == [{"1", "2"}, {""}, {"x", ""}]


def test_an_encoding_that_cannot_be_told_is_asked_for(tmp_path):
    path = write(tmp_path / "t.csv", [["a"], *[["城市在北京"]] * 20], ",", "gb18030")
    with pytest.raises(DataError, match=r"is not UTF-8; give --encoding NAME.*gb18030 '城市在北京'"):
        sniff(path)
    for wrong in ("utf-7", "rot13", "cp037", "nonsense", 3):
        with pytest.raises(ConfigurationError, match="encoding takes utf-8, utf-16, cp1252"):
            CsvFormat(encoding=wrong)
    with pytest.raises(ConfigurationError, match="did you mean 'delimiter'"):
        Features([Numeric("a")], csv={"delimter": ";"})
    with pytest.raises(ConfigurationError, match="two signs"):
        Schema({"a": "float64"}, csv={"decimal": ",", "thousands": ","})


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_byte_order_mark_is_no_part_of_the_first_cell_where_no_line_has_the_names(tmp_path, encoding):
    (tmp_path / "rows.csv").write_text("a,1\nb,2\n", encoding=encoding)
    schema = Schema({"city": "str", "n": "int64"}, csv={"encoding": encoding.removesuffix("-sig")})
    stream = FileStream(tmp_path / "rows.csv", schema, names=["city", "n"], end="at_last")
    assert stream.poll(1, 1.0).columns["city"].tolist() == ["a"]
    again = FileStream(tmp_path / "rows.csv", schema, names=["city", "n"], end="at_last")
    again.seek(stream.position())
    assert again.poll(9, 1.0).columns["city"].tolist() == ["b"]
