"""The tables of a network as the training program sees them: working sets in, row updates out."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype

from ..distributed.group import SINGLE, Group
from ..errors import CheckpointMismatchError, ConfigurationError
from ..mindspore_internals.shared_memory import Mirror
from . import table_state
from .embedding_cells import embedding_cells
from .fields import FieldMap, find_fields
from .host_rows import HostGroupProgram, find_kernel
from .layers import FIRST_WINDOW, Embedding, WorkingSet, hide
from .planner import Planner
from .row_groups import Bundle, RowGroup, group_tables
from .row_optimizers import RowOptimizer, RowSGD, row_optimizer_like
from .row_owners import Shards
from .sparse_plan import Carry, SparsePlan, TablePlan
from .working_set import GroupProgram

_logger = logging.getLogger(__name__)


def _name_by_place(network: nn.Cell, cells: Sequence[Embedding]) -> None:
    """Name the tables that were given no name after their first cell's attribute path, as parameters are named."""
    places = {id(cell): place for place, cell in network.cells_and_names()}
    for cell in cells:
        if cell.is_unnamed and not cell.is_dense and cell.host.table is None:
            cell.spec.name = places[id(cell)] or cell.spec.name


def of_table(arrays: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the arrays of one table, from those of all."""
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
        group: the processes that train together.

    Attributes:
        params: parameters to differentiate, one per trained row group; see `gradients`.
        read_params: the same for a program that only reads; their gradients are those of rows, [n, dim].
        gradient_sums: parameters of the shapes of the gradients, [n, dim], for accumulation; empty without it.
        input_count: number of extra step inputs.
        reading_input_count: number of extra inputs of a program that only reads.
        carried: rows of the accumulation window that the last trained chunk left open, see `Planner`.
        on_host: whether kernels train the rows in the host tables, where the row optimizer has one; None: on CPU.
            Otherwise a chunk's rows are kept in the graph while it is trained.
    """

    on_host: bool | None = None

    def __init__(
        self,
        network: nn.Cell,
        fields: FieldMap,
        dense_optimizer: nn.Cell | None = None,
        accumulate: int = 1,
        group: Group = SINGLE,
    ) -> None:
        super().__init__(auto_prefix=False)
        hide(self, "group", group)
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
        order = {index: place for place, index in enumerate(position)}
        for component in fields.components:
            component.specs = [order[index] for index in component.specs]
        heads_of_tables = list(position.values())
        hide(self, "tables", {})
        optimizers: list[RowOptimizer | None] = []
        for cell in heads_of_tables:
            optimizer = cell.row_optimizer or cell.host.optimizer
            if optimizer is None and dense_optimizer is not None:
                optimizer = row_optimizer_like(dense_optimizer)
            self.tables[cell.spec.name] = cell.host_table(optimizer, Shards(group.rank, group.size))
            # without any optimizer the rows are only read and have no slots
            optimizers.append(cell.host.optimizer)
        specs = [cell.spec for cell in heads_of_tables]
        bundles, groups = group_tables(fields.components, specs, optimizers)
        hide(self, "planned", self._plan_for())
        self._make_groups(bundles, groups, heads_of_tables, optimizers)
        cells_of = [[cell for cell in cells if cell.spec is spec] for spec in specs]
        hide(self, "_cells_of", [[cell for table in group.tables for cell in cells_of[table]] for group in groups])
        trainable = [spec.trainable for spec in specs]
        hide(self, "planner", self._make_planner(trainable, fields, accumulate, (bundles, groups)))
        trained = [program for program in self.programs if program.trainable]
        for program, cells in zip(self.programs, self._cells_of, strict=True):
            # the sums of a table that is read several times might depend on which read came first
            once = len(cells) == len(program.tables) and fields.repeated.isdisjoint(program.tables)
            if program.trainable and once:
                program.use_reader()
        self.has_readers = any(program.reader is not None for program in trained)
        for program in trained:
            program.differentiated.requires_grad = program.window.reading.requires_grad = True
        hide(self, "params", [program.differentiated for program in trained])
        hide(self, "read_params", [program.window.reading for program in trained])
        hide(self, "carried", {})
        hide(self, "gradient_sums", [])
        if accumulate > 1:
            for program in trained:
                blank = Tensor(np.zeros((FIRST_WINDOW, program.dim), np.float32))
                name = f"embedding.{program.name}.gradient_sum"
                self.gradient_sums.append(Parameter(blank, name=name, requires_grad=False))
        sums = iter(self.gradient_sums)
        hide(self, "_sums", [Mirror(next(sums)) if self.gradient_sums and p.trainable else None for p in self.programs])
        for name, table in self.tables.items():
            _logger.info("table %s: sparse, %d columns per row with its slots", name, table.width)
        _logger.info("%d sparse tables are read and updated as %d", len(self.tables), len(groups))

    def _plan_for(self) -> list[Any]:
        """Return the tables as planner and programs see them."""
        return list(self.tables.values())

    def _make_planner(self, trainable: list[bool], fields: FieldMap, accumulate: int, grouping: Any) -> Planner:
        return Planner(self.planned, trainable, fields, accumulate, grouping=grouping)

    def _make_groups(
        self,
        bundles: list[Bundle],
        groups: list[RowGroup],
        heads: Sequence[Embedding],
        optimizers: Sequence[RowOptimizer | None],
    ) -> None:
        programs, windows = [], []
        for group in groups:
            head = heads[group.tables[0]]
            # a table that shares with no other keeps its own
            window = head.own_window if len(group.tables) == 1 else WorkingSet(head.spec.name, head.dim)
            indirect = bundles[group.bundle].indirect
            optimizer = optimizers[group.tables[0]] or RowSGD()
            members = {index: self.planned[index] for index in group.tables}
            kind = self._program_for(optimizer)
            programs.append(kind(head.spec.name, window, members, optimizer, head.spec.trainable, indirect))
            windows.append(window)
        self.programs = nn.CellList(programs, auto_prefix=False)
        hide(self, "_rows", [window.mirror("rows") for window in windows])
        hide(self, "_reading", [window.mirror("reading") for window in windows])
        hide(self, "_step_maps", [window.mirror("step_map") for window in windows])
        hide(self, "_reading_maps", [window.mirror("reading_map") for window in windows])
        # what a step takes in, by bundle: (indices of its programs, inputs)
        layout, reading = [], 0
        for bundle in bundles:
            bundle.in_graph = any(programs[index].in_graph for index in bundle.groups)
            own = 1 + bundle.in_graph
            if bundle.indirect:
                layout += [((index,), own + 1) for index in bundle.groups]
                reading += 2 * len(bundle.groups)
            else:
                layout.append((tuple(bundle.groups), own))
                reading += 1
        self.input_count = sum(count for _, count in layout)
        first = -self.input_count
        for members, count in layout:
            for index in members:
                programs[index].positions_at, programs[index].map_at = first, first + count - 1
            first += count
        trained = [program for program in programs if program.trainable]
        self.trained_count = len(trained)
        for place, program in enumerate(trained):
            program.gradient_at = place - len(trained)
        for place, program in enumerate(programs):
            program.kept_at = place
        self.reading_input_count = reading

    def _program_for(self, optimizer: RowOptimizer) -> type[GroupProgram]:
        on_host = self.on_host if self.on_host is not None else mindspore.get_context("device_target") == "CPU"
        return HostGroupProgram if on_host and find_kernel(optimizer) is not None else GroupProgram

    @classmethod
    def find(
        cls,
        network: nn.Cell,
        columns: Sequence[np.ndarray],
        names: Sequence[str] = (),
        dense_optimizer: nn.Cell | None = None,
        accumulate: int = 1,
        group: Group = SINGLE,
    ) -> SparseTables | None:
        """Return the sparse tables of `network`, or None when it has no embedding cell.

        Args:
            network: any network.
            columns: one sample batch of its inputs (without labels), [batch, ...] each.
            names: names of the columns.
            dense_optimizer: see the class.
            accumulate: see the class.
            group: see the class.

        Raises:
            ConfigurationError: see `find_fields`.
        """
        if not embedding_cells(network):
            return None
        return cls(network, find_fields(network, columns, names), dense_optimizer, accumulate, group)

    # -- host side -----------------------------------------------------------------------------------------------

    def load(self, plan: SparsePlan) -> None:
        """Bring a chunk's rows before the graph; right before the program is called, on its thread."""
        for cells, program in zip(self._cells_of, self.programs, strict=True):
            window = program.window
            window.reader = program.reader
            for cell in cells:
                # another Trainer of the same network may have grouped them differently
                if (cell.window, cell.indirect, cell.reader) != (window, program.indirect, window.reader):
                    cell.adopt(window, program.indirect)
                cell.reading = not plan.train
        for index, parts in enumerate(_by_group(plan, len(self.programs))):
            if parts:
                (self._load_training if plan.train else self._load_reading)(index, parts, plan)

    def _load_training(self, index: int, parts: list[TablePlan], plan: SparsePlan) -> None:
        step_size, table = plan.step_sizes[index], parts[0].table
        self._rows[index].array(step_size)
        self.programs[index].make_room(step_size)
        if self._sums[index] is not None:
            self._grow_sum(index, step_size)
        if table in plan.map_sizes:
            self._step_maps[index].array(plan.map_sizes[table])
        self.programs[index].load(parts, plan.sizes[index])

    def _grow_sum(self, index: int, size: int) -> None:
        mirror = self._sums[index]
        if mirror.parameter.shape[0] != size:
            old = np.array(mirror.parameter.asnumpy())
            mirror.array(size)[: len(old)] = old
            mirror.push()

    def _load_reading(self, index: int, parts: list[TablePlan], plan: SparsePlan) -> None:
        window = self._reading[index].array(plan.sizes[index])
        window[0] = 0.0
        for part in parts:
            table, out = self.planner.tables[part.table], window[part.start : part.start + len(part.rows)]
            if part.ids is None:
                table.store.read_part(part.rows, out)
            else:
                table.read_trained(part.ids, part.rows < 0, out)
        self._reading[index].push()
        if (places := parts[0].reading_map) is not None:
            self._reading_maps[index].array(len(places))[:] = places
            self._reading_maps[index].push()

    def write_back(self, plan: SparsePlan) -> None:
        """Take a trained chunk's rows back into the tables; right after the program returned, on its thread."""
        if not plan.train:
            return
        for program, parts in zip(self.programs, _by_group(plan, len(self.programs)), strict=True):
            if program.trainable and parts:
                program.write_back(parts)
        if self.gradient_sums:
            hide(self, "carried", plan.carry)

    def rollback(self) -> None:
        """Forget every plan that was made and not trained, once the preparing thread has stopped."""
        for table in self.tables.values():
            table.rollback()
        self.planner.reset()

    # -- open accumulation windows -------------------------------------------------------------------------------

    def gradient_sum(self, group: int) -> Parameter | None:
        """Return what a row group's gradients are added up in, [positions, dim]; None where they are not."""
        return None if self._sums[group] is None else self._sums[group].parameter

    def set_gradient_sums(self, groups: Sequence[int], sums: Sequence[np.ndarray | None] | None) -> None:
        """Give the row groups of a bundle these sums, float32 [positions, dim]; None makes all of them zero."""
        rows = 0 if sums is None else max((len(value) for value in sums if value is not None), default=1) - 1
        size = self.planner.reserve(groups[0], rows)
        for place, group in enumerate(groups):
            mirror = self._sums[group]
            if mirror is None:
                continue
            array = mirror.array(max(size, FIRST_WINDOW))
            array[:] = 0.0
            if sums is not None:
                array[: rows + 1] = sums[place]
            mirror.push()

    def go_on_with(self, carry: Carry) -> None:
        """Let the next chunk find the rows `carry` of an open window at their positions; no thread may be planning."""
        hide(self, "carried", carry)
        self.planner.carry = dict(carry)

    # -- snapshots -----------------------------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        """Number of rows of all tables."""
        return sum(len(table) + 1 for table in self.tables.values())

    def changed(self, consumer: str) -> int:
        """Return the number of rows trained since the consumer's last state; all of them before its first."""
        return sum(table.changed(consumer) for table in self.tables.values())

    def take(self, consumer: str = "snapshot", *, full: bool = True, folder: Path | None = None) -> dict[str, Any]:
        """Return the state after the last `write_back`, {"json": ..., "arrays": name -> array}; quick, between steps.

        Rows are `table_state.Frozen`, read when turned into an array: on a writing thread, while training goes on.

        Args:
            consumer: whose account of changes this belongs to ("snapshot", "serving").
            full: everything, instead of what changed since the consumer's last state; the first one is full anyway.
            folder: of no use to one process; see `ShardedTables.take`.
        """
        arrays: dict[str, Any] = {}
        json: dict[str, Any] = {}
        updates = self._update_counts()
        for index, (name, table) in enumerate(self.tables.items()):
            first = consumer not in table.tombstones
            table.follow(consumer)
            own, json[name] = table_state.take(table, consumer, full=full or first)
            json[name]["updates"] = updates[index]
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
        for name, table in self.tables.items():
            table_state.restore(table, of_table(saved["arrays"], name), saved["json"][name])
        self._set_update_counts(saved["json"])

    def restore_all(self, states: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Restore a full state and the deltas that build on it, in their order; see `restore`.

        Returns the arrays of the last one, as they are to be understood here.
        """
        for state in states:
            self.restore(state)
        return states[-1]["arrays"] if states else {}

    def rewind(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Put all rows back to the values of a full state and the deltas after it, while preparation goes on ahead."""
        for name, table in self.tables.items():
            table_state.rewind(table, [(of_table(saved["arrays"], name), saved["json"][name]) for saved in states])
        self._set_update_counts(states[-1]["json"])

    def _update_counts(self) -> dict[int, int]:
        """Return the number of updates of each table; every update of the model is one of all its tables."""
        found: dict[int, int] = dict.fromkeys(range(len(self.tables)), 0)
        for program in self.programs:
            found |= dict.fromkeys(program.tables, int(program.step.asnumpy()))
        return found

    def _set_update_counts(self, json: Mapping[str, Any]) -> None:
        names = list(self.tables)
        for program in self.programs:
            updates = max(json[names[index]]["updates"] for index in program.tables)
            ops.assign(program.step, Tensor(float(updates), mstype.float32))

    # -- graph side ----------------------------------------------------------------------------------------------

    def begin(self, inputs):
        """Bring one step's rows before the network; `inputs` end with the step's `input_count` extra inputs.

        Returns what `update` needs.
        """
        work = ()
        for program in self.programs:
            positions = inputs[program.positions_at]
            work += ((positions, program.begin(positions, inputs[program.map_at])),)
        return work

    def gradients(self, work, found):
        """Return `found` with the gradients of the step's rows, [n, dim] each, in place of those of `params`, its last.

        Only where `has_readers`; else they are the same.
        """
        made = found[: -self.trained_count]
        for program in self.programs:
            if program.trainable:
                made += (program.gradient(work[program.kept_at][0], found[program.gradient_at]),)
        return made

    def update(self, work, gradients, lr):
        """Update the step's rows: `gradients` end with theirs, `lr` is a float32 scalar tensor."""
        for program in self.programs:
            if program.trainable:
                program.update(*work[program.kept_at], gradients[program.gradient_at], lr)


def _by_group(plan: SparsePlan, count: int) -> list[list[TablePlan]]:
    parts: list[list[TablePlan]] = [[] for _ in range(count)]
    for part in plan.tables:
        parts[part.group].append(part)
    return parts
