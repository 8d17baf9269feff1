"""Batches from anywhere: the interface of the sources, and their record.

How batches become chunks is `feed`'s concern.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .as_columns import Columns
from .position import Position


@dataclass(slots=True)
class Item:
    """A batch on its way from a source to a chunk; the receiving feed may change it."""

    columns: Columns  # arrays with the rows on axis 0
    state: Any = None  # state that the source needs to continue after this batch, or None
    extras: Mapping[str, Any] | None = None  # companions of the rows that stay on the host: event time, group
    kind: Any = None  # batches of different kinds never share a call
    placeholder: bool = False  # whether the rows do not count: only other processes have rows in this step
    step_rows: int | None = None  # rows of the step over all processes; None: there is no other process
    agreed: Any = None  # what the processes agreed on for the batch's step (`shared_stream.Agreed`), or None
    lengths: Mapping[str, Any] | None = None  # column -> `ragged.ListLengths` of the step on all processes, or None
    form: Any = None  # shapes and dtypes (`form_of`), or None; behind the feed's checks those that programs take

    @property
    def nbytes(self) -> int:
        """Bytes of the columns."""
        return sum([column.nbytes for column in self.columns])


class Source:
    """Base of the sources."""

    kind: str | None = None  # name in saved positions; None: the name of the class
    described: tuple[str, ...] = ()  # names of the attributes that a saved position depends on
    names: tuple[str, ...] | None = None  # column names, known after the first batch at the latest
    size: int | None = None  # batches of one epoch, or None when unknown
    in_memory: bool = False  # whether reading only slices arrays; `size` is known then
    any_size: bool = False  # whether the number of rows may change from batch to batch
    # whether it must be read by the thread that made it: MindSpore crashes the process when a pipeline fails under any
    # other thread than the first one that ran a pipeline
    thread_bound: bool = False
    ended: str | None = None  # why an endless source gives no more rows ("idle", "stream_end"), once it does not
    one_shot: bool = False  # whether it can be read once only
    dataset: Any = None  # the `mindspore.dataset` pipeline behind it, or None
    reuses_buffers: bool = False  # whether an array it yielded may change once the next one is asked for
    endless: bool = False  # whether it is a stream: no epochs, no look-ahead past the newest batch
    # whether several processes agree on every step while they read: ending a reading is an agreement too, and no signal
    # may interrupt it
    agrees: bool = False
    ahead: int = 1  # batches that a source that agrees agrees on at once; a feed sets those of a call
    waited_for_others: float = 0.0  # seconds spent on waiting for the data of other processes
    # whether an epoch begins after the last batch of the previous one; set by a feed that limits epochs. For data that
    # cannot start again: iterators, pipelines of unknown size
    continues_epochs: bool = False
    set_aside: str | None = None  # how many rows were set aside so far and why, or None
    takes_seed: bool = False  # whether its attribute `seed` is the trainer's, rather than one of the data
    seed: int = 0  # seed of the order of shuffled rows
    # epochs of this call: a pipeline begins its order again at the first one, as in MindSpore, and reads none after the
    # last one; a total of the trainer, exclusive, or None
    first_epoch: int = 0
    last_epoch: int | None = None

    def batches(self, epoch: int, start: int, state: Any = None) -> Iterator[Item | None]:
        """Yield the batches of `epoch` from number `start` on; `state` as saved there.

        None means that no rows came for a while: waiting batches should be trained now.
        """
        raise NotImplementedError

    def peek(self, should_stop: Callable[[], bool] = lambda: False) -> Columns | None:
        """Return the columns of one batch without consuming it; None if there is none."""
        for item in self.batches(self.first_epoch, 0):
            if item is not None:
                return item.columns
        return None

    def warn_of_non_finite(self, ignored: Collection[str] = ()) -> None:
        """Log which column holds NaN or infinity; NaN of `ignored` columns is expected."""

    def describe(self) -> dict[str, Any]:
        """Return the properties that a saved position depends on."""
        return {"kind": self.kind or type(self).__name__} | {name: getattr(self, name) for name in self.described}

    def checksums(self) -> dict[str, int]:
        """Return checksums of batches by name, to compare processes; empty for a stream."""
        return {}

    def resolve(self, position: Position) -> Position:
        """Return a chunk's position in the form that goes into a snapshot."""
        return position

    def lag(self) -> int | None:
        """Return the rows that wait upstream, or None where that is not known."""
        return None

    def late_rows(self) -> int | None:
        """Return how many rows came too late to be read, or None where that cannot happen."""
        return None

    def stream_counts(self) -> dict[str, int]:
        """Return `Stream.counts` of the stream that is read."""
        return {}

    def go_back(self, position: Position, trained: int) -> None:
        """Seek to `position`, from which the next call continues."""

    def of_all(self, position: Position) -> Position:
        """Return the position of all processes for a snapshot; all call this together."""
        return self.resolve(position)

    def trained_to(self, position: Position) -> None:
        """Take note that the rows before `position` have been trained on."""

    def commit(self, position: Position) -> None:
        """Acknowledge the rows before `position`, which are in a durable snapshot."""

    def interrupt(self) -> None:
        """Make `batches`, which may be waiting on another thread, end soon."""

    def close(self) -> None:
        """Release threads and files."""


def _of_other(name: str) -> Any:
    return property(lambda self: getattr(self.rows_of, name), lambda self, value: setattr(self.rows_of, name, value))


class WrappedSource(Source):
    """Base of sources that read another one, `rows_of`, with its names and properties."""

    names, one_shot, dataset = _of_other("names"), _of_other("one_shot"), _of_other("dataset")
    thread_bound, set_aside = _of_other("thread_bound"), _of_other("set_aside")
    continues_epochs, takes_seed, seed = _of_other("continues_epochs"), _of_other("takes_seed"), _of_other("seed")
    first_epoch, last_epoch = _of_other("first_epoch"), _of_other("last_epoch")

    def __init__(self, rows_of: Source) -> None:
        self.rows_of = rows_of

    def peek(self, should_stop: Callable[[], bool] = lambda: False) -> Columns | None:
        return self.rows_of.peek(should_stop)

    def warn_of_non_finite(self, ignored: Collection[str] = ()) -> None:
        self.rows_of.warn_of_non_finite(ignored)

    def describe(self) -> dict[str, Any]:
        return self.rows_of.describe()

    def trained_to(self, position: Position) -> None:
        self.rows_of.trained_to(position)

    def commit(self, position: Position) -> None:
        self.rows_of.commit(position)

    def interrupt(self) -> None:
        self.rows_of.interrupt()

    def close(self) -> None:
        self.rows_of.close()
