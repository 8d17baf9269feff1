"""What rows of float16 cost in quality: the AUC beside that of float32 rows, six seeds, a seed per window."""

from __future__ import annotations

from typing import Any

from benchmarks import quality_row_types
from benchmarks.measure import OURS, QUALITY, Group

HALVES, ROW_WISE = "float16, RowAdam", "float16, row-wise RowAdam"
WAYS = {HALVES: quality_row_types.HALVES, ROW_WISE: quality_row_types.HALVES_ROW_WISE}
SEEDS = 6


def groups(quick: bool) -> list[Group]:
    """Return what this case measures."""
    most = dict.fromkeys(WAYS, quality_row_types.MOST * 10_000)
    return [
        Group(
            "row_types",
            f"{name}: AUC, difference from float32 rows",
            "row_types",
            dict.fromkeys(WAYS, OURS),
            {"data": name},
            unit=QUALITY,
            most=most,
            windows=1 if quick else SEEDS,
        )
        for name in quality_row_types.DATA
    ]


def make(name: str, options: dict[str, Any]) -> Any:
    """Return a contender."""
    return Difference(WAYS[name], **options)


class Difference:
    """Trains with float16 rows and with float32 rows, from the same seed."""

    def __init__(self, way: str, data: str) -> None:
        self.way, self.data, self.seed = way, quality_row_types.DATA[data](), 0

    def window(self) -> dict[str, float]:
        """Train both and return the difference of their AUC."""
        self.seed += 1
        other = quality_row_types.WAYS[self.way]
        found, expected = (quality_row_types.measured(way, self.data, self.seed) for way in (self.way, other))
        return {"value": abs(found - expected) * 10_000}
