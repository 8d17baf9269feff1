"""Trace which input elements feed which table, by running the network on markers."""

from __future__ import annotations

import itertools
import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from mindspore import Tensor, nn
from mindspore import dtype as mstype

from ...errors import ConfigurationError, did_you_mean
from ...mindspore_internals.cell_structure import cells_and_names, zeros_for_any_id
from ...mindspore_internals.dict_networks import by_position
from ...mindspore_internals.execution import eager_mode, wait_for_operators
from ...mindspore_internals.messages import main_message
from ...mindspore_internals.traced_inputs import TracedInput, differs_in_training, record_branches
from ..planning.layout import ColumnElement, ColumnPart, Component, DenseField, FieldMap
from ..tables.hashing import hash_text
from .embedding import Embedding
from .embedding_cells import embedding_cells, head_cells

_logger = logging.getLogger(__name__)
Readers = list[list[set[int]]]  # for each column and each element of its rows, the tables that read it
Read = tuple[Embedding, np.ndarray, bool]  # (cell, ids that it was called with, whether these are a network input)
_ROWS = 2  # rows of the marked sample
_FIRST_MARKER = 1_000_000_007  # large, so that other numbers in the network are rarely taken for markers


def find_fields(network: nn.Cell, columns: Sequence[np.ndarray], names: Sequence[str] = ()) -> FieldMap:
    """Find which elements of the input columns reach which embedding cell.

    The network runs once, eagerly, on two rows of distinct integers, the markers. A cell with a sparse table must
    receive only markers: the network may slice, reshape, stack and transpose its ids, but not compute with them. A cell
    with a dense table may receive computed ids. Cells with a `column` need no tracing.

    Args:
        network: network that contains the cells.
        columns: one sample batch of the network's inputs, [batch, ...] each.
        names: names of the columns, for `column` and for messages.

    Raises:
        ConfigurationError: a cell's ids cannot be traced to an input column, or a `column` does not exist.
    """
    cells = embedding_cells(network)
    heads = head_cells(cells)
    index_of = {id(cell.spec): index for index, cell in enumerate(heads)}
    shapes = [np.asarray(column).shape[1:] for column in columns]
    readers: Readers = [[set() for _ in range(math.prod(shape))] for shape in shapes]
    for cell in cells:
        if cell.column is None:
            continue
        if cell.column not in names:
            hint = did_you_mean(cell.column, names)
            raise ConfigurationError(
                f"Embedding(column={cell.column!r}) is not an input column; columns are {', '.join(names)}{hint}"
            )
        for element in readers[list(names).index(cell.column)]:
            element.add(index_of[id(cell.spec)])
    # A cell that is not traced is assumed to read its `column` once.
    traced = any(cell.column is None for cell in cells)
    repeated, unchanged = _trace(network, cells, columns, names, readers, index_of) if traced else (set(), {})
    unread = {index for index, elements in enumerate(readers) if not any(elements)}
    texts = {index for index in unread if np.asarray(columns[index]).dtype.kind in "USO"}
    for index in sorted(texts & set(range(len(names)))):
        text = "column %r: no table reads it, so the network receives the hashes of its texts, which are integers"
        _logger.warning(text, names[index])
    fields = _group_tables(heads, readers, names)
    fields.numbers = unread - texts
    fields.unchanged = unchanged
    fields.names = tuple(names)
    fields.repeated = {index_of[id(cell.spec)] for cell in cells if id(cell) in repeated}
    return fields


def _trace(
    network: nn.Cell,
    cells: Sequence[Embedding],
    columns: Sequence[np.ndarray],
    names: Sequence[str],
    readers: Readers,
    index_of: Mapping[int, int],
) -> tuple[set[int], dict[int, ColumnElement]]:
    """Fill `readers` for cells without a `column`.

    Returns the id() of each cell that is called more than once, and `FieldMap.unchanged`.
    """
    traced = [cell for cell in cells if cell.column is None]
    sample = [np.resize(column, (_ROWS, *column.shape[1:])) for column in map(np.asarray, columns)]
    candidates = [i for i, column in enumerate(sample) if column.dtype.kind in "iuUSO"]
    hint = _float_ids(columns, names)
    if not candidates and (hint or any(not cell.is_dense for cell in traced)):
        raise ConfigurationError(f"the network has embedding cells, but no input column holds integers or text{hint}")
    marked = _marked_sample(sample, candidates)
    starts = {i: int(marked[i].flat[0]) for i in candidates}
    with record_branches() as branches:
        received, failure = run_traced(network, cells, marked)
    runs = [received]
    if failure is not None:
        # The network may fail on markers in a column of lengths or indices, so mark one column at a time.
        for candidate in candidates:
            one_marked = [marked[i] if i == candidate else hash_text(sample[i]) for i in range(len(sample))]
            received, error = run_traced(network, cells, one_marked)
            runs.append(received)
            if error is not None:
                _logger.debug("tracing ids of column %d failed: %s", candidate, error)
    reached: set[int] = set()
    for cell, values, _ in itertools.chain(*runs):
        if cell.column is not None:
            continue
        hits = 0
        flat = values.reshape(-1)
        for i in candidates:
            offsets = flat.astype(np.int64) - starts[i]
            inside = (offsets >= 0) & (offsets < marked[i].size)
            hits += int(inside.sum())
            for element in set((offsets[inside] % max(1, marked[i].size // _ROWS)).tolist()):
                readers[i][element].add(index_of[id(cell.spec)])
        if failure is None and hits < len(flat) and not cell.is_dense:
            raise ConfigurationError(_untraceable(cell, names) + hint)
        if hits:
            reached.add(id(cell))
    for cell in traced:
        # A dense table may read computed ids.
        if id(cell) not in reached and not cell.is_dense:
            reason = "" if failure is None else f"; the trial run failed with: {main_message(str(failure))}"
            raise ConfigurationError(_untraceable(cell, names) + hint + reason)
    counts = (Counter(id(cell) for cell, *_ in received) for received in runs)
    unchanged = {}
    if failure is None and not branches and not differs_in_training(network):
        unchanged = _unchanged_elements(received, marked, starts)
    return {cell for count in counts for cell in count if count[cell] > 1}, unchanged


def _unchanged_elements(
    received: Sequence[Read], marked: Sequence[np.ndarray], starts: Mapping[int, int]
) -> dict[int, ColumnElement]:
    """Return the one column element that a cell reads from every row, by id() of cell."""
    elements = {}
    for cell, values, is_input in received:
        if not is_input or values.shape != (_ROWS,):
            continue
        for column, start in starts.items():
            width = marked[column].size // _ROWS
            first, second = (int(value) - start for value in values)
            if 0 <= first < width and second == first + width:
                elements[id(cell)] = ColumnElement(column, first)
    return elements


def _float_ids(columns: Sequence[np.ndarray], names: Sequence[str]) -> str:
    """Describe an id column that is float because of NaN, or return "" if none is."""
    for column, name in zip(columns, names, strict=False):
        values = np.asarray(column)
        missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(1, bool)
        if missing.any() and (missing | (values == values.round())).all():
            return (
                f"; column {name!r} is {values.dtype} with NaN in row {np.argwhere(missing)[0][0]} of the batch: give "
                f"missing ids their own id, frame[{name!r}].fillna(0).astype('int64')"
            )
    return ""


def _untraceable(cell: Embedding, names: Sequence[str]) -> str:
    columns = f" (columns: {', '.join(names)})" if names else ""
    return (
        f"the ids that {type(cell).__name__} {cell.spec.name!r} receives do not come unchanged from an input column"
        f"{columns}. Feed it raw ids, sliced or reshaped but not computed with, or name the column: "
        f"{type(cell).__name__}({cell.dim}, column='...')"
    )


def _marked_sample(sample: list[np.ndarray], candidates: list[int]) -> list[np.ndarray]:
    marked, start = list(sample), _FIRST_MARKER
    for i in candidates:
        dtype = np.int64 if sample[i].dtype.kind in "USO" or sample[i].dtype.itemsize == 8 else np.int32
        marked[i] = np.arange(start, start + sample[i].size, dtype=dtype).reshape(sample[i].shape)
        start += sample[i].size
    return marked


def run_traced(
    network: nn.Cell, cells: Sequence[Embedding], columns: Sequence[np.ndarray]
) -> tuple[list[Read], Exception | None]:
    """Run the network eagerly in inference mode.

    Returns a `Read` for every call of an embedding cell before any failure, and the exception or None.
    """
    received: list[Read] = []
    failure: Exception | None = None
    training = [(cell, cell.training) for _, cell in cells_and_names(network)]
    # Run in float32: if a low-precision cell fails, MindSpore keeps casting everything that runs eagerly. `cast_dtype`
    # is an attribute of `trainer.graph.precision.CastOutput`.
    full_precision = {"mixed_precision_type": None, "cast_dtype": mstype.float32}
    saved = [(cell, name, getattr(cell, name)) for cell, _ in training for name in full_precision if name in vars(cell)]
    mode = network.training
    for cell, name, _ in saved:
        setattr(cell, name, full_precision[name])
    for cell in cells:
        cell.probe = received
    network.set_train(False)
    try:
        with eager_mode(), zeros_for_any_id(cell for cell, _ in training):
            outputs = by_position(network).construct(*(TracedInput(column) for column in columns))
            for output in outputs if isinstance(outputs, tuple | list) else (outputs,):
                if isinstance(output, Tensor):
                    output.asnumpy()
    except Exception as error:
        failure = error
    finally:
        wait_for_operators()
        for cell in cells:
            cell.probe = None
        network.set_train(mode)
        for cell, flag in training:
            cell.add_flags(training=flag)
        for cell, name, value in saved:
            setattr(cell, name, value)
    return received, failure


def _group_tables(tables: list[Embedding], readers: Readers, names: Sequence[str]) -> FieldMap:
    """Group tables that share elements into the components of a `FieldMap`."""
    result = FieldMap()
    parent = list(range(len(tables)))

    def root(table: int) -> int:
        while parent[table] != table:
            table = parent[table]
        return table

    for column, elements in enumerate(readers):
        for reading in elements:
            if len({tables[t].is_dense for t in reading}) > 1:
                dense, sparse = sorted(reading, key=lambda t: not tables[t].is_dense)[:2]
                name = names[column] if column < len(names) else f"number {column}"
                raise ConfigurationError(
                    f"column {name} feeds the dense table {tables[dense].spec.name!r} and the sparse table "
                    f"{tables[sparse].spec.name!r}; give both the same mode, e.g. mode='sparse'"
                )
            for table in reading:
                parent[root(table)] = root(min(reading))
    connected: dict[int, list[int]] = {}
    for table in range(len(tables)):
        connected.setdefault(root(table), []).append(table)
    for members in connected.values():
        parts: list[ColumnPart] = []
        reads: list[list[bool]] = [[] for _ in members]
        for column, elements in enumerate(readers):
            indices = [i for i, reading in enumerate(elements) if reading & set(members)]
            if not indices:
                continue
            for mask, member in zip(reads, members, strict=True):
                mask.extend(member in elements[i] for i in indices)
            parts.append(ColumnPart(column, None if len(indices) == len(elements) else np.array(indices)))
        if tables[members[0]].is_dense:
            result.dense += _dense_fields([(m, tables[m]) for m in members], readers)
        else:
            result.components.append(Component(members, parts, [np.array(mask, np.bool_) for mask in reads]))
    return result


def _dense_fields(tables: Sequence[tuple[int, Embedding]], readers: Readers) -> list[DenseField]:
    """Return the elements that each of the dense tables reads."""
    fields = []
    for number, cell in tables:
        spec = cell.spec
        assert spec.capacity is not None
        for column, elements in enumerate(readers):
            indices = [i for i, reading in enumerate(elements) if number in reading]
            if indices:
                part = ColumnPart(column, None if len(indices) == len(elements) else np.array(indices))
                fields.append(DenseField(part, spec.capacity, spec.padding, spec.name))
    return fields
