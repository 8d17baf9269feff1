"""Sources of finite data: arrays, `mindspore.dataset` pipelines and iterables."""

from __future__ import annotations

import copy
import logging
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np

from ...checks import whole
from ...errors import ConfigurationError, DataError
from ...features.feature import Inputs
from ...mindspore_internals.pipelines import is_bounded, seeded
from ..as_columns import Columns, as_columns, describe_non_finite, form_of
from ..ragged import Ragged
from ..source import Item, Source

logger = logging.getLogger(__name__)

INSPECTED_BYTES = 1 << 28  # larger arrays may be memory-mapped, and a search for NaN would read them from disk
_MAX_ROWS, _MAX_BYTES = 4096, 1 << 20  # limits of the default batch size
_BATCHES_READ = "read"  # key in a state: batches read since the beginning, for data that continues from epoch to epoch
_MANY_EPOCHS = 1_000_000  # means "unlimited", because `set_init_step` refuses -1 and positions past the last epoch


def _checksum(columns: Columns) -> int:
    total = 0
    for column in columns:
        for part in (column.values, column.offsets) if isinstance(column, Ragged) else (column,):
            array = np.ascontiguousarray(part)
            values = repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
            total = zlib.crc32(f"{array.dtype}{array.shape}".encode() + values, total)
    return total


class ArraySource(Source):
    """Arrays of equal length, cut into batches; (seed, epoch) determines the order."""

    kind = "ArraySource"
    described: tuple[str, ...] = ("rows", "batch_size", "shuffle", "seed")
    in_memory = True
    takes_seed = True

    names: tuple[str, ...]  # always known

    def __init__(
        self,
        arrays: Any,
        batch_size: int | None,
        *,
        shuffle: bool = False,
        seed: int = 0,
        fitting: bool = False,  # whether a missing batch size becomes 4,096 rows, fewer if they exceed 1 MB
    ) -> None:
        if batch_size is not None:
            batch_size = whole("batch_size", batch_size)
        elif not fitting:
            raise ConfigurationError("batch_size: arrays are given, so a batch_size is needed, e.g. batch_size=64")
        self._columns, self.names = as_columns(arrays, None)
        for name, column in zip(self.names, self._columns, strict=True):
            if column.ndim == 0:
                raise DataError(f"column {name!r}: received a scalar; expected an array with the rows on axis 0")
        lengths = {name: len(column) for name, column in zip(self.names, self._columns, strict=True)}
        self.rows = next(iter(lengths.values()))
        if len(set(lengths.values())) > 1:
            raise DataError(f"the arrays have different numbers of rows: {lengths}")
        if self.rows == 0:
            raise DataError(f"the dataset is empty: column {self.names[0]!r} has 0 rows")
        nbytes = sum(column.nbytes for column in self._columns)
        self.batch_size = batch_size or max(1, min(_MAX_ROWS, _MAX_BYTES * self.rows // max(1, nbytes)))
        self.shuffle = shuffle
        self.seed = seed
        self.set_aside = arrays.set_aside if isinstance(arrays, Inputs) else None
        self.size: int = -(-self.rows // self.batch_size)

    def warn_of_non_finite(self, ignored: Collection[str] = ()) -> None:
        """Log which column holds NaN or infinity; large arrays are not searched."""
        if sum(column.nbytes for column in self._columns) <= INSPECTED_BYTES:
            problem = describe_non_finite(self._columns, self.names, ignored)
            if problem is not None:
                logger.warning("the dataset: %s", problem)

    @property
    def last_rows(self) -> int:
        """Rows of an epoch's last batch."""
        return self.rows - (self.size - 1) * self.batch_size

    def checksums(self) -> dict[str, int]:
        """Return checksums of the first rows and of a random sample of rows."""
        count = min(self.batch_size, self.rows)
        random_rows = np.random.default_rng(self.rows).integers(0, self.rows, count)
        batches = {"first batch": self.cut(None, 0, count), "random batch": self.cut(random_rows, 0, count)}
        return {name: _checksum(columns) for name, columns in batches.items()}

    def batches(self, epoch: int, start: int, state: Any = None) -> Iterator[Item]:
        """Yield the batches from `start`, without reading the ones before it."""
        order = self.order(epoch)
        form = None
        for first in range(self.first_row(epoch, state) + start * self.batch_size, self.rows, self.batch_size):
            columns = self.cut(order, first, first + self.batch_size)
            if form is None or first + self.batch_size > self.rows:
                form = form_of(columns)
            yield Item(columns, form=form)

    def first_row(self, epoch: int, state: Any) -> int:
        """Return batch 0's first row; not 0 after a resume with another batch size."""
        return state["row"] if state is not None and state["epoch"] == epoch else 0

    def order(self, epoch: int) -> np.ndarray | None:
        """Return the row numbers in the order of `epoch`; None for the order of the data."""
        return np.random.default_rng([self.seed, epoch]).permutation(self.rows) if self.shuffle else None

    def cut(self, order: np.ndarray | None, first: int, last: int) -> Columns:
        """Return the columns of the rows `first` to `last` (exclusive) of `order`."""
        if order is None:
            return tuple([column[first:last] for column in self._columns])
        rows = order[first:last]
        return tuple([column[rows] for column in self._columns])


class PipelineSource(Source):
    """A `mindspore.dataset` pipeline.

    One iterator serves all epochs, because a new one would repeat the first epoch's shuffle. To seek,
    `set_init_step` skips batches without loading their rows. The pipeline reads ahead on its own threads.
    """

    described = ("size", "seed")
    thread_bound = True
    any_size = True
    takes_seed = True

    def __init__(self, dataset: Any, *, seed: int = 0) -> None:
        self.dataset = dataset
        self.names = tuple(dataset.get_col_names())
        self.size = dataset.get_dataset_size() if is_bounded(dataset) else None
        if self.size == 0:
            raise DataError("the dataset is empty: the pipeline has 0 batches")
        self.seed = seed
        self._iterator: Any = None
        self._next: tuple[int, int] | None = None
        self._opened_for: tuple[int, int, int | None] | None = None  # (seed, first epoch, last epoch) of the iterator
        self._read = 0  # batches read from a pipeline of unknown size since its beginning

    def batches(self, epoch: int, start: int, state: Any = None) -> Iterator[Item]:
        continues_epochs = self.continues_epochs and self.size is None
        is_next_epoch = self._next is not None and continues_epochs and (epoch, start) == (self._next[0] + 1, 0)
        is_open = self._iterator is not None and self._opened_for == (self.seed, self.first_epoch, self.last_epoch)
        if not is_open or not (self._next == (epoch, start) or is_next_epoch):
            self._open(epoch, _batches_before(state, start) if continues_epochs else start)
        count = start
        for _ in range(2 if continues_epochs else 1):  # the previous epoch may have ended with the last batch
            for item in self._iterator:
                count += 1
                self._read += 1
                self._next = (epoch, count)
                yield Item(as_columns(item, self.names)[0], {_BATCHES_READ: self._read} if continues_epochs else None)
            if count > start:
                break
        self._next = (epoch + 1, 0)
        if self.size is None and not continues_epochs:
            self.size = count

    def _open(self, epoch: int, start: int) -> None:
        self.close()
        passes = epoch - self.first_epoch
        skipped = start if self.size is None else passes * self.size + start
        if self.size is None and passes and not self.continues_epochs:
            raise DataError(f"the pipeline has no known size, so epoch {epoch} cannot be reached; give it a length")
        self._opened_for = self.seed, self.first_epoch, self.last_epoch
        total = _MANY_EPOCHS if self.last_epoch is None else max(self.last_epoch - self.first_epoch, passes + 1)
        with seeded(self.seed):
            try:
                if self.size is not None:
                    self.dataset.set_init_step(skipped)
                self._iterator = self.dataset.create_tuple_iterator(
                    num_epochs=total if self.size is not None else -1, output_numpy=True, do_copy=True
                )
            finally:
                self.dataset.set_init_step(0)
        if self.size is None:
            self._skip(skipped)

    def _skip(self, count: int) -> None:
        """Skip `count` batches by reading them, possibly over several passes."""
        self._read, ended = 0, False
        while self._read < count:
            if next(self._iterator, None) is not None:
                self._read, ended = self._read + 1, False
            elif ended:
                raise DataError(f"the pipeline cannot be read up to batch {count}, which was trained last: it is empty")
            else:
                ended = True

    def close(self) -> None:
        if self._iterator is not None:
            self._iterator.stop()
            self._iterator = None


class IterableSource(Source):
    """Batches of an iterable, or of a function that returns an iterator.

    Its items are tuples, lists or dicts of arrays with the rows of one batch.

    An object with `state_dict` and `load_state_dict` saves and restores its own position. Other data are read again
    from the beginning to reach a position.
    """

    reuses_buffers = True
    any_size = True

    def __init__(self, data: Iterable[Any] | Callable[[], Iterable[Any]]) -> None:
        self.data: Any = data
        self._is_factory = callable(data) and not hasattr(data, "__iter__")
        self.thread_bound = type(data).__module__.startswith("mindspore.dataset")  # an iterator over a pipeline
        self.one_shot = not self._is_factory and hasattr(data, "__next__")  # an iterator
        self._epoch: int | None = None  # the epoch that was read last
        self._ended = False
        self._read = 0  # batches read from an iterator since its beginning
        self._warned = False
        self._peeked: list[Any] = []
        self._latest_state: Any = None  # what `state_dict` of the data returned last
        self.size = _length(data)
        if self.size == 0:
            raise DataError("the dataset is empty: len(dataset) is 0")

    def peek(self, should_stop: Callable[[], bool] = lambda: False) -> Columns | None:
        for item in self.data() if self._is_factory else self.data:
            if self.one_shot:
                self._peeked.append(item)
            columns, self.names = as_columns(item, self.names)
            return columns
        return None

    @property
    def _stateful(self) -> bool:
        return hasattr(self.data, "state_dict") and hasattr(self.data, "load_state_dict")

    def batches(self, epoch: int, start: int, state: Any = None) -> Iterator[Item]:
        """Yield the batches, each with the state of the data after it, if they have one."""
        continues_epochs = self.continues_epochs and self.one_shot
        next_epoch = self._epoch is not None and (epoch, start) == (self._epoch + 1, 0)
        is_next_epoch = continues_epochs and not self._ended and next_epoch
        if self.one_shot and self._epoch is not None and not is_next_epoch:
            raise _used_up_error(epoch)
        self._epoch = epoch
        if hasattr(self.data, "set_epoch"):
            self.data.set_epoch(epoch)
        skip = 0 if is_next_epoch else self._seek(epoch, start, state, continues_epochs)
        counts_batches = continues_epochs or (isinstance(state, dict) and _BATCHES_READ in state)
        peeked, self._peeked = self._peeked, []
        number = 0
        for number, item in enumerate(chain(peeked, self.data() if self._is_factory else self.data), 1):
            self._read += 1
            if number <= skip:
                continue
            columns, self.names = as_columns(item, self.names)
            yield Item(columns, self._state(counts_batches and self.one_shot))
        self._ended = True
        if continues_epochs and number <= skip and epoch:
            raise _used_up_error(epoch)

    def _seek(self, epoch: int, start: int, state: Any, continues_epochs: bool) -> int:
        """Restore the state of the data, if any; return how many batches to skip."""
        skip = start
        if self.one_shot and not self._stateful:  # an earlier run may have advanced it
            skip = _batches_before(state, start)
        elif (start or continues_epochs) and state is not None and self._stateful:
            self.data.load_state_dict(state)
            return 0
        if skip and not self._warned:
            self._warned = True
            logger.warning(
                "the dataset has no state_dict/load_state_dict: its first %d batches%s are read again and "
                "dropped to reach the saved position; that is exact only if it repeats the same order",
                skip,
                "" if continues_epochs else f" of epoch {epoch}",
            )
        return skip

    def _state(self, counts: bool) -> Any:
        if self._stateful:
            state, previous = self.data.state_dict(), self._latest_state
            self._latest_state = state
            # The same object each time changes while later batches are read ahead; the first one may be such an object.
            return copy.deepcopy(state) if previous is None or state is previous else state
        return {_BATCHES_READ: self._read} if counts else None


def _batches_before(state: Any, start: int) -> int:
    return state[_BATCHES_READ] if isinstance(state, dict) and _BATCHES_READ in state else start


def _used_up_error(epoch: int) -> DataError:
    return DataError(
        f"epoch {epoch}: the generator is used up after one pass; pass a function that returns a fresh "
        "generator, a list, or an object with __iter__"
    )


def _length(data: Any) -> int | None:
    try:
        return len(data)
    except TypeError:
        return None
