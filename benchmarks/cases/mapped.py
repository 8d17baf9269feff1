"""Tables larger than memory: rows in a mapped file, of which only what is read and written lies in memory."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import adagrad
from benchmarks.measure import OURS, Group
from examples.movielens import cache_folder

ROWS = 100_000_000
UNIFORM, ZIPF = "uniform ids", "Zipf(1.2) ids"
MEGABYTE = 1 << 20


def groups(quick: bool) -> list[Group]:
    """Return what this case measures."""
    rows = 100_000 if quick else ROWS
    title = f"39 x 16 of {rows:,} rows in a mapped file, Adagrad, batch 1,024"
    options = {"rows": rows, "steps": 8 if quick else 64}
    return [Group("mapped", title, "mapped", {name: OURS}, options, windows=3) for name in (ZIPF, UNIFORM)]


def make(name: str, options: dict[str, Any]) -> Any:
    """Return a contender."""
    return Mapped(name == ZIPF, **options)


class Mapped(adagrad.Ours):
    """`Trainer.fit`; every window sees other ids, and uniform ones nearly all for the first time since the filling."""

    def __init__(self, zipf: bool, rows: int, steps: int) -> None:
        self.zipf = zipf
        cache_folder().mkdir(parents=True, exist_ok=True)
        self.folder = tempfile.TemporaryDirectory(dir=cache_folder())  # /tmp may be memory
        self.rng = np.random.default_rng(12)
        super().__init__(1024, rows, steps)

    def options(self) -> dict[str, Any]:
        """Return how the table begins, is trained and kept."""
        return {**super().options(), "path": Path(self.folder.name) / "rows"}

    def window(self) -> dict[str, float]:
        """Train on other ids."""
        for ids, _ in self.batches:
            drawn = self.rng.zipf(1.2, ids.shape) if self.zipf else self.rng.integers(0, self.rows, ids.shape)
            ids[:] = drawn % self.rows
        return super().window()

    def more(self) -> dict[str, float]:
        """Return where the memory is: of the process alone, and of the file, which the system may take back."""
        lines = Path("/proc/self/status").read_text().splitlines()
        kilobytes = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Rss")}
        size = (Path(self.folder.name) / "rows").stat().st_size
        return {
            "own_mb": int(kilobytes["RssAnon"]) / 1024,
            "file_in_memory_mb": int(kilobytes["RssFile"]) / 1024,
            "file_mb": size / MEGABYTE,
        }
