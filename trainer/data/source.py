"""`Source`: the interface of everything that yields batches (`Item`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .as_columns import Columns
from .position import Position


@dataclass(slots=True)
class Item:
    """One batch from a source; the feed that receives it may change it."""

    columns: Columns  # arrays with the rows on axis 0
    state: Any = None  # state that the source needs to continue after this batch, or None
    extras: Mapping[str, Any] | None = None  # values by row that stay on the host, such as event time and group
    kind: Any = None  # batches of different kinds never share a call
    placeholder: bool = False  # whether the rows do not count, because this process has no rows for the step
    step_rows: int | None = None  # rows of the step on all processes together; None with a single process
    agreed: Any = None  # what the processes agreed on for the batch's step (`shared_stream.Agreed`), or None
    lengths: Mapping[str, Any] | None = None  # column -> `ragged.ListLengths` of the step on all processes, or None
    form: Any = None  # shapes and dtypes (`form_of`), or None; after the feed's checks, of the converted columns

    @property
    def nbytes(self) -> int:
        """Size of the columns in bytes."""
        return sum([column.nbytes for column in self.columns])


class Source:
    """Base of the sources, which yield batches."""

    kind: str | None = None  # name in saved positions; None: the name of the class
    described: tuple[str, ...] = ()  # names of the attributes that a saved position depends on
    names: tuple[str, ...] | None = None  # column names, known after the first batch at the latest
    size: int | None = None  # batches of one epoch, or None if unknown
    in_memory: bool = False  # whether reading only slices arrays; `size` is then known
    any_size: bool = False  # whether the number of rows may change from batch to batch
    # Whether only the thread that created the source may read it. MindSpore crashes the process if a pipeline fails on
    # a thread other than the first one that ran a pipeline.
    thread_bound: bool = False
    ended: str | None = None  # why an endless source has ended ("idle", "stream_end"); None until then
    one_shot: bool = False  # whether it can be read only once
    dataset: Any = None  # the `mindspore.dataset` pipeline behind it, or None
    reuses_buffers: bool = False  # whether requesting the next batch may overwrite the arrays of the last one
    endless: bool = False  # whether it is a stream, without epochs and without look-ahead past the newest batch
    # Whether the processes agree on every step while they read. They also agree on when to stop, so no signal may
    # interrupt a read.
    agrees: bool = False
    ahead: int = 1  # batches that the processes agree on at once; the feed sets it to the batches of a call
    waited_for_others: float = 0.0  # seconds spent waiting for the data of other processes
    # Whether an epoch starts where the previous one ended, not at the beginning of the data. A feed that limits the
    # batches of an epoch sets it. It affects data that cannot restart: iterators and pipelines of unknown size.
    continues_epochs: bool = False
    set_aside: str | None = None  # how many rows have been set aside and why, or None
    takes_seed: bool = False  # whether `seed` comes from the trainer, not from the data
    seed: int = 0  # seed of the order of shuffled rows
    # First epoch of this call, and the epoch before which it ends (None: unlimited), counted over the trainer's life.
    # As in MindSpore, a pipeline restarts its random order at the first epoch.
    first_epoch: int = 0
    last_epoch: int | None = None

    def batches(self, epoch: int, start: int, state: Any = None) -> Iterator[Item | None]:
        """Yield the batches of `epoch` from number `start`, with the `state` saved there.

        None instead of a batch means that no rows have come for a while, and that the batches yielded so far should be
        trained now.
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
        """Return the number of rows waiting upstream, or None if unknown."""
        return None

    def late_rows(self) -> int | None:
        """Return the number of rows that came too late, or None if rows cannot be late."""
        return None

    def stream_counts(self) -> dict[str, int]:
        """Return `Stream.counts` of the stream; empty for finite data."""
        return {}

    def go_back(self, position: Position, trained: int) -> None:
        """Seek to `position`, from which the next call continues."""

    def cannot_go_back(self, trained: int, reason: object) -> None:
        """Warn of rows that were read but not among the `trained` ones."""

    def joint_position(self, position: Position) -> Position:
        """Return the joint position of all processes for a snapshot; a collective call."""
        return self.resolve(position)

    def trained_to(self, position: Position) -> None:
        """Record that the rows before `position` have been trained on."""

    def commit(self, position: Position) -> None:
        """Acknowledge the rows before `position`, which are in a durable snapshot."""

    def interrupt(self) -> None:
        """End `batches`, which may be waiting on another thread, as soon as possible."""

    def close(self) -> None:
        """Release threads and files."""


def _delegated(name: str) -> Any:
    return property(lambda self: getattr(self.source, name), lambda self, value: setattr(self.source, name, value))


class WrappedSource(Source):
    """Base of sources that wrap another one, `source`, and share its properties."""

    names, one_shot, dataset = _delegated("names"), _delegated("one_shot"), _delegated("dataset")
    thread_bound, set_aside = _delegated("thread_bound"), _delegated("set_aside")
    continues_epochs, takes_seed, seed = _delegated("continues_epochs"), _delegated("takes_seed"), _delegated("seed")
    first_epoch, last_epoch = _delegated("first_epoch"), _delegated("last_epoch")

    def __init__(self, source: Source) -> None:
        self.source = source

    def peek(self, should_stop: Callable[[], bool] = lambda: False) -> Columns | None:
        return self.source.peek(should_stop)

    def warn_of_non_finite(self, ignored: Collection[str] = ()) -> None:
        self.source.warn_of_non_finite(ignored)

    def describe(self) -> dict[str, Any]:
        return self.source.describe()

    def trained_to(self, position: Position) -> None:
        self.source.trained_to(position)

    def commit(self, position: Position) -> None:
        self.source.commit(position)

    def interrupt(self) -> None:
        self.source.interrupt()

    def close(self) -> None:
        self.source.close()
