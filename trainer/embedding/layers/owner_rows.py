"""Train stacks whose rows several processes own.

In every step the owners send the weights that each process reads, and receive their gradients. They add these up in
rank order and apply the row optimizer to their rows. A kernel updates the rows in place; for an optimizer without a
kernel, the graph gets the packed rows, and they are written back. If several micro-batches of a call belong to one
update, their weights are exchanged once, before the first one, and their gradients once, with the update.

Operators on the graph's thread make these exchanges. A token, passed from each exchange to the next, keeps their order
the same on all processes.
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
        blank: np.ndarray | None = None,  # packed row for padding, float32 [width], that the optimizer can update
    ) -> None:
        super().__init__(tables, dim, optimizer)
        self._group = group
        self._blank = np.zeros(self._width, np.float32) if blank is None else blank
        self._weights = np.zeros((0, dim), np.float32)
        self._add = kernels.add_rows.ready()
        self._exchange: StackExchange | None = None
        self._step = self._stretch = -1

    def follow(self, exchange: StackExchange) -> None:
        """Set the exchanges of the next call's steps."""
        self._exchange, self._step, self._stretch = exchange, -1, -1
        slots = np.array([self._slot[index] for index in exchange.tables[1:].tolist()], np.int64)
        codes = np.full(len(exchange.rows), -1, np.int64)
        codes[1:] = slots << ROW_BITS | exchange.rows[1:]
        self._set(codes)

    def exchange_weights(self, positions: np.ndarray, token: np.ndarray) -> np.ndarray:
        """Send weights that others read; return those read here, float32 [n, dim]."""
        exchange = self._exchange
        assert exchange is not None  # `follow` sets it before each call
        self._step += 1
        stretch = exchange.stretches[self._step]
        if stretch == self._stretch:  # no update since the weights were read
            return self._weights
        self._stretch = stretch
        vectors = self.read(exchange.requested[stretch])
        parts = np.split(vectors, exchange.ends[stretch][:-1])
        out = np.zeros((len(positions), self._dim), np.float32)
        for own, part in zip(exchange.sent[stretch], self._group.all_to_all(parts, in_graph=True), strict=True):
            out[own] = np.frombuffer(part, np.float32).reshape(-1, self._dim)
        self._weights = out
        return out

    def exchange_gradients(self, gradients: np.ndarray, owned: np.ndarray, token: np.ndarray) -> np.ndarray:
        """Send owners their rows' gradients; return the sums for `owned` rows, [n, dim]."""
        exchange, stretch = self._exchange, self._stretch
        assert exchange is not None
        parts = [gradients[own] for own in exchange.sent[stretch]]
        sums = np.zeros((len(owned), self._dim), np.float32)
        start = 0
        received = self._group.all_to_all(parts, in_graph=True)
        for end, part in zip(exchange.ends[stretch].tolist(), received, strict=True):
            values = np.frombuffer(part, np.float32).reshape(-1, self._dim)
            self._add(np.ascontiguousarray(exchange.indices[stretch][start:end]), values, sums)
            start = end
        return sums

    def read_packed(self, positions: np.ndarray, token: np.ndarray) -> np.ndarray:
        """Return owned rows and slots at `positions` (int32 [n]), float32 [n, width]."""
        out = np.empty((len(positions), self._width), np.float32)
        with self._held() as bases:
            self._read(bases, self._codes, positions, self._width, out, self._width, self._numbers)
        out[positions == 0] = self._blank
        return out

    def write_packed(self, packed: np.ndarray, positions: np.ndarray, token: np.ndarray) -> np.ndarray:
        """Set the owned rows at `positions` to `packed`; return the next token."""
        codes = self._codes[positions]
        rows, slots = (codes & ((1 << ROW_BITS) - 1)).astype(np.int32), codes >> ROW_BITS
        for slot, store in enumerate(self._stores):
            own = np.flatnonzero((codes >= 0) & (slots == slot))
            store.write(rows[own], packed[own])
        return token + np.float32(1)


class OwnerStackProgram(HostStackProgram):
    """A `HostStackProgram` whose rows are exchanged with their owners in every step."""

    in_graph = True  # reserves a step input, in which `OwnerPlanner` lists the step's owned rows

    def __init__(self, *arguments: Any, group: Group, token: Parameter) -> None:
        super().__init__(*arguments)
        dim, members = self.dim, len(self.tables)
        self.members = members
        self.is_main = group.is_main
        # for `first_of`: two gathers compile faster than a slice and a reshape
        self.pick, self.index_0, self.only_index_0 = ops.Gather(), Tensor(0, mstype.int32), Tensor([0], mstype.int32)
        hide(self, "token", token)  # float32 [1], shared by all stacks; see the module docstring
        blank = next(iter(self.tables.values())).packed(np.zeros((1, dim), np.float32))[0]
        owned = {index: table.table for index, table in self.tables.items()}
        rows = OwnerRows(owned, dim, self.optimizer, group, blank)
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
        """Mark the chunk's plans as started; `OwnerRows.follow` has set its exchanges."""
        for part in parts if self.trainable else ():
            self.tables[part.table].start()

    def first_of(self, rows):
        """Return the first number of `rows`, float32 [1]."""
        return self.pick(self.pick(rows, self.index_0, 0), self.only_index_0, 0)

    def use_columns(self, reads: Mapping[int, ColumnElement]) -> bool:
        """Return False: the cells read for themselves."""
        return False

    def begin(self, positions, step_map, owned, inputs):
        """Load the step's rows; return the positions of the rows that are trained here."""
        rows = self.read(positions, self.token)
        ops.assign(self.token, self.first_of(rows))
        ops.assign(self.rows, rows)
        if self.indirect:
            ops.assign(self.step_map, step_map)
        return owned

    def sum_at_owners(self, owned, gradient):
        """Return the gradients of the rows at `owned`, summed over processes, [n, dim]."""
        sums = self.add_up(ops.cast(gradient, mstype.float32), owned, self.token)
        ops.assign(self.token, self.first_of(sums))
        return sums

    def squares(self, owned, sums):
        """Return the sum of squares of `sums`; only rank 0 counts a shared default row."""
        rows = ops.sum(sums * sums, 1)
        if not self.is_main:
            rows = ops.select(owned > self.members, rows, ops.zeros_like(rows))
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
