"""The whole way of declared features: Parquet of strings in Criteo's shape, features, DeepFM, updates, batch 1,024.

As case criteo, but the numbers are counts of which a tenth is missing: log(1 + x), standardized, the mean where it is
missing. `trainer.features` learns means and deviations from the first file; `trainer.models.DeepFM` is trained by
`online_train`, which also scores every row. PyTorch's loop applies the same transforms by NumPy, with what was learned
given.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import criteo
from benchmarks.measure import OURS, PEERS, Group, Ratio

FIT, TORCH = "features, online_train", "torch, the same transforms"
GOAL = 76_000  # rows/s, on the processor that the first measurement of case criteo was made on
MISSING = 0.1


def groups(quick: bool) -> list[Group]:
    """Return what this case measures."""
    return [
        Group(
            "features",
            "raw Parquet strings to updates, declared features, DeepFM of 26 tables",
            "raw_way",
            {FIT: OURS, TORCH: PEERS},
            {"kind": "strings", "rows": criteo.ROWS // 10 if quick else criteo.ROWS},
            (Ratio(FIT, TORCH, 0.5),),
            unit="rows/s",
            goals={FIT: GOAL},
            windows=2 if quick else criteo.FILES - 1,
        )
    ]


def make(name: str, options: dict[str, Any]) -> Any:
    """Return a contender."""
    return {FIT: Ours, TORCH: Torch}[name](**options)


def counts(rng: np.random.Generator, rows: int) -> Any:
    """Return a column of counts with missing values."""
    import pyarrow

    values = np.floor(rng.lognormal(2, 2, rows)).astype(np.float32)
    return pyarrow.array(values, mask=rng.random(rows) < MISSING)


class Ours(criteo.Base):
    """Declared features and the package's DeepFM."""

    numbers = staticmethod(counts)

    @classmethod
    def of(cls, folder: Path) -> Ours:
        """Return one that has learned from the files of `folder`, and is not trained."""
        made = cls.__new__(cls)
        made.folders = [folder]
        made.build()
        return made

    def build(self) -> None:
        from mindspore import nn, set_seed

        from trainer import Trainer
        from trainer.features import Categorical, Features, Numeric
        from trainer.models import DeepFM

        set_seed(0)
        options = {"transform": "log1p", "normalize": "standard", "missing": "mean"}
        parts: list[Any] = [Numeric(f"I{i + 1}", **options) for i in range(criteo.NUMBERS)]
        parts += [Categorical(f"C{i + 1}") for i in range(criteo.FIELDS)]
        features = Features(parts, label="label")
        features.fit(self.folders[0])
        network = DeepFM(features, dim=criteo.DIM, hidden=criteo.HIDDEN)
        optimizer = nn.Adam(network.trainable_params(), criteo.RATE)
        self.trainer = Trainer(network, nn.BCEWithLogitsLoss(), optimizer, features=features)

    def train(self, folder: Path, callbacks: Sequence[Any] = ()) -> None:
        from trainer.streams import FileStream

        stream = FileStream(folder, end="at_last")
        try:
            self.trainer.online_train(stream, list(callbacks), batch_size=criteo.BATCH)
        finally:
            stream.close()


class Torch(criteo.Torch):
    """A loop by hand, with the transforms by hand."""

    numbers = staticmethod(counts)

    def build(self) -> None:
        super().build()
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(self.folders[0] / "0.parquet")
        logs = [np.log1p(table[f"I{i + 1}"].to_numpy().astype(np.float64)) for i in range(criteo.NUMBERS)]
        self.means = np.array([np.nanmean(column) for column in logs], np.float32)
        self.deviations = np.array([np.nanstd(column) for column in logs], np.float32)

    def columns(self, batch: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (numbers, rows of the tables, label) of a record batch."""
        arrays = [batch.column(i).to_numpy(zero_copy_only=False) for i in range(criteo.NUMBERS)]
        numbers = (np.log1p(np.stack(arrays, 1)) - self.means) / self.deviations
        _, ids, label = super().columns(batch)
        return np.nan_to_num(numbers, nan=0.0).astype(np.float32), ids, label
