"""The whole way: Parquet in Criteo's shape, DeepFM with a table for each of 26 columns, `online_train`, batch 1,024.

13 numbers and 26 categories a row, as strings of eight characters or as integers, Zipf(1.3). What is timed is reading,
decoding, hashing, giving rows, scoring and training; every window reads files of its own, whose rare ids are new.
PyTorch's loop reads the same files through pyarrow, hashes with NumPy, and keeps 2^18 rows a table; it does not score.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases.many_tables import hashed
from benchmarks.clock import timed
from benchmarks.measure import OURS, PEERS, Group, Ratio
from benchmarks.nets import dense_weights, mindspore_mlp, torch_mlp

NUMBERS, FIELDS, DIM, HIDDEN = 13, 26, 8, (64, 32)
BATCH, VOCABULARY, TORCH_ROWS, RATE = 1024, 1_000_000, 1 << 18, 1e-3
ROWS, FILES = 200 * BATCH, 6
FIT, TORCH = "online_train", "torch, SparseAdam"
GOALS = {"strings": 60_000, "integers": 100_000}


def groups(quick: bool) -> list[Group]:
    """Return what this case measures."""
    found = []
    for kind, goal in GOALS.items():
        options = {"kind": kind, "rows": ROWS // 10 if quick else ROWS}
        title = f"Criteo-shaped Parquet, {kind}, DeepFM of 26 tables"
        found.append(
            Group(
                "criteo",
                title,
                "criteo",
                {FIT: OURS, TORCH: PEERS},
                options,
                (Ratio(FIT, TORCH),),
                unit="rows/s",
                goals={FIT: goal},
                programs={FIT: 3},
                windows=2 if quick else FILES - 1,
            )
        )
    return found


def make(name: str, options: dict[str, Any]) -> Any:
    """Return a contender."""
    return {FIT: Ours, TORCH: Torch}[name](**options)


def normal_numbers(rng: np.random.Generator, rows: int) -> Any:
    """Return a column of numbers."""
    return rng.standard_normal(rows, dtype=np.float32)


def write(path: Path, kind: str, rows: int, seed: int, numbers: Callable[..., Any] = normal_numbers) -> None:
    """Write a Parquet file of so many rows."""
    import pyarrow
    import pyarrow.parquet

    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {}
    for i in range(NUMBERS):
        columns[f"I{i + 1}"] = numbers(rng, rows)
    for i in range(FIELDS):
        ranks = rng.zipf(1.3, rows) % VOCABULARY
        ids = (ranks * 0x9E3779B1 + i * 0x85EBCA6B) % (1 << 32)
        columns[f"C{i + 1}"] = ids
        if kind == "strings":
            # eight hexadecimal digits, lowest first
            digits = (ids[:, None] >> (4 * np.arange(8))) & 15
            text = np.frombuffer(b"0123456789abcdef", np.uint8)[digits]
            columns[f"C{i + 1}"] = pyarrow.array(np.ascontiguousarray(text).view("S8").reshape(-1)).cast("string")
    columns["label"] = (rng.random(rows) < 0.3).astype(np.float32)
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=64 * BATCH)


class Base:
    """Files of rows, a folder of its own for each."""

    numbers = staticmethod(normal_numbers)

    def __init__(self, kind: str, rows: int) -> None:
        self.kind, self.rows = kind, rows
        self._folder = tempfile.TemporaryDirectory()
        self.folders = []
        for number in range(FILES):
            folder = Path(self._folder.name) / str(number)
            folder.mkdir()
            write(folder / "0.parquet", kind, rows, number, self.numbers)
            self.folders.append(folder)
        self.deep = dense_weights((NUMBERS + FIELDS * DIM, *HIDDEN, 1))
        self.build()
        began = time.perf_counter()
        self.train(self.folders[0])
        self.first = rows / (time.perf_counter() - began)
        self.number = 0

    def window(self) -> dict[str, float]:
        """Train on every row of the next folder once."""
        self.number = self.number % (FILES - 1) + 1
        folder = self.folders[self.number]
        told = timed(lambda: self.train(folder), self.rows // BATCH, rows=self.rows)
        return {**told, "first_window": self.first, **self.more()}

    def more(self) -> dict[str, float]:
        """Return what else there is to tell."""
        return {}


class Ours(Base):
    """`Trainer.online_train` on a `FileStream`."""

    def build(self) -> None:
        from mindspore import Tensor, nn, ops

        from trainer import Trainer
        from trainer.embedding import EmbeddingGroup
        from trainer.streams import Column, Schema

        mlp = mindspore_mlp(self.deep)

        class DeepFM(nn.Cell):
            def __init__(self) -> None:
                super().__init__()
                self.tables = EmbeddingGroup(1 + DIM, [f"C{i + 1}" for i in range(FIELDS)])
                self.deep = mlp
                self.over_fields = Tensor(np.tile(np.eye(DIM, dtype=np.float32), (FIELDS, 1)))

            def construct(self, *columns):
                rows = self.tables(*columns[NUMBERS:])
                # MindSpore's fast ways on a CPU: Slice instead of indexing, products of matrices instead of sums
                count = rows.shape[0]
                weights = ops.slice(rows, (0, 0, 0), (count, FIELDS, 1))
                flat = ops.slice(rows, (0, 0, 1), (count, FIELDS, DIM)).reshape(-1, FIELDS * DIM)
                total = ops.matmul(flat, self.over_fields)
                pairs = 0.5 * ((total * total).sum(1) - (flat * flat).sum(1))
                numbers = ops.stack(columns[:NUMBERS], 1)
                deep = self.deep(ops.concat((numbers, flat), 1))
                return weights.reshape(-1, FIELDS).sum(1) + pairs + deep

        network = DeepFM()
        self.trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), RATE))
        ids = "str" if self.kind == "strings" else "int64"
        columns = {f"I{i + 1}": Column("float32") for i in range(NUMBERS)}
        columns |= {f"C{i + 1}": Column(ids) for i in range(FIELDS)}
        self.schema = Schema({**columns, "label": Column("float32")}, label="label")

    def train(self, folder: Path) -> None:
        from trainer.streams import FileStream

        stream = FileStream(folder, self.schema, end="at_last")
        try:
            self.trainer.online_train(stream, [], batch_size=BATCH)
        finally:
            stream.close()

    def more(self) -> dict[str, float]:
        return {"programs": float(self.trainer.builder.programs)}


class Torch(Base):
    """A hand-written loop."""

    def build(self) -> None:
        import torch

        tables = [torch.nn.Embedding(TORCH_ROWS, 1 + DIM, sparse=True) for _ in range(FIELDS)]
        self.tables = torch.nn.ModuleList(tables)
        for table in tables:
            torch.nn.init.normal_(table.weight, std=0.01)
        self.mlp = torch_mlp(self.deep)
        self.loss_fn = torch.nn.BCEWithLogitsLoss()
        self.optimizers = [
            torch.optim.SparseAdam(list(self.tables.parameters()), RATE),
            torch.optim.Adam(self.mlp.parameters(), RATE),
        ]

    def columns(self, batch: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (numbers, rows of the tables, label) of a record batch."""
        arrays = [batch.column(i) for i in range(batch.num_columns)]
        numbers = np.stack([array.to_numpy(zero_copy_only=False) for array in arrays[:NUMBERS]], 1)
        ids = []
        for array in arrays[NUMBERS:-1]:
            if self.kind == "strings":
                # eight bytes each, one behind the other
                data = np.frombuffer(array.buffers()[2], np.uint8)[8 * array.offset :][: 8 * len(array)]
                ids.append(hashed(data.view("S8"), TORCH_ROWS))
            else:
                ids.append(array.to_numpy() % TORCH_ROWS)
        return numbers, np.stack(ids, 1), arrays[-1].to_numpy()

    def train(self, folder: Path) -> None:
        import pyarrow.parquet
        import torch

        with pyarrow.parquet.ParquetFile(folder / "0.parquet") as file:
            for batch in file.iter_batches(BATCH):
                numbers, ids, label = map(torch.from_numpy, self.columns(batch))
                for optimizer in self.optimizers:
                    optimizer.zero_grad()
                rows = torch.stack([table(ids[:, i]) for i, table in enumerate(self.tables)], 1)
                vectors = rows[:, :, 1:]
                total = vectors.sum(1)
                pairs = 0.5 * (total * total - (vectors * vectors).sum(1)).sum(1)
                deep = self.mlp(torch.cat([numbers, vectors.reshape(len(ids), -1)], 1))
                self.loss_fn(rows[:, :, 0].sum(1) + pairs + deep, label).backward()
                for optimizer in self.optimizers:
                    optimizer.step()
