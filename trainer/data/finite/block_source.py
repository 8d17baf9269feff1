"""`BlockSource`: data larger than memory, read and shuffled in blocks of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from ..as_columns import Columns
from ..source import Item, Source

SHUFFLED_ROWS = 1 << 18


class BlockSource(Source):
    """Base of sources that read their rows in consecutive blocks.

    With `shuffle`, the order of an epoch depends only on (seed, epoch). Blocks are read in random order, and the rows
    of consecutive blocks are shuffled together, at least `shuffled_rows` rows at a time. Smaller blocks therefore give
    a better shuffle. A resumed run skips the blocks before its position.

    A thread reads the next rows to be shuffled together while the current ones are used, so twice `shuffled_rows` rows
    may be in memory.
    """

    described = ("rows", "batch_size", "shuffle", "seed")

    def __init__(
        self,
        block_rows: Sequence[int],
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        shuffled_rows: int | None = None,  # rows shuffled together; None: `SHUFFLED_ROWS`
    ) -> None:
        self.block_rows, self.batch_size = list(block_rows), batch_size
        self.shuffle, self.seed = shuffle, seed
        self.shuffled_rows = shuffled_rows or SHUFFLED_ROWS
        self.rows = sum(self.block_rows)
        self.size = -(-self.rows // batch_size)

    def read(self, numbers: Sequence[int]) -> Columns:
        """Return all rows of the blocks with these `numbers`, in that order."""
        raise NotImplementedError

    def batches(self, epoch: int, start: int, state: Any = None) -> Iterator[Item]:
        plan = list(self._plan(epoch, start * self.batch_size))
        yield from rebatched(self._read_ahead(plan), self.batch_size)

    def peek(self, should_stop: Callable[[], bool] = lambda: False) -> Columns | None:
        """Return the columns of the first batch; reads nothing ahead."""
        parts = (self._read_rows(*part) for part in self._plan(self.first_epoch, 0))
        return next((item.columns for item in rebatched(parts, self.batch_size)), None)

    def _plan(self, epoch: int, skip: int) -> Iterator[tuple[list[int], np.ndarray]]:
        """Yield (block numbers, indexes of their rows in the order of delivery)."""
        rng = np.random.default_rng([self.seed, epoch])
        order = rng.permutation(len(self.block_rows)) if self.shuffle else np.arange(len(self.block_rows))
        for blocks in self._grouped(order.tolist()):
            count = sum(self.block_rows[number] for number in blocks)
            rows = rng.permutation(count) if self.shuffle else np.arange(count)
            if skip < count:
                yield blocks, rows[skip:]
            skip = max(0, skip - count)

    def _grouped(self, order: Sequence[int]) -> Iterator[list[int]]:
        """Yield lists of blocks whose rows are shuffled together."""
        blocks: list[int] = []
        rows = 0
        for number in order:
            blocks.append(number)
            rows += self.block_rows[number]
            if rows >= self.shuffled_rows:
                yield blocks
                blocks, rows = [], 0
        if blocks:
            yield blocks

    def _read_rows(self, blocks: Sequence[int], rows: np.ndarray) -> Columns:
        return tuple([column[rows] for column in self.read(blocks)])

    def _read_ahead(self, plan: Sequence[tuple[list[int], np.ndarray]]) -> Iterator[Columns]:
        pool = ThreadPoolExecutor(1, thread_name_prefix="blocks")
        try:
            future: Future[Columns] | None = None
            for number in range(len(plan)):
                columns = self._read_rows(*plan[number]) if future is None else future.result()
                future = pool.submit(self._read_rows, *plan[number + 1]) if number + 1 < len(plan) else None
                yield columns
                del columns
        finally:
            pool.shutdown(cancel_futures=True)


def rebatched(parts: Iterable[Columns], batch_size: int) -> Iterator[Item]:
    """Yield the rows of all parts in batches of one size; the last one may be smaller."""
    waiting: list[Columns] = []
    rows = 0
    for columns in parts:
        count, first = len(columns[0]), 0
        while rows + count - first >= batch_size:
            last = first + batch_size - rows
            waiting.append(tuple([column[first:last] for column in columns]))
            yield Item(_concatenated(waiting))
            waiting, rows, first = [], 0, last
        if first < count:
            waiting.append(tuple([column[first:] for column in columns]))
            rows += count - first
    if waiting:
        yield Item(_concatenated(waiting))


def _concatenated(parts: Sequence[Columns]) -> Columns:
    return parts[0] if len(parts) == 1 else tuple([np.concatenate(columns) for columns in zip(*parts, strict=True)])
