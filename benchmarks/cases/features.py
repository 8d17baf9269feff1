"""Declared features at Criteo's shape: 13 numbers and 26 categories, raw columns to a network's inputs."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.cases import raw_way
from benchmarks.measure import OURS, Group

NUMBERS, CATEGORIES, DISTINCT = 13, 26, 1_000_000
WAYS: dict[str, dict[str, Any]] = {
    "raw ids": {},
    "hash buckets": {"hash_buckets": 1 << 20},
    "learned vocabulary": {"vocabulary": "learn"},
}
GOAL = 500_000.0


def groups(quick: bool) -> list[Group]:
    """Return what this case measures: rows per second of processor time, one thread; and the whole way beside torch."""
    return [
        Group(
            "features",
            f"features, {NUMBERS} numbers and {CATEGORIES} categories",
            "features",
            dict.fromkeys(WAYS, OURS),
            {"rows": 1 << 13 if quick else 1 << 16},
            unit="rows/s of processor time",
            goals=dict.fromkeys(WAYS, GOAL),
        ),
        *raw_way.groups(quick),
    ]


def make(name: str, options: dict[str, Any]) -> Any:
    """Return a contender."""
    return Transform(WAYS[name], **options)


class Transform:
    """Features that have learned from a table, and the table."""

    def __init__(self, categories: dict[str, Any], rows: int) -> None:
        from trainer.features import Categorical, Features, Numeric

        rng = np.random.default_rng(0)
        numbers = [Numeric(f"I{i}", transform="log1p", normalize="standard") for i in range(NUMBERS)]
        self.features = Features([*numbers, *(Categorical(f"C{i}", **categories) for i in range(CATEGORIES))])
        self.table: dict[str, np.ndarray] = {f"I{i}": rng.lognormal(2, 2, rows) for i in range(NUMBERS)}
        for i in range(CATEGORIES):
            self.table[f"C{i}"] = np.array([f"{value:08x}" for value in rng.zipf(1.3, rows) % DISTINCT])
        for column in self.table.values():
            column[rng.random(rows) < 0.1] = np.nan if column.dtype.kind == "f" else ""
        self.rows = rows
        self.features.fit(self.table)
        self.window()

    def window(self) -> dict[str, float]:
        """Transform the table four times."""
        wall, begun = time.perf_counter(), time.process_time()
        for _ in range(4):
            self.features.transform(self.table)
        seconds = time.process_time() - begun
        return {"seconds": time.perf_counter() - wall, "steps": 4, "value": 4 * self.rows / seconds}
