"""MovieLens-100K as a stream of files, Redis entries or Kafka messages.

    python -m examples.movielens_stream files FOLDER            JSON lines in 10 segments
    python -m examples.movielens_stream redis [--url URL]       100 ratings per entry, stream key "ratings"
    python -m examples.movielens_stream kafka [--servers S]     100 ratings per message, topic "ratings"

Ratings are in the order of time. `configs/wide_deep_movielens_online.yaml` learns from any of the three; it writes the
files itself.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from examples.movielens import FEATURES, LABEL, SIZES, load
from trainer.errors import ConfigurationError
from trainer.streams import Schema

DONE = "_DONE"  # file that marks the end of the stream for `FileStream`
COLUMNS = (*FEATURES, LABEL)
NAME = "ratings"


def schema() -> Schema:
    """Return the schema of a rating, with the time of the rating as event time.

    The columns are those of `examples.movielens`.
    """
    ids = {name: {"dtype": "int32", "minimum": 0, "maximum": SIZES[name] - 1} for name in FEATURES if name != "genres"}
    columns = {name: ids.get(name, {"dtype": "float32", "shape": (SIZES["genres"],)}) for name in FEATURES}
    return Schema({**columns, LABEL: {"dtype": "float32"}}, label=LABEL, event_time="timestamp")


def segments(
    folder: str | os.PathLike[str],
    rows: int | None = None,
    count: int = 10,
    data: str | os.PathLike[str] | None = None,
) -> Path:
    """Write the ratings as JSON-lines segments, unless they exist; return the folder.

    Args:
        folder: folder of the segments. It is renamed into place, so readers never see it incomplete.
        rows: number of ratings to write, oldest first; None for all 100,000.
        count: number of segments.
        data: folder of MovieLens-100K (see `examples.movielens.find_files`).

    Raises:
        ConfigurationError: the folder holds other files, or cannot be written.
        DataError: the data cannot be found or downloaded.
    """
    folder = Path(folder)
    if (folder / DONE).is_file():
        return folder
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigurationError(
            f"folder {str(folder)!r} contains other files instead of finished segments; use a new folder"
        )
    columns = _first(load(data), rows)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            aside = Path(scratch) / "segments"
            aside.mkdir()
            for number, part in enumerate(np.array_split(np.arange(len(columns[LABEL])), count)):
                rows = _rows({name: column[part] for name, column in columns.items()})
                lines = (json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
                (aside / f"{number:05d}.jsonl").write_text("".join(lines), "utf-8")
            (aside / DONE).touch()
            if folder.is_dir():
                folder.rmdir()
            shutil.move(aside, folder)
    except OSError as error:
        raise ConfigurationError(f"folder {str(folder)!r} cannot be written: {error.strerror or error}") from error
    return folder


def messages(columns: Mapping[str, np.ndarray], rows_per_message: int = 100) -> Iterator[bytes]:
    """Yield JSON messages, each a list of ratings."""
    for start in range(0, len(columns[LABEL]), rows_per_message):
        part = slice(start, start + rows_per_message)
        rows = _rows({name: columns[name][part] for name in (*COLUMNS, "timestamp")})
        yield json.dumps(rows, separators=(",", ":")).encode()


def publish_to_redis(payloads: Sequence[bytes], url: str, key: str = NAME) -> None:
    """Write messages to a Redis stream, replacing its previous content."""
    import redis

    client = redis.Redis.from_url(url)
    client.delete(key)
    for start in range(0, len(payloads), 500):
        pipeline = client.pipeline(transaction=False)
        for payload in payloads[start : start + 500]:
            pipeline.xadd(key, {"data": payload})
        pipeline.execute()


def publish_to_kafka(payloads: Sequence[bytes], servers: str, topic: str = NAME, partition: int = 0) -> None:
    """Append messages to one partition of a topic, in order.

    Raises:
        ConfigurationError: the broker did not accept all messages within a minute.
    """
    import confluent_kafka

    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for payload in payloads:
        producer.produce(topic, payload, partition=partition)
        producer.poll(0)
    left = producer.flush(60)
    if left:
        raise ConfigurationError(f"the Kafka broker at {servers} did not take {left} of {len(payloads)} messages")


def _first(columns: Mapping[str, np.ndarray], rows: int | None) -> dict[str, np.ndarray]:
    return {name: columns[name][:rows] for name in (*COLUMNS, "timestamp")}


def _rows(columns: Mapping[str, np.ndarray]) -> list[dict[str, object]]:
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def main(argv: Sequence[str] | None = None) -> int:
    """Write or publish the ratings; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    kinds.add_parser("files").add_argument("folder")
    kinds.add_parser("redis").add_argument("--url", default="redis://localhost:6379/0")
    kinds.add_parser("kafka").add_argument("--servers", default="localhost:9092")
    given = parser.parse_args(argv)
    try:
        if given.kind == "files":
            print(segments(given.folder))
            return 0
        payloads = list(messages(load()))
        if given.kind == "redis":
            publish_to_redis(payloads, given.url)
        else:
            publish_to_kafka(payloads, given.servers)
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{len(payloads)} messages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
