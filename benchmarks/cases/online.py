"""(d) Online training from source to update: rows per second with a [64, 32] MLP on 16 features, batch 1,024.

What is timed is `Trainer.online_train` as a user calls it, progressive validation included: fetching, decoding,
checking against the schema, batching, scoring, training. Messages hold 1,024 rows, lines of text one each. Every window
reads all rows from the source anew; one in which a row is missing or was set aside is an error, not a figure.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import servers
from benchmarks.clock import timed
from benchmarks.measure import OURS, Group
from benchmarks.nets import dense_weights, mindspore_mlp

FEATURES = 16
SIZES = (FEATURES, 64, 32, 1)
BATCH = 1024
PER_CALL = 8
WARM_UP = 2 * PER_CALL
RATE = 1e-3
GOAL = 100_000.0
TEXT_GOAL = 500_000.0
TOPIC = "rows"
# Messages of a partition in a turn.
QUOTA = 8
# Nothing takes that long but rows that never come.
IDLE_SECONDS = 20.0

MEMORY = "memory"
FILES = {"files, Parquet": "parquet", "files, CSV": "csv", "files, JSON lines": "jsonl"}
SERVED = {"Redis, Arrow": "arrow", "Redis, JSON": "json", "Kafka, Arrow": "arrow", "Kafka, JSON": "json"}


def groups(quick: bool) -> list[Group]:
    """Return what this case measures: one contender a group, so that no idle server is in the way."""
    options = {"batches": 64 if quick else 192}
    names = (MEMORY, *FILES, *SERVED)
    title = "online, [64, 32] MLP, batch 1,024: "
    goals = {n: TEXT_GOAL if FILES.get(n) in ("csv", "jsonl") else GOAL for n in names}
    return [Group("online", title + n, "online", {n: OURS}, options, unit="rows/s", goals={n: goals[n]}) for n in names]


def make(name: str, options: dict[str, Any]) -> Any:
    """Return a contender."""
    return Online(name, options["batches"])


class Online:
    """A trainer, and a source that holds the same rows in every window."""

    def __init__(self, name: str, batches: int) -> None:
        from mindspore import nn

        from trainer import Trainer

        rng = np.random.default_rng(5)
        self.name, self.rows = name, batches * BATCH
        self.x = rng.standard_normal((self.rows, FEATURES), dtype=np.float32)
        self.label = (self.x[:, 0] + rng.standard_normal(self.rows) > 0).astype(np.float32)
        self._stack = contextlib.ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self._server = ""
        if name in FILES:
            self._write_files(FILES[name])
        elif name in SERVED:
            self._serve(SERVED[name])
        network = mindspore_mlp(dense_weights(SIZES))
        self.trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), RATE))
        self._train(WARM_UP)

    def window(self) -> dict[str, float]:
        """Train on every row once.

        Raises:
            RuntimeError: the source did not give every row, or not in one good piece.
        """
        steps, before = self.rows // BATCH, self.trainer.state.progress.samples_seen
        streams: list[Any] = []
        told = timed(lambda: streams.append(self._train(steps)), steps, rows=self.rows)
        trained = self.trainer.state.progress.samples_seen - before
        letters = getattr(streams[0], "dead_letter", None)
        read, bad = (trained, 0) if letters is None else (letters.good, letters.bad)
        if (trained, read, bad) != (self.rows, self.rows, 0):
            raise RuntimeError(
                f"{self.name}: a window trains on {self.rows} rows; it read {read} good ones, "
                f"set {bad} aside and trained on {trained}"
            )
        return told

    def close(self) -> None:
        """End the server, if there is one, and remove the files."""
        self._stack.close()

    def _train(self, steps: int) -> Any:
        """Train on the first rows of the source; return the stream they came by, closed."""
        stream = self.stream()
        try:
            self.trainer.online_train(
                stream, [], sink_size=PER_CALL, batch_size=BATCH, max_steps=steps, idle_timeout=IDLE_SECONDS
            )
        finally:
            stream.close()
        return stream

    def _schema(self) -> Any:
        from trainer.streams import Column, Schema

        return Schema({"x": Column("float32", (FEATURES,)), "label": Column("float32")}, label="label")

    def stream(self) -> Any:
        """Open the source at its first row."""
        from trainer.streams import FileStream, KafkaStream, RedisStream, ReplayStream

        if self.name == MEMORY:
            return ReplayStream({"x": self.x, "label": self.label})
        if self.name in FILES:
            return FileStream(self._folder, self._schema(), end="at_last")
        if self.name.startswith("Redis"):
            return RedisStream(TOPIC, self._schema(), url=self._server, count=16)
        return KafkaStream(TOPIC, self._schema(), servers=self._server, quota=QUOTA)

    def _parts(self):
        for start in range(0, self.rows, BATCH):
            yield self.x[start : start + BATCH], self.label[start : start + BATCH]

    # -- writing -------------------------------------------------------------------------------------------------------

    def _table(self, x: np.ndarray, label: np.ndarray) -> Any:
        import pyarrow

        lists = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(x.ravel()), FEATURES)
        return pyarrow.table({"x": lists, "label": pyarrow.array(label)})

    def _write_files(self, kind: str) -> None:
        if kind == "parquet":
            import pyarrow.parquet

            table = self._table(self.x, self.label)
            pyarrow.parquet.write_table(table, self._folder / "0.parquet", row_group_size=64 * BATCH)
            return
        with open(self._folder / f"0.{kind}", "w", encoding="ascii") as file:
            if kind == "csv":
                file.write("x,label\n")
            for x, label in zip(self.x.tolist(), self.label.tolist(), strict=True):
                file.write(
                    json.dumps({"x": x, "label": label}) if kind == "jsonl" else f"{' '.join(map(str, x))},{label}"
                )
                file.write("\n")

    def _payload(self, kind: str, x: np.ndarray, label: np.ndarray) -> bytes:
        if kind == "json":
            rows = zip(x.tolist(), label.tolist(), strict=True)
            return json.dumps([{"x": values, "label": target} for values, target in rows]).encode()
        import pyarrow

        sink = io.BytesIO()
        table = self._table(x, label)
        with pyarrow.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue()

    def _serve(self, kind: str) -> None:
        payloads = [self._payload(kind, x, label) for x, label in self._parts()]
        if self.name.startswith("Redis"):
            serving = servers.redis_process(self._folder, payloads, TOPIC)
        else:
            serving = servers.kafka_process(payloads, TOPIC, QUOTA)
        self._server = self._stack.enter_context(serving)
