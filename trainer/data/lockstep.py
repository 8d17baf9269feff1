"""Sources for processes that each read a part of the data and take the same steps.

Before every call, each process sends one message, a `Round`, with the number of batches it has ready. From the messages
of all, every process derives the same decision: how many batches to train, whose rows count, whether to wait, and
whether the data have ended. A process without a batch takes part with placeholder rows of weight zero.
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


class Round(NamedTuple):
    """One process's message to the others; all values are int64."""

    stop: int
    ready: int  # complete batches that can go into one call
    rows: int  # rows of each batch
    waits: int  # whether the others have to wait for this process's data
    ended: int  # whether its data have ended
    columns: int  # CRC-32 of names, dtypes and row shapes; 0 if they are not known yet
    lists: int  # `AgreedLists.seen`
    more: Sequence[int] = ()  # additional values of a subclass


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

    def __init__(self, rows_of: Source, group: Group, hooks: StopHooks, ahead: int = 1) -> None:
        super().__init__(rows_of)
        self.group, self.hooks, self.ahead = group, hooks, ahead
        self._template: Any = None  # columns from which placeholder batches are made, once known
        self._columns_sum = 0
        self._lists = AgreedLists(group)
        self._reader: Prefetch | None = None
        self._left_behind = False
        self._meets = False
        self._ready: deque[Item] = deque()
        self._over = False
        self._state: Any = None

    def peek(self, should_stop: Callable[[], bool] = lambda: False) -> Columns:
        """Return this process's first columns, or another's if it has no rows.

        All processes call it together.
        """
        while self._template is None:
            DATA_WAIT.still_waiting()
            own, ended = self._try_peek()
            if own is not None:
                self._learn(own)
            rounds = self._exchange(int(own is not None), waits=own is None and not ended, ended=ended)
            if any(sent.ready for sent in rounds):
                self._share_template(rounds)
            elif all(sent.ended for sent in rounds):
                raise DataError(self.empty_message)
        return self._template

    def batches(self, epoch: int, start: int, state: Any = None) -> Iterator[Item | None]:
        """Yield the batches of the agreed steps; None if no process has rows for a while."""
        self._over, self._state = False, None
        self._ready.clear()
        items = self._open(epoch, start, state)
        inline = self._reads_inline()
        # A process that reads on the graph thread cannot answer while it waits for its data, and MindSpore limits the
        # duration of a collective. If there is such a process, all first wait in `wait_for_all`, which has no limit.
        self._meets = self.group.any(inline)
        if self._meets:
            self.group.wait_for_all()  # connect the processes before one of them is late
        if not inline:
            self._reader = Prefetch(items, least=2 * self.ahead)
        try:
            while True:
                self._fill(items)
                ready = len(self._leading())
                rounds = self._exchange(ready, waits=self._waits(ready), ended=self._over)
                count = self._agreed_count(rounds)
                if count:
                    yield from self._step(rounds, count)
                elif all(sent.ended and not sent.ready for sent in rounds):
                    self._end()
                    return
                elif self._idles(rounds):
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
        return self.rows_of.thread_bound

    def _waits(self, ready: int) -> bool:
        """Return whether the others have to wait for this process's data."""
        return not self._over and (len(self._ready) < self.ahead if self.whole_calls else not ready)

    def _more(self, ready: int) -> Sequence[int]:
        """Return the values of `Round.more`."""
        return ()

    def _received(self, rounds: list[Round]) -> None:
        """Handle the messages of all processes."""

    def _idles(self, rounds: list[Round]) -> bool:
        """Return whether to report that no process receives rows."""
        return False

    def _end(self) -> None:
        """Handle the end of the data of all processes."""

    # -- agreements ------------------------------------------------------------------------------------------------

    def _fill(self, items: Iterator[Item]) -> None:
        """Collect the batches read so far; wait a moment if there are too few."""
        DATA_WAIT.still_waiting()
        ends = time.monotonic() + POLL_SECONDS
        while len(self._ready) < self.ahead and not self._over:
            waits = self.whole_calls or not self._ready
            try:
                item = self._next(items, max(0.0, ends - time.monotonic()) if waits else 0.0)
            except queue.Empty:
                break
            if item is None:
                self._over = True
            else:
                self._ready.append(item)
                self._learn(item.columns)

    def _next(self, items: Iterator[Item], seconds: float) -> Item | None:
        if self._reader is not None:
            return self._reader.get(seconds)
        with DATA_WAIT:  # the source is bound to this thread
            return next(items, None)

    def _leading(self) -> list[Item]:
        """Return the leading batches with equally many rows, which can share one call."""
        leading: list[Item] = []
        for item in self._ready:
            alike = not leading or (len(item.columns[0]), item.kind) == (len(leading[0].columns[0]), leading[0].kind)
            if len(leading) == self.ahead or not alike:
                break
            leading.append(item)
        return leading

    def _learn(self, columns: Columns) -> None:
        """Keep the first rows, and later the first full batch, as placeholder template."""
        self._lists.note(columns)
        if self._template is None or (len(columns[0]) == self.batch_rows != len(self._template[0])):
            self._template = columns
        if not self._columns_sum:
            names = self.names or ()
            described = [(name, *_row_type(column)) for name, column in zip(names, columns, strict=True)]
            self._columns_sum = zlib.crc32(repr(described).encode()) or 1

    def _exchange(self, ready: int, *, waits: bool, ended: bool) -> list[Round]:
        """Send this process's message; return those of all processes."""
        rows = len(self._ready[0].columns[0]) if ready and self._ready else 0
        requested = stop_kind(self.hooks.requested_stop())
        own = [requested, ready, rows, waits, ended, self._columns_sum, self._lists.seen, *self._more(ready)]
        began = time.perf_counter()
        if self._meets:
            self.group.wait_for_all()
        gathered = self.group.gather(np.array(own, np.int64)).tolist()
        if not waits:
            self.waited_for_others += time.perf_counter() - began
        fields = len(Round._fields) - 1
        rounds = [Round(*row[:fields])._replace(more=row[fields:]) for row in gathered]
        self._received(rounds)
        self._check_alike(rounds)
        if self.hooks.decide([sent.stop for sent in rounds]):
            raise Interrupted
        return rounds

    def _check_alike(self, rounds: list[Round]) -> None:
        known = {sent.columns: rank for rank, sent in reversed(list(enumerate(rounds))) if sent.columns}
        if len(known) > 1:
            raise DataError(
                f"ranks {sorted(known.values())} read columns of different names, types or row shapes; all processes "
                f"must read the same columns; here they are {list(self.names or ())}"
            )

    def _agreed_count(self, rounds: list[Round]) -> int:
        """Return how many batches to train next; 0 to wait."""
        if any(sent.waits for sent in rounds):
            return 0
        return min((sent.ready for sent in rounds if sent.ready), default=0)

    def _step(self, rounds: list[Round], count: int) -> Iterator[Item]:
        """Yield this process's batches of the next `count` steps."""
        if not all(sent.columns for sent in rounds):
            self._share_template(rounds)
        names, kind = self.names or (), tuple(sent.rows for sent in rounds)
        ready = rounds[self.group.rank].ready
        own = list(islice(self._ready, count if ready else 0))
        lengths = self._lists.lengths(own, self.ahead, [sent.lists for sent in rounds], names)
        for of_step in lengths[:count]:
            if ready:
                item = self._ready.popleft()
                self._state = item.state
            else:
                columns = placeholder_columns(self._template, names, of_step)
                item = Item(columns, self._state, placeholder=True)
            item.kind, item.step_rows, item.lengths = kind, sum(kind), of_step
            yield item

    def _share_template(self, rounds: list[Round]) -> None:
        """Copy the template from the first process that has one; a collective call."""
        giver = next(rank for rank, sent in enumerate(rounds) if sent.columns)
        message = b"" if self.group.rank != giver else _packed(self.names or (), self._template)
        message = self.group.gather_bytes(message)[giver]
        if not message:
            raise DataError(
                "a process has no rows, and placeholder rows cannot be made of objects; give every process some rows"
            )
        if self._template is None:
            (names, lists, given), arrays = unpack(message)
            count = self.batch_rows or given
            rows = [
                np.repeat(array, count, axis=0)
                if options is None
                else Ragged(array, np.zeros(count + 1, np.int64), **options)
                for array, options in zip(arrays, lists, strict=True)
            ]
            self.rows_of.names = tuple(names)
            self._learn(tuple(rows))

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


def _packed(names: tuple[str, ...], columns: Columns) -> bytes:
    """Pack names, sample values and the number of rows; empty for object columns."""
    if any(column.dtype == object for column in columns):
        return b""
    lists = [column.options if isinstance(column, Ragged) else None for column in columns]
    arrays = [column.values[:0] if isinstance(column, Ragged) else column[:1] for column in columns]
    return pack([names, lists, len(columns[0])], arrays)


class AgreedLists:
    """Shares the list lengths of each step among all processes.

    A list column whose lists happen to have equal lengths comes as an array. A process can therefore not tell from its
    own batches which columns hold lists of different lengths.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        # Sent to the other processes: 0 before the first row, then a checksum of the list lengths, and -1 once lengths
        # differ. While all lists are equally long, all processes with rows send the same checksum.
        self.seen = 0
        self._indexes: list[int] = []

    def note(self, columns: Columns) -> None:
        """Record the list lengths of a batch."""
        if self.seen == _UNEVEN:
            return
        self._indexes = [index for index, column in enumerate(columns) if column.ndim > 1]
        lengths = [columns[index].shape[1] for index in self._indexes]
        checksum = zlib.crc32(repr(lengths).encode()) or 1
        self.seen = _UNEVEN if None in lengths or self.seen not in (0, checksum) else checksum

    def lengths(
        self, batches: Sequence[Item], most: int, seen: Sequence[int], names: Sequence[str]
    ) -> list[dict[str, ListLengths] | None]:
        """Return the list lengths by column of each of the next `most` steps.

        Every entry is None while all lists have had equal lengths. `seen` has the `AgreedLists.seen` of all processes.
        """
        known = {*seen} - {0}
        if len(known) < 2 and _UNEVEN not in known:
            return [None] * most
        own = np.zeros((most, len(self._indexes), len(ListLengths._fields)), np.int64)
        for step, item in enumerate(batches):
            own[step] = [ListLengths.of(item.columns[index]) for index in self._indexes]
        of_steps: list[dict[str, ListLengths] | None] = []
        for step in self.group.gather(own).transpose(1, 2, 0, 3).tolist():
            with_rows = [[ListLengths(*numbers) for numbers in column if any(numbers)] for column in step]
            pairs = zip(self._indexes, with_rows, strict=True)
            of_steps.append({names[index]: _joined(lengths) for index, lengths in pairs if lengths})
        return of_steps


def _joined(lengths: list[ListLengths]) -> ListLengths:
    ragged = any(own.ragged or own.longest != lengths[0].longest for own in lengths)
    return functools.reduce(ListLengths.joined, lengths)._replace(ragged=ragged)


def placeholder_columns(columns: Columns, names: Sequence[str], lengths: Mapping[str, ListLengths] | None) -> Columns:
    """Return placeholder columns like `columns`, with the list `lengths` of the step."""
    of_step = lengths or {}
    return tuple([_placeholder(column, of_step.get(name)) for name, column in zip(names, columns, strict=True)])


def _placeholder(column: Any, of_step: ListLengths | None) -> Any:
    if of_step is None:
        return column
    options = column.options if isinstance(column, Ragged) else {}
    values = column.values if isinstance(column, Ragged) else column.reshape(-1, *column.shape[2:])
    if of_step.ragged:
        return Ragged(values[:0], np.zeros(len(column) + 1, np.int64), **options)
    return np.resize(values, (len(column), of_step.longest, *values.shape[1:]))
