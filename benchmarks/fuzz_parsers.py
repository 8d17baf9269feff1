"""Native parsers under damaged bytes, in a child process: a crash ends the child, and the parent names the signal.

A case is a seed. The child builds a file or a message from it, damages it and reads it as a training would: JSON lines
and CSV, Arrow messages, Parquet segments and folders. Reading ends in rows or in one of
`trainer.errors`; a signal, another exception or no answer is a failure.
"""

from __future__ import annotations

import contextlib
import json
import logging
import random
import select
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from benchmarks.damage import Make, WrongError, damage  # noqa: E402

PATIENCE = 60.0  # seconds a case may take
MEMORY = 6 << 30  # bytes the child may address: a length from damaged bytes must not take the machine's memory


# -- parent ------------------------------------------------------------------------------------------------------------


class Child:
    """A process that tries one case after another; it is started again after one that ended it."""

    def __init__(self, command: Sequence[str] = (sys.executable, str(Path(__file__)))) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    def attempt(self, seed: int) -> str:
        """Return what came of a case: "read", "refused", or what was wrong with it; -1 - n: of `CRASHED[n]`."""
        if self._process is None:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{seed}\n".encode())
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], PATIENCE)[0]:
            self.end()
            return f"no answer within {PATIENCE:.0f} s"
        answer = self._process.stdout.readline()
        if answer:
            return answer.decode().strip()
        code = self._process.wait()
        self.end()
        return (
            f"the process was ended by {signal.Signals(-code).name}" if code < 0 else f"the process ended with {code}"
        )

    def end(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def parsers(folder: Path) -> Make:
    """Damaged bytes in all formats, read in a child process: rows or a documented error, never a signal."""
    child = Child()

    def case(choose: random.Random, scratch: Path) -> None:
        from trainer.errors import TrainerError

        seed = choose.getrandbits(48)
        answer = child.attempt(seed)
        if answer == "refused":
            raise TrainerError(answer)
        if answer != "read":
            raise WrongError(f"{answer}; alone: python benchmarks/fuzz_parsers.py <<< {seed}")

    weakref.finalize(case, child.end)
    return case


CRASHED = (
    (b"null\n", "jsonl"),
    (b" null[]\n", "jsonl"),
    (b'"\r\nnull"', "jsonl"),
    (b"\nnull", "jsonl"),
    (b'} \nnull:{"a":{}', "jsonl"),
    (b'{"i":1}-\nnull\n{"i":2}', "jsonl"),
    (b'{"i":1,"f":1,"ids":[1,[2,3]],"s":"","d":"","r":[1,[2,3]]}\n', "jsonl"),
)
"""What has ended a process or raised something undocumented once: content of a segment, and its suffix."""


# -- child: what is read -----------------------------------------------------------------------------------------------

COLUMNS: dict[str, dict[str, Any]] = {
    "numbers": {"i": "int32", "f": "float32", "ids": {"dtype": "int64", "shape": [2]}},
    "text": {"s": "str", "i": {"dtype": "int64", "default": 0}, "b": {"dtype": "bool", "default": False}},
    "ragged": {"r": {"dtype": "int64", "shape": [None], "max_length": 9}, "f": {"dtype": "float64", "allow_nan": True}},
    "all": {
        "i": "int32",
        "f": {"dtype": "float32", "default": 0.5},
        "s": "str",
        "d": "str",
        "ids": {"dtype": "int64", "shape": [2]},
        "r": {"dtype": "int64", "shape": [None], "max_length": 9},
    },
}
WORDS = (
    b"null", b"true", b"{}", b"[]", b"{", b"}", b"[", b"]", b",", b":", b'"', b"\n", b"\r\n", b"\r", b"\0", b"\\",
    b"NaN", b"-", b"1e999", b"-0", b"0x1f", b"9" * 25, b'"\\ud800"', b'{"i":1}', b"}\n{", b"\xff", b"\xef\xbb\xbf",
    b"1_0", b" ", b"\t", b"\xef\xbc\x91", b"[" * 300, b'{"a":' * 300, b"nan(1)", b"x" * 3000, b"\xe2\x80\xa8",
)  # fmt: skip


def records(choose: random.Random, count: int) -> list[dict[str, Any]]:
    """Return rows with a value of every kind that columns take."""
    return [
        {
            "i": choose.randrange(-9, 99),
            "f": choose.choice((0.25, -1.5, 1e30, 3.0)),
            "s": choose.choice(("", "a", "Ä" * 9, "x" * 40, "null")),
            "b": choose.random() < 0.5,
            "d": choose.choice(("red", "green", "blue")),
            "ids": [choose.randrange(9), choose.randrange(2**40)],
            "r": [choose.randrange(9) for _ in range(choose.randrange(4))],
        }
        for _ in range(count)
    ]


def spoiled(choose: random.Random, content: bytes) -> bytes:
    """Return damaged binary content: bits, bytes, and words of four and eight bytes where lengths and offsets lie."""
    for _ in range(choose.choice((1, 1, 2, 4))):
        if choose.random() < 0.3:
            content = damage(choose, content)
            continue
        width = choose.choice((1, 2, 4, 8))
        near = choose.choice((len(content), min(len(content), 800), -min(len(content), 800)))
        at = choose.randrange(near) if near > 0 else len(content) + choose.randrange(near, 0) if near else 0
        at -= at % width
        old = int.from_bytes(content[at : at + width], "little")
        bits = 8 * width
        likely = (0, 1, old + 1, old - 1, 2**31 - 1, -1, -8, 2 ** (bits - 1) - 1, choose.randrange(64))
        new = choose.choice((*likely, old ^ (1 << choose.randrange(bits)), choose.getrandbits(bits)))
        content = content[:at] + (new % (1 << 8 * width)).to_bytes(width, "little") + content[at + width :]
    return content


def arrow_table(choose: random.Random, pa: Any, rows: int) -> Any:
    """Return a table with columns of the types that Arrow has for our values, some with nulls."""
    data = records(choose, rows)
    kinds = {
        "i": choose.choice((pa.int8(), pa.int32(), pa.int64(), pa.float64(), pa.decimal128(9, 2), pa.bool_())),
        "f": choose.choice((pa.float16(), pa.float32(), pa.float64())),
        "s": choose.choice((pa.string(), pa.large_string(), pa.string_view(), pa.binary())),
        "b": choose.choice((pa.bool_(), pa.uint8())),
        "d": choose.choice((pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.string()))),
        "ids": choose.choice((pa.list_(pa.int64()), pa.list_(pa.int64(), 2), pa.large_list(pa.int64()))),
        "r": choose.choice((pa.list_(pa.int64()), pa.large_list(pa.int32()), pa.list_view(pa.int64()))),
    }  # fmt: skip
    columns = {}
    for name, kind in kinds.items():
        values = [row[name] for row in data]
        if pa.types.is_boolean(kind):
            values = [value > 0 for value in values]
        if kind == pa.uint8():
            values = [int(value) for value in values]
        if pa.types.is_decimal(kind):
            values = [None for _ in values]
        if pa.types.is_binary(kind):
            values = [value.encode() for value in values]
        if kind == pa.float16():
            values = [np.float16(min(value, 9.0)) for value in values]
        if choose.random() < 0.2 and values:
            values[choose.randrange(len(values))] = None
        columns[name] = pa.array(values, kind)
    return pa.table(columns)


def ipc_bytes(choose: random.Random, pa: Any) -> bytes:
    """Return an Arrow IPC stream of a few record batches."""
    table = arrow_table(choose, pa, choose.choice((1, 7, 60)))
    options = pa.ipc.IpcWriteOptions(
        compression=choose.choice((None, None, "lz4", "zstd")),
        emit_dictionary_deltas=choose.random() < 0.5,
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=choose.choice((3, 100)))
    return sink.getvalue().to_pybytes()


def parquet_bytes(choose: random.Random, pa: Any) -> bytes:
    """Return a Parquet file of a few row groups."""
    import pyarrow.parquet as pq

    table = arrow_table(choose, pa, choose.choice((1, 7, 60)))
    keep = [n for n, c in zip(table.column_names, table.columns, strict=True) if "view" not in str(c.type)]
    sink = pa.BufferOutputStream()
    pq.write_table(
        table.select(keep),
        sink,
        row_group_size=choose.choice((5, 100)),
        compression=choose.choice(("none", "none", "snappy", "zstd", "lz4", "gzip")),
        use_dictionary=choose.random() < 0.5,
        data_page_version=choose.choice(("1.0", "2.0")),
        write_page_checksum=choose.random() < 0.2,
    )
    return sink.getvalue().to_pybytes()


def text_bytes(choose: random.Random, suffix: str, columns: dict[str, Any]) -> bytes:
    """Return lines of JSON or CSV, some long enough for the kernel of numbers, with words of both formats put in."""
    data = records(choose, choice_of_rows(choose))
    if suffix == "jsonl":
        lines = [json.dumps({name: row[name] for name in columns}).encode() for row in data]
    else:
        cells = [[row[name] for name in columns] for row in data]
        flat = [[" ".join(map(str, c)) if isinstance(c, list) else str(c) for c in row] for row in cells]
        lines = [",".join(columns).encode(), *[",".join(row).encode() for row in flat]]
    for _ in range(choose.randrange(4)):
        at = choose.randrange(len(lines) + 1)
        lines.insert(at, b"".join(choose.choice(WORDS) for _ in range(choose.randrange(1, 4))))
    content = b"\n".join(lines) + choose.choice((b"", b"\n", b"\r\n", b"\n\n"))
    for _ in range(choose.randrange(3)):
        at = choose.randrange(len(content) + 1)
        content = content[:at] + choose.choice(WORDS) + content[at + choose.randrange(3) :]
    return damage(choose, content) if choose.random() < 0.3 else content


def choice_of_rows(choose: random.Random) -> int:
    """Return a number of rows, mostly few."""
    return choose.choice((0, 0, 1, 1, 2, 5, 40, 40, 400))


def as_segment(scratch: Path, content: bytes, suffix: str, columns: dict[str, Any]) -> bool:
    """Read a segment file to its end; return whether rows came."""
    from trainer.streams import DeadLetter, FileStream

    (scratch / f"a.{suffix}").write_bytes(content)
    letters = DeadLetter(scratch / "_bad", 1.0)
    stream = FileStream(scratch, {"columns": columns}, end="at_last", dead_letter=letters, poll_interval=0.0)
    with contextlib.closing(stream):
        rows = 0
        while (batch := stream.poll(1000, 0.0)) is not None:
            rows += batch.rows
    return rows > 0


def as_message(choose: random.Random, scratch: Path, content: bytes, columns: dict[str, Any]) -> bool:
    """Decode a message of a broker; return whether rows came."""
    from trainer.streams import DeadLetter, Span
    from trainer.streams.formats.decode import Decoder
    from trainer.streams.formats.schema import Schema

    with contextlib.closing(DeadLetter(scratch / "_bad", 1.0)) as letters:
        decoder = Decoder(Schema(columns), letters, "fuzz", choose.choice(("auto", "auto", "arrow")))
        batch = decoder.batch(decoder.decode([content]), [Span("p", 0, 0, 0, 1)])
    return batch is not None


def as_folder(choose: random.Random, scratch: Path, content: bytes) -> bool:
    """Read a folder of Parquet files as finite data."""
    from trainer.data.finite.parquet_folder import ParquetFolder

    (scratch / "a.parquet").write_bytes(content)
    columns = choose.choice((None, ["i", "f"], ["ids"], ["d"]))
    return sum(len(item.columns[0]) for item in ParquetFolder(scratch, 16, columns).batches(0, 0)) > 0


def attempt(seed: int, scratch: Path) -> bool:
    """Build, damage and read the content of one case; return whether rows came."""
    import pyarrow as pa
    import pyarrow.ipc

    if seed < 0:
        return as_segment(scratch, *CRASHED[-1 - seed], COLUMNS["all"])
    choose = random.Random(seed)
    columns = COLUMNS[choose.choice(sorted(COLUMNS))]
    kind = choose.choice(("jsonl", "jsonl", "csv", "json", "arrow", "arrow", "parquet", "folder"))
    if kind in ("jsonl", "csv"):
        return as_segment(scratch, text_bytes(choose, kind, columns), kind, columns)
    if kind == "json":
        return as_message(choose, scratch, text_bytes(choose, "jsonl", columns), columns)
    if kind in ("parquet", "folder"):
        content = spoiled(choose, parquet_bytes(choose, pa))
        if kind == "folder":
            return as_folder(choose, scratch, content)
        return as_segment(scratch, content, kind, columns)
    return as_message(choose, scratch, spoiled(choose, ipc_bytes(choose, pa)), columns)


def main() -> int:
    """Try the cases whose seeds come as lines."""
    import resource

    from trainer.errors import TrainerError

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.disable(logging.ERROR)
    for line in sys.stdin:
        with tempfile.TemporaryDirectory(prefix="parsers-") as scratch:
            try:
                answer = "read" if attempt(int(line), Path(scratch)) else "refused"
            except TrainerError:
                answer = "refused"
            except Exception as error:
                at = error.__traceback__
                while at is not None and at.tb_next is not None:
                    at = at.tb_next
                where = "" if at is None else f" at {Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno}"
                answer = f"{type(error).__name__}{where}: {' '.join(str(error).split())[:200]}"
        print(answer, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
