"""`Embedding`: the cell that looks up raw ids."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype

from ...checks import choice, number, refuse, whole
from ...errors import ConfigurationError, DataError
from ...mindspore_internals.cell_structure import hide
from ...mindspore_internals.shared_memory import HostMirror
from ...mindspore_internals.traced_inputs import TracedInput
from ..tables.hashing import INITIALIZERS, UNSHARDED, Shards, initial_rows, stable_seed, to_ids
from ..tables.spec import DTYPES, Eviction, MinSightings, Probability, TableSpec
from ..tables.table import SparseTable
from .row_optimizer import RowOptimizer, rule_of

DENSE_ROWS = 1_000_000  # largest capacity for which mode "auto" takes a dense table
MODES = ("auto", "dense", "sparse")
INITIAL_SIZE = 64  # rows of a new working set

_serial = itertools.count()  # for preliminary names of unnamed tables


class WorkingSet:
    """The rows of a table or stack that a graph reads, shared by all of its cells."""

    reader: nn.Cell | None = None  # a `host_rows.ReadRows` that sums the gradients

    def __init__(self, name: str, dim: int) -> None:
        self.rows = _scratch(f"{name}.rows", (INITIAL_SIZE, dim))  # a training step's distinct rows; differentiated
        self.reading = _scratch(f"{name}.reading", (INITIAL_SIZE, dim))  # rows of a read-only chunk
        # in an indirect bundle (see `planning.layout`): the position of each id's row in `rows` and in `reading`
        self.step_map = _scratch(f"{name}.step_map", (INITIAL_SIZE,), mstype.int32)
        self.reading_map = _scratch(f"{name}.reading_map", (INITIAL_SIZE,), mstype.int32)
        self.token = _scratch(f"{name}.gradient_token", (1,))  # differentiated instead of `rows` if there is a reader
        self._mirrors: dict[str, HostMirror] = {}

    def mirror(self, name: str) -> HostMirror:
        """Return the host buffer of `rows`, `reading` or a map, which all Trainers share."""
        if name not in self._mirrors:
            self._mirrors[name] = HostMirror(getattr(self, name))
        return self._mirrors[name]


def _any_given(*options: Any) -> bool:
    return any(option is not None for option in options)


def _scratch(name: str, shape: tuple[int, ...], dtype: mstype = mstype.float32) -> Parameter:
    return Parameter(Tensor(np.zeros(shape), dtype), name=f"embedding.{name}", requires_grad=False)


class Embedding(nn.Cell):
    """Looks up vectors for raw ids: any integers, or strings that the Trainer hashes.

    In a network trained by `Trainer`, the cost of a step grows with the distinct ids of a batch, not with the table.
    Called outside a Trainer, the cell only reads: known ids return their rows, unknown ids the default row. A table
    sharded over several processes can only be read through their Trainers.

    Args:
        dim: length of a vector.
        capacity: maximum number of ids with their own row; None grows on demand. Up to 10**6, without admission,
            eviction, path and optimizer, mode "auto" takes an ordinary dense float32 parameter [capacity, dim] indexed
            by ids 0 to capacity - 1, because updating all of its rows costs less (measured).
        name: unique name of the table in snapshots; by default the attribute path of the cell in the network.
        column: name of the input column that this cell reads, where tracing the network cannot find it.
        table: another `Embedding` whose table this cell shares. It must have the same `dim` and `dtype`; other
            arguments of the table are ignored.
        optimizer: `RowOptimizer`; by default the one that matches the Trainer's dense optimizer.
        initializer: "normal", "uniform" or "zeros".
        scale: standard deviation ("normal") or bound ("uniform") of the initial values.
        admission: decides which new ids get a row: `MinSightings`, `Probability`, or None for all of them.
        eviction: decides which ids lose their row: `Eviction`, "lru", "lfu", or None. With None, ids that find the
            table full share the default row.
        mode: "auto", "dense" or "sparse"; see `capacity`.
        padding: id that marks a missing value and gives zeros, or None.
        seed: seed of the initial values, which depend only on this seed, the table's name and the id.
        path: file to keep the rows in, for tables larger than memory.
        dtype: "float32", or "float16": a weight takes 2 bytes in a sparse table and its snapshots. A step computes in
            float32 and rounds at random to one of the two nearest values, so that small updates add up. Weights beyond
            65,504 are clipped to it. The row optimizer's state stays float32.

    Inputs:
        ids: integer tensor of any shape.

    Outputs:
        Tensor [*ids.shape, dim]: float32, or in a Trainer at amp level O2 or O3 the level's dtype, as with
        `nn.Embedding`.

    Raises:
        ConfigurationError: an argument is invalid; the message says what is accepted.
    """

    dim: int
    has_padding: bool
    padding: int
    is_dense: bool
    weight: Parameter
    probe: list[tuple[Embedding, np.ndarray, bool]] | None  # collects ids while `tracing` runs the network

    def __init__(
        self,
        dim: int,
        capacity: int | None = None,
        *,
        name: str | None = None,
        column: str | None = None,
        table: Embedding | None = None,
        optimizer: RowOptimizer | None = None,
        initializer: str = "normal",
        scale: float = 0.01,
        admission: MinSightings | Probability | None = None,
        eviction: Eviction | str | None = None,
        mode: str = "auto",
        padding: int | None = None,
        seed: int = 0,
        path: str | Path | None = None,
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        whole("dim", dim)
        whole("capacity", capacity, optional=True)
        choice("mode", mode, MODES)
        choice("initializer", initializer, INITIALIZERS)
        choice("dtype", dtype, DTYPES)
        if optimizer is not None and not isinstance(optimizer, RowOptimizer):
            refuse("optimizer", "a RowOptimizer (RowAdam, RowAdagrad, RowFTRL, RowSGD) or None", optimizer)
        if admission is not None and not isinstance(admission, MinSightings | Probability):
            refuse("admission", "MinSightings, Probability or None", admission)
        if eviction is not None and not isinstance(eviction, Eviction | str):
            refuse("eviction", "Eviction, 'lru', 'lfu' or None", eviction)
        number("scale", scale, minimum=0, below=math.inf)
        whole("padding", padding, -(2**63), maximum=2**63 - 1, optional=True)
        if table is not None and not isinstance(table, Embedding):
            refuse("table", "another Embedding, whose table is shared, or None", table)
        if mode == "dense" and table is None and _any_given(admission, eviction, path, optimizer):
            rule = None if optimizer is None else type(optimizer).__name__
            raise ConfigurationError(
                "mode='dense' makes an ordinary parameter, which has no admission, eviction or path, and which the "
                f"Trainer's optimizer updates; received admission={admission!r}, eviction={eviction!r}, path={path!r}, "
                f"optimizer={rule}; mode='sparse' takes them"
            )
        if table is not None and table.dim != dim:
            raise ConfigurationError(f"dim must be that of the shared table, {table.dim}; received {dim}")
        if table is not None and dtype not in ("float32", table.spec.dtype):
            raise ConfigurationError(
                f"dtype must be that of the shared table, {table.spec.dtype!r}; received {dtype!r}"
            )
        self.dim = dim
        self.column = column
        self.reading = False
        self.indirect = False
        self.probe = None
        self.compute_dtype = None  # `trainer.graph.precision` sets it
        if table is not None:
            self._share(table)
            return
        # `name_by_path` later names an unnamed sparse table after its cell's path in the network.
        hide(self, "is_unnamed", name is None)
        name = name or f"embedding_{next(_serial)}"
        eviction = Eviction(eviction) if isinstance(eviction, str) else eviction
        path = None if path is None else str(path)
        spec = TableSpec(name, dim, capacity, initializer, scale, seed, admission, eviction, padding, True, path, dtype)
        hide(self, "row_optimizer", optimizer)
        self._create(spec, mode)

    def _create(self, spec: TableSpec, mode: str) -> None:
        """Create the table: an ordinary parameter, or a working set for rows on the host."""
        capacity, eviction = spec.capacity, spec.eviction
        self.has_padding = spec.padding is not None
        self.padding = spec.padding or 0
        if eviction is not None and eviction.when_full is not None and capacity is None and eviction.ttl is None:
            raise ConfigurationError(f"eviction {eviction.when_full!r} needs a capacity; received capacity=None")
        needs_sparse = _any_given(spec.admission, eviction, spec.path, self.row_optimizer) or spec.dtype != "float32"
        fits_dense = capacity is not None and capacity <= DENSE_ROWS and not needs_sparse
        self.is_dense = mode == "dense" or (mode == "auto" and fits_dense)
        if self.is_dense and spec.dtype != "float32":
            raise ConfigurationError(
                f"dtype={spec.dtype!r} needs mode='sparse' or 'auto', because a dense table is a float32 parameter; "
                "received mode='dense'"
            )
        if self.is_dense and capacity is None:
            raise ConfigurationError("mode='dense' needs a capacity, the number of rows; received capacity=None")
        hide(self, "spec", spec)
        hide(self, "preset", None)  # (ids, vectors) of `from_pretrained`
        hide(self, "host", SimpleNamespace(table=None, optimizer=None, awaits_rows=False))  # of all its cells
        if self.is_dense:
            assert capacity is not None
            seed = stable_seed(spec.seed, spec.name)
            values = initial_rows(np.arange(capacity), spec.dim, seed, spec.initializer, spec.scale)
            self.weight = Parameter(Tensor(values), name="weight")
        else:
            # A run may switch the cell to a working set shared with other tables; keep the private one.
            hide(self, "own_working_set", WorkingSet(spec.name, spec.dim))
            self.adopt(self.own_working_set, False)

    def _share(self, other: Embedding) -> None:
        self.has_padding, self.padding, self.is_dense = other.has_padding, other.padding, other.is_dense
        for attribute in ("spec", "row_optimizer", "preset", "host", "is_unnamed"):
            hide(self, attribute, getattr(other, attribute))
        if self.is_dense:
            self.weight = other.weight
        else:
            hide(self, "own_working_set", other.own_working_set)
            self.adopt(other.working_set, False)

    def adopt(self, working_set: WorkingSet, indirect: bool, vectors: Parameter | None = None) -> None:
        """Read from `working_set`; translate positions if `indirect`.

        With `vectors`, float32 [batch, dim], a training step returns this parameter; `ColumnReads` sets its values.
        """
        self.reads_column = vectors is not None
        hide(self, "column_vectors", vectors)
        self.indirect = indirect
        hide(self, "working_set", working_set)
        for attribute in ("rows", "reading", "step_map", "reading_map", "token"):
            hide(self, f"working_{attribute}", getattr(working_set, attribute))
        self.has_reader = working_set.reader is not None
        hide(self, "reader", working_set.reader)
        if (group := self.__dict__.get("group")) is not None:
            group.refresh()

    @classmethod
    def from_pretrained(
        cls,
        vectors: np.ndarray | Tensor,
        ids: Sequence[int] | Sequence[str] | np.ndarray | None = None,
        trainable: bool = True,
        **options: Any,
    ) -> Embedding:
        """Return a table initialized with the given vectors.

        Args:
            vectors: numbers [n, dim].
            ids: the n ids, integers or strings; by default 0 to n - 1.
            trainable: False keeps every vector as given; unknown ids then read the default row of zeros.
            options: further arguments of the constructor.

        Raises:
            ConfigurationError: shapes do not match, or ids repeat.
        """
        values = vectors.asnumpy() if isinstance(vectors, Tensor) else np.asarray(vectors)
        if values.ndim != 2 or values.dtype.kind not in "fiu" or 0 in values.shape:
            refuse("vectors", "numbers of shape [n, dim]", f"{values.dtype} of shape {values.shape}")
        values = np.ascontiguousarray(values, np.float32)
        keys = np.arange(len(values)) if ids is None else to_ids(np.asarray(ids))
        if keys.shape != (len(values),):
            raise ConfigurationError(
                f"ids must be one for each of the {len(values)} vectors; received shape {keys.shape}"
            )
        if len(np.unique(keys)) != len(keys):
            raise ConfigurationError("ids must be distinct; some occur more than once")
        options.setdefault("mode", "sparse")
        cell = cls(values.shape[1], **options)
        if cell.is_dense:
            raise ConfigurationError("from_pretrained takes mode='sparse' (or 'auto' without a capacity)")
        cell.spec.trainable = trainable
        hide(cell, "preset", (keys.astype(np.int64), values))
        return cell

    def __call__(self, ids):
        """Read rows outside a graph; see the class."""
        if self.probe is not None:
            # Copy: the tensor's view is only valid during the run.
            self.probe.append((self, np.array(ids.asnumpy()), isinstance(ids, TracedInput)))
            return ops.zeros((*ids.shape, self.dim), mstype.float32)
        return super().__call__(ids) if self.is_dense else self._read(ids)

    def _read(self, ids: Tensor) -> Tensor:
        ids = ids.asnumpy()
        if ids.dtype.kind not in "iu":
            raise DataError(f"ids must be integers; received {ids.dtype}")
        if self.host.awaits_rows:
            raise DataError(
                f"table {self.spec.name!r}: the rows of the snapshot that was loaded are restored with the first data, "
                "which shows the columns that feed the tables; call fit, evaluate or predict first"
            )
        flat = ids.reshape(-1).astype(np.int64)
        table = self.host_table()
        if table.shards.size > 1:
            raise DataError(
                f"table {self.spec.name!r} is divided among {table.shards.size} processes, and this one has a part of "
                "its rows; to read all of it, call Trainer.predict on all processes"
            )
        padding = None if self.spec.padding is None else flat == self.spec.padding
        rows = table.lookup(flat, padding)
        values = np.zeros((len(rows), self.dim), np.float32)
        table.store.read_part(np.maximum(rows, 0), values)
        values[rows < 0] = 0
        return Tensor(values.reshape(*ids.shape, self.dim))

    def host_table(self, optimizer: RowOptimizer | None = None, shards: Shards | None = None) -> SparseTable:
        """Return the host table, created on the first call with `optimizer`'s slots.

        A table created before its optimizer was known is rebuilt and keeps its weights. `shards` sets the rows that
        this process owns; None keeps them.
        """
        table = self.host.table
        resharded = table is not None and shards is not None and shards != table.shards
        if table is None or resharded or (optimizer is not None and self.host.optimizer is None):
            slots = np.zeros(0, np.float32)
            if optimizer is not None and self.spec.trainable:
                slots = optimizer.first_slots(self.dim)
            contents = [self.preset]
            if table is None:
                self.host.table = SparseTable(self.spec, slots, shards or UNSHARDED)
            else:
                contents.append(table.rebuild(slots, shards or table.shards))
            self.host.optimizer = optimizer
            if optimizer is not None and self.spec.trainable:
                self.host.table.rule = rule_of(optimizer)
            for ids_and_vectors in filter(None, contents):
                self.host.table.put(*ids_and_vectors)
        return self.host.table

    def row_positions(self, positions):
        """Map positions in a chunk's column to positions in the working set; graph code.

        Position 0 is padding.
        """
        if not self.indirect:
            return positions
        return ops.gather(self.working_reading_map if self.reading else self.working_step_map, positions, 0)

    def vectors(self, positions):
        """Return the vectors at `positions` of the working set; graph code."""
        if self.reading:
            return ops.gather(self.working_reading, positions, 0)
        if self.has_reader:
            return self.reader(self.working_rows, positions, self.working_token)
        return ops.gather(self.working_rows, positions, 0)

    def construct(self, ids):
        """Return the vectors of `ids`, [*ids.shape, dim]."""
        if self.is_dense:
            return self.lowered(self._dense(ids))
        if self.reads_column and not self.reading:
            return self.lowered(self.column_vectors)
        positions = self.row_positions(ids)
        vectors = self.vectors(positions)
        if self.has_padding:
            # Keep the gradient out of the row of zeros.
            vectors = vectors * ops.cast(ops.expand_dims(positions != 0, -1), mstype.float32)
        return self.lowered(vectors)

    def lowered(self, vectors):
        """Cast `vectors` to the compute dtype of the amp level; graph code."""
        return vectors if self.compute_dtype is None else ops.cast(vectors, self.compute_dtype)

    def _dense(self, ids):
        if not self.has_padding:
            return ops.gather(self.weight, ids, 0)
        present = ids != self.padding
        vectors = ops.gather(self.weight, ops.select(present, ids, ops.zeros_like(ids)), 0)
        return vectors * ops.cast(ops.expand_dims(present, -1), mstype.float32)

    def extend_repr(self) -> str:
        """Return the arguments that identify the table."""
        kind = "dense" if self.is_dense else "sparse"
        return f"{self.spec.name!r}, dim={self.dim}, capacity={self.spec.capacity}, {kind}"
