"""`Feed`: groups a source's batches into chunks and prepares them on a thread.

A chunk is the input of one call of the compiled program. The source yields batches; the feed groups and stacks them,
converts them to tensors, and records the position in the data that belongs to each chunk.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

from ..errors import DataError, TrainerError
from .as_columns import Columns, check_dtype
from .batch_sizes import BatchShapes, RowFilling, padded, padded_by_weight
from .chunk import Chunk, FeedOptions, newest_event_time, stack, to_tensor
from .column_checks import BatchConversion
from .position import Position
from .ragged import RaggedColumns, RaggedInput
from .source import Item, Source
from .waiting import DATA_WAIT, MAX_QUEUED, MIN_QUEUED, Observer, Prefetch, ReadingTimes, WaitClock

logger = logging.getLogger(__name__)

WAIT_SECONDS = 0.1
LEAVING_SECONDS = 0.5  # how long to wait for the reading thread to end after a stop signal


def peek(
    source: Source,
    options: FeedOptions,
    should_stop: Callable[[], bool] = lambda: False,
    ragged: RaggedColumns | None = None,
) -> tuple[Columns, tuple[str, ...]]:
    """Return the first batch's columns and names as a `Feed` prepares them.

    The batch is not consumed. `ragged` pads its lists.
    """
    columns = source.peek(should_stop)
    if columns is None:
        raise DataError("the dataset delivered no batches")
    names = source.names or ()
    if options.order is not None:
        columns, names, _ = options.order(columns, names)
    if options.list_types is not None:
        columns = options.list_types(columns, names)
    return (RaggedColumns(options.arguments) if ragged is None else ragged)(columns, names)


class Feed:
    """Reads one source and yields its batches in chunks."""

    def __init__(self, source: Source, options: FeedOptions) -> None:
        self.source = source
        self.options = options
        source.continues_epochs = options.batches_per_epoch is not None and not options.same_batches
        steps = options.steps_per_call
        self._batches_per_call = steps * options.accumulate if isinstance(steps, int) else 0  # 0: unknown yet
        source.ahead = self._batches_per_call or source.ahead
        self._worker: Prefetch | None = None
        self._signature: tuple[Any, ...] = ()
        self._conversion = BatchConversion(source, options)
        self._shapes = BatchShapes()
        self._shapes_vary = False  # whether the shape has ever changed before the last batch of an epoch
        self.clock = WaitClock()  # how long `chunks` has kept its caller waiting
        self.times = ReadingTimes()
        self.observer: Observer | None = None  # receives "waiting for data", "reading" or "preparing"
        self._left_behind = False  # whether an abandoned thread may still be reading the source
        self._read_number = 0  # changes with every `chunks` call; an abandoned thread of an earlier call then stops

    def chunks(
        self,
        position: Position,
        max_steps: int | None = None,
        should_stop: Callable[[], bool] = lambda: False,  # called during a wait for data; True ends the chunks
        gate: Callable[[bool], bool] | None = None,
        *,
        step: int = 0,  # optimizer updates done before `position`
        inline: bool = False,  # whether to read on the caller's thread; always done for a thread-bound source
    ) -> Generator[Chunk, None, None]:
        """Yield the chunks from `position` to its epoch's end or `max_steps` updates.

        `gate(True)` is called before each chunk and returns whether to continue; `gate(False)` is called at the end.
        A transform that runs on the graph thread (`ChunkTransform.on_graph_thread`) runs after the gate.
        """
        clock, transform, source = self.clock, self.options.transform(), self.source
        clock.worked += time.perf_counter() - clock.since
        clock.since = time.perf_counter()
        self._read_number += 1
        chunks: Any = self._read_chunks(position, max_steps, step, self._read_number)
        most_batches = MAX_QUEUED if transform is None else 1
        has_few_batches = source.in_memory and source.size is not None and source.size <= most_batches
        inline = inline or source.thread_bound or has_few_batches  # a thread would not pay
        if transform is not None:
            transform.connect(inline)
        prepares_here = inline or (transform is not None and transform.on_graph_thread)  # prepare here, after the gate
        if not inline:
            # Queue many chunks only of arrays and streams, and never with sparse tables, whose rows they would pin.
            queues_many = transform is None and (source.in_memory or source.endless)
            if not prepares_here:
                chunks = self._prepare_ahead(chunks, self._read_number)
            chunks = self._ahead(chunks, queues_many, should_stop)
        try:
            waited_before = source.waited_for_others
            for chunk in chunks:
                if gate is not None and not gate(True):
                    return
                if chunk.error is not None:
                    raise chunk.error
                if prepares_here:
                    self.times.prepared += self._prepare(chunk)
                now = time.perf_counter()
                if self.observer is not None:
                    self.observer("waiting for data", clock.since, now)
                clock.note_wait(now, chunk.exchange_seconds + source.waited_for_others - waited_before)
                waited_before = source.waited_for_others
                yield chunk
                now = time.perf_counter()
                clock.worked, clock.since = clock.worked + now - clock.since, now
            if gate is not None:
                gate(False)
        finally:
            chunks.close()
            if transform is not None:
                transform.release()

    def _ahead(self, chunks: Iterator[Chunk], queues_many: bool, should_stop: Callable[[], bool]) -> Generator[Chunk]:
        """Yield chunks read by a background thread."""
        self._worker = worker = Prefetch(chunks, MAX_QUEUED if queues_many else MIN_QUEUED)
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
            self._read_number += 1
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
        """Join the exchange of the other processes; see `ChunkTransform.join_exchange`."""
        transform = self.options.transform()
        if transform is not None:
            transform.join_exchange(problem)

    @property
    def ragged_inputs(self) -> Mapping[str, RaggedInput]:
        """Inputs made from ragged columns, by column name; known after the first batch."""
        return dict(self._conversion.ragged.inputs)

    @property
    def depth(self) -> int:
        """Number of prefetched chunks in the queue."""
        return self._worker.depth if self._worker is not None else 0

    @property
    def size(self) -> int | None:
        """Batches of one epoch, or None if unknown."""
        size, maximum = self.source.size, self.options.batches_per_epoch
        return size if maximum is None else min(maximum, size or maximum)

    def close(self) -> None:
        """Stop the prefetch thread and close the source."""
        self._stop_worker()
        with DATA_WAIT:  # closing a pipeline waits for its Python generator
            self.source.close()

    def go_back(self, position: Position, trained: int) -> None:
        """Seek a stream back to `position`, after `trained` rows; close the feed first."""
        if self._left_behind:
            self.source.cannot_go_back(trained, "the thread that reads the source still waits for it")
        else:
            self.source.go_back(position, trained)

    def _read_chunks(self, position: Position, max_steps: int | None, step: int, read_number: int) -> Generator[Chunk]:
        """Yield chunks without arrays; make the decisions that depend on read order."""
        accumulate, micro_batches = self.options.accumulate, position.micro_batches
        limit = None if max_steps is None else max_steps * accumulate - micro_batches

        def max_batches(taken: int) -> int:
            """Return the maximum batches of a call that starts after `taken` batches."""
            steps, batches = divmod(micro_batches + taken, accumulate)
            max_steps_per_call = max(1, self._batches_per_call // accumulate)
            return self.options.marks.call_size(step + steps, max_steps_per_call) * accumulate - batches

        def open_after(taken: int) -> int:
            """Return how many of `taken` batches are of an incomplete update."""
            return (micro_batches + taken) % accumulate

        for items, last in self._groups(self._read(position, read_number), limit, max_batches, open_after):
            start, first = position, items[0]
            steps, open_batches = divmod(start.micro_batches + len(items), accumulate)
            flush = last and open_batches > 0
            if flush:
                steps, open_batches = steps + 1, 0
            ends = last and not self.source.endless
            position = start.next(len(items), open_batches, items[-1].state, ends_epoch=ends)
            if read_number != self._read_number:  # this thread was abandoned while it waited and must not change tables
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
        self,
        items: Iterator[Item | None],
        limit: int | None,
        max_batches: Callable[[int], int],
        open_after: Callable[[int], int],
    ) -> Iterator[tuple[list[Item], bool]]:
        """Yield (batches of one shape, whether the source has ended).

        All groups together have at most `limit` batches. `max_batches(taken)` returns the maximum size of a group that
        starts after `taken` batches, `open_after(taken)` how many of these are of an incomplete update. Once the shape
        has changed before the last batch of an epoch, every later group has one batch: it is expected to change again.
        """
        look_ahead = not self.source.endless  # to know which group is the last
        group: list[Item] = []
        taken = size = 0
        shapes_varied = False
        for item in items:
            if item is None:
                whole = len(group) - open_after(taken)  # an incomplete update waits: the source may end before it
                if whole > 0 and not look_ahead:
                    yield group[:whole], False
                    group, size = group[whole:], max_batches(taken - len(group) + whole)
                continue
            if not self._batches_per_call:
                steps_for: Any = self.options.steps_per_call
                self._batches_per_call = self.source.ahead = steps_for(item) * self.options.accumulate
            self._shapes_vary = self._shapes_vary or shapes_varied
            filling = self.options.filling
            is_padded = filling is not None and self._is_padded_alone(item, filling)
            maximum = 1 if self._shapes_vary or is_padded else size
            same_kind = not group or group[-1].kind == item.kind
            changed = bool(group) and not (same_kind and group[-1].form == item.form)
            # In a lockstep source, `kind` holds the rows of each process; it also changes when one runs out of data.
            shapes_varied = changed and (same_kind or not self.source.agrees)
            if group and (changed or len(group) >= maximum):
                whole = len(group) - open_after(taken)
                if not look_ahead and 0 < whole < len(group):  # a stream goes back to the end of a group
                    yield group[:whole], False
                    group = group[whole:]
                yield group, False
                group = []
            if limit is not None and taken >= limit:
                break  # the limit lies inside the epoch: yield the group without this batch
            if not group:
                size = max_batches(taken)
            group.append(item)
            taken += 1
            limited = limit is not None and taken >= limit
            is_full = len(group) >= (1 if self._shapes_vary or is_padded else size)
            if not look_ahead and not open_after(taken) and (limited or is_full):
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

    def _is_padded_alone(self, item: Item, filling: RowFilling) -> bool:
        """Return whether rows may be added to a batch, so that it needs its own call."""
        if (rows := self._conversion.rows(item.columns)) in filling.sizes:
            return False
        filling.note(rows)
        return filling.is_padded(rows)

    def _read(self, position: Position, read_number: int) -> Iterator[Item | None]:
        epoch, number = position.epoch, position.batch
        epoch_to_read = self.source.first_epoch if self.options.same_batches else epoch
        maximum = self.options.batches_per_epoch
        items = iter(self.source.batches(epoch_to_read, number, position.state))
        wait: Any = contextlib.nullcontext() if self.source.agrees or self.source.in_memory else DATA_WAIT
        while maximum is None or number < maximum:
            began = time.perf_counter()
            try:
                with wait:
                    item = next(items)
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
            if read_number != self._read_number:
                return
            if item is not None:
                self._conversion(item, number, epoch)
                number += 1
            yield item

    def _describe(self, number: int, epoch: int) -> str:
        return f"batch {number}" if self.source.endless else f"batch {number} of epoch {epoch}"

    def _is_stacked(self, items: list[Item]) -> bool:
        """Return whether the multi-step program trains a group; record its shapes."""
        form, shapes, filling = items[0].form, self._shapes, self.options.filling
        # A single batch of a new shape, such as an epoch's last one, is not worth another multi-step program. `kind`
        # includes the shapes of the other processes, so that all processes decide alike.
        kind = None if self.source.agrees else items[0].kind
        is_frequent = len(items) > 1 or (kind, form) in shapes.stacked or not shapes.seen or self.source.agrees
        is_stacked = self._batches_per_call > 1 and is_frequent and not self._shapes_vary
        is_stacked = is_stacked and (filling is None or not self._is_padded_alone(items[0], filling))
        if (kind, form) not in shapes.stacked if is_stacked else form not in shapes.seen:
            shapes.note(form, is_stacked, filling if self._conversion.equal_rows else None, kind)
        return is_stacked

    def _prepare_ahead(self, chunks: Iterator[Chunk], read_number: int) -> Iterator[Chunk]:
        """Yield prepared chunks; an error of all processes is stored in the last one."""
        for chunk in chunks:
            try:
                self.times.prepared_ahead += self._prepare(chunk)
            except DataError as error:
                if error.rank is None:
                    raise
                # Stored, not raised: all processes raise it at the same point, after they have agreed on this chunk.
                chunk.error = error
            yield chunk
            if chunk.error is not None:
                return
        transform = self.options.transform()
        if transform is not None and read_number == self._read_number:
            transform.finish()

    def _prepare(self, chunk: Chunk) -> float:
        """Fill in the arrays and tensors of a chunk; return the seconds it took."""
        began = time.perf_counter()
        try:
            self._fill_in(chunk)
        except DataError as error:
            if error.rank is not None:  # the faulty batch belongs to another process
                raise
            raise DataError(f"{self._describe(chunk.start.batch, chunk.start.epoch)}: {error}") from error
        now = time.perf_counter()
        if self.observer is not None:
            self.observer("preparing", began, now)
        return now - began

    def _fill_in(self, chunk: Chunk) -> None:
        options, items = self.options, chunk.items
        columns = chunk.arrays = stack(items, self._batches_per_call) if chunk.stacked else items[0].columns
        if options.padded_size is not None and not chunk.stacked and self._conversion.equal_rows:
            rows = chunk.num_samples
            size = options.padded_size(rows)
            if size is not None:
                chunk.is_padded = options.row_weights
                if options.row_weights:
                    columns = padded_by_weight(columns, size, has_weights=options.has_weights)
                else:
                    columns = padded(columns, size)
        transform = options.transform()
        if transform is not None:
            columns, chunk.sparse = transform.prepare(columns, chunk, newest_event_time(items))
        is_unchanged = columns is items[0].columns
        signature = items[0].form if is_unchanged else tuple([(column.shape, column.dtype) for column in columns])
        if signature != self._signature:
            for name, column in zip(chunk.names, columns, strict=False):
                check_dtype(column, name)
            self._signature = signature
        chunk.signature = self._signature
        chunk.tensors = tuple([to_tensor(column) for column in columns])
        chunk.items = []  # free the columns of the single batches
