"""`RowStore`: growable table rows on the host, with cheap copy-on-write views."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path

import numpy as np

from ...native.memory import Memory

_COPY_BLOCK = 1 << 14  # rows that a view copies while it holds the lock


def kernel_rows(rows: np.ndarray) -> np.ndarray:
    """Return `rows` as contiguous, writable int32 for kernels; copy only if necessary."""
    return rows if rows.dtype == np.int32 and rows.flags.carray else np.array(rows, np.int32)


class RowStore:
    """Rows [capacity, width] that grow in place, in memory or a mapped file.

    All numbers are stored as float32, except that the first `halves` numbers of every row are stored as float16.
    Most methods take and return float32 [width] per row. `stored` and `write_stored` use the exact stored form; with
    `halves` it is float16 [items] per row, in which a float32 takes two items.

    Growing doubles the reserved address space, but only written rows occupy memory. Every access takes the lock,
    because growing may move the rows.
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
        # Weak, so that a view that nobody reads after all, as of a version that was not written, copies no more rows.
        self._views: weakref.WeakSet[CopyOnWriteView] = weakref.WeakSet()
        self._memory = Memory(path)
        self._rows = np.empty((0, self.words), np.float32)
        self.reserve(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def _words_of(self, columns: int) -> int:
        return (min(columns, self.halves) + 1) // 2 + max(columns - self.halves, 0)

    def items_of(self, columns: int) -> int:
        """Return how many items of `dtype` store the first `columns` of a row."""
        return columns if columns <= self.halves or not self.halves else 2 * self._words_of(columns)

    def reserve(self, rows: int) -> None:
        """Allocate at least `rows` rows."""
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
        rows = kernel_rows(rows)
        if len(rows):
            with self.lock:
                # Not `np.take` on a slice of columns: it first copies the whole slice.
                self._gather(self._rows, rows, out, self.halves)

    def read_words(self, rows: np.ndarray, out: np.ndarray) -> None:
        """Write the first words of stored rows into `out`, float32 [n, words]."""
        with self.lock:
            self._gather(self._rows, kernel_rows(rows), out, 0)

    def stored(self, rows: np.ndarray) -> np.ndarray:
        """Return `rows` in stored form, `dtype` [n, items]."""
        out = np.empty((len(rows), self.words), np.float32)
        if len(rows):
            self.read_words(rows, out)
        return out.view(self.dtype)

    def write(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Set distinct `rows` (integers [n]) to `values`, float32 [n, width] or [width]."""
        self.write_stored(rows, self.encoded(np.broadcast_to(values, (len(rows), self.width))))

    def encoded(self, values: np.ndarray) -> np.ndarray:
        """Return `values`, float32 [n, width], in stored form.

        Numbers that are stored as float16 are rounded to the nearest.
        """
        values = np.ascontiguousarray(values, np.float32)
        if self.halves:
            words = np.zeros((len(values), self.words), np.float32)
            words.view(np.float16)[:, : self.halves] = self._rounded(values[:, : self.halves])
            words[:, self._words_of(self.halves) :] = values[:, self.halves :]
            values = words
        return values.view(self.dtype)

    def write_stored(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Set distinct `rows` (integers [n]) to values in stored form, [n, items]."""
        with self.lock:
            self.preserve(rows)
            items = self.words * 4 // self.dtype.itemsize
            if values.shape[1] < items:  # a row of an odd number of float16 without the item that fills its last word
                values = np.pad(values, ((0, 0), (0, items - values.shape[1])))
            # Write each row as one item: measured 2.5 to 8 times as fast as assigning to the two-dimensional array.
            stored = np.ascontiguousarray(values, self.dtype).view(self._item)
            self._rows.view(self._item).reshape(-1).put(rows, stored.reshape(-1))

    def write_range(self, first: int, weights: np.ndarray, slots: np.ndarray) -> None:
        """Set consecutive rows from `first` on to `weights` and the same `slots`.

        `weights` is float32 [n, columns].
        """
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

    def view(self, mask: np.ndarray, columns: int | None = None) -> CopyOnWriteView:
        """Return a view of the current values of the rows in `mask`, bool [n].

        The view copies the values later. It keeps and modifies `mask`, so do not use that array again. `columns` limits
        the view to the first columns of a row.
        """
        with self.lock:
            view = CopyOnWriteView(self, mask, self.width if columns is None else columns)
            self._views.add(view)
        return view

    def close(self) -> None:
        """Release the memory or the file; frozen views copy their rows first."""
        with self.lock:
            for view in self._views:
                view.preserve(view.rows)
            self._rows = np.empty((0, self.words), np.float32)
            self._memory.close()


class CopyOnWriteView:
    """A lazy snapshot of rows, copied by `values` or just before they are overwritten.

    Creating one only records which rows it covers, so it takes almost no time.
    """

    def __init__(self, store: RowStore, mask: np.ndarray, columns: int) -> None:
        self._store = store
        self._columns = store.items_of(columns)
        self._words = -(-self._columns * store.dtype.itemsize // 4)
        self._not_copied = mask
        self._rows: np.ndarray | None = None
        self._copies: list[tuple[np.ndarray, np.ndarray]] = []  # (rows, values) copied by `preserve`

    @property
    def rows(self) -> np.ndarray:
        """The rows, ascending, int32 [n]."""
        with self._store.lock:
            if self._rows is None:
                self._rows = np.flatnonzero(self._not_copied).astype(np.int32)
            return self._rows

    def preserve(self, rows: np.ndarray) -> None:
        """Copy those of `rows` not copied yet, before the store overwrites them."""
        covered = rows[rows < len(self._not_copied)]
        covered = covered[self._not_copied[covered]]
        if len(covered):
            assert self.rows is not None  # computes the list before `_not_copied` loses its first row
            copy = np.empty((len(covered), self._words), np.float32)
            self._store.read_words(covered, copy)
            self._copies.append((covered, copy))
            self._not_copied[covered] = False

    def values(self) -> np.ndarray:
        """Return the frozen values in stored form; see `RowStore.stored`.

        Copies the remaining rows block by block, so that writers wait only briefly.
        """
        store, rows = self._store, self.rows
        values = np.empty((len(rows), self._words), np.float32)
        for start in range(0, len(rows), _COPY_BLOCK):
            block = rows[start : start + _COPY_BLOCK]
            with store.lock:
                if self._not_copied[block].any():
                    store.read_words(block, values[start : start + len(block)])
                self._not_copied[block] = False
        self.release()
        for copied_rows, copy in self._copies:
            values[np.searchsorted(rows, copied_rows)] = copy
        self._copies = []
        return np.ascontiguousarray(values.view(store.dtype)[:, : self._columns])

    def release(self) -> None:
        """Detach from the store, once the values are copied or no longer needed."""
        with self._store.lock:
            self._store._views.discard(self)
