"""Pads batches with copies of their last row, so that few programs are compiled.

Padding requires a network that declares that no output row depends on other rows (`rows_are_independent = True`) and a
loss that accepts row weights. All other networks are compiled for each number of rows.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..checks import whole
from ..native.memory import bucket
from .as_columns import Columns

logger = logging.getLogger(__name__)

MIN_SIZE = 16
FINE = 1024  # size up to which batches are padded to powers of two only
SERVED = (128, 256)  # batch sizes of published programs; `predict` uses them too for up to 256 rows
UNPADDED_SIZES = 2  # number of unpadded sizes: the usual batch and a shorter last batch
ATTRIBUTE = "rows_are_independent"
MANY_SIZES = 3  # number of sizes at which to warn if each of them is compiled
MANY_SHAPES = (8, 32, 128, 512)  # numbers of shapes at which to warn
_FINE_FILLED = 256  # above this size, batches that are trained or evaluated repeatedly are padded by at most a quarter


def independent_rows(network: Any) -> bool:
    """Return whether a network declares that its rows are independent."""
    return getattr(network, ATTRIBUTE, False) is True


def undeclared_reason(network: Any) -> str:
    """Return why batches of a network are not padded and what to declare, for the log."""
    return (
        f"{type(network).__name__} does not declare {ATTRIBUTE} = True; if no row of its output depends on "
        "other rows, declare it in that class; batches are then padded to few sizes"
    )


def warn_of_sizes(verb: str, sizes: Any, reason: str) -> None:
    """Log that each number of rows is compiled separately, and how to avoid it."""
    logger.warning(
        "%s: every number of rows is compiled separately, %s so far, because %s. Alternatively, make all batches the "
        "same size: "
        "pass batch_size=..., which also combines small batches of a stream",
        verb,
        ", ".join(map(str, sizes)),
        reason,
    )


def padded_size(rows: int, fine: int = FINE, *, few: bool = False) -> int:
    """Return the size to which `rows` is rounded up, a power of two >= 16.

    Above `fine`, each range between two powers of two is divided into four equal steps.

    Args:
        few: up to `fine`, use only every other power of two, from 32 on. This suits rows that are computed once, where
            padding costs less than compiling another program.
    """
    if few and rows <= fine:
        return min(max(2 * MIN_SIZE, 1 << ((rows - 1).bit_length() | 1)), fine)
    return bucket(rows, 4, minimum=MIN_SIZE, coarse=fine)


class RowPadding:
    """The batch sizes for which a network's prediction program has been compiled.

    Small batches are padded to the sizes that servers use (`SERVED`), so that predictions are bitwise equal to those of
    a server: on a CPU, the summation order of a matrix product depends on the number of rows.
    """

    def __init__(self, network: Any) -> None:
        self.allowed = independent_rows(network)
        self._reason = undeclared_reason(network)
        self._sizes: dict[int, None] = {}

    def compiled(self, rows: int) -> None:
        """Record a batch size in use; warn at the third one if each is compiled."""
        if rows not in self._sizes:
            self._sizes[rows] = None
            if len(self._sizes) == MANY_SIZES and not self.allowed:
                warn_of_sizes("predict", self._sizes, self._reason)

    def size_for(self, rows: int) -> int:
        """Return the number of rows to pad a batch to.

        Above the sizes of `SERVED`, the next compiled size is used unless it is much larger than `rows`.
        """
        if self.allowed and rows <= SERVED[-1]:
            return next(size for size in SERVED if rows <= size)
        if not self.allowed or rows in self._sizes or not self._sizes:
            return rows
        maximum = max(2 * rows, FINE)
        return min((size for size in self._sizes if rows <= size <= maximum), default=padded_size(rows, few=True))


class RowFilling:
    """Decides which batches of training or evaluation are padded.

    The first two sizes are compiled without padding, because most data have one batch size and a shorter last batch.
    From the third size on, batches are padded to a size that depends only on their number of rows.
    """

    def __init__(self, reason: str = "", *, few: bool = False) -> None:
        self.reason = reason  # why no batch is padded; empty if batches may be padded
        self._few = few
        self.sizes: list[int] = []
        self._unpadded: list[int] = []

    def restart(self) -> None:
        """Start with other data: its first two sizes are not padded."""
        self.sizes = []

    def leave_unpadded(self, rows: int) -> None:
        """Do not pad batches of this many rows."""
        if rows not in self.sizes:
            self.sizes.append(rows)

    def note(self, rows: int) -> None:
        """Record a batch, in the order of the data; do not pad the first two sizes."""
        if len(self.sizes) < UNPADDED_SIZES:
            self.leave_unpadded(rows)

    def is_padded(self, rows: int) -> bool:
        """Return whether a batch of `rows` rows is padded."""
        return not self.reason and rows not in self.sizes

    def size_for(self, rows: int) -> int:
        """Return the size to pad a batch of `rows` rows to."""
        return padded_size(rows, _FINE_FILLED, few=self._few)

    def size_for_evaluation(self, rows: int) -> int | None:
        """Record an evaluation batch; return the size to pad it to, or None."""
        self.note(rows)
        if self.is_padded(rows):
            return self.size_for(rows)
        if rows not in (*self.sizes, *self._unpadded):
            self._unpadded.append(rows)
            if len(self.sizes) + len(self._unpadded) == MANY_SIZES:
                warn_of_sizes("evaluate", [*self.sizes, *self._unpadded], self.reason)
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the sizes that are not padded."""
        return {"sizes": list(self.sizes)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned, so that a resumed run pads the same batches."""
        self.sizes = [whole("sizes", rows) for rows in state["sizes"]]


class BatchShapes:
    """Records the shapes of a feed's batches, each of which needs a program."""

    def __init__(self) -> None:
        self.seen: set[Any] = set()
        self.stacked: set[Any] = set()
        self._compiled: set[Any] = set()

    def note(self, form: Any, stacked: bool, filling: RowFilling | None, kind: Any = None) -> None:
        """Record the shapes and dtypes of a chunk's batches; warn when there are many.

        Each form requires another program, unless `filling` pads the batches.
        """
        if stacked:
            self.stacked.add((kind, form))
        if form in self.seen:
            return
        self.seen.add(form)
        program, rows = form, form[0][0][:1]
        if filling is not None and filling.is_padded(rows[0]):
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
    """Return a batch's columns padded to `size` rows with copies of the last row."""
    return tuple([_pad(column, size) for column in columns])


def _pad(column: np.ndarray, size: int) -> np.ndarray:
    missing = size - len(column)
    return column if missing <= 0 else np.concatenate([column, np.repeat(column[-1:], missing, axis=0)])


def row_weights(rows: int, size: int) -> np.ndarray:
    """Return float32 weights [size] of a padded batch: 1 for `rows` rows, then 0."""
    return (np.arange(size) < rows).astype(np.float32)


def padded_by_weight(columns: Columns, size: int, *, has_weights: bool) -> Columns:
    """Return a batch's columns padded to `size` rows; the padding has weight 0.

    The last column holds the row weights. If `has_weights`, the batch already has this column; otherwise it is added.
    """
    rows = len(columns[0])
    weights = row_weights(rows, size)
    if not has_weights:
        return (*padded(columns, size), weights)
    return (
        *padded(columns[:-1], size),
        np.where(weights > 0, _pad(columns[-1], size).reshape(-1), 0).astype(np.float32),
    )
