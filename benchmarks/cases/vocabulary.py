"""What the size of a table costs: Wide & Deep at batch 1,024, ours against ours, and memory against PyTorch's."""

from __future__ import annotations

from typing import Any

from benchmarks.cases import wide_deep
from benchmarks.measure import OURS, PEERS, Group, Ratio

DENSE, SMALL, LARGE, HUGE = (
    "dense, 10,000 ids",
    "sparse, 100,000 ids",
    "sparse, 5,000,000 ids",
    "sparse, 10,000,000 ids",
)
ROWS = {DENSE: 10_000, SMALL: 100_000, LARGE: 5_000_000, HUGE: 10_000_000}
FIT, TORCH = "fit, sparse table", "torch, SparseAdam"
HALVES, HALVES_ADAGRAD = "fit, float16, row-wise RowAdam", "fit, float16, row-wise RowAdagrad"
BATCH, MEGABYTE = 1024, "MB"


def groups(quick: bool) -> list[Group]:
    """Return what this case measures."""
    options = {"quick": quick, "steps": 8 if quick else 32}
    zipf = {**options, "exponent": 1.2}

    def group(title: str, ids: dict[str, Any], *ratios: Ratio) -> Group:
        names = dict.fromkeys([name for ratio in ratios for name in (ratio.ours, ratio.other)], OURS)
        return Group("vocabulary", f"Wide & Deep, batch 1,024, {title}", "vocabulary", names, ids, ratios)

    return [
        group("uniform ids", options, Ratio(LARGE, DENSE, 1.2)),
        group("Zipf(1.2) ids", zipf, Ratio(LARGE, DENSE, 1.1), Ratio(HUGE, SMALL, 1.1)),
        Group(
            "vocabulary",
            "peak memory, Wide & Deep, 5,000,000 uniform ids",
            "vocabulary",
            {FIT: OURS, HALVES: OURS, HALVES_ADAGRAD: OURS, TORCH: PEERS},
            {**options, "steps": 8 if quick else 128},
            (Ratio(FIT, TORCH, 1.2), Ratio(HALVES, TORCH, 0.7), Ratio(HALVES_ADAGRAD, TORCH, 0.7)),
            unit=MEGABYTE,
            windows=1,
        ),
    ]


def make(name: str, options: dict[str, Any]) -> Any:
    """Return a contender."""
    quick = options.pop("quick")
    kinds = {FIT: Memory, HALVES: HalvesMemory, HALVES_ADAGRAD: AdagradMemory, TORCH: TorchMemory}
    if name in kinds:
        return kinds[name](BATCH, 50_000 if quick else ROWS[LARGE], **options)
    rows = min(ROWS[name], 50_000) if quick else ROWS[name]
    return (wide_deep.Dense if name == DENSE else wide_deep.Sparse)(BATCH, rows, **options)


class Memory(wide_deep.Sparse):
    """`Trainer.fit`: how much memory the process had at most."""

    def window(self) -> dict[str, float]:
        """Train and return it."""
        told = super().window()
        return {**told, "value": told.pop("peak_mb")}


class HalvesMemory(wide_deep.Halves, Memory):
    """The same of rows of float16 with one second moment for each row."""


class AdagradMemory(Memory):
    """The same of rows of float16 with one accumulator for each row."""

    def options(self) -> dict[str, Any]:
        """Return further arguments of the tables."""
        from trainer.embedding import RowAdagrad

        return {"dtype": "float16", "optimizer": RowAdagrad(row_wise=True)}


class TorchMemory(wide_deep.TorchSparse):
    """The same of PyTorch's."""

    def table(self) -> Any:
        """Return zeros: whatever they are, memory of their own is all that they take."""
        import numpy as np

        return np.zeros((self.rows, wide_deep.DIM), np.float32)

    def window(self) -> dict[str, float]:
        """Train and return it."""
        told = super().window()
        return {**told, "value": told.pop("peak_mb")}
