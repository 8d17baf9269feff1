"""The tables of a network as the training program sees them: working sets in, row updates out."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype

from ..errors import CheckpointMismatchError, ConfigurationError
from ..mindspore_internals.shared_memory import Mirror
from . import table_state
from .fields import FieldMap, embedding_cells, find_fields
from .layers import FIRST_WINDOW, Embedding, hide
from .planner import Planner, SparsePlan, TablePlan
from .row_optimizers import RowOptimizer, RowSGD, row_optimizer_like

_logger = logging.getLogger(__name__)


class TableProgram(nn.Cell):
    """One table inside the training graph.

    Args:
        cell: an embedding cell of the table.
        optimizer: its row optimizer.
        first_slots: slots of a new row, float32 [slots].
    """

    def __init__(self, cell: Embedding, optimizer: RowOptimizer, first_slots: np.ndarray) -> None:
        super().__init__(auto_prefix=False)
        self.dim = cell.dim
        self.trainable = cell.spec.trainable
        self.indirect = cell.indirect
        self.constant_lr = optimizer.lr is not None
        self.lr = float(optimizer.lr or 0.0)
        name = cell.spec.name
        blank = np.zeros((FIRST_WINDOW, cell.dim + len(first_slots)), np.float32)
        hide(self, "optimizer", optimizer)
        hide(self, "work", Parameter(Tensor(blank), name=f"embedding.{name}.work", requires_grad=False))
        hide(self, "step", Parameter(Tensor(0.0, mstype.float32), name=f"embedding.{name}.step", requires_grad=False))
        hide(self, "rows", cell.window.rows)
        hide(self, "step_map", cell.window.step_map)

    def begin(self, positions, step_map):
        """Put the rows at `positions` (int32 [n]) of the working set before the network; return them packed."""
        packed = ops.gather(self.work, positions, 0)
        ops.assign(self.rows, packed[:, : self.dim])
        if self.indirect:
            ops.assign(self.step_map, step_map)
        return packed

    def update(self, positions, packed, gradient, lr):
        """Apply one optimizer step to the rows at `positions`."""
        step = self.step + 1.0
        ops.assign(self.step, step)
        rate = lr
        if self.constant_lr:
            rate = ops.cast(self.lr, mstype.float32)
        ops.scatter_update(self.work, positions, self.optimizer(packed, gradient, rate, step))


def _name_by_place(network: nn.Cell, cells: Sequence[Embedding]) -> None:
    """Name the tables that were given no name after their first cell's attribute path, as parameters are named."""
    places = {id(cell): place for place, cell in network.cells_and_names()}
    for cell in cells:
        if cell.is_unnamed and not cell.is_dense and cell.host.table is None:
            cell.spec.name = places[id(cell)] or cell.spec.name


def _of_table(arrays: Mapping[str, Any], name: str) -> dict[str, Any]:
    prefix = f"{name}/"
    return {key[len(prefix) :]: value for key, value in arrays.items() if key.startswith(prefix)}


class SparseTables(nn.Cell):
    """All sparse tables of a network, for the program that trains it.

    Host side, around every call of the program: `plan` (preparing thread), `load`, run, `write_back` (main thread).
    Graph side, in every step: `begin` before the forward, `update` in place of an optimizer.

    Args:
        network: network with embedding cells.
        fields: which elements feed which table, from `find_fields`.
        dense_optimizer: optimizer of the dense parameters; decides the default row optimizer.
        accumulate: batches of one optimizer update.

    Attributes:
        params: parameters to differentiate, one a trained table, each [n, dim].
        gradient_sums: parameters of the same shapes for accumulation, empty without it.
        input_count: number of extra step inputs.
        reading_input_count: number of extra inputs of a program that only reads.
    """

    def __init__(
        self, network: nn.Cell, fields: FieldMap, dense_optimizer: nn.Cell | None = None, accumulate: int = 1
    ) -> None:
        super().__init__(auto_prefix=False)
        cells = embedding_cells(network)
        heads: dict[int, Embedding] = {}
        for cell in cells:
            heads.setdefault(id(cell.spec), cell)
        first = list(heads.values())
        _name_by_place(network, first)
        names = [cell.spec.name for cell in first]
        if repeated := {name for name in names if names.count(name) > 1}:
            raise ConfigurationError(f"table names must differ; {', '.join(sorted(repeated))} occurs more than once")
        position = {index: cell for index, cell in enumerate(first) if not cell.is_dense}
        indirect = {index: component.indirect for component in fields.components for index in component.specs}
        for cell in cells:
            if not cell.is_dense:
                cell.indirect = next(indirect[i] for i, c in position.items() if c.spec is cell.spec)
        hide(self, "_cells_of", [cell for cell in cells if not cell.is_dense])
        hide(self, "_heads", position)
        hide(self, "tables", {})
        programs = []
        for cell in position.values():
            optimizer = cell.row_optimizer or cell.host.optimizer
            if optimizer is None and dense_optimizer is not None:
                optimizer = row_optimizer_like(dense_optimizer)
            table = cell.host_table(optimizer)
            self.tables[cell.spec.name] = table
            # without any optimizer the rows are only read and have no slots
            programs.append(TableProgram(cell, cell.host.optimizer or RowSGD(), table.first_slots))
        self.programs = nn.CellList(programs, auto_prefix=False)
        order = {index: place for place, index in enumerate(position)}
        for component in fields.components:
            component.specs = [order[index] for index in component.specs]
        trainable = [program.trainable for program in programs]
        hide(self, "planner", Planner(list(self.tables.values()), trainable, fields, accumulate))
        trained = [cell for cell in position.values() if cell.spec.trainable]
        for cell in trained:
            cell.window.rows.requires_grad = True
        hide(self, "params", [cell.window.rows for cell in trained])
        hide(self, "gradient_sums", [])
        if accumulate > 1:
            for cell in trained:
                blank = Tensor(np.zeros((FIRST_WINDOW, cell.dim), np.float32))
                name = f"embedding.{cell.spec.name}.gradient_sum"
                self.gradient_sums.append(Parameter(blank, name=name, requires_grad=False))
        self.input_count = sum(2 + program.indirect for program in programs)
        self.reading_input_count = 2 * len(programs)
        self._make_mirrors(list(position.values()))
        for name, table in self.tables.items():
            _logger.info("table %s: sparse, %d columns a row with its slots", name, table.width)

    def _make_mirrors(self, cells: Sequence[Embedding]) -> None:
        hide(self, "_work", [Mirror(program.work) for program in self.programs])
        hide(self, "_rows", [Mirror(cell.window.rows) for cell in cells])
        hide(self, "_reading", [Mirror(cell.window.reading) for cell in cells])
        hide(self, "_step_maps", [Mirror(cell.window.step_map) for cell in cells])
        hide(self, "_reading_maps", [Mirror(cell.window.reading_map) for cell in cells])
        sums, mirrors = iter(self.gradient_sums), []
        for program in self.programs:
            mirrors.append(Mirror(next(sums)) if self.gradient_sums and program.trainable else None)
        hide(self, "_sums", mirrors)

    @classmethod
    def find(
        cls,
        network: nn.Cell,
        columns: Sequence[np.ndarray],
        names: Sequence[str] = (),
        dense_optimizer: nn.Cell | None = None,
        accumulate: int = 1,
    ) -> SparseTables | None:
        """Return the sparse tables of `network`, or None when it has no embedding cell.

        Args:
            network: any network.
            columns: one sample batch of its inputs (without labels), [batch, ...] each.
            names: names of the columns.
            dense_optimizer: see the class.
            accumulate: see the class.

        Raises:
            ConfigurationError: see `find_fields`.
        """
        if not embedding_cells(network):
            return None
        return cls(network, find_fields(network, columns, names), dense_optimizer, accumulate)

    # -- host side -----------------------------------------------------------------------------------------------

    def load(self, plan: SparsePlan) -> None:
        """Bring a chunk's rows before the graph; right before the program is called, on its thread."""
        for cell in self._cells_of:
            cell.reading = not plan.train
        for part in plan.tables:
            (self._load_training if plan.train else self._load_reading)(part)

    def _load_training(self, part: TablePlan) -> None:
        index, table = part.table, self.planner.tables[part.table]
        self._rows[index].array(part.step_size)
        if self._sums[index] is not None:
            self._grow_sum(index, part.step_size)
        if part.map_size:
            self._step_maps[index].array(part.map_size)
        work = self._work[index].array(part.size)
        work[0] = table.packed(np.zeros((1, table.spec.dim), np.float32))[0]
        table.store.read(part.rows, work[1 : len(part.rows) + 1])
        self._work[index].push()

    def _grow_sum(self, index: int, size: int) -> None:
        mirror = self._sums[index]
        if mirror.parameter.shape[0] != size:
            old = np.array(mirror.parameter.asnumpy())
            mirror.array(size)[: len(old)] = old
            mirror.push()

    def _load_reading(self, part: TablePlan) -> None:
        index, table = part.table, self.planner.tables[part.table]
        window = self._reading[index].array(part.size)
        window[0] = 0.0
        table.store.read_part(part.rows, window[1 : len(part.rows) + 1])
        self._reading[index].push()
        if part.map_size:
            self._reading_maps[index].array(part.map_size)[:] = part.reading_map
            self._reading_maps[index].push()

    def write_back(self, plan: SparsePlan) -> None:
        """Take a trained chunk's rows back into the tables; right after the program returned, on its thread."""
        if not plan.train:
            return
        for part in plan.tables:
            if self.programs[part.table].trainable:
                work = self._work[part.table].pull()
                self.planner.tables[part.table].commit(work[1 : len(part.rows) + 1])

    def rollback(self) -> None:
        """Forget every plan that was made and not trained, once the preparing thread has stopped."""
        for table in self.tables.values():
            table.rollback()
        self.planner.reset()

    # -- snapshots -----------------------------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        """Number of rows of all tables."""
        return sum(len(table) + 1 for table in self.tables.values())

    def changed(self, consumer: str) -> int:
        """Return the number of rows trained since the consumer's last state; all of them before its first."""
        return sum(table.changed(consumer) for table in self.tables.values())

    def take(self, consumer: str = "snapshot", *, full: bool = True) -> dict[str, Any]:
        """Return the state after the last `write_back`, {"json": ..., "arrays": name -> array}; quick, between steps.

        Rows are `table_state.Frozen`, read when turned into an array: on a writing thread, while training goes on.

        Args:
            consumer: whose account of changes this belongs to ("snapshot", "serving").
            full: everything, instead of what changed since the consumer's last state; the first one is full anyway.
        """
        arrays: dict[str, Any] = {}
        json: dict[str, Any] = {}
        for (name, table), program in zip(self.tables.items(), self.programs, strict=True):
            first = consumer not in table.tombstones
            table.follow(consumer)
            own, json[name] = table_state.take(table, consumer, full=full or first)
            json[name]["updates"] = int(program.step.asnumpy())
            arrays |= {f"{name}/{key}": value for key, value in own.items()}
        return {"json": json, "arrays": arrays}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Bring all tables to what `take` returned: first a full state, then any deltas in their order.

        No thread may be planning; plans that were made and not trained are forgotten.

        Raises:
            CheckpointMismatchError: the tables differ from the saved ones.
            CheckpointDamagedError: a delta does not fit the state before it.
        """
        if missing := sorted(set(self.tables) ^ set(saved["json"])):
            raise CheckpointMismatchError(
                f"the snapshot has the tables {sorted(saved['json'])}, the network {sorted(self.tables)}: "
                f"{', '.join(missing)} has no counterpart; name tables with Embedding(..., name=...)"
            )
        self.planner.reset()
        for (name, table), program in zip(self.tables.items(), self.programs, strict=True):
            table_state.restore(table, _of_table(saved["arrays"], name), saved["json"][name])
            ops.assign(program.step, Tensor(float(saved["json"][name]["updates"]), mstype.float32))

    def rewind(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Put all rows back to the values of a full state and the deltas after it, while preparation goes on ahead."""
        for (name, table), program in zip(self.tables.items(), self.programs, strict=True):
            table_state.rewind(table, [(_of_table(saved["arrays"], name), saved["json"][name]) for saved in states])
            ops.assign(program.step, Tensor(float(states[-1]["json"][name]["updates"]), mstype.float32))

    # -- graph side ----------------------------------------------------------------------------------------------

    def begin(self, inputs):
        """Bring one step's rows before the network; `inputs` are the step's `input_count` extra inputs.

        Returns what `update` needs.
        """
        work = ()
        place = 0
        for program in self.programs:
            step_map = inputs[place]
            if program.indirect:
                step_map = inputs[place + 2]
            packed = program.begin(inputs[place], step_map)
            work += (inputs[place], packed)
            place += 2
            if program.indirect:
                place += 1
        return work

    def update(self, work, gradients, lr):
        """Update the step's rows: `gradients` in the order of `params`, `lr` a float32 scalar tensor."""
        place = 0
        trained = 0
        for program in self.programs:
            if program.trainable:
                program.update(work[place], work[place + 1], gradients[trained], lr)
                trained += 1
            place += 2
