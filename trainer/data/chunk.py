"""`Chunk`, which a feed yields, and the options and transforms of the feed."""

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
    """The input of one program call: 1 to K batches.

    A feed builds it in two steps. Reading the batches sets the attributes that are listed before `arrays`. The arrays,
    the tensors and the other attributes follow later, on the same thread or on the graph thread.
    """

    items: list[Item]  # the batches as they were read; emptied once `arrays` is set
    names: tuple[str, ...]
    stacked: bool  # whether the columns have a leading axis of batches
    num_batches: int
    num_steps: int  # optimizer updates the chunk completes
    num_samples: int  # rows in the chunk (see `FeedOptions.rows_column`); 0 for placeholders (see `Item`)
    all_samples: int  # rows of the chunk on all processes together
    flush: bool  # whether the last batch ends an accumulation that is not full
    ends_epoch: bool  # whether the source ended after this chunk
    start: Position  # position before the chunk's first row
    position: Position  # position after the chunk's last row
    extras: list[Mapping[str, Any] | None] = field(default_factory=list)  # `Item.extras` of each batch
    agreed: Any = None  # `Item.agreed` of the last batch
    arrays: Columns = ()  # host columns: [B, ...], or [K, B, ...] if `stacked` (batches past `num_batches` are padding)
    tensors: tuple[Tensor, ...] = ()  # the program's inputs: the columns after padding and preparation for tables
    signature: tuple[Any, ...] = ()  # shapes and dtypes of the tensors
    sparse: Any = None  # working sets of sparse tables, or None
    is_padded: bool = False  # whether rows were padded; the last tensor before those of the tables then has row weights
    exchange_seconds: float = 0.0  # seconds spent on exchanges between processes while preparing
    error: DataError | None = None  # error of the preparation; all processes get it at the same chunk

    @property
    def nbytes(self) -> int:
        """Size of the batches in bytes."""
        if self.items:
            return sum([item.nbytes for item in self.items])
        return sum([array.nbytes for array in self.arrays])

    @property
    def batches_per_call(self) -> int | None:
        """Batches per call of a stacked chunk, including padding; None if not stacked."""
        return len(self.arrays[0]) if self.stacked else None

    @property
    def batch_rows(self) -> int:
        """Rows of the first batch."""
        return self.num_samples // self.num_batches or len(self.arrays[0][0] if self.stacked else self.arrays[0])

    def rows(self, column: int) -> np.ndarray:
        """Return one column flattened to [num_samples, ...], without padding batches."""
        array = self.arrays[column]
        return array[: self.num_batches].reshape(-1, *array.shape[2:]) if self.stacked else array


class InputBatch(NamedTuple):
    """The network's inputs from one batch."""

    names: tuple[str, ...]
    columns: tuple[np.ndarray, ...]  # rows on axis 0; concatenated values if passed with offsets
    ragged: Mapping[str, RaggedInput]  # the inputs made of ragged columns, by the column's name


class ChunkTransform:
    """Converts the columns of a chunk to the graph's inputs."""

    on_graph_thread: bool = False  # whether it runs on the thread that runs graphs, not on one that prepares ahead

    def connect(self, inline: bool) -> None:
        """Set up before chunks are read; all processes call this on the graph thread.

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
        """Join the other processes' exchange if this process prepared no chunk.

        If `problem` is not empty, all processes raise it as an error.
        """

    def finish(self) -> None:
        """Tell other processes that no chunk follows; called on the preparing thread."""

    def interrupt(self) -> None:
        """End the preparing thread's wait for other processes, so that it can stop."""

    def release(self) -> None:
        """Release untrained chunks; called after the preparing thread has stopped."""


@dataclass(frozen=True)
class FeedOptions:
    """How a feed groups, pads and checks batches."""

    steps_per_call: int | Callable[[Item], int] = 1  # K, maximum updates per chunk, or a function of the first batch
    accumulate: int = 1  # micro-batches per optimizer update
    transform: Callable[[], ChunkTransform | None] = lambda: None  # called when the first data has arrived
    columns: int | None = None  # number of leading columns to use; None uses all
    arguments: Sequence[str] = ()  # names of the network's arguments, which decide how ragged columns are padded
    list_types: ListTypes | None = None  # sets the dtype of columns of empty lists; None if the source does so
    order: ColumnOrder | None = None  # sorts the columns of a batch and keeps some on the host; or None
    # Index of the column whose first axis gives the number of rows if columns differ in length (a graph's adjacency,
    # features and labels). A scalar counts as one row.
    rows_column: int = 0
    # Called with the number of rows of each batch, in order. Returns the size to which the batch is padded with
    # copies of its last row, or None. `Chunk.num_samples` does not count the copies.
    padded_size: Callable[[int], int | None] | None = None
    has_weights: bool = False  # whether the last column of a batch holds row weights
    row_weights: bool = False  # whether padded batches carry row weights in their last column
    weighed: int = 0  # columns after the inputs, the last with row weights that the trainer applies; 0 without weights
    filling: RowFilling | None = None  # decides which training batches are padded; each of them needs its own call
    # Called with the columns and names of a batch if its shapes or dtypes differ from those of the previous batch.
    # Raises DataError.
    check: Callable[[Columns, tuple[str, ...]], None] | None = None
    # Called with the columns and names of every batch. A returned text is logged with the batch's number.
    inspect: Callable[[Columns, tuple[str, ...]], str | None] | None = None
    pads_alike: bool = False  # whether all processes pad lists to the longest list of the step
    batches_per_epoch: int | None = None  # maximum batches of an epoch; None for all of the source
    marks: StepMarks = NO_MARKS  # steps at which a call of several steps must end
    same_batches: bool = False  # whether every epoch repeats the batches of the first one


def newest_event_time(items: Sequence[Item]) -> float | None:
    """Return the newest event time of the rows, or None."""
    times = [item.extras["event_time"].max() for item in items if item.extras and "event_time" in item.extras]
    return float(max(times)) if times else None


def stack(items: Sequence[Item], size: int) -> Columns:
    """Return the batches' columns as [size, B, ...], with zeros past the last batch."""
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
