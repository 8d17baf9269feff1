"""Sum dense gradients over processes, using the connections of `AllToAll`.

On CPU, MindSpore's AllReduce moves twice the bytes of a ring and waits longer; docs/scaling.md compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .group import Group

DIRECT_BYTES = 1 << 16  # up to this size each process sends all of its array to the others, in one exchange
MESSAGE_ENTRIES = 1 << 22  # maximum number of float32 entries in a message


class DenseSum:
    """Sums arrays over all processes in rank order, with the same bits on each.

    The processes must be connected (`Group.connect`).
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        # Shapes of the input -> results. Reused, because MindSpore copies an operator's results anyway, and allocating
        # memory costs more than the addition.
        self._totals: dict[tuple[tuple[int, ...], ...], list[np.ndarray]] = {}

    def add(self, values: np.ndarray, token: np.ndarray | None = None) -> np.ndarray:
        """Return the sum of the `values` of all processes, float32 [n].

        The next sum of the same shape overwrites the result. An operator of a running graph calls this method.
        """
        return self._sum([values])[0]

    def add_gradients(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the sums of gradients and of a head.

        The next sums of the same shapes overwrite the results. An operator of a running graph calls this method.

        Args:
            arrays: gradients, float32 of any shapes; a head, float32 [h]; rows, float32 [n]; a token. If ``rows[0]`` is
                0, the gradients are those of dummy rows and count as zeros.
        """
        *gradients, head, rows, _ = arrays
        if rows[0] == 0:  # not a product with 0, because gradients of dummy rows may be infinite
            gradients = [np.zeros_like(gradient) for gradient in gradients]
        return tuple(self._sum([*gradients, head]))

    def _sum(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        shapes = tuple(array.shape for array in arrays)
        totals = self._totals.get(shapes)
        if totals is None:
            totals = self._totals[shapes] = [np.empty(shape, np.float32) for shape in shapes]
        flat, flat_totals = ([array.reshape(-1) for array in group] for group in (arrays, totals))
        entries = sum(array.size for array in flat)
        for start in range(0, entries, MESSAGE_ENTRIES):
            end = min(entries, start + MESSAGE_ENTRIES)
            self._sum_part(slice_entries(flat, start, end), slice_entries(flat_totals, start, end), end - start)
        return totals

    def _sum_part(self, parts: list[np.ndarray], totals: list[np.ndarray], entries: int) -> None:
        """Set `totals` to the sums of all processes' `parts`, which have equal lengths.

        Each process sums one share of a large array and sends the result to the others.
        """
        rank, size = self._group.rank, self._group.size
        if size == 2 or 4 * entries <= DIRECT_BYTES:  # between two processes, shares would save no bytes
            self._add_up([parts] * size, totals)
            return
        ends = [entries * (owner + 1) // size for owner in range(size)]
        shares = [*zip([0, *ends], ends, strict=False)]
        totals_of = [slice_entries(totals, *share) for share in shares]
        self._add_up([slice_entries(parts, *share) for share in shares], totals_of[rank])
        received = self._group.all_to_all([totals_of[rank]] * size, in_graph=True)
        for owner, message in enumerate(received):
            if owner != rank:
                for total, part in zip(totals_of[owner], split_message(message, totals_of[owner]), strict=True):
                    total[:] = part

    def _add_up(self, parts: list[list[np.ndarray]], totals: list[np.ndarray]) -> None:
        """Send `parts[r]` to each rank r; set `totals` to the received sums."""
        received = self._group.all_to_all(parts, in_graph=True)
        terms = [
            message if rank == self._group.rank else split_message(message, totals)
            for rank, message in enumerate(received)
        ]
        for total, first, second, *others in zip(totals, *terms, strict=True):
            np.add(first, second, out=total)
            for other in others:
                total += other


def slice_entries(arrays: Sequence[np.ndarray], start: int, end: int) -> list[np.ndarray]:
    """Return views of the entries `start` to `end` of 1-D arrays laid end to end."""
    views: list[np.ndarray] = []
    first = 0
    for array in arrays:
        view = array[max(0, start - first) : max(0, end - first)]
        if view.size:
            views.append(view)
        first += array.size
    return views


def split_message(message: bytes, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Split a message of float32 entries into views with the sizes of `arrays`."""
    flat = np.frombuffer(message, np.float32)
    views: list[np.ndarray] = []
    start = 0
    for array in arrays:
        views.append(flat[start : start + array.size])
        start += array.size
    return views
