"""JSON messages that came together are read as one block, and give what messages one by one give."""

import io
import json
import random

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from tests.trainer.streams.odd_lines import GOOD, ODD_JSON, SCHEMA, json_line, record  # noqa: E402
from trainer.streams import Column, DeadLetter, Schema  # noqa: E402
from trainer.streams.formats import decode  # noqa: E402
from trainer.streams.formats.decode import Decoder  # noqa: E402

ONES = [json_line(row) for row in GOOD]
LISTS = [json_line(GOOD[first : first + 100]) for first in range(0, 1000, 100)]


def found(payloads, in_blocks, schema=SCHEMA, **options):
    """What is read of messages: values and dtypes, places, bad rows."""
    decoded = Decoder(schema, DeadLetter(), "test", **options).decode(payloads, in_blocks)
    columns = {
        name: (column.dtype.kind, [np.asarray(row).tolist() for row in column])
        for name, column in decoded.columns.items()
    }
    times = None if decoded.event_time is None else decoded.event_time.tolist()
    places = [part.tolist() for part in (decoded.message, decoded.row, decoded.counts)]
    return repr((columns, times, places, decoded.bad))


def of_columns(payload):
    """A message as Arrow."""
    sink = io.BytesIO()
    table = pa.Table.from_pylist(json.loads(payload))
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


@pytest.mark.parametrize(
    "odd",
    [
        *ODD_JSON,
        b"[]",
        b"{}",
        b"[{}]",
        b"[" + ONES[0] + b",]",
        json_line({"a": "}, {"}),
        b"[%s\n%s]" % (ONES[0], ONES[1]),
    ],
)
@pytest.mark.parametrize("others", [ONES, LISTS], ids=["a row each", "lists of rows"])
def test_an_odd_message_among_many(odd, others):
    payloads = [*others[:6], odd, *others[6:]]
    assert found(payloads, True) == found(payloads, False)


@pytest.mark.parametrize("odd", ODD_JSON)
def test_an_odd_row_within_a_list_of_rows(odd):
    payloads = [*LISTS[:3], b"[%s, %s,%s]" % (ONES[0], odd, ONES[1]), b" [%s]\n" % odd, *LISTS[3:]]
    assert found(payloads, True) == found(payloads, False)


def test_rows_keep_their_messages_between_arrow_messages_and_too_large_ones():
    payloads = [*ONES[:400], *LISTS, of_columns(LISTS[0]), *LISTS, LISTS[0] + b" " * 100_000, *ONES[400:]]
    told = found(payloads, True, max_record_bytes=100_000)
    assert told == found(payloads, False, max_record_bytes=100_000)
    assert "takes a record of at most max_record_bytes" in told


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_messages_with_bytes_changed_at_random(seed):
    rng = random.Random(seed)
    payloads = [*ONES[:300], *LISTS]
    for _ in range(rng.randrange(4)):
        number = rng.choice([rng.randrange(300), rng.randrange(300, 310)])
        place, piece = (
            rng.randrange(len(payloads[number])),
            rng.choice([b"", b"\n", b" ", b"},{", b"{", b"}", b'"', b"-"]),
        )
        payloads[number] = payloads[number][:place] + piece + payloads[number][place + rng.randrange(3) :]
    assert found(payloads, True) == found(payloads, False)


def test_most_messages_beside_bad_ones_are_read_in_blocks(monkeypatch):
    alone = []
    monkeypatch.setattr(decode, "json_loader", lambda: lambda payload: alone.append(payload) or json.loads(payload))
    decoder = Decoder(SCHEMA, DeadLetter(), "test")
    decoded = decoder.decode([*ONES, b"{broken", *ONES, json_line({**record(1), "user": None}), *ONES, *ONES])
    assert (len(decoded.row), len(decoded.bad)) == (4000, 2)
    assert 1 <= len(alone) < 1500


def test_messages_that_are_read_one_by_one_are_named_once(caplog):
    decoder = Decoder(Schema({"x": Column("float32", (16,))}), DeadLetter(), "kafka clicks")
    pretty = [json.dumps({"x": row.tolist()}, indent=1).encode() for row in np.random.default_rng(1).random((1000, 16))]
    for _ in range(2):
        assert len(decoder.decode(pretty).row) == 1000
    told = [record.message for record in caplog.records]
    assert len(told) == 1
    assert "kafka clicks is read line by line" in told[0]
    assert "a message holds line ends" in told[0]


@pytest.mark.parametrize("fraction", ["0.5", "0.12345678901234567890", "0.0000000000000000000000000000000000000001"])
@pytest.mark.parametrize("integer", [2**63, 2**64 + 1, -(10**19) - 1, 10**30 + 1])
def test_long_integers_stay_exact_beside_fractions_of_any_length(fraction, integer):
    value = decode.json_loader()(f'[{fraction},{integer},{{"a":{fraction}}}]'.encode())
    assert value == [float(fraction), integer, {"a": float(fraction)}]
