"""Arrow IPC messages: damaged ones are bad rows, and decoded columns are memory of their own."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from trainer.streams import Column, DeadLetter, Schema
from trainer.streams.formats import arrow
from trainer.streams.formats.decode import Decoder

ROOT = Path(__file__).parents[3]


def written(table, rows=None):
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return sink.getvalue().to_pybytes()


def test_a_message_that_is_cut_or_goes_on_is_refused():
    content = written(pyarrow.table({"a": np.arange(12)}), 4)
    assert arrow.read_payload(content).num_rows == 12
    for damaged in (content[:-20], content[:100], content + content, content + b"x", b"", b"ARROW1" + content):
        with pytest.raises(arrow.errors()):
            arrow.read_payload(damaged)


@pytest.mark.parametrize("messages", [1, 2])
def test_columns_of_messages_are_memory_of_their_own(tmp_path, messages):
    """Changing a batch changes neither the message nor the batch that is decoded from it again."""
    fixed = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(np.arange(6, dtype=np.float32)), 2)
    content = written(pyarrow.table({"x": fixed, "label": np.ones(3, np.float32)}))
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


def test_nested_lists_of_another_shape_are_bad_rows_not_reshaped():
    rows = [[[1, 2], [3, 4], [5, 6]]] * 3
    for given in (rows, [[1, 2, 3, 4, 5, 6]] * 3):
        for schema, bad in ((Schema({"m": Column("int64", (2, 3))}), 3), (Schema({"m": Column("int64", (3, 2))}), 0)):
            decoded = arrow.convert(schema, pyarrow.table({"m": given}))
            assert len(decoded.bad) == (bad if given is rows else 3)
            assert decoded.columns["m"].tolist() == ([] if decoded.bad else rows)


@pytest.mark.parametrize("values", [[True, None, False], [1, None, -3], [0.5, None, -2.5], ["a", None, "xyz"]])
@pytest.mark.parametrize("nulls", [True, False])
def test_columns_that_are_slices_keep_their_values_and_nulls(values, nulls):
    values = [value for value in values * 5 if nulls or value is not None]
    for start, stop in ((0, len(values)), (3, 4), (3, 10), (9, len(values)), (2, 2)):
        column = pyarrow.array(values).slice(start, stop - start)
        found = arrow.plain(column, Column("str" if isinstance(values[0], str) else "float64"))
        assert found.tolist() == values[start:stop]


def test_numbers_and_text_with_nulls_are_read_without_pandas(tmp_path):
    """Importing pandas takes longer than everything else that opens the first file."""
    pytest.importorskip("pandas")
    table = {"n": [0.5, None], "i": [1, 2], "t": ["a", None], "b": [True, None], "label": [0.0, 1.0]}
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "0.parquet")
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from trainer.features import Categorical, Features, Numeric\n"
        "names = [Numeric('n', missing=0.0), Numeric('i'), Categorical('t'), Categorical('b')]\n"
        f"Features(names, label='label').fit(Path({str(tmp_path)!r}))\n"
        "sys.exit('pandas' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.process
@pytest.mark.parametrize(("limit", "threads"), [({}, "all"), ({"OMP_NUM_THREADS": "1"}, "1")], ids=["none", "limited"])
def test_pyarrow_uses_all_cores_although_mindspore_limits_them(limit, threads):
    """`import mindspore` sets OMP_NUM_THREADS=1 for the process, and pyarrow reads it when it is imported."""
    code = "import mindspore; from trainer.streams.formats import arrow; print('threads', arrow.require().cpu_count())"
    environment = {**os.environ, **limit}
    if not limit:
        environment.pop("OMP_NUM_THREADS", None)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    expected = str(len(os.sched_getaffinity(0))) if threads == "all" else threads
    assert f"threads {expected}" in done.stdout, done.stderr
