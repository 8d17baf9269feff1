"""Stacks inside the training graph whose rows live in the tables of several processes.

In every step the owners send the weights that each process reads, receive their gradients, add these up in the order of
ranks and apply the row optimizer to their rows in place. The kernels' operators do this on the thread of the graph.
One token, passed from each exchange to the next, keeps their order the same on all processes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import Parameter, ops
from mindspore import dtype as mstype

from ...distributed.group import Group
from ...mindspore_internals.cell_structure import hide
from ..planning.owner_planner import StackExchange
from ..planning.sparse_plan import TablePlan
from ..tables import kernels
from ..tables.kernels import ROW_BITS
from ..tables.row_store import RowStore
from .host_rows import HostRows, HostStackProgram, operator
from .row_optimizer import RowOptimizer


class OwnerRows(HostRows):
    """Exchanges the rows of a stack with the other processes; trains the rows owned here.

    Args:
        stores: the rows of each table that are owned here.
        dim: columns of a weight.
        optimizer: one that has a kernel.
        group: the processes.
    """

    def __init__(self, stores: dict[int, RowStore], dim: int, optimizer: RowOptimizer, group: Group) -> None:
        super().__init__(stores, dim, optimizer)
        self._group = group
        self._add = kernels.add_rows.ready()
        self._exchange: StackExchange | None = None
        self._step = -1

    def follow(self, exchange: StackExchange) -> None:
        """Set what the steps of the next call exchange."""
        self._exchange, self._step = exchange, -1
        slots = np.array([self._slot[index] for index in exchange.tables[1:].tolist()], np.int64)
        self._codes = np.full(len(exchange.rows), -1, np.int64)
        self._codes[1:] = slots << ROW_BITS | exchange.rows[1:]

    def exchange_weights(self, positions: np.ndarray, token: np.ndarray) -> np.ndarray:
        """Send the weights that each process reads in the next step; return the own ones, float32 [n, dim]."""
        exchange = self._exchange
        self._step += 1
        step = self._step
        parts = np.split(self.read(exchange.asked[step]), exchange.ends[step][:-1])
        out = np.zeros((len(positions), self._dim), np.float32)
        for own, part in zip(exchange.sent[step], self._group.all_to_all(parts, in_graph=True), strict=True):
            out[own] = np.frombuffer(part, np.float32).reshape(-1, self._dim)
        return out

    def exchange_gradients(self, gradients: np.ndarray, owned: np.ndarray, token: np.ndarray) -> np.ndarray:
        """Send each owner the gradients of its rows; return the sums for the rows at `owned`, float32 [n, dim]."""
        exchange, step = self._exchange, self._step
        parts = [gradients[own] for own in exchange.sent[step]]
        sums = np.zeros((len(owned), self._dim), np.float32)
        start = 0
        received = self._group.all_to_all(parts, in_graph=True)
        for end, part in zip(exchange.ends[step].tolist(), received, strict=True):
            values = np.frombuffer(part, np.float32).reshape(-1, self._dim)
            self._add(np.ascontiguousarray(exchange.places[step][start:end]), values, sums)
            start = end
        return sums


class OwnerStackProgram(HostStackProgram):
    """A `HostStackProgram` whose rows are exchanged with their owners in every step.

    Args:
        arguments: see `StackProgram`.
        group: the processes.
        token: float32 [1], shared by all stacks; see the module docstring.
    """

    in_graph = True  # the owned rows of a step are an input of their own

    def __init__(self, *arguments: Any, group: Group, token: Parameter) -> None:
        super().__init__(*arguments)
        dim, members = self.dim, len(self.tables)
        self.members = members
        self.is_main = group.is_main
        hide(self, "token", token)
        hide(self, "host_rows", OwnerRows(self.stores(), dim, self.optimizer, group))
        self.read = operator(self.host_rows.exchange_weights, lambda positions, token: (positions[0], dim))
        self.add_up = operator(self.host_rows.exchange_gradients, lambda gradients, owned, token: (owned[0], dim))
        self.apply_update = operator(self.host_rows.update, lambda gradients, owned, rate, token: (1,))

    def build(self) -> None:
        """Leave the operators to the constructor."""

    def stores(self) -> dict[int, RowStore]:
        """Return the rows owned here, by table index."""
        return {index: table.table.store for index, table in self.tables.items()}

    def load(self, parts: list[TablePlan], size: int) -> None:
        """Begin a chunk, whose exchanges `OwnerRows.follow` has been given."""
        for part in parts if self.trainable else ():
            self.tables[part.table].start()

    def begin(self, positions, step_map, owned):
        """Load the step's rows into the network; return the positions of the rows that are trained here."""
        rows = self.read(positions, self.token)
        ops.assign(self.token, ops.reshape(rows[:1, :1], (1,)))
        ops.assign(self.rows, rows)
        if self.indirect:
            ops.assign(self.step_map, step_map)
        return owned

    def sum_at_owners(self, owned, gradient):
        """Return the gradients of the rows at `owned`, summed over processes: float32 [n, dim]."""
        sums = self.add_up(ops.cast(gradient, mstype.float32), owned, self.token)
        ops.assign(self.token, ops.reshape(sums[:1, :1], (1,)))
        return sums

    def squares(self, owned, sums):
        """Return the sum of the squares of `sums`; of a default row, which all processes train, on rank 0 alone."""
        rows = ops.sum(sums * sums, 1)
        if not self.is_main:
            rows = ops.select(owned > self.members, rows, ops.zeros_like(rows))
        return ops.sum(rows)

    def update(self, positions, owned, sums, lr):
        """Apply one optimizer step to the rows at `owned`."""
        step, rate = self.next_step(lr)
        rate = ops.reshape(self.optimizer.rate(rate, step), (1,))
        ops.assign(self.token, self.apply_update(sums, owned, rate, self.token))
