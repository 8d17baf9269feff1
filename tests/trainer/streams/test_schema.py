import json

import numpy as np
import pytest

from trainer.errors import ConfigurationError, StreamError
from trainer.streams import Column, DeadLetter, Schema, Span
from trainer.streams.formats.decode import Decoder

COLUMNS = {
    "user": Column("int32", minimum=0, maximum=99),
    "ids": {"dtype": "int64", "shape": [2]},
    "price": "float32",
    "flag": "bool",
    "kind": Column("str", default="none"),
}
GOOD = {"user": 3, "ids": [1, 2], "price": 0.5, "flag": True, "kind": "x", "ts": 7}


@pytest.fixture
def make(tmp_path):
    def build(**options):
        letters = DeadLetter(tmp_path / "bad.jsonl", **{"max_bad_share": 1.0, **options})
        return Decoder(Schema(COLUMNS, event_time="ts", event_time_unit="ms"), letters, "test")

    return build


def decode(decoder, payloads):
    decoded = decoder.decode(payloads)
    batch = decoder.batch(decoded, [Span("p", 100 + n, 0, 0, 101 + n) for n in range(len(payloads))])
    decoder.dead_letter.close()
    path = decoder.dead_letter.path
    return batch, [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_good_rows_keep_their_values_dtypes_and_shapes(make):
    without_kind = {name: value for name, value in GOOD.items() if name != "kind"}
    batch, bad = decode(make(), [json.dumps(row).encode() for row in (GOOD, without_kind)])
    assert bad == []
    assert {name: column.dtype.kind for name, column in batch.columns.items()} == {
        "user": "i",
        "ids": "i",
        "price": "f",
        "flag": "b",
        "kind": "U",
    }
    assert batch.columns["user"].dtype == np.int32
    assert batch.columns["ids"].tolist() == [[1, 2], [1, 2]]
    assert batch.columns["kind"].tolist() == ["x", "none"]
    assert batch.event_time.tolist() == [0.007, 0.007]
    assert all(column.flags.writeable and column.flags.c_contiguous for column in batch.columns.values())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"user": None}, "'user' is missing"),
        ({"user": 100}, "takes int32 from 0 to 99; received 100"),
        ({"user": -1}, "received -1"),
        ({"user": 2**40}, "received 1099511627776"),
        ({"user": 2**70}, "takes int32"),
        ({"user": 1.5}, "received 1.5"),
        ({"user": "3"}, "received text: '3'"),
        ({"user": True}, "takes int32; received true or false: True"),
        ({"ids": [1, True]}, "takes int64; received true or false: [1, True]"),
        ({"price": False}, "takes float32; received true or false: False"),
        ({"user": [3]}, "takes int32; received a list: [3]"),
        ({"ids": [1]}, "takes rows of shape [2]"),
        ({"ids": [1, [2]]}, "takes int64; received a list: [1, [2]]"),
        ({"ids": [1, None]}, "holds a missing value: [1, None]"),
        ({"price": 1e39}, "takes finite float32; received 1e+39"),
        ({"price": "much"}, "received text: 'much'"),
        ({"flag": 2}, "from 0 to 1"),
        ({"kind": 5}, "takes text; received int: 5"),
        ({"ts": "now"}, "column 'ts' takes a time; received text that is not a time: 'now'"),
    ],
)
def test_a_bad_row_is_set_aside_alone_with_its_place_and_reason(make, change, reason):
    rows = [GOOD, {**GOOD, **change}, {**GOOD, "user": 4}]
    as_messages = [json.dumps(row).encode() for row in rows]
    batch, bad = decode(make(), as_messages)
    assert batch.columns["user"].tolist() == [3, 4]
    assert [span.offset for span in batch.spans] == [100, 102]
    assert len(bad) == 1
    assert reason in bad[0]["reason"]
    assert (bad[0]["offset"], bad[0]["row"], json.loads(bad[0]["raw"])) == (101, 0, rows[1])

    # The same rows as one message: rows keep their numbers, so the good ones are two spans around the bad one.
    batch, bad = decode(make(), [json.dumps(rows).encode()])
    assert [tuple(span) for span in batch.spans] == [("p", 100, 0, 0, None), ("p", 100, 2, 2, 101)]
    assert (bad[-1]["offset"], bad[-1]["row"]) == (100, 1)


def test_a_record_of_columns_is_no_row(make):
    columns = {name: [GOOD[name]] * 3 for name in GOOD}
    batch, bad = decode(make(), [json.dumps(GOOD).encode(), json.dumps(columns).encode()])
    assert batch.columns["user"].tolist() == [3]
    assert "column 'user' takes int32; received a list: [3, 3, 3]" in bad[0]["reason"]


@pytest.mark.parametrize("payload", [b"{", b"", b"7", b"[]", b"[3]", b"\xff\xff\xff\xffx", b'"\xff"', b"[" * 100_000])
def test_an_unreadable_message_is_set_aside_and_the_next_one_read(make, payload):
    batch, bad = decode(make(), [payload, json.dumps(GOOD).encode()])
    assert [span.offset for span in batch.spans] == [101]
    assert bad[0]["offset"] == 100


def test_arrow_messages_with_nulls_and_ragged_lists(make):
    pa = pytest.importorskip("pyarrow")
    rows = [GOOD, {**GOOD, "user": None}, {**GOOD, "ids": [1]}, {**GOOD, "ids": [1, 2, 3]}, {**GOOD, "user": 5}]
    kinds = {"user": pa.int32(), "ids": pa.list_(pa.int64()), "price": pa.float32(), "flag": pa.bool_()}
    kinds |= {"kind": pa.dictionary(pa.int8(), pa.string()), "ts": pa.timestamp("us")}
    for taken in (rows, rows[::4]):
        arrays = {n: pa.array([r[n] if n != "ts" else 7000 for r in taken], kinds[n]) for n in kinds}
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, pa.table(arrays).schema) as writer:
            writer.write_table(pa.table(arrays))
        batch, bad = decode(make(), [sink.getvalue().to_pybytes(), json.dumps(GOOD).encode()])
        assert batch.columns["user"].tolist() == [3, 5, 3]
        assert batch.columns["ids"].dtype == np.int64
        assert batch.event_time.tolist() == [0.007] * 3
    assert [(entry["offset"], entry["row"]) for entry in bad] == [(100, 1), (100, 2), (100, 3)]


def test_too_many_bad_records_stop_the_stream_early_or_late(make):
    good, bad = json.dumps(GOOD).encode(), b"broken"
    decoder = make(max_bad_share=0.1, min_rows=20)
    decode(decoder, [bad] * 2 + [good] * 3)
    with pytest.raises(StreamError, match=r"max_bad_share=0\.1"):
        decode(decoder, [bad] * 5 + [good] * 10)
    decoder = make(max_bad_share=0.1, min_rows=20)
    for _ in range(500):
        decode(decoder, [good] * 20)
    with pytest.raises(StreamError, match=r"bad\.jsonl"):  # noqa: PT012
        for _ in range(10):
            decode(decoder, [bad] * 10)
    assert decoder.dead_letter.good == 10_000


def test_wrong_schemas_are_refused_with_the_nearest_name():
    with pytest.raises(ConfigurationError, match="did you mean 'label'"):
        Schema({"label": "float32"}, label="labl")
    with pytest.raises(ConfigurationError, match="did you mean 'int32'"):
        Schema({"user": "int322"})
    with pytest.raises(ConfigurationError, match="did you mean 'minimum'"):
        Schema({"user": {"dtype": "int32", "minimun": 0}})
    with pytest.raises(ConfigurationError, match="default"):
        Column("int32", default="x")
