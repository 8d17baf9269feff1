"""Batch sizes: pads batches with their last row, so that few programs suffice.

This is exact only where no row depends on the others. The layers of a custom network do not show that, so one trial per
network, on the first batch that could be padded, computes it both ways.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..checks import refuse, whole
from ..native.memory import bucket
from .as_columns import Columns

logger = logging.getLogger(__name__)

SMALLEST, FINE = 16, 1024
AS_THEY_ARE = 2  # sizes: the common one, and that of a short last batch
_MANY = 5  # sizes
MANY_SHAPES = (8, 32, 128, 512)  # numbers of shapes at which to warn
_FINE_FILLED = 256  # from this size on, repeated training or evaluation wastes at most a quarter
# Kernels add up in another order for another number of rows.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-5
# A gradient is a sum over the rows, perhaps in half precision: shares of its own largest entry, and of that of all.
_SHARE_OF_OWN, _SHARE_OF_ALL = 1e-2, 1e-4


def padded_size(rows: int, fine: int = FINE, *, few: bool = False) -> int:
    """Return the bucket for `rows`: powers of two >= 16, quarter steps above `fine`.

    Args:
        few: up to `fine` take only every other power of two, from 32 on: rows that are computed once cost less than
            another program does.
    """
    if few and rows <= fine:
        return min(max(2 * SMALLEST, 1 << ((rows - 1).bit_length() | 1)), fine)
    return bucket(rows, 4, least=SMALLEST, coarse=fine)


class RowPadding:
    """The sizes for which a network's prediction program has been compiled."""

    def __init__(self) -> None:
        self.exact: bool | None = None  # whether padded batches give the same predictions; None while that is not known
        self._sizes: set[int] = set()

    def compiled(self, rows: int) -> None:
        """Note a size that has been run."""
        self._sizes.add(rows)

    def size_for(self, rows: int) -> int:
        """Return the number of rows to pad a batch to; `rows` itself if it has a program."""
        if self.exact is False or rows in self._sizes or not self._sizes:
            return rows
        most = max(2 * rows, FINE)
        return min((size for size in self._sizes if rows <= size <= most), default=padded_size(rows, few=True))

    def decide(self, plain: Any, filled: Any) -> None:
        """Set `exact` from the predictions for the same rows, computed both ways."""
        self.exact = same_rows(plain, filled)
        if not self.exact:
            logger.warning(
                "predict: the rows of this network's output depend on each other, so every number of rows is compiled "
                "separately; a batch_size that divides the rows needs one program"
            )


class RowFilling:
    """Decides which batches are padded for a program with a loss: from size three on.

    The first two are compiled as they are: most data have one size, and a last batch of another. The size that a batch
    is padded to follows from its rows alone.
    """

    def __init__(self, reason: str = "", *, few: bool = False) -> None:
        self.reason = reason  # why no batch can be padded, known before or from a failed trial; empty if it may be
        self._few = few
        self.exact: bool | None = False if reason else None  # whether padding changes no loss; None: not known yet
        self.sizes: list[int] = []
        self._unpadded: list[int] = []
        self._warned = False

    def restart(self) -> None:
        """Begin with other data: its first two sizes are compiled as they are."""
        self.sizes = []

    def keep(self, rows: int) -> None:
        """Compute batches of so many rows as they are."""
        if rows not in self.sizes:
            self.sizes.append(rows)

    def note(self, rows: int) -> None:
        """Note a batch, in the order of the data."""
        if len(self.sizes) < AS_THEY_ARE:
            self.keep(rows)

    def odd(self, rows: int) -> bool:
        """Return whether a batch of so many rows is to be padded, if that is exact."""
        return self.exact is not False and rows not in self.sizes

    def size_for(self, rows: int) -> int:
        """Return the number of rows that an odd batch is padded to."""
        return padded_size(rows, _FINE_FILLED, few=self._few)

    def next(self, rows: int) -> int | None:
        """Note a batch that is evaluated; return the size to pad it to, or None."""
        self.note(rows)
        if rows in self.sizes:
            return None
        if self.exact:
            return self.size_for(rows)
        if rows not in self._unpadded and not self._warned:
            self._unpadded.append(rows)
            self._warn()
        return None

    def _warn(self) -> None:
        sizes = [*self.sizes, *self._unpadded]
        if self.exact is False and len(sizes) >= _MANY:
            self._warned = True
            logger.warning(
                "evaluate: every number of rows is compiled separately, %s so far, because %s; a batch_size that "
                "divides the rows needs one program",
                ", ".join(map(str, sizes)),
                self.reason,
            )

    def refuse(self, reason: str) -> None:
        """Pad no more batches."""
        self.exact, self.reason = False, reason

    def decide(self, plain: Sequence[Any], filled: Sequence[Any]) -> None:
        """Set `exact` from (loss, prediction, label, gradients...) of rows computed twice."""
        self.exact = same_rows(tuple(plain[:3]), tuple(filled[:3]))
        if not self.exact:
            self.refuse("the rows of the network's output depend on each other")
        elif not _same_gradients(plain[3:], filled[3:]):
            self.refuse("the gradients of the rows depend on each other")

    def state_dict(self) -> dict[str, Any]:
        """Return the state that decides how further batches are computed."""
        return {"sizes": list(self.sizes), "exact": self.exact, "reason": self.reason}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned, unless batches cannot be padded here.

        There is no second trial: to end in the same bits, a resumed run pads the batches that the run before it did.
        """
        sizes, exact = [whole("sizes", rows) for rows in state["sizes"]], state["exact"]
        if exact not in (True, False, None):
            refuse("exact", "a bool or None", exact)
        self.sizes = sizes
        if not self.reason:
            self.exact, self.reason = exact, str(state["reason"])


class BatchShapes:
    """The shapes of a feed's batches, each of which needs a program."""

    def __init__(self) -> None:
        self.seen: set[Any] = set()
        self.stacked: set[Any] = set()
        self._compiled: set[Any] = set()

    def note(self, form: Any, stacked: bool, filling: RowFilling | None, kind: Any = None) -> None:
        """Record the form of a chunk's batches; warn when there are many.

        Each form is another program to compile, unless `filling` pads the batches.
        """
        if stacked:
            self.stacked.add((kind, form))
        if form in self.seen:
            return
        self.seen.add(form)
        program, rows = form, form[0][0][:1]
        if filling is not None and filling.odd(rows[0]):
            program = tuple([((filling.size_for(rows[0]), *shape[1:]), dtype) for shape, dtype in form])
        if program in self._compiled:
            return
        self._compiled.add(program)
        if len(self._compiled) in MANY_SHAPES:
            logger.warning(
                "batches have had %d different shapes so far, the newest %s: each costs a compilation (0.3 to 3 s) and "
                "the memory of a program; pad them to a few lengths, or batch rows of one length together",
                len(self._compiled),
                [list(shape) for shape, _ in form],
            )


def padded(columns: Columns, size: int) -> Columns:
    """Return the columns of a batch with `size` rows, by copies of the last row."""
    return tuple([_pad(column, size) for column in columns])


def _pad(column: np.ndarray, size: int) -> np.ndarray:
    missing = size - len(column)
    return column if missing <= 0 else np.concatenate([column, np.repeat(column[-1:], missing, axis=0)])


def row_weights(rows: int, size: int) -> np.ndarray:
    """Return the weights of a padded batch, float32 [size]: 1, and 0 for padding."""
    return (np.arange(size) < rows).astype(np.float32)


def vary(columns: Columns) -> bool:
    """Return whether not all rows of a batch are the same."""
    lists = any(not isinstance(column, np.ndarray) for column in columns)
    return lists or any(column.dtype != object and (column != column[:1]).any() for column in columns)


def same_rows(plain: Any, filled: Any) -> bool:
    """Return whether outputs (nested tuples of arrays) are equal up to rounding."""
    if isinstance(plain, tuple) or isinstance(filled, tuple):
        tuples = isinstance(plain, tuple) and isinstance(filled, tuple) and len(plain) == len(filled)
        return tuples and all(map(same_rows, plain, filled))
    if plain.shape != filled.shape or plain.dtype != filled.dtype:
        return False
    if plain.dtype.kind != "f":
        return np.array_equal(plain, filled)
    return np.allclose(plain, filled, rtol=_RELATIVE, atol=_ABSOLUTE * max(_largest(plain), 1e-30), equal_nan=True)


def _same_gradients(plain: Sequence[np.ndarray], filled: Sequence[np.ndarray]) -> bool:
    largest = [_largest(gradient) for gradient in plain]
    # where a gradient is zero but for rounding, only those of other parameters show the size of rounding errors
    tolerances = [_SHARE_OF_OWN * own + _SHARE_OF_ALL * max(largest) for own in largest]
    return all(
        one_way.shape == other_way.shape
        and np.allclose(one_way, other_way, rtol=_SHARE_OF_OWN, atol=tolerance, equal_nan=True)
        for one_way, other_way, tolerance in zip(plain, filled, tolerances, strict=True)
    )


def _largest(array: np.ndarray) -> float:
    return float(np.abs(array[np.isfinite(array)]).max(initial=0.0))
