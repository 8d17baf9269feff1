"""Arrow IPC: what is read of it, when, and that rows which are not there are missed."""

import io
import random

import numpy as np
import pyarrow
import pytest

from trainer.streams import DeadLetter
from trainer.streams.formats import arrow, arrow_messages
from trainer.streams.formats.decode import Decoder

TABLES = {
    "texts and lists": {"a": ["x", "yy", None], "c": [[1], [2, 3], []]},
    "dictionary": {"b": pyarrow.array(["u", "u", "v"]).dictionary_encode()},
    "nulls": {"n": pyarrow.nulls(3)},
    "fixed lists": {"f": pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(np.arange(6.0)), 2)},
    "structs": {"s": [{"x": 1, "y": "u"}, None, {"x": 2, "y": None}]},
    "views": {"v": pyarrow.array(["x" * 20, "y", None], pyarrow.string_view())},
}


class Counting(io.BytesIO):
    """Counts the bytes that are read."""

    taken = 0

    def read(self, size=-1):
        content = super().read(size)
        self.taken += len(content)
        return content


def written(table, rows=None, new=pyarrow.ipc.new_file, **options):
    sink = io.BytesIO()
    with new(sink, table.schema, options=pyarrow.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=rows)
    return sink.getvalue()


@pytest.mark.parametrize("columns", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("options", [{}, {"compression": "zstd"}, {"use_legacy_format": True}], ids=str)
def test_rows_are_counted_whatever_the_columns_are(tmp_path, columns, options):
    table = pyarrow.table(columns)
    file = arrow_messages.FooterFile(pyarrow.BufferReader(written(table, 2, **options)))
    assert file.rows == [2, 1]
    (tmp_path / "a.arrows").write_bytes(written(table, 2, pyarrow.ipc.new_stream, **options))
    stream = arrow_messages.StreamFile(tmp_path / "a.arrows")
    stream.extend()
    assert (stream.rows, stream.problem) == ([2, 1], None)
    for source in (file, stream):
        batches = [source.batch(number) for number in range(2)]
        assert pyarrow.Table.from_batches(batches).to_pydict() == table.to_pydict()


def test_counting_the_rows_of_a_file_does_not_read_all_of_it():
    wide = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(np.zeros(64_000, np.float32)), 64)
    content = written(pyarrow.table({"wide": wide, "label": np.zeros(1_000, np.float32)}), 100)
    file = Counting(content)
    assert arrow_messages.FooterFile(pyarrow.PythonFile(file, "r")).rows == [100] * 10
    assert 0 < file.taken < len(content) / 5


FLIPPED = pyarrow.table({"a": np.arange(12), "s": ["x"] * 12, "d": pyarrow.array(["u", "v"] * 6).dictionary_encode()})


@pytest.mark.parametrize("new", [pyarrow.ipc.new_file, pyarrow.ipc.new_stream])
def test_no_flipped_bit_loses_a_row(new):
    content = written(FLIPPED, 4, new)
    refused = 0
    for bit in random.Random(1).sample(range(8 * len(content)), 1500):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            assert arrow_messages.read_payload(bytes(damaged)).num_rows == 12, bit
        except arrow.errors():
            refused += 1
    assert 0 < refused < 1500


@pytest.mark.parametrize("field", ["length", "kind", "rows", "column's rows", "body", "mark"])
def test_what_ends_a_stream_early_is_named(tmp_path, field):
    content = bytearray(written(pyarrow.table({"a": np.arange(12)}), 4, pyarrow.ipc.new_stream))
    _, _, second, third, end = arrow_messages.messages(io.BytesIO(content), 0, len(content))
    body = second.end - 4 * 8
    metadata = bytes(content[second.start : body])
    root = second.start + 8 + int.from_bytes(metadata[8:12], "little")
    four = (4).to_bytes(8, "little")
    start, value = {
        "length": (second.start + 4, bytes(4)),  # an end-of-stream mark
        "kind": (root + 5, bytes([arrow_messages.DICTIONARY])),
        "rows": (second.start + metadata.index(four), (3).to_bytes(8, "little")),
        "column's rows": (second.start + metadata.rindex(four), (3).to_bytes(8, "little")),
        # the third batch becomes a part of the second
        "body": (second.start + metadata.index((32).to_bytes(8, "little")), (third.end - body).to_bytes(8, "little")),
        "mark": (end.start, b""),
    }[field]
    content[start : start + len(value) if value else None] = value
    (tmp_path / "a.arrows").write_bytes(content)
    stream = arrow_messages.StreamFile(tmp_path / "a.arrows")
    stream.extend()
    assert stream.problem
    assert stream.rows == ([4] * 3 if field == "mark" else [4])
    if field != "mark":
        with pytest.raises(arrow.errors()):
            arrow_messages.read_payload(bytes(content))


@pytest.mark.parametrize("messages", [1, 2])
def test_columns_of_messages_are_memory_of_their_own(tmp_path, messages):
    """Changing a batch changes neither the message nor the batch that is decoded from it again."""
    fixed = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(np.arange(6, dtype=np.float32)), 2)
    content = written(pyarrow.table({"x": fixed, "label": np.ones(3, np.float32)}), None, pyarrow.ipc.new_stream)
    schema = {"columns": {"x": {"dtype": "float32", "shape": [2]}, "label": "float32"}, "label": "label"}
    decoder = Decoder(schema, DeadLetter(tmp_path / "bad.jsonl"), "test")
    before = bytes(bytearray(content))
    for _ in range(2):
        columns = decoder.decode([content] * messages).columns
        assert columns["x"].tolist() == [[0, 1], [2, 3], [4, 5]] * messages
        for column in columns.values():
            assert column.flags.writeable
            assert column.flags.c_contiguous
            column[:] = -1
    assert content == before
