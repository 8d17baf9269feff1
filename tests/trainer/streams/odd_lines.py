"""Rows of every type, as lines of JSON and CSV, and lines that parsers read in different ways."""

import json

from trainer.streams import Column, Schema

SCHEMA = Schema(
    {
        "user": Column("int64"),
        "age": Column("int8", minimum=0, default=7),
        "ids": Column("int32", (3,)),
        "price": Column("float32", allow_nan=True),
        "bought": Column("bool"),
        "city": Column("str"),
        "label": Column("float32"),
    },
    label="label",
    event_time="at",
)
CSV_NAMES = ["at", "user", "age", "note", "ids", "price", "bought", "city", "label"]


def record(number):
    return {
        "at": 1.7e9 + number / 7,
        "user": number,
        "age": number % 100,
        "note": "x",
        "ids": [number, 2, 3],
        "price": number / 3,
        "bought": number % 2 == 0,
        "city": ["Łódź", "Rome", ""][number % 3],
        "label": 1.0,
    }


def csv_line(row):
    cells = [" ".join(map(str, v)) if isinstance(v, list) else str(v) for v in row.values()]
    return ",".join(cells).encode()


def json_line(row):
    return json.dumps(row, ensure_ascii=False).encode()


def json_with(**values):
    return json_line({**record(1), **values})


def csv_with(**values):
    return csv_line({**record(1), **values})


GOOD = [record(number) for number in range(1000)]
ONE_JSON, ONE_CSV = json_with(), csv_with()
ODD_JSON = [
    b"", b"   ", b"{broken", b"[]", b'{"user": 1}', b"5", b"null", b'"text"', b"\xef\xbb\xbf{}", b"\xff",
    ONE_JSON + b"  ", ONE_JSON + b"\r", ONE_JSON + ONE_JSON, b"[" + ONE_JSON + b", 5, " + ONE_JSON + b"]",
    ONE_JSON[:40] + b"\n" + ONE_JSON[40:], json_with(user=5.0), json_with(user=True), json_with(user="5"),
    json_with(user=2**63), json_with(age=None), json_with(age=300), json_with(price=float("nan")),
    json_with(label=float("inf")), json_with(price=10**20), json_with(price=2**53 + 1), json_with(bought=1),
    json_with(city=5), json_with(city="2024-01-01"), json_with(ids=[1, 2]), json_with(ids=[1, 2, None]),
    json_with(ids=[1.0, 2, 3]), json_with(note={"deep": ["}\n{", {}]}),
    json_line({name: value for name, value in record(1).items() if name != "age"}),
    json_line({name: [value, value] for name, value in record(1).items()}),
    ONE_JSON.replace(b'"user": 1', b'"user": 1, "user": 2'), ONE_JSON.replace(b": 1,", b": 01,"),
    ONE_JSON.replace(b"0.3333333333333333", b"1e400"), ONE_JSON.replace(b"Rome", b"a\\u0000b"),
    ONE_JSON.replace(b"Rome", b"\\ud800"), ONE_JSON.replace(b"Rome", b"tab\there"),
]  # fmt: skip
ODD_CSV = [
    b"", b"  ", b",,,,,,,,", b"1,2", ONE_CSV + b",9", ONE_CSV + b"\r", b"\xff" + ONE_CSV, csv_with(note='"x, y"'),
    csv_with(note="a b"), csv_with(note="a\rb"), csv_with(note="\0"), csv_with(note="x" * 140_000),
    *(csv_with(user=value) for value in ("", " 5", "5.0", "5.5", "0x1F", "+5", "1_000", "-0", "9" * 20)),
    *(csv_with(age=value) for value in ("", " ", "300", "-1", "x")),
    *(csv_with(price=value) for value in ("nan", "nan(1)", "-inf", "Infinity", "1e400", "1e-400", ".5")),
    *(csv_with(bought=value) for value in ("tRuE", "0", "2", "1.0", "yes", "")),
    *(csv_with(ids=value) for value in ("1 2", "1 2 3 4", "1  2", " 1 2", "1 2 x", "1,2 3")),
    csv_with(ids="1 2", city="New York"), csv_with(city="nan"), csv_with(city="2024-01-01"),
]  # fmt: skip
