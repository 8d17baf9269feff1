"""Train a stack's rows in place in the host tables, with CPU kernels.

The rows of a chunk are neither copied into the graph nor written back. In each step the graph reads the weights of the
distinct rows and returns their gradients. The code in between (loss scale, skipped steps, clipping, accumulation) is
the same as for dense parameters.

All cells of a stack add their row gradients to one array. MindSpore instead computes the gradient of every `gather` as
an array of all rows and adds these arrays. With a cell for each of 26 tables that takes most of a step, and the cost
grows with the square of the number of cells. Here the backward pass of each read adds to the shared array and returns a
token. A data dependency on all tokens makes the graph read the array last.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype

from ...mindspore_internals.cell_structure import hide
from ...mindspore_internals.python_operators import operator
from ..planning.layout import ColumnElement
from ..planning.sparse_plan import TablePlan
from ..tables import kernels
from ..tables.kernels import ROW_BITS, RowKernel
from ..tables.table_rows import TableRows
from .embedding import Embedding
from .row_optimizer import RowOptimizer
from .stack_program import StackProgram


def find_kernel(optimizer: RowOptimizer) -> tuple[RowKernel, tuple[float, ...]] | None:
    """Return the kernel of a row optimizer and its hyperparameters, or None."""
    defined = vars(type(optimizer))
    return optimizer.kernel() if "kernel" in defined and "construct" in defined else None


class HostRows:
    """Reads and updates the rows of a stack's tables from the graph's thread."""

    def __init__(self, tables: Mapping[int, TableRows], dim: int, optimizer: RowOptimizer) -> None:
        kernel, hyperparameters = find_kernel(optimizer) or (None, ())
        self._member_index = {index: member for member, index in enumerate(tables)}
        self._read = kernels.read_rows.ready()
        if kernel is not None:
            self._apply = kernel.ready()
        self._hyperparameters = np.array([0, *hyperparameters], np.float32)  # `update` sets [0], the step's rate
        self._tables = list(tables.values())
        self._stores = [table.store for table in self._tables]
        self._width, self._halves = self._stores[0].width, self._stores[0].halves
        self._words = self._stores[0].words
        self._dim = dim
        self._set_codes(np.full(1, -1, np.int64))

    def select_rows(self, parts: list[TablePlan], size: int) -> None:
        """Map positions below `size` to the rows of `parts`."""
        codes = np.full(size, -1, np.int64)
        keys = np.zeros(size, np.uint64) if self._halves else kernels.NO_KEYS
        for part in parts:
            member = self._member_index[part.table]
            codes[part.inside] = part.rows | np.int64(member) << ROW_BITS
            if self._halves:
                keys[part.inside] = self._tables[member].rounding_keys(part.rows)
        self._codes, self._keys = codes, keys

    def _set_codes(self, codes: np.ndarray) -> None:
        self._codes = codes
        self._keys = kernels.NO_KEYS
        if self._halves:
            self._keys = np.zeros(len(codes), np.uint64)
            members = (codes >> ROW_BITS).astype(np.int16)
            order = np.argsort(members, kind="stable")  # one sort for all tables, because there may be hundreds
            ends = np.searchsorted(members[order], np.arange(len(self._tables)), side="right")
            first = int(np.searchsorted(members[order], 0))
            for table, begin, end in zip(self._tables, (first, *ends[:-1]), ends, strict=True):
                entries = order[begin:end]
                self._keys[entries] = table.rounding_keys((codes[entries] & ((1 << ROW_BITS) - 1)).astype(np.int32))

    @contextlib.contextmanager
    def _locked_stores(self) -> Iterator[np.ndarray]:
        """Lock the stores so that rows do not move; yield their addresses."""
        with contextlib.ExitStack() as stack:
            for store in self._stores:
                stack.enter_context(store.lock)
            yield np.array([store.address for store in self._stores], np.int64)

    def read(self, positions: np.ndarray, token: np.ndarray | None = None) -> np.ndarray:
        """Return weights [n, dim] at `positions` (int32 [n]); position 0 gives zeros."""
        out = np.empty((len(positions), self._dim), np.float32)
        with self._locked_stores() as addresses:
            words = (self._dim + 1) // 2 if self._halves else self._dim  # 4-byte words per row to read
            self._read(addresses, self._codes, positions, self._words, out, words, self._hyperparameters, self._halves)
        return out

    def update(
        self, gradients: np.ndarray, positions: np.ndarray, rate: np.ndarray, step: np.ndarray, token: np.ndarray
    ) -> np.ndarray:
        """Apply the row optimizer to the rows at `positions`; return the next token.

        Positions are distinct except for 0, which means no row. `rate` is float32 [1], `step` int32 [1].
        """
        with self._locked_stores() as addresses:
            if any(store.is_frozen for store in self._stores):
                self._preserve(positions)
            self._hyperparameters[0] = rate[0]
            options = self._hyperparameters, self._halves, self._keys, int(step[0])
            self._apply(addresses, self._codes, positions, self._words, gradients, self._words, *options)
        return token + np.float32(1)

    def _preserve(self, positions: np.ndarray) -> None:
        codes = self._codes[positions]
        codes = codes[codes >= 0]
        members, rows = codes >> ROW_BITS, (codes & ((1 << ROW_BITS) - 1)).astype(np.int32)
        for member in np.unique(members):
            self._stores[member].preserve(rows[members == member])


class RowGradients:
    """Sums the row gradients of one step, float32 [rows, dim]."""

    def __init__(self, dim: int) -> None:
        self._add = kernels.add_rows.ready()
        self._sums = np.zeros((0, dim), np.float32)
        self._used = False
        self._lock = threading.Lock()  # operators of one graph may run on several threads

    def begin(self, rows: int) -> None:
        """Allocate `rows` rows; discard sums that a failed step left."""
        if self._used or len(self._sums) != rows:
            self._sums = np.zeros((rows, self._sums.shape[1]), np.float32)
            self._used = False

    def add(self, positions: np.ndarray, gradients: np.ndarray) -> np.ndarray:
        """Add `gradients` to rows at `positions` (int32 [n]); return the token's gradient."""
        with self._lock:
            self._used = True
            self._add(positions, gradients, self._sums)
        return np.ones(1, np.float32)

    def take(self, token: np.ndarray | None = None, positions: np.ndarray | None = None) -> np.ndarray:
        """Return the sums and reset them."""
        sums = self._sums
        self._sums, self._used = np.zeros_like(sums), False
        return sums


class ReadRows(nn.Cell):
    """Reads rows by position; their gradients go to a `RowGradients`."""

    def __init__(self, sums: RowGradients, dim: int) -> None:
        super().__init__(auto_prefix=False)
        self.dim = dim
        hide(self, "sums", sums)
        self.add = operator(sums.add, lambda positions, gradients: (1,))
        self.take = operator(sums.take, lambda token, positions: (positions[0], dim))

    def construct(self, rows, positions, token):
        """Return the rows, [*positions.shape, dim].

        The token, float32 [1], gets a gradient in place of the rows; pass it to `collect`.
        """
        return ops.gather(rows, positions, 0)

    def bprop(self, rows, positions, token, out, dout):
        """Add the gradient to the sums; the rows themselves get none."""
        flat = ops.reshape(ops.cast(positions, mstype.int32), (-1,))
        token_gradient = self.add(flat, ops.reshape(ops.cast(dout, mstype.float32), (-1, self.dim)))
        return ops.zeros_like(rows), ops.zeros_like(positions), token_gradient

    def collect(self, token_gradient, positions):
        """Return the sums of the row gradients, [n, dim], after the backward pass.

        The data dependency on `token_gradient` orders this call after all `bprop`.
        """
        return self.take(token_gradient, positions)


class HostStackProgram(StackProgram):
    """A `StackProgram` that leaves rows in the host tables; see the module."""

    in_graph = False

    def build(self) -> None:
        """Create the operators that call the kernels."""
        dim = self.dim
        hide(self, "host_rows", HostRows(self.tables, dim, self.optimizer))
        # An update assigns the token and the next read takes it, so the graph keeps their order.
        token = Parameter(Tensor(np.zeros(1, np.float32)), name=f"embedding.{self.name}.token", requires_grad=False)
        hide(self, "token", token)
        self.read = operator(self.host_rows.read, lambda positions, token: (positions[0], dim))
        self.apply_update = operator(self.host_rows.update, lambda gradients, positions, rate, step, token: (1,))

    @property
    def differentiated(self) -> list[Parameter]:
        """Parameters to differentiate: vectors of `columns`, the reader's token, or rows."""
        if self.columns is not None:
            return list(self.columns.parameters)
        return [self.rows if self.reader is None else self.working_set.token]

    def use_reader(self) -> None:
        """Let the network's cells read through a `ReadRows`."""
        hide(self, "reader", ReadRows(RowGradients(self.dim), self.dim))

    def use_columns(self, reads: Mapping[int, ColumnElement]) -> bool:
        """Read through a `ColumnReads` for all cells, keyed by id(); return True."""
        from .column_reads import ColumnReads

        hide(self, "_index_of", {cell: index for index, cell in enumerate(reads)})
        hide(self, "columns", ColumnReads(self.name, self.host_rows, self.dim, list(reads.values())))
        self.params_count = len(reads)
        return True

    def vectors_of(self, cell: Embedding) -> Parameter | None:
        """Return the parameter that a `ColumnReads` sets to a cell's vectors, or None."""
        return None if self.columns is None else self.columns.parameters[self._index_of[id(cell)]]

    def make_room(self, step_size: int, lengths: Sequence[int]) -> None:
        """Allocate `step_size` rows, and columns of the given lengths."""
        if self.columns is not None:
            self.columns.make_room(lengths)
        if self.reader is not None:
            self.reader.sums.begin(step_size)

    def load(self, parts: list[TablePlan], size: int) -> None:
        """Set the rows of the chunk's positions; mark the plans as started."""
        self.host_rows.select_rows(parts, size)
        for part in parts if self.trainable else ():
            self.tables[part.table].start()

    def write_back(self, parts: list[TablePlan]) -> None:
        """Commit the plans of the chunk, whose rows were trained in place."""
        for part in parts:
            self.tables[part.table].commit(None)

    def begin(self, positions, step_map, owned, inputs):
        """Load the rows at `positions` (int32 [n]); return what `gradient` needs."""
        if self.columns is not None:
            ids = self.columns.ids_of(inputs)
            self.columns.fill(positions, self.token, ids)
            return ids
        ops.assign(self.rows, self.read(positions, self.token))
        if self.indirect:
            ops.assign(self.step_map, step_map)
        return positions

    def gradient(self, positions, packed, gradients):
        """Return the row gradients at `positions` from those of `differentiated`."""
        if self.columns is not None:
            return self.columns.sums(positions, packed, gradients)
        return gradients[0] if self.reader is None else self.reader.collect(gradients[0], positions)

    def update(self, positions, packed, gradient, lr):
        """Apply one optimizer step to the rows at `positions`."""
        step, number, rate = self.next_step(lr)
        rate = self.as_vector(self.optimizer.rate(rate, step))
        ops.assign(self.token, self.apply_update(gradient, positions, rate, number, self.token))
