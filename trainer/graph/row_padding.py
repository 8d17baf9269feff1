"""Few programs for many numbers of rows: a batch to predict is filled up to a size for which there is a program.

That gives the same predictions only where no row depends on the others. Whether that is so is tried out once per
network, on the first batch that could be filled up: it is computed both ways.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

logger = logging.getLogger(__name__)

SMALLEST, FINE = 16, 1024
# Kernels add up in another order for another number of rows.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-5


def padded_size(rows: int) -> int:
    """Return the least size >= `rows` that is a power of two >= 16, or above 1,024 a quarter of one between two."""
    octave = max(SMALLEST, 1 << (rows - 1).bit_length())
    if octave <= FINE:
        return octave
    step = octave // 8
    return -(-rows // step) * step


class RowPadding:
    """The sizes for which a network's prediction program has been compiled.

    Attributes:
        exact: whether filled-up batches give the same predictions; None while that is not known.
    """

    def __init__(self) -> None:
        self.exact: bool | None = None
        self._sizes: set[int] = set()

    def compiled(self, rows: int) -> None:
        """Note a size that has been run."""
        self._sizes.add(rows)

    def size_for(self, rows: int) -> int:
        """Return the number of rows to fill a batch up to; `rows` itself where a program is to be had for it."""
        if self.exact is False or rows in self._sizes or not self._sizes:
            return rows
        most = max(2 * rows, FINE)
        return min((size for size in self._sizes if rows <= size <= most), default=padded_size(rows))

    def decide(self, plain: Any, filled: Any) -> None:
        """Find out whether filling up is exact from both ways' predictions for the same rows."""
        ones, others = (value if isinstance(value, tuple) else (value,) for value in (plain, filled))
        self.exact = len(ones) == len(others) and all(_same(a, b) for a, b in zip(ones, others, strict=False))
        if not self.exact:
            logger.warning(
                "predict: the rows of this network's output depend on each other, so every number of rows is compiled "
                "anew; a batch_size that divides the rows needs one program"
            )


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype.kind != "f":
        return np.array_equal(one, other)
    scale = float(np.abs(one[np.isfinite(one)]).max(initial=0.0))
    return np.allclose(one, other, rtol=_RELATIVE, atol=_ABSOLUTE * max(scale, 1e-30), equal_nan=True)
