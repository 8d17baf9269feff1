"""Blocks parsed as a whole by pyarrow give what lines one by one give: rows, positions, dead letters."""

import json
import random
import re
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("pyarrow")
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.trainer.streams.odd_lines import (
    CSV_NAMES,
    GOOD,
    ODD_CSV,
    ODD_JSON,
    SCHEMA,
    csv_line,
    csv_with,
    json_line,
    json_with,
)
from trainer.streams import Column, DeadLetter, FileStream, Schema
from trainer.streams.formats import segments, text_blocks
from trainer.streams.formats.decode import Decoder


def plainly(column):
    return column.dtype.str if column.dtype.kind != "U" else "U", [
        row.tolist() if isinstance(row, np.ndarray) else row for row in column
    ]


@pytest.fixture
def both(tmp_path, monkeypatch):
    """Return a function: what is read of some lines, by blocks and line by line."""

    def read(name, data, schema=SCHEMA, **options):
        found = []
        for number, by_blocks in enumerate((True, False)):
            with monkeypatch.context() as patch:
                if not by_blocks:
                    for parser in ("json_parser", "csv_parser"):
                        patch.setattr(text_blocks, parser, lambda *described: None)
                folder, letters = tmp_path / name, tmp_path / f"letters-{number}.jsonl"
                folder.mkdir(exist_ok=True)
                (folder / f"part.{name}").write_bytes(data)
                letters.write_bytes(b"")
                stream = FileStream(folder, schema, end="at_last", dead_letter=letters, max_bad_share=1.0, **options)
                batches = []
                while not stream.exhausted:
                    batches.append(stream.poll(1 << 20, 0))
                stream.close()
            batches = [batch for batch in batches if batch is not None]
            columns = [{n: plainly(c) for n, c in batch.columns.items()} for batch in batches]
            times = [batch.event_time if batch.event_time is None else batch.event_time.tolist() for batch in batches]
            spans = [batch.spans for batch in batches]
            found.append(repr((columns, times, spans, letters.read_text())))
        return found

    return read


def lines_with(odd, line):
    lines = [line(row) for row in GOOD]
    lines.insert(617, odd)
    return b"\n".join(lines) + b"\n"


@pytest.mark.parametrize("odd", ODD_JSON)
def test_an_odd_json_line_among_many(both, odd):
    blocks, lines = both("jsonl", lines_with(odd, json_line))
    assert blocks == lines


@pytest.mark.parametrize("odd", ODD_CSV)
def test_an_odd_csv_line_among_many(both, odd):
    blocks, lines = both("csv", lines_with(odd, csv_line), names=CSV_NAMES)
    assert blocks == lines


PIECES = [b"", b"\n", b" ", b",", b"{", b"}", b'"', b"0", b"-", b"e", b"\r\n"]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), kind=st.sampled_from(["jsonl", "csv"]))
def test_lines_with_bytes_changed_at_random(both, seed, kind):
    rng = random.Random(seed)
    line = json_line if kind == "jsonl" else csv_line
    data = bytearray(b"\n".join(line(row) for row in GOOD[:12]) + b"\n")
    for _ in range(rng.randrange(4)):
        place = rng.randrange(len(data))
        data[place : place + rng.randrange(3)] = rng.choice(
            [b"", b"\n", b" ", b",", b"{", b"}", b'"', b"0", b"-", b"e", b"\r\n"]
        )
    options = {"names": CSV_NAMES} if kind == "csv" else {}
    blocks, lines = both(kind, bytes(data), **options)
    assert blocks == lines


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_most_lines_of_a_file_with_bad_ones_are_parsed_in_blocks(tmp_path, monkeypatch, kind):
    line = json_line if kind == "jsonl" else csv_line
    (tmp_path / f"part.{kind}").write_bytes(lines_with(b"{broken", line))
    careful = []
    reader = segments.CsvReader if kind == "csv" else segments.TextReader
    decode = reader.decode
    monkeypatch.setattr(reader, "decode", lambda self, lines: careful.extend(lines) or decode(self, lines))
    stream = FileStream(tmp_path, SCHEMA, end="at_last", max_bad_share=1.0, names=CSV_NAMES if kind == "csv" else None)
    rows = 0
    while not stream.exhausted:
        batch = stream.poll(1 << 20, 0)
        rows += 0 if batch is None else batch.rows
    assert rows == len(GOOD)
    assert 1 <= len(careful) < 200


# Columns as declared features read them: numbers, texts and times in any spelling, missing ones too.
WRITTEN = Schema(
    {
        "age": Column("int8", coerce=True, default=7),
        "price": Column("float32", coerce=True, default=float("nan"), allow_nan=True),
        "big": Column("int64", coerce=True),
        "when": Column("float64", coerce=True, times=True, default=0.0),
        "city": Column("str", coerce=True, default="?"),
        "kept": Column("str", coerce=True, default="", as_given=True),
        "tags": Column("str", (None,), coerce=True, default=()),
        "pair": Column("float32", (2,), coerce=True, allow_nan=True),
        "flag": Column("bool", coerce=True, default=False),
        "absent": Column("float32", coerce=True, default=1.0),
    },
    label="price",
)
# column: values, one of them in each line, all read in blocks
SPELT = {
    "age": [["24", "-3", "5.0", "", "1e1", "+6"], [24.0, 5.0], [24, None, 0]],
    "price": [["1.5", "-0", "1e-3", "", ".5"], [1, 2.5, None], ["7", "1 000", "x"]],
    "big": [
        ["9007199254740993", "-9223372036854775808", "000000000000000000007", "1.0"], [2**53 + 1, 5], [5.0, 2.0**60],
    ],
    "when": [
        ["2024-01-02", "2024-01-02T03:04:05Z", ""], [1.7e9, 1.7e9 + 0.25], [1_700_000_000_123_456_789], ["1700000000"],
    ],
    "city": [[5, 10**17], [0.5, 5.0, 1e22], [True, False], ["TRUE", "a, b", "", "0x1f", "(x)"]],
    "kept": [[5, None], [True], ["a", ""]],
    "tags": [[["a", "b"], []], [[1, 2], None], [[1.5, 2.0]]],
    "pair": [[["1", "2.5"], ["-0", "3"]], [[1, 2], [0.5, 2]]],
    "flag": [["true", "False", "0"], [0, 1], [True, False]],
}  # fmt: skip
IN_BLOCKS = [(name, values) for name, kinds in SPELT.items() for values in kinds]


def declared(number, changed, texts):
    row = {
        "age": 3, "price": 1.5, "big": 5, "when": 1.7e9 + number, "city": "Rome", "kept": "k", "tags": ["a"],
        "pair": [0.5, 2.0], "flag": True,
    }  # fmt: skip
    return {name: texts[number % len(texts)] if name == changed else value for name, value in row.items()}


def quoted(value):
    if isinstance(value, list):
        return "|".join(map(quoted, value))
    text = "" if value is None else str(value)
    return f'"{text}"' if "," in text else text


@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv"])
def test_values_in_any_spelling_are_read_in_blocks(both, monkeypatch, kind):
    careful = []
    reader = segments.TextReader if kind == "jsonl" else segments.CsvReader
    decode = reader.decode
    monkeypatch.setattr(reader, "decode", lambda self, lines: careful.append(len(lines)) or decode(self, lines))
    for name, values in IN_BLOCKS:
        rows = [declared(number, name, values) for number in range(300)]
        separator = {"csv": ",", "tsv": "\t"}.get(kind)
        lines = [json_line(row) if separator is None else separator.join(map(quoted, row.values())) for row in rows]
        data = b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines)
        careful.clear()
        blocks, by_line = both(
            kind, data, WRITTEN, **({} if separator is None else {"names": list(rows[0]), "list_delimiter": "|"})
        )
        assert blocks == by_line, (name, values)
        bad = sum(not isinstance(value, str) or value in ("x", "1 000") for value in values)
        assert sum(careful) <= 300 + 300 * bad / len(values), (
            name,
            values,
        )  # all of them once, by line; bad ones twice


def test_a_file_read_line_by_line_is_named_once(tmp_path, caplog):
    for number in range(2):
        rows = [declared(row, "age", [5, "6"]) for row in range(3000)]
        (tmp_path / f"{number}.jsonl").write_bytes(b"\n".join(map(json_line, rows)))
    stream = FileStream(tmp_path, WRITTEN, end="at_last")
    while not stream.exhausted:
        stream.poll(1 << 20, 0)
    told = [record.message for record in caplog.records if "line by line" in record.message]
    assert len(told) == 1
    assert re.search(r"0.jsonl .*age.* changed from number to string", told[0])


NUMBERS = Schema(
    {
        "user": Column("int64"),
        "age": Column("int8", minimum=0, default=7),
        "ids": Column("int32", (3,)),
        "price": Column("float64", allow_nan=True),
        "label": Column("float32"),
    },
    label="label",
    event_time="at",
)
SPELLINGS = [
    "-0", "-0.0", "0", "00", "01", "-01", "1.", ".5", "-.5", "+1", "1_0", " 1", "1 ", "", "-", "--1", "1-", "1e", "1e+",
    "1e5", "1E+05", "25e-1", "1e22", "1e23", "1e-30", "1e-70", "1e400", "5e-324", "1e00001", "0x1F", "nan", "NaN",
    "Infinity", "true", "null", '"1"', "[1]", "300", "5.0", "5.5", "0.30000000000000004", "0.000000123456789012345678",
    "4503599627370497.5", "4503599627370496.4999", "9007199254740991", "9007199254740993", "9223372036854775807",
    "-9223372036854775808", "9223372036854775808", "12345678901234567890", "0." + "0" * 60 + "1", "0" * 60, "1\r",
]  # fmt: skip


def spelled(kind, places):
    """Return lines of numbers; at `places`, (line, field), are other texts than the numbers' own."""
    lines = []
    for number in range(300):
        cells = {
            "at": 1.7e9 + number / 7, "user": number * 10**14, "age": number % 100, "note": number / 11,
            "ids": [number, -2, 3], "price": number / 3e7, "label": 1.0,
        }  # fmt: skip
        texts = {name: json.dumps(value) for name, value in cells.items()}
        texts |= {name: text for (line, name), text in places.items() if line == number}
        if kind == "csv":
            lines.append(",".join(texts.values()).replace(", ", " ").replace("[", "").replace("]", ""))
        else:
            lines.append("{" + ", ".join(f'"{name}": {text}' for name, text in texts.items()) + "}")
    return "\n".join(lines).encode()


@pytest.mark.long(but=["csv-user", "jsonl-price"])
@pytest.mark.parametrize("field", ["user", "age", "note", "price"])
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_number_in_another_spelling_among_many_lines(both, kind, field):
    names = {"names": ["at", "user", "age", "note", "ids", "price", "label"]} if kind == "csv" else {}
    for text in SPELLINGS:
        blocks, lines = both(kind, spelled(kind, {(0, field): text, (161, field): text}), NUMBERS, **names)
        assert blocks == lines


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_lines_of_numbers_without_a_fault(both, kind, line_end):
    names = {"names": ["at", "user", "age", "note", "ids", "price", "label"]} if kind == "csv" else {}
    blocks, lines = both(kind, spelled(kind, {}).replace(b"\n", line_end), NUMBERS, **names)
    assert blocks == lines


@pytest.mark.parametrize("odd", ["5.5", "1e300", "9223372036854775808", "-9223372036854775809", "nan"])
def test_what_is_no_whole_number_never_becomes_one(both, odd):
    lines = b"1,2.5\n" * 1000 + odd.encode() + b",1.5\n" + b"3,2.5\n" * 1000
    schema = Schema({"a": Column("int64"), "b": Column("float32")}, event_time="b")
    for found in both("csv", lines, schema, names=["a", "b"]):
        values = ", ".join(re.findall(r"'a': \('<i8', \[(.*?)\]\)", found))
        assert values == ", ".join(["1"] * 1000 + ["3"] * 1000)
        assert '"row": 1000' in found


@pytest.mark.parametrize("odd", ["1_0", "\uff11\uff10", "1\uff10", "\u0661", "5\u3000", "5\x1f"])
@pytest.mark.parametrize("name", ["whole", "real", "yes", "list"])
def test_what_only_python_takes_for_a_number_is_a_bad_cell(both, odd, name):
    columns = {"whole": "int64", "real": "float32", "yes": "bool", "list": Column("int64", (2,))}
    good = {"whole": "1", "real": "2.5", "yes": "1", "list": "1 2"}
    rows = [good, {**good, name: f"1 {odd}" if name == "list" else odd}, good]
    lines = "\n".join(",".join(row.values()) for row in rows).encode()
    for found in both("csv", lines, Schema(columns, event_time="real"), names=list(columns)):
        assert re.findall(r"'whole': \('<i8', (.*?)\)", found) in (["[1]", "[1]"], ["[1, 1]"])
        assert '"row": 1' in found
    fields = [{cell.encode(): text.encode() for cell, text in row.items()} for row in rows]
    ragged = Schema({**columns, "list": Column("int64", (None,))})
    decoded = Decoder(ragged, DeadLetter(), "test").decode_fields(fields, " ")
    assert decoded.message.tolist() == [0, 2]
    assert [item.message for item in decoded.bad] == [1]


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
@pytest.mark.parametrize("limit", [300, 2_000_000], ids=["within a block", "beyond a block"])
def test_a_record_above_the_declared_size_is_set_aside_by_place_and_size(tmp_path, kind, limit):
    line = json_line if kind == "jsonl" else csv_line
    long = json_with(note="x" * limit) if kind == "jsonl" else csv_with(note="x" * limit)
    fits = json_with(note="x" * (limit // 8))
    lines = [line(row) for row in GOOD]
    if kind == "jsonl":
        lines.insert(500, fits)
    place = sum(map(len, lines)) + len(lines)
    folder, letters = tmp_path / "in", tmp_path / "letters.jsonl"
    folder.mkdir()
    data = b"\n".join([*lines, long, *lines]) + b"\n" + long  # the last one without a line end
    (folder / f"part.{kind}").write_bytes(data)
    names = CSV_NAMES if kind == "csv" else None
    stream = FileStream(
        folder, SCHEMA, end="at_last", dead_letter=letters, max_bad_share=1.0, max_record_bytes=limit, names=names
    )
    rows = 0
    while not stream.exhausted:
        batch = stream.poll(1 << 20, 0)
        rows += 0 if batch is None else batch.rows
    assert rows == 2 * len(lines)
    told = [json.loads(text) for text in letters.read_text().splitlines()]
    assert [f"max_record_bytes={limit}; received one of {len(long)} bytes" in row["reason"] for row in told] == [
        True
    ] * 2
    assert all(len(row["raw"]) <= 65_536 for row in told)
    if limit > 1_000_000:
        assert [row["offset"] for row in told] == [f"part.{kind}@{place}", f"part.{kind}@{len(data) - len(long)}"]


LONG_LINE = """
import resource, sys
import numpy, pyarrow.json, orjson
from trainer.streams import DeadLetter, FileStream, Schema
def read(folder):
    stream, ids = FileStream(folder, Schema({"id": "int64"}), end="at_last", dead_letter=DeadLetter(None, 1.0)), []
    while not stream.exhausted:
        batch = stream.poll(100, 1)
        ids += [] if batch is None else batch.columns["id"].tolist()
    return ids
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
read(sys.argv[1])
before = peak()
print(read(sys.argv[2]), (peak() - before) / 12e6)
"""


@pytest.mark.long(but=["numbers"])
@pytest.mark.process
@pytest.mark.parametrize("kind", ["text", "numbers", "broken"])
def test_a_long_line_is_read_in_a_few_times_its_size(tmp_path, kind):
    middle = {
        "text": b'{"id": 5, "pad": "%s"}' % (b"y" * 12_000_000),
        "numbers": b'{"id": 5, "pad": [%s0.125]}' % (b"0.125, " * 1_700_000),
        "broken": b"z" * 12_000_000,
    }[kind]
    for name, lines in (("short", [b'{"id": 1}'] * 50_000), ("long", [b'{"id": 1}', middle, b'{"id": 2}'])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    arguments = [sys.executable, "-c", LONG_LINE, tmp_path / "short", tmp_path / "long"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=120)
    ids, times = done.stdout.rsplit(maxsplit=1)
    assert ids == ("[1, 2]" if kind == "broken" else "[1, 5, 2]")
    assert float(times) <= 8


@pytest.mark.parametrize("lines", [b"\n\n", b"\n1;2,0\n", b"1;2,0\n\n\n3,1\n"])
def test_blank_lines_beside_lists_of_any_length(both, lines):
    schema = Schema({"tags": Column("int64", (None,)), "label": Column("float32")}, label="label")
    blocks, one_by_one = both("csv", b"tags,label\n" + lines, schema)
    assert blocks == one_by_one
