"""A stream of the items of an iterable: a list, generator, factory or dataset."""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any

import numpy as np

from ...checks import choice, refuse
from ...errors import DataError, StreamError
from ...mindspore_internals.pipelines import current_seed, seeded
from ..base import BufferedStream, Sharing
from ..batch import STATE, Batch, Cursor, Position, Span, columns_of, cursors_of, is_frame
from ..dead_letter import DeadLetter
from ..formats.column import event_times
from ..formats.ragged_column import Ragged, rows_of

logger = logging.getLogger(__name__)

PARTITION = "iterable"
_EMPTY_LISTS = np.dtype(object)  # dtype of a column that has only empty lists
_MAX_STATES = 65_536  # states kept for items read but not yet trained on, or `rows_ahead` of them if that is more
_NOTHING: np.ndarray = np.array(None)  # a value that a row lacks


class IterableStream(BufferedStream):
    """A stream of the rows in the items of an iterable.

    Each item is a mapping from name to array, a frame, or a tuple or list of arrays with the column names `names`. It
    holds a single row, or several rows if all its values have a first axis of the same length. A column whose rows are
    lists of different lengths becomes a `trainer.data.ragged.Ragged` column. A `mindspore.dataset` pipeline is read in
    one pass as NumPy arrays; it may be infinite, as its size is never requested.

    The position is ``{"iterable": [item, row]}``. How `seek` reaches an item depends on the source. A source with
    ``state_dict`` and ``load_state_dict`` is restored. A container or a factory (a callable that returns an iterator)
    is iterated again from the start, skipping items. A plain iterator can only move forward.

    `poll` blocks as long as the source does, because it checks `timeout` only between items.

    Args:
        source: the iterable, the factory, or the dataset.
        names: column names for items that are tuples or lists; None for "column_0" and so on. A MindSpore dataset has
            its own names.
        event_time: name of the column with seconds since the epoch or times, or None.
        rows: "batch" if items hold several rows, "single" if they hold one, or "auto" to decide by the first item: it
            is a single row if any of its values is a scalar.
        dead_letter: file for rows that cannot be trained on, or a `DeadLetter`.
        max_bad_share: largest share of such rows. None uses the share of `dead_letter`, which is 0.01 by default.
        allow_nan: names of columns that may hold NaN and infinite values, or True for all columns.

    Raises:
        ConfigurationError: the source is not iterable, or `rows` is unknown.
    """

    def __init__(
        self,
        source: Iterable[Any] | Callable[[], Iterable[Any]],
        names: Sequence[str] | None = None,
        event_time: str | None = None,
        rows: str = "auto",
        dead_letter: DeadLetter | str | Path | None = None,
        max_bad_share: float | None = None,
        allow_nan: Collection[str] | bool = (),
    ) -> None:
        super().__init__()
        self.dead_letter = DeadLetter.of(dead_letter, max_bad_share)
        self.allow_nan = allow_nan if isinstance(allow_nan, bool) else tuple(allow_nan)
        choice("rows", rows, ("auto", "batch", "single"))
        self.reads_pipeline = hasattr(source, "create_dict_iterator")
        if not (self.reads_pipeline or callable(source) or isinstance(source, Iterable)):
            refuse("IterableStream", "an iterable, a function that returns one or a mindspore.dataset", source)
        self._source: Any = source
        self._names = None if names is None else list(names)
        self.event_time = event_time
        self._item_kind = rows
        self._stateful = hasattr(source, "state_dict") and hasattr(source, "load_state_dict")
        self._states: dict[int, Any] = {}
        self._lock = Lock()
        self.sharing = Sharing.ALONE if self._is_one_shot else Sharing.REPEATABLE
        self._iterator: Iterator[Any] | None = None
        self._item = self._skip = 0
        self._deferred_error: Exception | None = None
        self._error: Exception | None = None
        self._shapes: dict[str, tuple[Any, ...]] | None = None
        self._lists: set[str] = set()  # columns whose rows are lists, whose lengths may differ between items
        self._position = {PARTITION: Cursor(0).to_json()}

    def _new_iterator(self) -> Iterator[Any]:
        source = self._source
        if self.reads_pipeline:
            with seeded(current_seed() or 0):  # without a seed, a pipeline would shuffle anew, and no position hold
                return iter(source.create_dict_iterator(num_epochs=1, output_numpy=True))
        made = source() if callable(source) and not isinstance(source, Iterable) else source
        with seeded(current_seed() or 0) if hasattr(made, "create_dict_iterator") else contextlib.nullcontext():
            return iter(made)

    @property
    def _is_one_shot(self) -> bool:
        """Whether the source is a plain iterator, which yields its items only once."""
        return isinstance(self._source, Iterator) and not self._stateful

    def _fetch(self, max_rows: int, timeout: float) -> None:
        deadline = monotonic() + timeout
        singles: list[dict[str, Any]] = []
        first = self._item
        if self._deferred_error is not None:
            failure, self._deferred_error = self._deferred_error, None
            raise failure
        while not self._ended:
            try:
                item = self._next_item()
            except Exception as error:
                if not singles:
                    raise
                self._deferred_error = error  # the next call raises it, after the preceding rows were returned
                break
            if item is None:
                break
            if self._item_kind == "auto":
                self._item_kind = "single" if any(value.ndim == 0 for value in item.values()) else "batch"
            if self._item_kind == "batch":
                self._push_batch(item)
                return
            singles.append(item)
            if len(singles) >= max_rows or monotonic() >= deadline:
                break
        if singles:
            self._push_single_rows(singles, first)

    def _next_item(self) -> dict[str, Any] | None:
        if self._iterator is None:
            self._iterator = self._new_iterator()
        if self._stateful and self._item not in self._states:
            with self._lock:
                self._states[self._item] = copy.deepcopy(self._source.state_dict())
                if len(self._states) > max(_MAX_STATES, self.rows_ahead):
                    del self._states[next(iter(self._states))]
        try:
            item = next(self._iterator)
        except StopIteration:
            if self._error is not None:
                raise StreamError(
                    f"the iterator failed at item {self._item} ({self._error!r}) and then ended, as generators do: "
                    "items after that may be lost. Pass a function that returns a new iterator, which can be read again"
                ) from self._error
            self._ended = True
            return None
        except Exception as error:
            self._error = error if self._is_one_shot else None
            raise
        self._error = None
        self._item += 1
        return self._columns(item, self._item - 1)

    def _columns(self, item: Any, number: int) -> dict[str, Any]:
        if is_frame(item):
            item = columns_of(item)
        if isinstance(item, Mapping):
            pairs: Iterable[tuple[Any, Any]] = item.items()
        else:
            values = item if isinstance(item, tuple | list) else (item,)
            if self._names is None:
                self._names = [f"column_{index}" for index in range(len(values))]
            if len(self._names) != len(values):
                raise DataError(
                    f"item {number} of the iterable has {len(values)} values; "
                    f"names= must name each: received {self._names}"
                )
            pairs = zip(self._names, values, strict=True)
        given = {str(name): value for name, value in pairs}
        columns = {name: rows_of(value) for name, value in given.items()}
        found = {n: c for n, c in columns.items() if isinstance(c, Ragged) and not isinstance(given[n], Ragged)}
        self._lists |= {name for name, value in given.items() if name in found or _holds_lists(value)}
        columns |= {name: lists.as_array() for name, lists in found.items()}  # as lists of Python become arrays
        if not columns:
            raise DataError(f"item {number} of the iterable has no columns")
        if self.event_time is not None and self.event_time not in columns:
            raise DataError(
                f"item {number} has no column {self.event_time!r}, which event_time= names: {list(columns)}"
            )
        return columns

    @property
    def _holds_raw_rows(self) -> bool:
        """Whether features convert the rows, whose types may then differ."""
        return self.schema is not None

    def _check_shapes(self, columns: dict[str, Any], item: int) -> None:
        if self._holds_raw_rows:
            return
        shapes = {
            name: (array.shape[1:], {"U": "text", "S": "bytes"}.get(array.dtype.kind, array.dtype))
            for name, array in columns.items()
        }
        # Row shapes and dtypes must not change, except for the lengths of lists.
        first = self._shapes = self._shapes or dict(shapes)
        for name in shapes.keys() & first.keys():
            (shape, dtype), (first_shape, first_dtype) = shapes[name], first[name]
            # By chance, all lists of the earlier items, or of this item, have the same length.
            may_differ = None in (shape[:1] + first_shape[:1]) or (name in self._lists and shape and first_shape)
            by_chance = shape != first_shape and may_differ and shape[1:] == first_shape[1:]
            if dtype == _EMPTY_LISTS and first_shape and isinstance(columns[name], Ragged):
                first[name] = shapes[name] = (None, *first_shape[1:]), first_dtype
            elif (first_dtype == _EMPTY_LISTS and shape) or by_chance:
                first[name] = shapes[name] = (None, *shape[1:]), dtype
                columns[name] = Ragged.of(columns[name])
        if shapes != first:
            names = sorted(n for n in {*shapes, *first} if shapes.get(n) != first.get(n))
            changed = {n: (first.get(n), shapes.get(n)) for n in names}
            raise DataError(
                f"item {item} of the iterable changed row shape or dtype; column -> (before, now): {changed}"
            )

    def _push_batch(self, columns: dict[str, Any]) -> None:
        item = self._item - 1
        lengths = {name: len(array) if array.ndim else 0 for name, array in columns.items()}
        if len(set(lengths.values())) != 1:
            raise DataError(f"the columns of item {item} of the iterable have different numbers of rows: {lengths}")
        self._check_shapes(columns, item)
        rows = next(iter(lengths.values()))
        skip, self._skip = self._skip, 0
        if rows <= skip:
            return
        batch = self._batch(columns, (Span(PARTITION, item, 0, rows - 1, item + 1),))
        self._push(batch.split(skip)[1] if skip else batch)

    def _push_single_rows(self, items: list[dict[str, Any]], first: int) -> None:
        names = dict.fromkeys(name for item in items for name in item)
        if self._holds_raw_rows:  # a value that a row lacks is missing
            items = [{name: item.get(name, _NOTHING) for name in names} for item in items]
        try:
            columns = {name: self._stack(name, [item[name] for item in items]) for name in names}
        except (KeyError, ValueError) as error:
            raise DataError(
                f"rows {first} to {self._item - 1} of the iterable differ in columns or shapes: {error}"
            ) from error
        self._check_shapes(columns, first)
        spans = tuple(Span(PARTITION, item, 0, 0, item + 1) for item in range(first, self._item))
        self._push(self._batch(columns, spans))

    def _stack(self, name: str, values: list[np.ndarray]) -> Any:
        """Stack single rows into a column; `Ragged` if list lengths ever differed."""
        kinds = {value.dtype.kind for value in values}
        mixes_text = len(kinds) > 1 and not kinds.isdisjoint("US")
        if mixes_text or (self._holds_raw_rows and len({(value.dtype.kind, value.shape) for value in values}) > 1):
            column = np.empty(len(values), object)  # NumPy would write numbers among texts as text, NaN too
            for row, value in enumerate(values):
                column[row] = value if value.ndim else value[()]
            return column
        filled = next((value.shape for value in values if value.size), values[0].shape)
        shape = (self._shapes or {}).get(name, (filled,))[0]
        is_list = shape and all(value.ndim and (not value.size or value.shape[1:] == shape[1:]) for value in values)
        if is_list and any(value.shape != shape or not value.size for value in values):
            return Ragged.of(values)
        return np.stack(values)

    def _batch(self, columns: dict[str, Any], spans: tuple[Span, ...]) -> Batch:
        times = None if self.event_time is None else event_times(columns[self.event_time], self.event_time)
        return Batch(columns, times, spans)

    def seek(self, position: Position) -> None:
        """Continue at `position`.

        Raises:
            StreamError: the source is a plain iterator that is already past the position, or it has too few items.
        """
        if position != self._position:
            self._read_from(position)

    def _go_back(self) -> None:
        if self._deferred_error is None:
            self._read_from(self._position)

    def _read_from(self, position: Position) -> None:
        cursor = cursors_of(self, position, (PARTITION,)).get(PARTITION, Cursor(0))
        item = int(cursor.offset)
        if self._is_one_shot and item < self._item:
            raise StreamError(
                f"this iterable is a plain iterator: it cannot go back from item {self._item} to {item}. Pass a "
                "function that returns a new iterator, or an object with state_dict() and load_state_dict()"
            )
        with self._seeking(position):
            self._clear()
            self._ended, self._deferred_error = False, None
            if self._stateful:
                self._restore_state(item, position.get(STATE))
            else:
                if not self._is_one_shot:
                    self._iterator, self._item = None, 0
                if self._iterator is None:
                    self._iterator = self._new_iterator()
                skipped = sum(1 for _ in islice(self._iterator, item - self._item))
                if skipped < item - self._item:
                    raise StreamError(f"the iterable has {self._item + skipped} items; the position is at item {item}")
            self._item, self._skip = item, cursor.row
            self._position = {PARTITION: cursor.to_json()}

    def _restore_state(self, item: int, state: Any) -> None:
        state = self._states.get(item) if state is None else state
        if state is None and item:
            raise StreamError(f"the position has no state of the iterable at item {item}; pass the result of resolve()")
        if state is not None:
            self._source.load_state_dict(state)
        self._iterator = None
        with self._lock:
            self._states = {} if state is None else {item: copy.deepcopy(state)}

    def resolve(self, position: Position) -> Position:
        """Return `position` with the source's state at that item, if it has states."""
        if not self._stateful or STATE in position:
            return position
        item = int(Cursor.of(position[PARTITION]).offset) if PARTITION in position else 0
        with self._lock:
            if item == self._item and item not in self._states:
                self._states[item] = copy.deepcopy(self._source.state_dict())
            if item not in self._states:
                raise StreamError(f"the state of the iterable at item {item} is no longer known")
            self._states = {number: state for number, state in self._states.items() if number >= item}
            return {**position, STATE: copy.deepcopy(self._states[item])}


def _holds_lists(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], list | tuple)
