"""Sources for processes that each read a part of the data and take the same steps.

Before every call, each process sends one `StepMessage` with the number of batches that it has ready. From the messages
of all, every process derives the same decision: how many batches to train, whose rows count, whether to wait, and
whether the data have ended. A process without a batch trains placeholder rows of weight zero.
"""

from __future__ import annotations

import functools
import queue
import time
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from ..distributed.agreement import StopHooks, stop_kind
from ..distributed.group import Group
from ..distributed.packing import pack, unpack
from ..errors import DataError
from .as_columns import Columns
from .ragged import ListLengths, Ragged
from .source import Item, Source, WrappedSource
from .waiting import DATA_WAIT, Interrupted, Prefetch

POLL_SECONDS = 0.1
_UNEVEN = -1


class StepMessage(NamedTuple):
    """One process's message to the others; all values are int64."""

    stop: int
    ready: int  # complete batches that can go into one call
    rows: int  # rows of each batch
    is_late: int  # whether the others have to wait for this process's data
    ended: int  # whether its data have ended
    columns: int  # CRC-32 of names, dtypes and row shapes; 0 if they are not known yet
    lists: int  # `SharedListLengths.checksum`
    extra: Sequence[int] = ()  # additional values of a subclass


class LockstepSource(WrappedSource):
    """Base of sources that read this process's part and agree on every step.

    The processes agree on `ahead` batches at once, as many as one call takes. Reading raises `Interrupted` when all
    processes have agreed to stop.
    """

    thread_bound = True  # agreements are made on the thread that runs graphs
    agrees = True
    whole_calls = True  # whether to wait until each process has all batches of a call, not only one
    batch_rows: int | None = None  # rows of placeholder batches; None: as in the first batch
    empty_message = "the dataset delivered no batches"

    def __init__(self, source: Source, group: Group, hooks: StopHooks, ahead: int = 1) -> None:
        super().__init__(source)
        self.group, self.hooks, self.ahead = group, hooks, ahead
        self._template: Any = None  # columns from which placeholder batches are made, once known
        self._columns_checksum = 0
        self._list_lengths = SharedListLengths(group)
        self._reader: Prefetch | None = None
        self._left_behind = False
        self._waits_for_all = False
        self._collected: deque[Item] = deque()
        self._has_ended = False
        self._state: Any = None

    def peek(self, should_stop: Callable[[], bool] = lambda: False) -> Columns:
        """Return this process's first columns, or another's if it has no rows.

        All processes call it together.
        """
        while self._template is None:
            DATA_WAIT.still_waiting()
            own, ended = self._try_peek()
            if own is not None:
                self._update_template(own)
            messages = self._exchange(int(own is not None), is_late=own is None and not ended, ended=ended)
            if any(message.ready for message in messages):
                self._share_template(messages)
            elif all(message.ended for message in messages):
                raise DataError(self.empty_message)
        return self._template

    def batches(self, epoch: int, start: int, state: Any = None) -> Iterator[Item | None]:
        """Yield the batches of the agreed steps; None if no process has rows for a while."""
        self._has_ended, self._state = False, None
        self._collected.clear()
        items = self._open(epoch, start, state)
        inline = self._reads_inline()
        # A process that reads on the graph thread cannot answer while it waits for its data, and MindSpore limits the
        # duration of a collective. With such a process, all first call `wait_for_all`, which has no time limit.
        self._waits_for_all = self.group.any(inline)
        if self._waits_for_all:
            self.group.wait_for_all()  # connect the processes before one of them is late
        if not inline:
            self._reader = Prefetch(items, least=2 * self.ahead)
        try:
            while True:
                self._collect(items)
                ready = len(self._batches_of_one_call())
                messages = self._exchange(ready, is_late=self._is_late(ready), ended=self._has_ended)
                count = self._agreed_count(messages)
                if count:
                    yield from self._step(messages, count)
                elif all(message.ended and not message.ready for message in messages):
                    self._end()
                    return
                elif self._is_idle(messages):
                    yield None
        finally:
            self.interrupt()
            if inline:
                items.close()

    # -- hooks for subclasses --------------------------------------------------------------------------------------

    def _try_peek(self) -> tuple[Columns | None, bool]:
        """Return the first rows' columns or None, and whether the data have no rows."""
        raise NotImplementedError

    def _open(self, epoch: int, start: int, state: Any) -> Generator[Item]:
        """Return this process's batches, starting at a position."""
        raise NotImplementedError

    def _reads_inline(self) -> bool:
        """Return whether this process reads on the graph thread."""
        return self.source.thread_bound

    def _is_late(self, ready: int) -> bool:
        """Return whether the others have to wait for this process's data."""
        return not self._has_ended and (len(self._collected) < self.ahead if self.whole_calls else not ready)

    def _extra_values(self, ready: int) -> Sequence[int]:
        """Return the values of `StepMessage.extra`."""
        return ()

    def _handle_messages(self, messages: list[StepMessage]) -> None:
        """Handle the messages of all processes."""

    def _is_idle(self, messages: list[StepMessage]) -> bool:
        """Return whether to report that no process receives rows."""
        return False

    def _end(self) -> None:
        """Handle the end of the data of all processes."""

    # -- agreements ------------------------------------------------------------------------------------------------

    def _collect(self, items: Iterator[Item]) -> None:
        """Collect the batches read so far; wait a moment if there are too few."""
        DATA_WAIT.still_waiting()
        ends = time.monotonic() + POLL_SECONDS
        while len(self._collected) < self.ahead and not self._has_ended:
            may_wait = self.whole_calls or not self._collected
            try:
                item = self._next(items, max(0.0, ends - time.monotonic()) if may_wait else 0.0)
            except queue.Empty:
                break
            if item is None:
                self._has_ended = True
            else:
                self._collected.append(item)
                self._update_template(item.columns)

    def _next(self, items: Iterator[Item], seconds: float) -> Item | None:
        if self._reader is not None:
            return self._reader.get(seconds)
        with DATA_WAIT:  # the source is bound to this thread
            return next(items, None)

    def _batches_of_one_call(self) -> list[Item]:
        """Return the leading batches with equally many rows, which can share one call."""
        leading: list[Item] = []
        for item in self._collected:
            alike = not leading or (len(item.columns[0]), item.kind) == (len(leading[0].columns[0]), leading[0].kind)
            if len(leading) == self.ahead or not alike:
                break
            leading.append(item)
        return leading

    def _update_template(self, columns: Columns) -> None:
        """Make placeholders like the first rows, and later like the first full batch."""
        self._list_lengths.note(columns)
        if self._template is None or (len(columns[0]) == self.batch_rows != len(self._template[0])):
            self._template = columns
        if not self._columns_checksum:
            names = self.names or ()
            described = [(name, *_row_type(column)) for name, column in zip(names, columns, strict=True)]
            self._columns_checksum = zlib.crc32(repr(described).encode()) or 1

    def _exchange(self, ready: int, *, is_late: bool, ended: bool) -> list[StepMessage]:
        """Send this process's message; return those of all processes."""
        rows = len(self._collected[0].columns[0]) if ready and self._collected else 0
        requested = stop_kind(self.hooks.requested_stop())
        checksums = self._columns_checksum, self._list_lengths.checksum
        own = [requested, ready, rows, is_late, ended, *checksums, *self._extra_values(ready)]
        began = time.perf_counter()
        if self._waits_for_all:
            self.group.wait_for_all()
        gathered = self.group.gather(np.array(own, np.int64)).tolist()
        if not is_late:
            self.waited_for_others += time.perf_counter() - began
        fields = len(StepMessage._fields) - 1
        messages = [StepMessage(*row[:fields])._replace(extra=row[fields:]) for row in gathered]
        self._handle_messages(messages)
        self._check_alike(messages)
        if self.hooks.decide([message.stop for message in messages]):
            raise Interrupted
        return messages

    def _check_alike(self, messages: list[StepMessage]) -> None:
        known = {message.columns: rank for rank, message in reversed(list(enumerate(messages))) if message.columns}
        if len(known) > 1:
            raise DataError(
                f"ranks {sorted(known.values())} read columns of different names, types or row shapes; all processes "
                f"must read the same columns; here they are {list(self.names or ())}"
            )

    def _agreed_count(self, messages: list[StepMessage]) -> int:
        """Return how many batches to train next; 0 to wait."""
        if any(message.is_late for message in messages):
            return 0
        return min((message.ready for message in messages if message.ready), default=0)

    def _step(self, messages: list[StepMessage], count: int) -> Iterator[Item]:
        """Yield this process's batches of the next `count` steps."""
        if not all(message.columns for message in messages):
            self._share_template(messages)
        names, kind = self.names or (), tuple(message.rows for message in messages)
        ready = messages[self.group.rank].ready
        own = list(islice(self._collected, count if ready else 0))
        lengths = self._list_lengths.lengths(own, self.ahead, [message.lists for message in messages], names)
        for step_lengths in lengths[:count]:
            if ready:
                item = self._collected.popleft()
                self._state = item.state
            else:
                columns = placeholder_columns(self._template, names, step_lengths)
                item = Item(columns, self._state, placeholder=True)
            item.kind, item.step_rows, item.lengths = kind, sum(kind), step_lengths
            yield item

    def _share_template(self, messages: list[StepMessage]) -> None:
        """Copy the template from the first process that has one; a collective call."""
        sender = next(rank for rank, message in enumerate(messages) if message.columns)
        packed = b"" if self.group.rank != sender else _pack_template(self.names or (), self._template)
        packed = self.group.gather_bytes(packed)[sender]
        if not packed:
            raise DataError(
                "a process has no rows, and placeholder rows cannot be made of objects; give every process some rows"
            )
        if self._template is None:
            (names, lists, rows_given), arrays = unpack(packed)
            count = self.batch_rows or rows_given
            rows = [
                np.repeat(array, count, axis=0)
                if options is None
                else Ragged(array, np.zeros(count + 1, np.int64), **options)
                for array, options in zip(arrays, lists, strict=True)
            ]
            self.source.names = tuple(names)
            self._update_template(tuple(rows))

    def interrupt(self) -> None:
        super().interrupt()
        if self._reader is not None:
            self._left_behind |= not self._reader.stop()
            self._reader = None

    def close(self) -> None:
        self.interrupt()
        super().close()


def _row_type(column: Any) -> tuple[Any, ...]:
    """Return a column's row type without list lengths, which may differ by process."""
    kind = "text" if column.dtype.kind in "OUS" else column.dtype.str
    return kind, column.ndim, column.shape[2:]


def _pack_template(names: tuple[str, ...], columns: Columns) -> bytes:
    """Pack names, sample values and the number of rows; empty for object columns."""
    if any(column.dtype == object for column in columns):
        return b""
    lists = [column.options if isinstance(column, Ragged) else None for column in columns]
    arrays = [column.values[:0] if isinstance(column, Ragged) else column[:1] for column in columns]
    return pack([names, lists, len(columns[0])], arrays)


class SharedListLengths:
    """Shares the list lengths of each step among all processes.

    A list column whose lists happen to have equal lengths comes as an array. A process can therefore not tell from its
    own batches which columns hold lists of different lengths.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        # Sent to the other processes: 0 before the first row, then a checksum of the list lengths, and -1 once lengths
        # differ. While all lists are equally long, all processes with rows send the same checksum.
        self.checksum = 0
        self._indexes: list[int] = []

    def note(self, columns: Columns) -> None:
        """Record the list lengths of a batch."""
        if self.checksum == _UNEVEN:
            return
        self._indexes = [index for index, column in enumerate(columns) if column.ndim > 1]
        lengths = [columns[index].shape[1] for index in self._indexes]
        checksum = zlib.crc32(repr(lengths).encode()) or 1
        self.checksum = _UNEVEN if None in lengths or self.checksum not in (0, checksum) else checksum

    def lengths(
        self, batches: Sequence[Item], steps: int, checksums_of_all: Sequence[int], names: Sequence[str]
    ) -> list[dict[str, ListLengths] | None]:
        """Return the list lengths, by column, of each of the next `steps` steps.

        Every entry is None while all lists have had equal lengths. `checksums_of_all` has one `checksum` per process.
        """
        checksums = {*checksums_of_all} - {0}
        if len(checksums) < 2 and _UNEVEN not in checksums:
            return [None] * steps
        own_lengths = np.zeros((steps, len(self._indexes), len(ListLengths._fields)), np.int64)
        for step, item in enumerate(batches):
            own_lengths[step] = [ListLengths.of(item.columns[index]) for index in self._indexes]
        result: list[dict[str, ListLengths] | None] = []
        for step in self.group.gather(own_lengths).transpose(1, 2, 0, 3).tolist():
            present = [[ListLengths(*numbers) for numbers in column if any(numbers)] for column in step]
            pairs = zip(self._indexes, present, strict=True)
            result.append({names[index]: _joined_lengths(lengths) for index, lengths in pairs if lengths})
        return result


def _joined_lengths(lengths: list[ListLengths]) -> ListLengths:
    ragged = any(own.ragged or own.longest != lengths[0].longest for own in lengths)
    return functools.reduce(ListLengths.joined, lengths)._replace(ragged=ragged)


def placeholder_columns(columns: Columns, names: Sequence[str], lengths: Mapping[str, ListLengths] | None) -> Columns:
    """Return placeholder columns like `columns`, with the list `lengths` of the step."""
    step_lengths = lengths or {}
    return tuple([_placeholder(column, step_lengths.get(name)) for name, column in zip(names, columns, strict=True)])


def _placeholder(column: Any, lengths: ListLengths | None) -> Any:
    if lengths is None:
        return column
    options = column.options if isinstance(column, Ragged) else {}
    values = column.values if isinstance(column, Ragged) else column.reshape(-1, *column.shape[2:])
    if lengths.ragged:
        return Ragged(values[:0], np.zeros(len(column) + 1, np.int64), **options)
    return np.resize(values, (len(column), lengths.longest, *values.shape[1:]))
