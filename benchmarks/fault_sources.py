"""What `make faults` trains on: the same rows from every source, two bad ones among them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROWS, BATCH, EPOCHS = 48, 8, 2
BAD = (10, 33)  # a bad row stands before each of these
SCHEMA = {
    "columns": {"row": "int32", "x": {"dtype": "float32", "shape": [2]}, "label": "float32"},
    "label": "label",
    "event_time": "time",
}


@dataclass
class Source:
    """Where rows come from.

    Attributes:
        name: as tables show it.
        fill: writes what is read into an empty folder, before each run.
        open: returns a stream over it with dead letters at a path; of finite data, what `fit` takes.
        finite: whether it is trained on by `fit`.
        letters: whether bad rows are among the rows.
        cluster: the `MockKafka` that it reads, whose answers can be made to fail.
    """

    name: str
    fill: Callable[[Path], None]
    open: Callable[[Path, Path], Any]
    finite: bool = False
    letters: bool = True
    cluster: Any = None


def record(number: int) -> dict[str, Any]:
    """Return a row."""
    return {"row": number, "x": [number / ROWS, 1.0], "label": number % 2, "time": float(number), "id": f"r{number}"}


def records(first: int = 0, last: int = ROWS) -> list[dict[str, Any]]:
    """Return rows, the bad ones among them."""
    rows = []
    for number in range(first, last):
        if number in BAD:
            rows.append({**record(number), "row": None, "x": [float(number), 0.0], "id": f"bad{number}"})
        rows.append(record(number))
    return rows


def bad_rows(path: Path) -> set[float]:
    """Return which bad rows a dead-letter file tells of; lines that a failed write cut are left out."""
    told = set()
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):
            raw = json.loads(line)["raw"]
            told |= {number for number in BAD if f"{float(number)}" in raw}
    return told


def _segments(folder: Path, suffix: str) -> None:
    for part, first in enumerate(range(0, ROWS, 20)):
        path, rows = folder / f"{part}.{suffix}", records(first, min(first + 20, ROWS))
        if suffix == "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        elif suffix == "csv":
            lines = [
                f"{r['row'] if r['row'] is not None else ''},{r['x'][0]} {r['x'][1]},{r['label']},{r['time']}"
                for r in rows
            ]
            path.write_text("\n".join(["row,x,label,time", *lines]) + "\n")
        else:
            _write_table(path, rows)


def _write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.Table.from_pylist(rows)
    parquet.write_table(table, path, row_group_size=8)


def _letters(path: Path) -> Any:
    from trainer.streams import DeadLetter

    return DeadLetter(path, 1.0)


def _file_stream(folder: Path, letters: Path) -> Any:
    from trainer.streams import FileStream

    return FileStream(folder, SCHEMA, end="at_last", poll_interval=0.01, dead_letter=_letters(letters))


def _join(folder: Path, letters: Path) -> Any:
    from trainer.streams import DelayedLabelJoin, FileStream

    outcomes = FileStream(folder / "outcomes", {"columns": {"row": "int32"}, "event_time": "time"}, end="at_last")
    return DelayedLabelJoin(_file_stream(folder / "shown", letters), outcomes, "row", 5.0, idle_timeout=None)


def _served(folder: Path, letters: Path) -> Any:
    from trainer.streams import FileStream, Schema, ServedOutcomes

    shown = FileStream(folder / "shown", end="at_last", poll_interval=0.01, dead_letter=_letters(letters))
    outcomes = FileStream(folder / "outcomes", end="at_last", poll_interval=0.01)
    stream = ServedOutcomes(shown, outcomes, "id", wait=5.0, idle_timeout=None)
    stream.declare(Schema(**SCHEMA))
    return stream


def _fill_join(folder: Path) -> None:
    for name in ("shown", "outcomes"):
        (folder / name).mkdir()
    _segments(folder / "shown", "jsonl")
    lines = [json.dumps({"row": n, "id": f"r{n}", "time": n + 1.0}) for n in range(0, ROWS, 3)]
    (folder / "outcomes" / "0.jsonl").write_text("\n".join(lines) + "\n")


def _arrays(folder: Path, letters: Path) -> dict[str, np.ndarray]:
    rows = [record(number) for number in range(ROWS)]
    kinds = {"row": np.int32, "x": np.float32, "label": np.float32}
    return {name: np.array([row[name] for row in rows], kind) for name, kind in kinds.items()}


def _fill_parquet(folder: Path) -> None:
    from pyarrow import parquet, table

    for part in range(2):
        rows = slice(part * ROWS // 2, (part + 1) * ROWS // 2)
        columns = {name: list(array[rows]) for name, array in _arrays(folder, folder).items()}
        parquet.write_table(table(columns), folder / f"{part}.parquet", row_group_size=8)


def _parquet_folder(folder: Path, letters: Path) -> Any:
    from trainer import ParquetFolder

    return ParquetFolder(folder, BATCH, ["row", "x", "label"], shuffle=False)


@contextlib.contextmanager
def redis(folder: Path) -> Iterator[Source]:
    """Run a server for a while; the source reads a key of it."""
    from benchmarks import servers
    from trainer.streams import DeadLetter, RedisStream

    payloads = [json.dumps(row).encode() for row in records()]

    def make(_: Path, letters: Path) -> Any:
        return RedisStream("rows", SCHEMA, url=url, count=9, dead_letter=DeadLetter(letters, 1.0), give_up_after=0.3)

    with servers.redis(folder, payloads, "rows") as url:
        yield Source("Redis", lambda folder: None, make)


@contextlib.contextmanager
def changed(module: Any, **values: Any) -> Iterator[None]:
    """Change values of a module for a while."""
    before = {name: getattr(module, name) for name in values}
    vars(module).update(values)
    try:
        yield
    finally:
        vars(module).update(before)


@contextlib.contextmanager
def kafka(folder: Path, name: str = "Kafka", ahead: int = 1000, **given: Any) -> Iterator[Source]:
    """Run a cluster for a while; the source reads two partitions of a topic."""
    from benchmarks import servers
    from trainer.streams import DeadLetter, KafkaStream
    from trainer.streams.sources import kafka as module

    payloads = [json.dumps(row).encode() for row in records()]
    # Short waits of the client, which tries again by itself.
    waits = ("fetch.wait.max.ms", "retry.backoff.ms", "reconnect.backoff.ms", "reconnect.backoff.max.ms")
    waits += ("retry.backoff.max.ms", "fetch.error.backoff.ms", "topic.metadata.refresh.fast.interval.ms")

    def make(_: Path, letters: Path) -> Any:
        options = {"quota": 5, "dead_letter": DeadLetter(letters, 1.0), "give_up_after": 0.3, **given}
        return KafkaStream("rows", SCHEMA, servers=cluster.servers, config=dict.fromkeys(waits, 10), **options)

    with (
        servers.kafka_cluster(payloads, "rows", 2) as cluster,
        changed(module, _REQUEST_SECONDS=0.3, _MIN_BUFFERED=ahead),
    ):
        yield Source(name, lambda folder: None, make, cluster=cluster)


@contextlib.contextmanager
def kafka_group(folder: Path) -> Iterator[Source]:
    """Do as `kafka`, with the calls that it does not make: committed offsets, partitions paused and resumed."""
    with kafka(folder, "Kafka, committed", ahead=1, start="committed", order="arrival", quota=1) as source:
        yield source


def _segment_source(name: str, suffix: str) -> Source:
    return Source(name, lambda folder: _segments(folder, suffix), _file_stream)


PLAIN = {
    "fit": Source("fit", lambda folder: None, _arrays, finite=True, letters=False),
    "fit-publish": Source("fit, published versions", lambda folder: None, _arrays, finite=True, letters=False),
    "fit-parquet": Source("fit, Parquet", _fill_parquet, _parquet_folder, finite=True, letters=False),
    "jsonl": _segment_source("JSON lines", "jsonl"),
    "csv": _segment_source("CSV", "csv"),
    "parquet": _segment_source("Parquet", "parquet"),
    "join": Source("join", _fill_join, _join),
    "served": Source("served rows and outcomes", _fill_join, _served),
}
SERVED = {"redis": redis, "kafka": kafka, "kafka-group": kafka_group}
NAMES = (*PLAIN, *SERVED)
FINITE = ("fit", "fit-publish", "fit-parquet")
PUBLISHING = ("fit-publish",)
READ_ONLY = ("kafka-group",)  # what is trained on is read as by another source


@contextlib.contextmanager
def opened(name: str, folder: Path) -> Iterator[Source]:
    """Give the source of a name; its server, if any, ends afterwards."""
    if name in PLAIN:
        yield PLAIN[name]
    else:
        with SERVED[name](folder) as source:
            yield source
