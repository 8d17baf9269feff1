"""What a table knows about every row beside its values: columns by name that grow without a long pause."""

from __future__ import annotations

import numpy as np

from .memory import Memory

_WIDE = 8


class Columns(dict[str, np.ndarray]):
    """Arrays [rows] by name. A column may be replaced by any other array of the same length and type.

    Columns of eight bytes grow in place (`Memory`). Those of one byte are copied, because a snapshot keeps the account
    of changed rows it was given, as it was.
    """

    def __init__(self, rows: int) -> None:
        super().__init__()
        self._length = rows
        self._memory: dict[str, Memory] = {}

    def add(self, name: str, dtype: np.dtype | type) -> None:
        """Add a column of zeros."""
        if np.dtype(dtype).itemsize < _WIDE:
            self[name] = np.zeros(self._length, dtype)
            return
        self._memory[name] = Memory()
        self._memory[name].grow(self._length * np.dtype(dtype).itemsize)
        self[name] = self._memory[name].array(dtype, self._length)

    def reserve(self, rows: int) -> None:
        """Make room for `rows` rows, zeros where there were none. No other thread may be using a column."""
        if rows <= self._length:
            return
        length, self._length = self._length, max(rows, 2 * self._length)
        for name in list(self):
            dtype = self[name].dtype
            if name in self._memory:
                # the array goes first, so that its memory may move
                self[name] = np.zeros(0, dtype)
                self._memory[name].grow(self._length * dtype.itemsize)
                self[name] = self._memory[name].array(dtype, self._length)
            else:
                # pages of zeros that nobody writes to take no memory
                grown = np.zeros(self._length, dtype)
                grown[:length] = self[name]
                self[name] = grown


def dirty_column(consumer: str) -> str:
    """Return the name of the column that tells which rows changed since the consumer's last state."""
    return f"dirty.{consumer}"
