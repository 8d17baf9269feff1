"""Which elements of which input column feed which table: found by running the network once on marked ids."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from ..errors import ConfigurationError, did_you_mean
from ..mindspore_internals.eager_mode import operator_by_operator
from ..mindspore_internals.messages import gist
from ..mindspore_internals.patched_methods import zeros_for_any_id
from .embedding_cells import embedding_cells
from .hashing import to_ids
from .layers import Embedding

_logger = logging.getLogger(__name__)
_ROWS = 2
_FIRST_MARKER = 1_000_000_007
_MAX_LATE_FAILURES = 100  # operators of one eager run that may fail after it


@dataclass
class Component:
    """Tables that read common elements, and all elements they read.

    Attributes:
        specs: index of each table.
        parts: (column, elements) pairs; `elements` are flat indices into a row of the column, None for all of them.
        reads: one bool mask [elements of all parts] a table: which elements it reads.
    """

    specs: list[int]
    parts: list[tuple[int, np.ndarray | None]]
    reads: list[np.ndarray]

    @property
    def indirect(self) -> bool:
        """Whether positions are those of ids, not of rows, because several tables share them."""
        return len(self.specs) > 1


@dataclass
class FieldMap:
    """The result of `find_fields`.

    Attributes:
        components: groups of sparse tables.
        dense: (column, elements, capacity, padding or None, table name) of ordinary dense embeddings, for range checks;
            `elements` as in `Component.parts`.
        repeated: tables one cell of which reads more than once in a run of the network.
    """

    components: list[Component] = field(default_factory=list)
    dense: list[tuple[int, np.ndarray | None, int, int | None, str]] = field(default_factory=list)
    repeated: set[int] = field(default_factory=set)

    def to_json(self) -> list[dict]:
        """Return the components as JSON."""
        return [
            {
                "specs": component.specs,
                "parts": [[column, None if chosen is None else chosen.tolist()] for column, chosen in component.parts],
                "reads": [mask.tolist() for mask in component.reads],
            }
            for component in self.components
        ]

    @classmethod
    def from_json(cls, components: list[dict]) -> FieldMap:
        """Return what `to_json` was called on, without the dense tables."""
        return cls(
            [
                Component(
                    one["specs"],
                    [(column, None if chosen is None else np.array(chosen)) for column, chosen in one["parts"]],
                    [np.array(mask, np.bool_) for mask in one["reads"]],
                )
                for one in components
            ]
        )


def find_fields(network: nn.Cell, columns: Sequence[np.ndarray], names: Sequence[str] = ()) -> FieldMap:
    """Find out which elements of the input columns reach which embedding cell.

    The network runs once, eagerly, on two rows whose integers are all different; an embedding cell must receive some of
    them unchanged. Slicing, reshaping, stacking and transposing are fine. Cells with a `field` need no tracing.

    Args:
        network: network that contains the cells.
        columns: one sample batch of the network's inputs, [batch, ...] each.
        names: names of the columns, for `field` and for messages.

    Raises:
        ConfigurationError: a cell's ids cannot be traced to an input column, or a `field` does not exist.
    """
    cells = embedding_cells(network)
    tables = {id(cell.spec): cell for cell in cells}
    keys = list(tables)
    shapes = [np.asarray(column).shape[1:] for column in columns]
    owners: list[list[set[int]]] = [[set() for _ in range(int(np.prod(shape)))] for shape in shapes]
    for cell in cells:
        for name in _fields_of(cell):
            if name not in names:
                hint = did_you_mean(name, names)
                raise ConfigurationError(f"field {name!r} is no input column; columns are {', '.join(names)}{hint}")
            for element in owners[list(names).index(name)]:
                element.add(keys.index(id(cell.spec)))
    traced = [cell for cell in cells if cell.field is None]
    # a cell with one `field` is taken to read it once, where nothing is traced
    repeated = {id(cell) for cell in cells if len(_fields_of(cell)) > 1}
    if traced:
        repeated |= _trace(network, traced, cells, columns, names, owners, keys)
    found = _group([tables[key] for key in keys], owners, names)
    found.repeated = {keys.index(id(cell.spec)) for cell in cells if id(cell) in repeated}
    return found


def _fields_of(cell: Embedding) -> tuple[str, ...]:
    if cell.field is None:
        return ()
    return (cell.field,) if isinstance(cell.field, str) else tuple(cell.field)


def _trace(network, traced, cells, columns, names, owners, keys) -> set[int]:
    """Fill in `owners`; return the ids of the cells that read more than once in a run."""
    sample = [_sample(np.asarray(column)) for column in columns]
    candidates = [i for i, column in enumerate(sample) if column.dtype.kind in "iuUSO"]
    if not candidates and any(not cell.is_dense for cell in traced):
        raise ConfigurationError("the network has embedding cells, but no input column holds integers or strings")
    marked = _mark(sample, candidates)
    starts = {i: int(marked[i].flat[0]) for i in candidates}
    received, failure = run_traced(network, cells, marked)
    strict = failure is None
    repeated = _repeated(received)
    if not strict:
        # Some column may hold lengths or indices that cannot take a marker: then mark one column at a time.
        for candidate in candidates:
            alone = [marked[i] if i == candidate else to_plain(sample[i]) for i in range(len(sample))]
            seen, error = run_traced(network, cells, alone)
            received += seen
            repeated |= _repeated(seen)
            if error is not None:
                _logger.debug("tracing ids of column %d failed: %s", candidate, error)
    reached: set[int] = set()
    for cell, values in received:
        hits = 0
        flat = values.reshape(-1)
        for i in candidates:
            offsets = flat.astype(np.int64) - starts[i]
            inside = (offsets >= 0) & (offsets < marked[i].size)
            hits += int(inside.sum())
            if cell.field is None:
                for element in set((offsets[inside] % max(1, marked[i].size // _ROWS)).tolist()):
                    owners[i][element].add(keys.index(id(cell.spec)))
        if strict and hits < len(flat) and cell.field is None and not cell.is_dense:
            raise ConfigurationError(_untraceable(cell, names))
        if hits:
            reached.add(id(cell))
    for cell in traced:
        # a dense table may be fed with anything that is in range
        if id(cell) not in reached and not cell.is_dense:
            text = _untraceable(cell, names)
            raise ConfigurationError(
                text if failure is None else f"{text}; the trial run failed with: {gist(str(failure))}"
            )
    return repeated


def _repeated(received: list[tuple]) -> set[int]:
    counts = Counter(id(cell) for cell, _ in received)
    return {cell for cell, count in counts.items() if count > 1}


def _untraceable(cell: Embedding, names: Sequence[str]) -> str:
    columns = f" (columns: {', '.join(names)})" if names else ""
    return (
        f"the ids that {type(cell).__name__} {cell.spec.name!r} receives do not come unchanged from an input column"
        f"{columns}. Feed it raw ids, sliced or reshaped but not computed with, or name the column: "
        f"{type(cell).__name__}({cell.dim}, field='...')"
    )


def _sample(column: np.ndarray) -> np.ndarray:
    return (
        np.concatenate([column] * _ROWS)[:_ROWS] if len(column) else np.zeros((_ROWS, *column.shape[1:]), column.dtype)
    )


def to_plain(column: np.ndarray) -> np.ndarray:
    """Return `column` as something a tensor can hold: strings as hashed int64 ids."""
    return to_ids(column) if column.dtype.kind in "USO" else column


def _mark(sample: list[np.ndarray], candidates: list[int]) -> list[np.ndarray]:
    marked, start = list(sample), _FIRST_MARKER
    for i in candidates:
        dtype = np.int64 if sample[i].dtype.kind in "USO" or sample[i].dtype.itemsize == 8 else np.int32
        marked[i] = np.arange(start, start + sample[i].size, dtype=dtype).reshape(sample[i].shape)
        start += sample[i].size
    return marked


def run_traced(
    network: nn.Cell, cells: Sequence[Embedding], columns: Sequence[np.ndarray]
) -> tuple[list, Exception | None]:
    """Run the network eagerly in inference mode.

    Returns:
        (cell, ids) for every call of an embedding cell, up to the failure if there is one; the failure or None.
    """
    received: list[tuple] = []
    failure: Exception | None = None
    training = [(cell, cell.training) for _, cell in network.cells_and_names()]
    # A cell in low precision that fails leaves MindSpore casting whatever runs eagerly after it.
    precision = [(cell, cell.mixed_precision_type) for cell, _ in training]
    # `trainer.graph.precision.CastOutput` has a `cast_dtype`
    casts = [(cell, cell.cast_dtype) for cell, _ in training if "cast_dtype" in vars(cell)]
    mode = network.training
    for cell, _ in precision:
        cell.mixed_precision_type = None
    for cell, _ in casts:
        cell.cast_dtype = mstype.float32
    for cell in cells:
        cell.probe = received
    network.set_train(False)
    try:
        with operator_by_operator(), zeros_for_any_id(cell for cell, _ in training):
            outputs = network.construct(*(Tensor(column) for column in columns))
            for output in outputs if isinstance(outputs, tuple | list) else (outputs,):
                if isinstance(output, Tensor):
                    output.asnumpy()
    except Exception as error:
        failure = error
    finally:
        _await_operators()
        for cell in cells:
            cell.probe = None
        network.set_train(mode)
        for cell, flag in training:
            cell.add_flags(training=flag)
        for cell, kind in precision:
            cell.mixed_precision_type = kind
        for cell, dtype in casts:
            cell.cast_dtype = dtype
    return received, failure


def _await_operators() -> None:
    """Wait for eager operators still under way, so that their failures do not surface in what runs next."""
    for _ in range(_MAX_LATE_FAILURES):
        try:
            # the queue is first in, first out: what answers here comes after everything else
            (ops.zeros((1,), mstype.float32) + 1).asnumpy()
        except RuntimeError as error:
            _logger.debug("a failure that came late: %s", error)
        else:
            return


def _group(tables: list[Embedding], owners, names: Sequence[str]) -> FieldMap:
    result = FieldMap()
    parent = list(range(len(tables)))

    def root(table: int) -> int:
        while parent[table] != table:
            table = parent[table]
        return table

    for column, elements in enumerate(owners):
        for element in elements:
            if len(element) > 1 and len({tables[t].is_dense for t in element}) > 1:
                dense, sparse = sorted(element, key=lambda t: not tables[t].is_dense)[:2]
                name = names[column] if column < len(names) else f"number {column}"
                raise ConfigurationError(
                    f"column {name} feeds the dense table {tables[dense].spec.name!r} and the sparse table "
                    f"{tables[sparse].spec.name!r}; give both the same mode, e.g. mode='sparse'"
                )
            for table in element:
                parent[root(table)] = root(min(element))
    groups: dict[int, list[int]] = {}
    for table in range(len(tables)):
        groups.setdefault(root(table), []).append(table)
    for members in groups.values():
        parts: list[tuple[int, np.ndarray | None]] = []
        reads: list[list[bool]] = [[] for _ in members]
        for column, elements in enumerate(owners):
            chosen = [i for i, element in enumerate(elements) if element & set(members)]
            if not chosen:
                continue
            for mask, member in zip(reads, members, strict=True):
                mask.extend(member in elements[i] for i in chosen)
            whole = len(chosen) == len(elements)
            parts.append((column, None if whole else np.array(chosen)))
        if tables[members[0]].is_dense:
            for column, chosen in parts:
                capacity = min(tables[m].spec.capacity for m in members)
                name = tables[members[0]].spec.name
                padding = tables[members[0]].spec.padding
                result.dense.append((column, chosen, capacity, padding, name))
        else:
            result.components.append(Component(members, parts, [np.array(mask, np.bool_) for mask in reads]))
    return result
