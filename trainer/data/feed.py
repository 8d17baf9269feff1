"""From a source's batches to chunks, the input of one call, prepared on a thread.

`Source` knows where rows come from. `Feed` knows how they are grouped, stacked, put into tensors and prefetched, and
which position goes with each chunk. The loop knows neither.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

from ..errors import DataError, TrainerError
from .as_columns import Columns, check_dtype
from .batch_sizes import BatchShapes, padded, padded_by_weight
from .chunk import Chunk, FeedOptions, newest_event_time, stack, to_tensor
from .column_checks import BatchConversion
from .position import Position
from .ragged import RaggedColumns, RaggedInput
from .source import Item, Source
from .waiting import DATA_WAIT, MAX_QUEUED, MIN_QUEUED, Observer, Prefetch, ReadingTimes, WaitClock

logger = logging.getLogger(__name__)

WAIT_SECONDS = 0.1
LEAVING_SECONDS = 0.5  # time for a source to end after a stop signal


def peek(
    source: Source, options: FeedOptions, should_stop: Callable[[], bool] = lambda: False
) -> tuple[Columns, tuple[str, ...]]:
    """Return the first batch's columns and names as a `Feed` gives them; consume none."""
    columns = source.peek(should_stop)
    if columns is None:
        raise DataError("the dataset delivered no batches")
    names = source.names or ()
    if options.order is not None:
        columns, names, _ = options.order(columns, names)
    if options.list_types is not None:
        columns = options.list_types(columns, names)
    return RaggedColumns(options.arguments)(columns, names)


class Feed:
    """Chunks of one source."""

    def __init__(self, source: Source, options: FeedOptions) -> None:
        self.source = source
        self.options = options
        source.continues_epochs = options.batches_per_epoch is not None and not options.same_batches
        steps = options.steps_per_call
        self._batches_per_call = steps * options.accumulate if isinstance(steps, int) else 0  # 0: not known yet
        source.ahead = self._batches_per_call or source.ahead
        self._worker: Prefetch | None = None
        self._signature: tuple[Any, ...] = ()
        self._conversion = BatchConversion(source, options)
        self._shapes = BatchShapes()
        self._vary = False  # whether shapes have changed before the last batch of an epoch
        self.clock = WaitClock()  # how long `chunks` has kept its caller waiting
        self.times = ReadingTimes()
        self.observer: Observer | None = None  # called with "waiting for data", "reading" or "preparing", and times
        self._left_behind = False  # whether a thread may still be in the source
        self._reading = 0  # number of the current call of `chunks`; a thread that an earlier one left behind stops

    def chunks(
        self,
        position: Position,
        max_steps: int | None = None,
        should_stop: Callable[[], bool] = lambda: False,  # asked during a wait for data; True ends the chunks
        gate: Callable[[bool], bool] | None = None,
        *,
        step: int = 0,  # optimizer updates done before `position`
        inline: bool = False,  # whether to read on the caller's thread, as is done for a source that is bound to it
    ) -> Generator[Chunk, None, None]:
        """Yield the chunks from `position` to its epoch's end or `max_steps` updates.

        `gate` is called with True before each chunk and with False at the end, and returns whether to continue. A
        transform of the graph thread (`ChunkTransform.on_graph_thread`) runs after it.
        """
        clock, transform, source = self.clock, self.options.transform(), self.source
        clock.worked += time.perf_counter() - clock.since
        clock.since = time.perf_counter()
        self._reading += 1
        chunks: Any = self._read_chunks(position, max_steps, step, self._reading)
        few = source.in_memory and source.size <= (MAX_QUEUED if transform is None else 1)
        inline = inline or source.thread_bound or few  # so few batches are cut sooner than a thread is started
        if transform is not None:
            transform.connect(inline)
        late = inline or (transform is not None and transform.on_graph_thread)
        if not inline:
            # Tables hold on to the rows of what waits, and other finite data is read no further ahead than needed.
            far = transform is None and (source.in_memory or source.endless)
            chunks = self._ahead(chunks if late else self._prepare_ahead(chunks, self._reading), far, should_stop)
        try:
            others = source.waited_for_others
            for chunk in chunks:
                if gate is not None and not gate(True):
                    return
                if chunk.error is not None:
                    raise chunk.error
                if late:
                    self.times.prepared += self._prepare(chunk)
                now = time.perf_counter()
                if self.observer is not None:
                    self.observer("waiting for data", clock.since, now)
                clock.note_wait(now, chunk.exchanged + source.waited_for_others - others)
                others = source.waited_for_others
                yield chunk
                now = time.perf_counter()
                clock.worked, clock.since = clock.worked + now - clock.since, now
            if gate is not None:
                gate(False)
        finally:
            chunks.close()
            if transform is not None:
                transform.release()

    def _ahead(self, chunks: Iterator[Chunk], far: bool, should_stop: Callable[[], bool]) -> Generator[Chunk]:
        """Yield chunks read by a background thread."""
        self._worker = worker = Prefetch(chunks, MAX_QUEUED if far else MIN_QUEUED)
        try:
            while True:
                try:
                    chunk = worker.get(timeout=WAIT_SECONDS)
                except queue.Empty:
                    DATA_WAIT.still_waiting()
                    if should_stop():
                        return
                    continue
                if chunk is None:
                    return
                yield chunk
        finally:
            self._reading += 1
            self._stop_worker(LEAVING_SECONDS if DATA_WAIT.leaving else None)

    def _stop_worker(self, seconds: float | None = None) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            self.source.interrupt()
            transform = self.options.transform()
            if transform is not None and not worker.has_ended:
                transform.interrupt()
            self._left_behind |= not worker.stop(seconds)

    def join_exchange(self, problem: str = "") -> None:
        """Take part in what other processes prepare; see `ChunkTransform.join_exchange`."""
        transform = self.options.transform()
        if transform is not None:
            transform.join_exchange(problem)

    @property
    def ragged_inputs(self) -> Mapping[str, RaggedInput]:
        """The inputs made of ragged columns, by column name; known after one batch."""
        return dict(self._conversion.ragged.inputs)

    @property
    def depth(self) -> int:
        """Chunks that are ready and waiting."""
        return self._worker.depth if self._worker is not None else 0

    @property
    def size(self) -> int | None:
        """Batches of one epoch, or None when unknown."""
        size, most = self.source.size, self.options.batches_per_epoch
        return size if most is None else min(most, size or most)

    def close(self) -> None:
        """Stop the prefetch thread and close the source."""
        self._stop_worker()
        with DATA_WAIT:  # a pipeline waits for its generator
            self.source.close()

    def go_back(self, position: Position, trained: int) -> None:
        """Seek a stream to `position`, after `trained` rows; the feed must be closed."""
        if not self._left_behind:
            self.source.go_back(position, trained)

    def _read_chunks(self, position: Position, max_steps: int | None, step: int, reading: int) -> Generator[Chunk]:
        """Yield chunks without arrays; decides everything that depends on read order."""
        accumulate, opened = self.options.accumulate, position.micro_batches
        limit = None if max_steps is None else max_steps * accumulate - opened

        def room(taken: int) -> int:
            """Return the batches of a call after `taken` ones."""
            steps, batches = divmod(opened + taken, accumulate)
            most = max(1, self._batches_per_call // accumulate)
            return self.options.marks.call_size(step + steps, most) * accumulate - batches

        for items, last in self._groups(self._read(position, reading), limit, room):
            start, first = position, items[0]
            steps, open_batches = divmod(start.micro_batches + len(items), accumulate)
            flush = last and open_batches > 0
            if flush:
                steps, open_batches = steps + 1, 0
            ends = last and not self.source.endless
            position = start.next(len(items), open_batches, items[-1].state, ends_epoch=ends)
            if reading != self._reading:  # left behind while the source blocked: preparing would change the tables
                return
            rows = self._conversion.rows(first.columns)
            yield Chunk(
                items=items,
                names=self._conversion.names,
                stacked=self._is_stacked(items),
                num_batches=len(items),
                num_steps=steps,
                num_samples=0 if first.placeholder else len(items) * rows,
                all_samples=len(items) * (rows if first.step_rows is None else first.step_rows),
                flush=flush,
                ends_epoch=ends,
                start=start,
                position=position,
                extras=[item.extras for item in items],
                agreed=items[-1].agreed,
            )

    def _groups(
        self, items: Iterator[Item | None], limit: int | None, room: Callable[[int], int]
    ) -> Iterator[tuple[list[Item], bool]]:
        """Group up to `limit` batches of one shape; yield (group, source has ended).

        `room` says how many batches a group has at most that begins after so many ones.

        Shapes that change before the last batch of an epoch keep changing: from there on a group is one batch.
        """
        look_ahead = not self.source.endless or self.options.accumulate > 1
        group: list[Item] = []
        taken = size = 0
        varies = False
        for item in items:
            if item is None:
                if group and not look_ahead:
                    yield group, False
                    group = []
                continue
            if not self._batches_per_call:
                steps_for: Any = self.options.steps_per_call
                self._batches_per_call = self.source.ahead = steps_for(item) * self.options.accumulate
            self._vary = self._vary or varies
            odd = self.options.filling is not None and self._is_odd(item)
            most = 1 if self._vary or odd else size
            same_kind = not group or group[-1].kind == item.kind
            changed = bool(group) and not (same_kind and group[-1].form == item.form)
            # The kinds of a source that agrees say how many rows each process has, and change when one has no more.
            varies = changed and (same_kind or not self.source.agrees)
            if group and (changed or len(group) >= most):
                yield group, False
                group = []
            if limit is not None and taken >= limit:
                # the limit lies inside the epoch: the group is delivered, this batch stays unread
                break
            if not group:
                size = room(taken)
            group.append(item)
            taken += 1
            limited = limit is not None and taken >= limit
            if not look_ahead and (limited or len(group) >= (1 if self._vary or odd else size)):
                yield group, False
                group = []
                if limited:
                    return
        else:
            if group:
                yield group, True
            return
        if group:
            yield group, False

    def _is_odd(self, item: Item) -> bool:
        """Return whether a batch may be padded with rows, and so needs its own call."""
        filling = self.options.filling
        if (rows := self._conversion.rows(item.columns)) in filling.sizes:
            return False
        filling.note(rows)
        return filling.odd(rows)

    def _read(self, position: Position, reading: int) -> Iterator[Item | None]:
        epoch, number = position.epoch, position.batch
        read = self.source.first_epoch if self.options.same_batches else epoch
        most = self.options.batches_per_epoch
        take = iter(self.source.batches(read, number, position.state)).__next__
        if not (self.source.agrees or self.source.in_memory):
            take = DATA_WAIT.around(take)
        while most is None or number < most:
            began = time.perf_counter()
            try:
                item = take()
            except StopIteration:
                return
            except Exception as error:
                batch = self._describe(number, epoch)
                if isinstance(error, TrainerError):
                    error.args = (f"{batch}: {error}",)
                    raise
                raise DataError(f"reading {batch} failed: {type(error).__name__}: {error}") from error
            now = time.perf_counter()
            self.times.read += now - began
            if self.observer is not None:
                self.observer("reading", began, now)
            if reading != self._reading:
                return
            if item is not None:
                self._conversion(item, number, epoch)
                number += 1
            yield item

    def _describe(self, number: int, epoch: int) -> str:
        return f"batch {number}" if self.source.endless else f"batch {number} of epoch {epoch}"

    def _is_stacked(self, items: list[Item]) -> bool:
        """Return whether the program of many steps trains a group; record its shapes."""
        form, shapes, filling = items[0].form, self._shapes, self.options.filling
        # One batch of a new shape, the rest of an epoch, is not worth a second program of many steps. All processes
        # have to decide alike, and the kind says what is new on others.
        kind = None if self.source.agrees else items[0].kind
        many = len(items) > 1 or (kind, form) in shapes.stacked or not shapes.seen or self.source.agrees
        stacked = self._batches_per_call > 1 and many and not self._vary
        stacked = stacked and (filling is None or not self._is_odd(items[0]))
        if (kind, form) not in shapes.stacked if stacked else form not in shapes.seen:
            shapes.note(form, stacked, filling if self._conversion.equal_rows else None, kind)
        return stacked

    def _prepare_ahead(self, chunks: Iterator[Chunk], reading: int) -> Iterator[Chunk]:
        """Yield prepared chunks; the last one has the error that all processes raise."""
        for chunk in chunks:
            try:
                self.times.prepared_ahead += self._prepare(chunk)
            except DataError as error:
                if error.rank is None:
                    raise
                # Raised where the others raise it: after their agreement on this chunk.
                chunk.error = error
            yield chunk
            if chunk.error is not None:
                return
        transform = self.options.transform()
        if transform is not None and reading == self._reading:
            transform.finish()

    def _prepare(self, chunk: Chunk) -> float:
        """Put the arrays and tensors into a chunk; return the seconds it took."""
        began = time.perf_counter()
        try:
            self._fill_in(chunk)
        except DataError as error:
            if error.rank is not None:  # the batch of another process, of other data
                raise
            raise DataError(f"{self._describe(chunk.start.batch, chunk.start.epoch)}: {error}") from error
        now = time.perf_counter()
        if self.observer is not None:
            self.observer("preparing", began, now)
        return now - began

    def _fill_in(self, chunk: Chunk) -> None:
        options, items = self.options, chunk.items
        columns = chunk.arrays = stack(items, self._batches_per_call) if chunk.stacked else items[0].columns
        if options.fill_up_to is not None and not chunk.stacked and self._conversion.equal_rows:
            rows = chunk.num_samples
            size = options.fill_up_to(rows)
            if size is not None:
                chunk.filled = options.row_weights
                if options.row_weights:
                    columns = padded_by_weight(columns, size, weighed=options.weighed)
                else:
                    columns = padded(columns, size)
        transform = options.transform()
        if transform is not None:
            columns, chunk.sparse = transform.prepare(columns, chunk, newest_event_time(items))
        as_read = columns is items[0].columns
        signature = items[0].form if as_read else tuple([(column.shape, column.dtype) for column in columns])
        if signature != self._signature:
            for name, column in zip(chunk.names, columns, strict=False):
                check_dtype(column, name)
            self._signature = signature
        chunk.signature = self._signature
        chunk.tensors = tuple([to_tensor(column) for column in columns])
        chunk.items = []  # would keep their columns in memory with the stacked ones
