"""Train stacks whose rows several processes own.

In every step the owners send the weights that each process reads and receive their gradients. They sum the gradients in
rank order and apply the row optimizer to their rows. A kernel updates the rows in place. Without a kernel, the graph
reads the packed rows, updates them and writes them back. If several micro-batches of a call belong to one update, their
weights are exchanged once, before the first one, and their gradients once, with the update.

Operators on the graph's thread make these exchanges. A token, passed from each exchange to the next, gives all
processes the same order of exchanges.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, ops
from mindspore import dtype as mstype

from ...distributed.group import Group
from ...mindspore_internals.cell_structure import hide
from ...mindspore_internals.python_operators import operator
from ..planning.layout import ColumnElement
from ..planning.sparse_plan import StackExchange, TablePlan
from ..tables import kernels
from ..tables.kernels import ROW_BITS
from ..tables.table_rows import TableRows
from .host_rows import HostRows, HostStackProgram, find_kernel
from .row_optimizer import RowOptimizer


class OwnerRows(HostRows):
    """Exchanges a stack's rows with other processes; trains the rows owned here."""

    def __init__(
        self,
        tables: Mapping[int, TableRows],
        dim: int,
        optimizer: RowOptimizer,
        group: Group,
        blank: np.ndarray | None = None,  # packed row [width] for padding; the optimizer may update it
    ) -> None:
        super().__init__(tables, dim, optimizer)
        self._group = group
        self._blank = np.zeros(self._width, np.float32) if blank is None else blank
        self._weights = np.zeros((0, dim), np.float32)
        self._add = kernels.add_rows.ready()
        self._exchange: StackExchange | None = None
        self._step = self._window = -1

    def set_exchange(self, exchange: StackExchange) -> None:
        """Set the exchange plan of the next call."""
        self._exchange, self._step, self._window = exchange, -1, -1
        members = np.array([self._member_index[index] for index in exchange.tables[1:].tolist()], np.int64)
        codes = np.full(len(exchange.rows), -1, np.int64)
        codes[1:] = members << ROW_BITS | exchange.rows[1:]
        self._set_codes(codes)

    def exchange_weights(self, positions: np.ndarray, token: np.ndarray) -> np.ndarray:
        """Exchange weights; return those that this process reads, float32 [n, dim]."""
        exchange = self._exchange
        assert exchange is not None  # `set_exchange` sets it before each call
        self._step += 1
        window = exchange.windows[self._step]
        if window == self._window:  # no update since the weights were read
            return self._weights
        self._window = window
        vectors = self.read(exchange.requested[window])
        parts = np.split(vectors, exchange.ends[window][:-1])
        out = np.zeros((len(positions), self._dim), np.float32)
        for indices, part in zip(exchange.sent[window], self._group.all_to_all(parts, in_graph=True), strict=True):
            out[indices] = np.frombuffer(part, np.float32).reshape(-1, self._dim)
        self._weights = out
        return out

    def exchange_gradients(self, gradients: np.ndarray, owned: np.ndarray, token: np.ndarray) -> np.ndarray:
        """Exchange gradients; return the sums for the rows at `owned`, float32 [n, dim]."""
        exchange, window = self._exchange, self._window
        assert exchange is not None
        parts = [gradients[indices] for indices in exchange.sent[window]]
        sums = np.zeros((len(owned), self._dim), np.float32)
        start = 0
        received = self._group.all_to_all(parts, in_graph=True)
        for end, part in zip(exchange.ends[window].tolist(), received, strict=True):
            values = np.frombuffer(part, np.float32).reshape(-1, self._dim)
            self._add(np.ascontiguousarray(exchange.indices[window][start:end]), values, sums)
            start = end
        return sums

    def read_packed(self, positions: np.ndarray, token: np.ndarray) -> np.ndarray:
        """Return packed owned rows at `positions` (int32 [n]), float32 [n, width]."""
        out = np.empty((len(positions), self._width), np.float32)
        with self._locked_stores() as addresses:
            self._read(addresses, self._codes, positions, self._width, out, self._width, self._hyperparameters)
        out[positions == 0] = self._blank
        return out

    def write_packed(self, packed: np.ndarray, positions: np.ndarray, token: np.ndarray) -> np.ndarray:
        """Set the owned rows at `positions` to `packed`; return the next token."""
        codes = self._codes[positions]
        rows, members = (codes & ((1 << ROW_BITS) - 1)).astype(np.int32), codes >> ROW_BITS
        for member, store in enumerate(self._stores):
            indices = np.flatnonzero((codes >= 0) & (members == member))
            store.write(rows[indices], packed[indices])
        return token + np.float32(1)


class OwnerStackProgram(HostStackProgram):
    """A `HostStackProgram` whose rows are exchanged with their owners in every step."""

    in_graph = True  # reserves the step input with the owned rows that `OwnerPlanner` lists

    def __init__(self, *arguments: Any, group: Group, token: Parameter) -> None:
        super().__init__(*arguments)
        dim, self.num_tables = self.dim, len(self.tables)
        self.is_main = group.is_main
        # For `first_number`: two gathers compile faster than a slice and a reshape.
        self.pick, self.index_0, self.only_index_0 = ops.Gather(), Tensor(0, mstype.int32), Tensor([0], mstype.int32)
        hide(self, "token", token)  # float32 [1], shared by all stacks; see the module docstring
        blank = next(iter(self.tables.values())).packed(np.zeros((1, dim), np.float32))[0]
        local_tables = {index: table.table for index, table in self.tables.items()}
        rows = OwnerRows(local_tables, dim, self.optimizer, group, blank)
        hide(self, "host_rows", rows)
        self.read = operator(rows.exchange_weights, lambda positions, token: (positions[0], dim))
        self.add_up = operator(rows.exchange_gradients, lambda gradients, owned, token: (owned[0], dim))
        self.has_kernel = find_kernel(self.optimizer) is not None
        if self.has_kernel:
            self.apply_update = operator(rows.update, lambda gradients, owned, rate, step, token: (1,))
        else:
            width = self.width
            self.read_packed = operator(rows.read_packed, lambda positions, token: (positions[0], width))
            self.write_packed = operator(rows.write_packed, lambda packed, positions, token: (1,))

    def build(self) -> None:
        """Do nothing: the constructor creates the operators."""

    def load(self, parts: list[TablePlan], size: int) -> None:
        """Mark the chunk's plans as started; `set_exchange` has set its exchanges."""
        for part in parts if self.trainable else ():
            self.tables[part.table].start()

    def first_number(self, rows):
        """Return the first number of `rows`, float32 [1]."""
        return self.pick(self.pick(rows, self.index_0, 0), self.only_index_0, 0)

    def use_columns(self, reads: Mapping[int, ColumnElement]) -> bool:
        """Return False: each cell reads its own vectors."""
        return False

    def begin(self, positions, step_map, owned, inputs):
        """Load the step's rows; return the positions of the rows that this process trains."""
        rows = self.read(positions, self.token)
        ops.assign(self.token, self.first_number(rows))
        ops.assign(self.rows, rows)
        if self.indirect:
            ops.assign(self.step_map, step_map)
        return owned

    def sum_at_owners(self, owned, gradient):
        """Return the gradients of the rows at `owned`, summed over processes, [n, dim]."""
        sums = self.add_up(ops.cast(gradient, mstype.float32), owned, self.token)
        ops.assign(self.token, self.first_number(sums))
        return sums

    def squares(self, owned, sums):
        """Return the sum of squares of `sums`; only rank 0 counts a shared default row."""
        rows = ops.sum(sums * sums, 1)
        if not self.is_main:
            rows = ops.select(owned > self.num_tables, rows, ops.zeros_like(rows))
        return ops.sum(rows)

    def update(self, positions, owned, sums, lr):
        """Apply one optimizer step to the rows at `owned`."""
        step, number, rate = self.next_step(lr)
        if self.has_kernel:
            rate = self.as_vector(self.optimizer.rate(rate, step))
            ops.assign(self.token, self.apply_update(sums, owned, rate, number, self.token))
        else:
            packed = self.optimizer(self.read_packed(owned, self.token), sums, rate, step)
            ops.assign(self.token, self.write_packed(packed, owned, self.token))
