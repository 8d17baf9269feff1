"""Few programs for many numbers of rows: a batch is filled up with made-up rows to one of a few sizes.

That gives the same results only where no row depends on the others. Whether that is so is tried out once per network,
on the first batch that could be filled up: it is computed both ways.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..checks import refuse, whole
from .as_columns import Columns

logger = logging.getLogger(__name__)

SMALLEST, FINE = 16, 1024
AS_THEY_ARE = 2  # sizes: the common one, and that of a short last batch
_MANY = 5  # sizes
_FINE_FILLED = 256  # what is trained or evaluated again and again wastes no more than a quarter from here on
# Kernels add up in another order for another number of rows.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-5
# A gradient is a sum over the rows, perhaps in half precision: parts of its own largest entry, and of that of all.
_OF_ONE, _OF_ALL = 1e-2, 1e-4


def padded_size(rows: int, fine: int = FINE, *, few: bool = False) -> int:
    """Return the least size >= `rows` that is a power of two >= 16, or above `fine` a quarter of one between two.

    Args:
        rows: number of rows, >= 1.
        fine: a power of two.
        few: up to `fine` take only every other power of two, from 32 on: what a program computes once costs less than
            another program does.
    """
    octave = max(SMALLEST, 1 << (rows - 1).bit_length())
    if octave <= fine:
        return min(max(2 * SMALLEST, 1 << ((rows - 1).bit_length() | 1)), fine) if few else octave
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
        return min((size for size in self._sizes if rows <= size <= most), default=padded_size(rows, few=True))

    def decide(self, plain: Any, filled: Any) -> None:
        """Find out whether filling up is exact from both ways' predictions for the same rows."""
        self.exact = same_rows(plain, filled)
        if not self.exact:
            logger.warning(
                "predict: the rows of this network's output depend on each other, so every number of rows is compiled "
                "anew; a batch_size that divides the rows needs one program"
            )


class RowFilling:
    """Which batches a program with a loss is given filled up: those of the third number of rows that occurs, and on.

    The first two are compiled as they are: most data have one size, and a last batch of another. The size that a batch
    is filled up to follows from its rows alone.

    Args:
        reason: why nothing can be filled up; empty where it may be.
        few: see `padded_size`.

    Attributes:
        exact: whether filled-up batches give the same loss and predictions; None while that is not known.
        reason: see `reason` above; also what trying it out has shown.
        sizes: numbers of rows that are compiled as they are.
    """

    def __init__(self, reason: str = "", *, few: bool = False) -> None:
        self.reason = reason
        self._few = few
        self.exact: bool | None = False if reason else None
        self.sizes: list[int] = []
        self._refused: list[int] = []
        self._told = False

    def restart(self) -> None:
        """Begin with other data: the first two sizes that occur in it are compiled as they are."""
        self.sizes = []

    def keep(self, rows: int) -> None:
        """Let batches of so many rows be computed as they are."""
        if rows not in self.sizes:
            self.sizes.append(rows)

    def note(self, rows: int) -> None:
        """Take notice of a batch, in the order of the data."""
        if len(self.sizes) < AS_THEY_ARE:
            self.keep(rows)

    def odd(self, rows: int) -> bool:
        """Return whether a batch of so many rows is to be filled up, if that proves to be exact."""
        return self.exact is not False and rows not in self.sizes

    def size_for(self, rows: int) -> int:
        """Return the number of rows that an odd batch is filled up to."""
        return padded_size(rows, _FINE_FILLED, few=self._few)

    def next(self, rows: int) -> int | None:
        """Take notice of a batch that is evaluated; return the size it is filled up to, None where it is not."""
        self.note(rows)
        if rows in self.sizes:
            return None
        if self.exact:
            return self.size_for(rows)
        if rows not in self._refused and not self._told:
            self._refused.append(rows)
            self._tell()
        return None

    def _tell(self) -> None:
        found = [*self.sizes, *self._refused]
        if self.exact is False and len(found) >= _MANY:
            self._told = True
            logger.warning(
                "evaluate: every number of rows is compiled anew, %s so far, because %s; a batch_size that divides the "
                "rows needs one program",
                ", ".join(map(str, found)),
                self.reason,
            )

    def refuse(self, reason: str) -> None:
        """Fill nothing up any more."""
        self.exact, self.reason = False, reason

    def decide(self, plain: Sequence[Any], filled: Sequence[Any]) -> None:
        """Find out whether filling up is exact from both ways' (loss, prediction, label, gradients...)."""
        self.exact = same_rows(tuple(plain[:3]), tuple(filled[:3]))
        if not self.exact:
            self.refuse("the rows of the network's output depend on each other")
        elif not _same_gradients(plain[3:], filled[3:]):
            self.refuse("the gradients of the rows depend on each other")

    def state_dict(self) -> dict[str, Any]:
        """Return what decides how the batches to come are computed."""
        return {"sizes": list(self.sizes), "exact": self.exact, "reason": self.reason}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; what cannot be filled up here stays as it is.

        What was found exact is not tried again: to end in the same bits, a run that goes on fills up what the run
        before it did. Who makes rows depend on each other in between has to train from the start.
        """
        sizes, exact = [whole("sizes", rows) for rows in state["sizes"]], state["exact"]
        if exact not in (True, False, None):
            refuse("exact", "a bool or None", exact)
        self.sizes = sizes
        if not self.reason:
            self.exact, self.reason = exact, str(state["reason"])


def filled_up(columns: Columns, size: int) -> Columns:
    """Return the columns of one batch with `size` rows: copies of the last one are added to those that have fewer."""
    return tuple([_filled_up(column, size) for column in columns])


def _filled_up(column: np.ndarray, size: int) -> np.ndarray:
    missing = size - len(column)
    return column if missing <= 0 else np.concatenate([column, np.repeat(column[-1:], missing, axis=0)])


def row_weights(rows: int, size: int) -> np.ndarray:
    """Return what the rows of a batch count that was filled up from `rows` to `size` rows, float32 [size]."""
    return (np.arange(size) < rows).astype(np.float32)


def vary(columns: Columns) -> bool:
    """Return whether not all rows of a batch are the same."""
    lists = any(not isinstance(column, np.ndarray) for column in columns)
    return lists or any(column.dtype != object and (column != column[:1]).any() for column in columns)


def same_rows(plain: Any, filled: Any) -> bool:
    """Return whether outputs, arrays in tuples of any depth, are the same up to rounding."""
    if isinstance(plain, tuple) or isinstance(filled, tuple):
        tuples = isinstance(plain, tuple) and isinstance(filled, tuple) and len(plain) == len(filled)
        return tuples and all(map(same_rows, plain, filled))
    return _same(plain, filled)


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype.kind != "f":
        return np.array_equal(one, other)
    scale = float(np.abs(one[np.isfinite(one)]).max(initial=0.0))
    return np.allclose(one, other, rtol=_RELATIVE, atol=_ABSOLUTE * max(scale, 1e-30), equal_nan=True)


def _same_gradients(some: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> bool:
    largest = [float(np.abs(one[np.isfinite(one)]).max(initial=0.0)) for one in some]
    # where a gradient is zero but for rounding, only those of other parameters tell what rounding is
    within = [_OF_ONE * own + _OF_ALL * max(largest) for own in largest]
    return all(
        one.shape == other.shape and np.allclose(one, other, rtol=_OF_ONE, atol=atol, equal_nan=True)
        for one, other, atol in zip(some, others, within, strict=True)
    )
