"""The record that a feed hands out, with the options and transforms behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from mindspore import Tensor

from ..cadence import NO_MARKS, StepMarks
from ..errors import DataError
from .as_columns import ColumnOrder, Columns, common_dtype
from .batch_sizes import RowFilling
from .position import Position
from .ragged import ListTypes, RaggedInput
from .source import Item


@dataclass(slots=True)
class Chunk:
    """The unit of the loop: 1 to K batches for one call of the program.

    A feed makes it in two steps: first what follows from reading the batches, then, on the same thread or on that of
    graphs, the arrays and tensors (`arrays` and the attributes after it).
    """

    items: list[Item]  # the batches as they were read; empty once the arrays are there
    names: tuple[str, ...]
    stacked: bool  # whether the columns carry the leading batch axis
    num_batches: int
    num_steps: int  # optimizer updates the chunk completes
    num_samples: int  # rows in the chunk (see `FeedOptions.counted`); 0 where they are placeholders (see `Item`)
    all_samples: int  # rows that all processes together have in this step's chunks
    flush: bool  # whether the accumulation closes after the last batch, full or not
    ends_epoch: bool  # whether the source ended after this chunk
    start: Position  # position before the chunk's first row
    position: Position  # right after the chunk's last row
    extras: list[Mapping[str, Any] | None] = field(default_factory=list)  # on the host: one mapping per batch, or None
    agreed: Any = None  # what the processes agreed on for the chunk's last batch, or None (see `Item`)
    arrays: Columns = ()  # host columns; [B, ...], or [K, B, ...] when `stacked` (rows past `num_batches` are padding)
    tensors: tuple[Tensor, ...] = ()  # the same as device tensors, after the preparation for sparse tables
    signature: tuple[Any, ...] = ()  # shapes and dtypes of the tensors
    sparse: Any = None  # working sets of sparse tables, or None
    filled: bool = False  # whether rows are padding, and the last tensor before those of tables has row weights
    exchanged: float = 0.0  # seconds that its preparation, ahead of training, spent in exchanges between processes
    error: DataError | None = None  # why it could not be prepared, the same on all processes at this chunk

    @property
    def nbytes(self) -> int:
        """Bytes of the batches."""
        if self.items:
            return sum([item.nbytes for item in self.items])
        return sum([array.nbytes for array in self.arrays])

    @property
    def batches_per_call(self) -> int | None:
        """Batches that the program of a stacked chunk takes, padding included; or None."""
        return len(self.arrays[0]) if self.stacked else None

    @property
    def batch_rows(self) -> int:
        """Rows of the first batch."""
        return self.num_samples // self.num_batches or len(self.arrays[0][0] if self.stacked else self.arrays[0])

    def rows(self, column: int) -> np.ndarray:
        """Return one column flattened to [num_samples, ...], padding left out."""
        array = self.arrays[column]
        return array[: self.num_batches].reshape(-1, *array.shape[2:]) if self.stacked else array


class InputBatch(NamedTuple):
    """The network's inputs from one batch."""

    names: tuple[str, ...]
    columns: tuple[np.ndarray, ...]  # rows on axis 0; of a ragged column with offsets, its values
    ragged: Mapping[str, RaggedInput]  # the inputs made of ragged columns, by the column's name


class ChunkTransform:
    """Converts the columns of a chunk to the graph's inputs."""

    on_graph_thread: bool = False  # whether it runs on the thread that runs graphs, not on one that prepares ahead

    def connect(self, inline: bool) -> None:
        """Prepare on the graph thread, with all processes, for chunks to be read.

        `inline` says whether this process reads and prepares on the graph thread.
        """

    def prepare(self, columns: Columns, chunk: Chunk, now: float | None) -> tuple[Columns, Any]:
        """Return the graph's columns, and data for the main thread (`Chunk.sparse`).

        Args:
            columns: arrays [B, ...], or [K, B, ...] when the chunk is stacked.
            now: newest event time of the rows in seconds, or None.
        """
        raise NotImplementedError

    def join_exchange(self, problem: str = "") -> None:
        """Join others' exchange if no chunk was prepared here; all raise a `problem`."""

    def finish(self) -> None:
        """Tell other processes, on the preparing thread, that no chunk follows."""

    def interrupt(self) -> None:
        """End the preparing thread's wait for other processes, so that it can stop."""

    def release(self) -> None:
        """Release untrained chunks; called after the preparing thread has stopped."""


@dataclass(frozen=True)
class FeedOptions:
    """How batches are grouped."""

    steps_per_call: int | Callable[[Item], int] = 1  # K, the most updates of a chunk, or a function of the first batch
    accumulate: int = 1  # micro-batches per optimizer update
    transform: Callable[[], ChunkTransform | None] = lambda: None  # called once the first data is known
    columns: int | None = None  # use the first so many columns only; None uses all
    arguments: Sequence[str] = ()  # names of what the network takes, for ragged columns
    list_types: ListTypes | None = None  # gives lists without any value a dtype; None where the source has done so
    order: ColumnOrder | None = None  # puts the columns of a batch in order and some aside, or None
    # column whose first axis is the number of rows where columns have different ones (a graph's adjacency, features and
    # labels); a scalar counts as one row
    counted: int = 0
    # Called with the number of rows of each batch, in order; returns the number of rows to fill the batch up to with
    # copies of its last row, or None. `Chunk.num_samples` counts the rows without the copies.
    fill_up_to: Callable[[int], int | None] | None = None
    weighed: bool = False  # whether the last column of a batch weighs its rows
    row_weights: bool = False  # whether a batch that was filled up gets a last column that says what each row counts
    filling: RowFilling | None = None  # batches to fill up for the training program, in separate calls
    # called with columns and names of a batch whose shapes or dtypes are not those of the batch before it; raises
    # DataError
    check: Callable[[Columns, tuple[str, ...]], None] | None = None
    # called with every batch's; what it returns, if anything, is logged with the batch's number
    inspect: Callable[[Columns, tuple[str, ...]], str | None] | None = None
    alike: bool = False  # whether lists are padded to the length that those of the step have on any process
    batches_per_epoch: int | None = None  # how many batches of the source make an epoch, at most; None for all
    marks: StepMarks = NO_MARKS  # where calls of several steps end
    same_batches: bool = False  # whether all epochs have the batches of the first one


def newest_event_time(items: Sequence[Item]) -> float | None:
    """Return the newest event time of the rows, or None."""
    times = [item.extras["event_time"].max() for item in items if item.extras and "event_time" in item.extras]
    return float(max(times)) if times else None


def stack(items: Sequence[Item], size: int) -> Columns:
    """Return the batches' columns as [size, B, ...]; zeros past the last batch."""
    stacked = []
    for index, column in enumerate(items[0].columns):
        dtype = common_dtype([item.columns[index] for item in items])
        out = np.empty((size, *column.shape), dtype)
        for batch, item in enumerate(items):
            out[batch] = item.columns[index]
        out[len(items) :] = 0
        stacked.append(out)
    return tuple(stacked)


def to_tensor(array: np.ndarray) -> Tensor:
    """Return a tensor over the array's memory; copy a read-only or strided array."""
    if not array.flags.carray:
        array = np.array(array, order="C")
    return Tensor.from_numpy(array)
