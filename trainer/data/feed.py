"""From a source's batches to chunks: what one call of the program trains on, prepared ahead on one thread.

`Source` knows where rows come from, `Feed` knows how they are grouped, stacked, put into tensors and prefetched, and
which position goes with each chunk; the loop knows neither.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import numpy as np
from mindspore import Tensor

from ..errors import DataError, TrainerError
from .as_columns import Columns, check_dtype
from .chunk import BatchGroup, Chunk, FeedOptions, newest, same_shapes, stack
from .column_form import form_of
from .prefetch import MAX_QUEUED, MIN_QUEUED, Prefetch
from .ragged import RaggedColumns
from .row_padding import filled_up, row_weights
from .sources import Item, Source
from .wait_clock import WaitClock
from .waiting import DATA_WAIT

logger = logging.getLogger(__name__)

WAIT_SECONDS = 0.1
MANY_SHAPES = (8, 32, 128, 512)  # numbers of shapes at which to warn
LEAVING_SECONDS = 0.5  # for a source to notice that a signal has ended the run


class Feed:
    """Chunks of one source.

    Args:
        source: where batches come from.
        options: how they are grouped.

    Attributes:
        clock: how long `chunks` has kept its caller waiting.
    """

    def __init__(self, source: Source, options: FeedOptions) -> None:
        self.source = source
        self.options = options
        self._size = options.batches_per_call if isinstance(options.batches_per_call, int) else 0
        self._worker: Prefetch | None = None
        self._checked: tuple[Any, ...] = ()
        self._as_it_is: Any = None  # form of the batches that there is nothing to do to
        self._signature: tuple[Any, ...] = ()
        self.ragged = RaggedColumns(options.arguments)
        self._names: tuple[str, ...] = ()
        self._one_length: bool | None = None
        self._shapes: set[Any] = set()
        self._compiled: set[Any] = set()
        self._stacked_shapes: set[Any] = set()
        self._vary = False
        self.clock = WaitClock()
        self._left_behind = False  # whether a thread may still be in the source
        self._reading = 0  # number of the reading under way; one that was left behind must not go on

    def chunks(
        self,
        position: Mapping[str, Any],
        max_steps: int | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        gate: Callable[[bool], bool] | None = None,
    ) -> Iterator[Chunk]:
        """Yield the chunks from `position` to the end of its epoch, or until `max_steps` updates are complete.

        `should_stop` is asked while a source keeps us waiting; when it says so the chunks end. `gate` is told before
        each chunk that there is one, at the end that there is none, and says whether it is to be trained; what runs on
        the thread of graphs (`ChunkTransform.on_graph_thread`) comes after it.
        """
        clock, transform = self.clock, self.options.transform
        clock.worked += time.perf_counter() - clock.since
        clock.since = time.perf_counter()
        self._reading += 1
        made = self._make(dict(position), max_steps, self._reading)
        late = transform is not None and transform.on_graph_thread
        in_memory = self.source.in_memory and transform is None
        few = self.source.in_memory and self.source.size <= (MAX_QUEUED if transform is None else 1)
        if self.source.thread_bound or few:
            found = self._inline(made)  # so few batches are cut sooner than a thread is started
        else:
            # Tables hold on to the rows of what waits, and other finite data is read no further ahead than needed.
            far = in_memory or (self.source.endless and transform is None)
            found = self._ahead(made if late else (complete() for complete in made), far, late, should_stop)
        try:
            for one in found:
                if gate is not None and not gate(True):
                    return
                chunk = one if isinstance(one, Chunk) else one()
                now = time.perf_counter()
                clock.waited, clock.since = clock.waited + now - clock.since, now
                yield chunk
                now = time.perf_counter()
                clock.worked, clock.since = clock.worked + now - clock.since, now
            if gate is not None:
                gate(False)
        finally:
            found.close()
            if transform is not None:
                transform.release()

    def _inline(self, made: Iterator[_Ready]) -> Generator[_Ready]:
        yield from made

    def _ahead(
        self, made: Iterator[Any], far: bool, late: bool, should_stop: Callable[[], bool]
    ) -> Generator[Chunk | _Ready]:
        """Yield what a thread of its own has read."""
        sizes = {"size_of": lambda ready: ready.nbytes} if late else {}
        self._worker = Prefetch(made, MAX_QUEUED if far else MIN_QUEUED, **sizes)
        try:
            while True:
                try:
                    one = self._worker.get(timeout=WAIT_SECONDS)
                except queue.Empty:
                    DATA_WAIT.goes_on()
                    if should_stop():
                        return
                    continue
                if one is None:
                    return
                yield one
        finally:
            self._reading += 1
            self.source.interrupt()
            self._left_behind |= not self._worker.stop(LEAVING_SECONDS if DATA_WAIT.leaving else None)
            self._worker = None

    def peek(self, should_stop: Callable[[], bool] = lambda: False) -> tuple[Columns, tuple[str, ...]]:
        """Return columns and names of one batch without using it up.

        Raises:
            DataError: there is none.
        """
        columns = self.source.peek(should_stop)
        names = self.source.names or ()
        if self.options.order is not None:
            columns, names, _ = self.options.order(columns, names)
        return RaggedColumns(self.options.arguments)(columns, names)

    def stand_by(self) -> None:
        """Take part in what other processes prepare, in place of a chunk, when this one has none left."""
        if self.options.transform is not None:
            self.options.transform.stand_by()

    def report(self) -> str | None:
        """Return how many shapes the batches had and how much of them was padding; None where there is nothing to tell.

        A program is compiled for each shape, and another for a shape that was trained many steps per call as well.
        """
        padding = self.ragged.describe()
        if padding is None and not self._vary:
            return None
        return f"batches had {len(self._shapes)} shapes" + ("" if padding is None else f"; {padding}")

    @property
    def depth(self) -> int:
        """Chunks that are ready and waiting."""
        return self._worker.depth if self._worker is not None else 0

    def close(self) -> None:
        """Stop the prefetch thread and close the source."""
        if self._worker is not None:
            self.source.interrupt()
            self._left_behind |= not self._worker.stop()
        with DATA_WAIT:  # a pipeline waits for its generator
            self.source.close()

    def go_back(self, position: Mapping[str, Any], trained: int) -> None:
        """Leave a stream right behind `position`, that of the last of the `trained` rows; once the feed is closed."""
        if not self._left_behind:
            self.source.go_back(position, trained)

    def _make(self, position: dict[str, Any], max_steps: int | None, reading: int) -> Iterator[_Ready]:
        epoch, batch, fill = (int(position.get(key, 0)) for key in ("epoch", "batch", "fill"))
        state = position.get("state")
        accumulate = self.options.accumulate
        left = None if max_steps is None else max_steps * accumulate - fill
        for items, last in self._groups(self._read(epoch, batch, state, reading), left):
            first = batch
            batch += len(items)
            state = items[-1].state if items[-1].state is not None else state
            before = fill
            steps, fill = divmod(fill + len(items), accumulate)
            flush = last and fill > 0
            if flush:
                steps, fill = steps + 1, 0
            ends = last and not self.source.endless
            place = {"epoch": epoch + 1, "batch": 0} if ends else {"epoch": epoch, "batch": batch}
            if fill:
                place["fill"] = fill
            if state is not None:
                place["state"] = state
            if reading != self._reading:  # left behind while the source blocked: what it would prepare is taken back
                return
            # decided here, in the order of reading: a chunk may be made any time later
            yield _Ready(self, (items, self._stacks(items), before, steps, flush, ends, place), (first, epoch))

    def _groups(self, items: Iterator[Item | None], left: int | None) -> Iterator[tuple[list[Item], bool]]:
        """Group equally shaped batches; the flag says that the source has ended after the group.

        Shapes that change before the last batch of an epoch keep changing: from there on a group is one batch.
        """
        look_ahead = not self.source.endless or self.options.accumulate > 1
        group: list[Item] = []
        taken = 0
        changed = False
        for item in items:
            if item is None:
                if group and not look_ahead:
                    yield group, False
                    group = []
                continue
            if not self._size:
                self._size = self.options.batches_per_call(item)
            self._vary = self._vary or changed
            odd = self.options.filling is not None and self._odd(item)
            most = 1 if self._vary or odd else self._size
            changed = bool(group) and not same_shapes(group[-1], item)
            if group and (changed or len(group) >= most):
                yield group, False
                group = []
            if left is not None and taken >= left:
                # the limit lies inside the epoch: what is grouped goes out, the rest stays unread
                break
            group.append(item)
            taken += 1
            limited = left is not None and taken >= left
            if not look_ahead and (limited or len(group) >= most):
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

    def _odd(self, item: Item) -> bool:
        """Return whether a batch may be filled up before it is trained, and so has to be a call of its own."""
        filling = self.options.filling
        if (rows := self._rows(item.columns)) in filling.sizes:
            return False
        filling.note(rows)
        return filling.odd(rows)

    def _read(self, epoch: int, start: int, state: Any, reading: int) -> Iterator[Item | None]:
        take = iter(self.source.batches(epoch, start, state)).__next__
        if not (self.source.in_step or self.source.in_memory):
            take = DATA_WAIT.around(take)
        number = start
        while True:
            try:
                item = take()
            except StopIteration:
                return
            except Exception as error:
                place = self._place(number, epoch)
                if isinstance(error, TrainerError):
                    error.args = (f"{place}: {error}",)
                    raise
                raise DataError(f"reading {place} failed: {type(error).__name__}: {error}") from error
            if reading != self._reading:
                return
            if item is not None:
                item = self._in_order(item, number, epoch)
                number += 1
            yield item

    def _in_order(self, item: Item, number: int, epoch: int) -> Item:
        """Return a batch with the columns that the program takes, checked, in memory of their own."""
        columns, names, extras = item.columns, self.source.names or (), item.extras
        given = item.form or form_of(columns)
        if given == self._as_it_is and item.lengths is None:
            return item if item.form else Item(*item[:-1], given)  # `_replace` takes three times as long
        if self.options.order is not None:
            columns, names, aside = self.options.order(columns, names)
            extras = aside if extras is None else {**extras, **(aside or {})}
        columns, self._names = self.ragged(columns, names, item.lengths if self.options.alike else None)
        form = self._check(columns, number, epoch)
        if self.options.columns is not None:
            columns, form = columns[: self.options.columns], form[: self.options.columns]
        if self.source.reuses_buffers:
            # batches wait in a group while the next one is read
            columns = tuple(np.array(column) for column in columns)
        nothing_done = columns is item.columns and extras is item.extras and self.options.inspect is None
        self._as_it_is = given if nothing_done else None
        return Item(columns, item.state, extras, *item[3:-1], form)

    def _place(self, number: int, epoch: int) -> str:
        return f"batch {number}" if self.source.endless else f"batch {number} of epoch {epoch}"

    def _check(self, columns: Columns, number: int, epoch: int) -> tuple[Any, ...]:
        form = form_of(columns)
        if form != self._checked:  # nothing new to find out about a batch that looks like the one before it
            self._check_shapes(columns, number, epoch)
            self._checked = form
        trouble = self.options.inspect(columns, self._names) if self.options.inspect else None
        if trouble is not None:
            logger.error("batch %d of epoch %d: %s", number, epoch, trouble)
        return form

    def _rows(self, columns: Columns) -> int:
        counted = columns[0 if self._one_length else self.options.counted]
        return len(counted) if counted.ndim else 1

    def _check_shapes(self, columns: Columns, number: int, epoch: int) -> None:
        names = self._names
        one_length = len({column.shape[:1] for column in columns}) == 1 and columns[0].ndim > 0
        if one_length != self._one_length:
            shapes = {name: column.shape for name, column in zip(names, columns, strict=True)}
            if self._one_length:
                raise DataError(
                    f"batch {number} of epoch {epoch}: columns have different numbers of rows: {shapes}, where those "
                    "of the batch before it had the same"
                )
            if self._one_length is None and not one_length and not self.ragged.cells:
                logger.warning(
                    "columns have different numbers of rows: %s; %r counts (is the dataset not batched?)",
                    shapes,
                    list(shapes)[self.options.counted],
                )
            self._one_length = bool(self._one_length is None and one_length)
        if self._rows(columns) == 0:
            raise DataError(f"batch {number} of epoch {epoch}: the batch has no rows")
        if self.options.check is not None:
            try:
                self.options.check(columns, names)
            except DataError as error:
                raise DataError(f"batch {number} of epoch {epoch}: {error}") from None

    def _stacks(self, items: list[Item]) -> bool:
        """Return whether a group is trained by the program of many steps; notes its shapes."""
        shapes = items[0].form
        # one batch of a new shape, the rest of an epoch, is not worth a second program of many steps
        many = len(items) > 1 or shapes in self._stacked_shapes or not self._shapes
        stacked = self._size > 1 and many and not self._vary
        stacked = stacked and (self.options.filling is None or not self._odd(items[0]))
        if shapes not in (self._stacked_shapes if stacked else self._shapes):
            self._note(shapes, stacked)
        return stacked

    def _chunk(
        self, items: list[Item], stacked: bool, fill: int, steps: int, flush: bool, ends: bool, position: dict[str, Any]
    ) -> Chunk:
        options = self.options
        shapes = items[0].form
        columns = stack(items, self._size) if stacked else items[0].columns
        sparse = None
        host = columns
        rows = len(items) * self._rows(items[0].columns)
        size = None
        if options.fill_up_to is not None and not stacked and self._one_length:
            size = options.fill_up_to(rows)
        if size is not None:
            columns = filled_up(columns, size)
            if options.row_weights:
                columns = (*columns, row_weights(rows, size))
        if options.transform is not None:
            group = BatchGroup(columns, stacked, len(items), fill, flush, newest(items))
            prepare = options.transform.prepare_made_up if items[0].made_up else options.transform.prepare
            columns, sparse = prepare(group)
        as_read = columns is items[0].columns
        signature = shapes if as_read else tuple([(column.shape, column.dtype) for column in columns])
        if signature != self._signature:
            for name, column in zip(self._names, columns, strict=False):
                check_dtype(column, name)
            self._signature = signature
        return Chunk(
            arrays=host,
            tensors=tuple([to_tensor(column) for column in columns]),
            signature=self._signature,
            names=self._names,
            stacked=stacked,
            num_batches=len(items),
            num_steps=steps,
            num_samples=0 if items[0].made_up else rows,
            all_samples=rows if items[0].step_rows is None else len(items) * items[0].step_rows,
            flush=flush,
            ends_epoch=ends,
            position=position,
            extras=[item.extras for item in items],
            sparse=sparse,
            agreed=items[-1].agreed,
            filled=size is not None and options.row_weights,
        )

    def _note(self, shapes: Any, stacked: bool) -> None:
        """Remember the shapes of a chunk's batches; tell when they are so many that compiling them costs."""
        if stacked:
            self._stacked_shapes.add(shapes)
        if shapes in self._shapes:
            return
        self._shapes.add(shapes)
        before = len(self._compiled)
        self._compiled.add(self._filled(shapes))
        if before < len(self._compiled) in MANY_SHAPES:
            logger.warning(
                "batches have had %d different shapes so far, the newest %s: each costs a compilation (0.3 to 3 s) and "
                "the memory of a program; pad them to a few lengths, or batch rows of one length together",
                len(self._compiled),
                [list(shape) for shape, _ in shapes],
            )

    def _filled(self, shapes: Any) -> Any:
        """Return the shapes that a program is compiled for to train batches of `shapes`."""
        filling, rows = self.options.filling, shapes[0][0][:1]
        if filling is None or not self._one_length or not filling.odd(rows[0]):
            return shapes
        return tuple([((filling.size_for(rows[0]), *shape[1:]), dtype) for shape, dtype in shapes])


class _Ready:
    """Batches of a chunk that are read, and what makes the chunk of them."""

    def __init__(self, feed: Feed, arguments: tuple[Any, ...], place: tuple[int, int]) -> None:
        self._feed, self._arguments, self._place = feed, arguments, place

    @property
    def nbytes(self) -> int:
        """Bytes of the batches."""
        return sum([column.nbytes for item in self._arguments[0] for column in item.columns])

    def __call__(self) -> Chunk:
        """Return the chunk.

        Raises:
            DataError: the batches are not what the network or the tables take; the message names the first of them.
        """
        try:
            return self._feed._chunk(*self._arguments)
        except DataError as error:
            raise DataError(f"{self._feed._place(*self._place)}: {error}") from error


def to_tensor(array: np.ndarray) -> Tensor:
    """Return a tensor over the array's own memory; a read-only or strided array is copied first."""
    if not array.flags.carray:
        array = np.array(array, order="C")
    return Tensor.from_numpy(array)
