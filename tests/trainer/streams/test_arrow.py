"""Arrow IPC files: what is read of them, and when."""

import io

import numpy as np
import pyarrow
import pytest

from trainer.streams import arrow

TABLES = {
    "texts and lists": {"a": ["x", "yy", None], "c": [[1], [2, 3], []]},
    "dictionary": {"b": pyarrow.array(["u", "u", "v"]).dictionary_encode()},
    "nulls": {"n": pyarrow.nulls(3)},
    "fixed lists": {"f": pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(np.arange(6.0)), 2)},
}


class Counting(io.BytesIO):
    """Counts the bytes that are read."""

    taken = 0

    def read(self, size=-1):
        found = super().read(size)
        self.taken += len(found)
        return found


def written(table, rows=None):
    sink = io.BytesIO()
    with pyarrow.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return sink.getvalue()


@pytest.mark.parametrize("columns", TABLES.values(), ids=TABLES)
def test_rows_are_counted_whatever_the_columns_are(columns):
    source = pyarrow.BufferReader(written(pyarrow.table(columns), 2))
    assert arrow.rows_of_batches(source) == [2, 1]


def test_counting_the_rows_of_a_file_does_not_read_all_of_it():
    wide = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(np.zeros(64_000, np.float32)), 64)
    content = written(pyarrow.table({"wide": wide, "label": np.zeros(1_000, np.float32)}), 100)
    file = Counting(content)
    assert arrow.rows_of_batches(pyarrow.PythonFile(file, "r")) == [100] * 10
    assert 0 < file.taken < len(content) / 5
