"""`RowStore`: growable table rows on the host, with cheap copy-on-write views."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np

from ...native.memory import Memory

_COPY_BLOCK = 1 << 14


def plain_rows(rows: np.ndarray) -> np.ndarray:
    """Return rows as kernels need them: int32, contiguous, writable; a copy if not."""
    return rows if rows.dtype == np.int32 and rows.flags.carray else np.array(rows, np.int32)


class RowStore:
    """Rows [capacity, width] that grow in place, in memory or a mapped file.

    All numbers are float32 or, with `halves`, the first ones of every row float16. What `stored` returns is exact and
    of the table's size: such a row as float16 [items], of which two hold a float32. All else is float32 [width].

    Untouched memory costs nothing, so growing doubles the reservation and only written rows occupy memory. Every access
    takes the lock, because growing may move the mapping.
    """

    def __init__(self, width: int, rows: int = 1024, path: Path | str | None = None, halves: int = 0) -> None:
        from . import half_floats, kernels  # import Numba, which only a network with tables needs

        self.width = width
        self.halves = halves
        self.dtype = np.dtype(np.float16 if halves else np.float32)
        self.words = self._words_of(width)  # 4-byte words per row
        self._gather, self._rounded = kernels.gather.ready(), half_floats.rounded
        self._item = np.dtype(f"V{4 * self.words}")
        self.lock = threading.RLock()
        self._views: list[CopyOnWriteView] = []
        self._memory = Memory(path)
        self._rows = np.empty((0, self.words), np.float32)
        self.reserve(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def _words_of(self, columns: int) -> int:
        return (min(columns, self.halves) + 1) // 2 + max(columns - self.halves, 0)

    def items_of(self, columns: int) -> int:
        """Return how many numbers of `dtype` hold the first `columns` of a row."""
        return columns if columns <= self.halves or not self.halves else 2 * self._words_of(columns)

    def reserve(self, rows: int) -> None:
        """Reserve room for at least `rows` rows."""
        with self.lock:
            if rows <= len(self._rows):
                return
            rows = max(rows, 2 * len(self._rows))
            # Drop the array first, so that its memory may move.
            self._rows = np.empty((0, self.words), np.float32)
            rows = self._memory.grow(rows * self.words * 4) // (self.words * 4)
            self._rows = self._memory.array(np.float32, rows * self.words).reshape(rows, self.words)
            self.address = self._rows.__array_interface__["data"][0]  # valid while the lock is held

    def read(self, rows: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Return (or write to `out`) the values of reserved `rows`, float32 [n, width]."""
        if out is None:
            out = np.empty((len(rows), self.width), np.float32)
        self.read_part(rows, out)
        return out

    def read_part(self, rows: np.ndarray, out: np.ndarray) -> None:
        """Write the first columns of `rows` to `out`, contiguous float32 [n, columns]."""
        rows = plain_rows(rows)
        if len(rows):
            with self.lock:
                # Not `np.take` on a slice of columns: it first copies the whole slice.
                self._gather(self._rows, rows, out, self.halves)

    def read_words(self, rows: np.ndarray, out: np.ndarray) -> None:
        """Write the first words of stored rows into `out`, float32 [n, words]."""
        with self.lock:
            self._gather(self._rows, plain_rows(rows), out, 0)

    def stored(self, rows: np.ndarray) -> np.ndarray:
        """Return `rows` in stored form, `dtype` [n, items]."""
        out = np.empty((len(rows), self.words), np.float32)
        if len(rows):
            self.read_words(rows, out)
        return out.view(self.dtype)

    def write(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Set distinct `rows` (integers [n]) to `values`, float32 [n, width] or [width].

        What is kept as float16 is rounded to the nearest.
        """
        values = np.ascontiguousarray(np.broadcast_to(values, (len(rows), self.width)), np.float32)
        if self.halves:
            words = np.zeros((len(rows), self.words), np.float32)
            words.view(np.float16)[:, : self.halves] = self._rounded(values[:, : self.halves])
            words[:, self._words_of(self.halves) :] = values[:, self.halves :]
            values = words
        self.write_stored(rows, values.view(self.dtype))

    def write_stored(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Set distinct `rows` (integers [n]) to what `stored` returned, [n, items]."""
        with self.lock:
            self.preserve(rows)
            # Rows as single items: measured 2.5 to 8 times as fast as assigning to the two-dimensional array.
            items = np.ascontiguousarray(values, self.dtype).view(self._item)
            self._rows.view(self._item).reshape(-1).put(rows, items.reshape(-1))

    def write_range(self, first: int, weights: np.ndarray, slots: np.ndarray) -> None:
        """Set rows from `first` on to `weights` (float32 [n, columns]) and equal `slots`."""
        last, columns = first + len(weights), weights.shape[1]
        if self.halves:
            weights = self._rounded(weights)
        with self.lock:
            if self._views:
                self.preserve(np.arange(first, last, dtype=np.int32))
            self._rows.view(self.dtype)[first:last, :columns] = weights
            self._rows[first:last, self._words_of(columns) :] = slots

    def preserve(self, rows: np.ndarray) -> None:
        """Let frozen views copy `rows` (int32 [n]) before an update changes them."""
        with self.lock:
            for view in self._views:
                view.preserve(rows)

    @property
    def is_frozen(self) -> bool:
        """Whether any view still has rows to copy."""
        return bool(self._views)

    def view(self, chosen: np.ndarray, columns: int | None = None) -> CopyOnWriteView:
        """Freeze the present values of rows where `chosen` (bool [n]), copied later.

        The view keeps a reference to `chosen`, so do not modify it. It has the first `columns` of a row, or all.
        """
        with self.lock:
            view = CopyOnWriteView(self, chosen, self.width if columns is None else columns)
            self._views = [*self._views, view]
        return view

    def close(self) -> None:
        """Release the memory or the file; frozen views copy their rows first."""
        with self.lock:
            for view in self._views:
                view.preserve(view.rows)
            self._rows = np.empty((0, self.words), np.float32)
            self._memory.close()


class CopyOnWriteView:
    """A lazy snapshot of rows: copied by `values`, or before they are overwritten.

    Creating one only records which rows it covers, so it takes almost no time.
    """

    def __init__(self, store: RowStore, chosen: np.ndarray, columns: int) -> None:
        self._store = store
        self._columns = store.items_of(columns)
        self._words = -(-self._columns * store.dtype.itemsize // 4)
        self._waiting = chosen
        self._rows: np.ndarray | None = None
        self._kept: list[tuple[np.ndarray, np.ndarray]] = []

    @property
    def rows(self) -> np.ndarray:
        """The rows, ascending, int32 [n]."""
        with self._store.lock:
            if self._rows is None:
                self._rows = np.flatnonzero(self._waiting).astype(np.int32)
            return self._rows

    def preserve(self, rows: np.ndarray) -> None:
        """Copy `rows` not copied yet; called before the store overwrites them."""
        inside = rows[rows < len(self._waiting)]
        due = inside[self._waiting[inside]]
        if len(due):
            assert self.rows is not None  # set before the first row is removed from the list
            kept = np.empty((len(due), self._words), np.float32)
            self._store.read_words(due, kept)
            self._kept.append((due, kept))
            self._waiting[due] = False

    def values(self) -> np.ndarray:
        """Return the frozen values as `RowStore.stored` does, of the first columns.

        Copies the remaining rows block by block, so that writers wait only briefly.
        """
        store, rows = self._store, self.rows
        values = np.empty((len(rows), self._words), np.float32)
        for start in range(0, len(rows), _COPY_BLOCK):
            block = rows[start : start + _COPY_BLOCK]
            with store.lock:
                if self._waiting[block].any():
                    store.read_words(block, values[start : start + len(block)])
                self._waiting[block] = False
        self.release()
        for due, kept in self._kept:
            values[np.searchsorted(rows, due)] = kept
        self._kept = []
        return values.view(store.dtype)[:, : self._columns]

    def release(self) -> None:
        """Detach from the store, once the values are copied or no longer needed."""
        with self._store.lock:
            self._store._views = [view for view in self._store._views if view is not self]
