"""`SparseTables`: loads and updates the rows of a network's tables in training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype

from ...distributed.group import SINGLE, Group
from ...errors import ConfigurationError
from ...mindspore_internals import device
from ...mindspore_internals.cell_structure import hide
from ...mindspore_internals.shared_memory import HostMirror
from ..planning.layout import Bundle, FieldMap, Layout, stack_tables
from ..planning.planner import Planner
from ..planning.sparse_plan import Carry, SparsePlan, TablePlan, padded_size
from ..tables import table_state
from ..tables.hashing import Shards
from ..tables.spec import TableSpec
from ..tables.table_state import arrays_of
from .embedding import Embedding, WorkingSet
from .embedding_cells import check_files, embedding_cells, head_cells, name_by_path
from .row_optimizer import RowOptimizer
from .stack_program import StackProgram
from .tracing import find_fields

_logger = logging.getLogger(__name__)
MIN_CELLS = 4  # fewest cells of a stack for which one shared read is faster than separate reads


class SparseTables(nn.Cell):
    """All sparse tables of a network, for its training program.

    For every call of the program, the preparing thread first calls `planner.plan`; the main thread then calls `load`,
    the program and `write_back`. In the graph, every step calls `begin` before the forward pass and `update` in place
    of an optimizer.

    Raises:
        ConfigurationError: two tables have the same name, or `find_fields` fails.
    """

    by_owner = False  # whether the process that owns a row sums its gradients, see `ShardedTables`

    def __init__(
        self,
        network: nn.Cell,
        columns: Sequence[np.ndarray],  # a sample batch of its inputs (without labels), [batch, ...] each
        names: Sequence[str] = (),  # names of the columns
        dense_optimizer: nn.Cell | None = None,  # decides the default row optimizer
        accumulate: int = 1,  # batches per optimizer update
        group: Group = SINGLE,
    ) -> None:
        super().__init__(auto_prefix=False)
        hide(self, "group", group)
        fields = find_fields(network, columns, names)
        cells = embedding_cells(network)
        heads = head_cells(cells)
        name_by_path(network, heads)
        table_names = [cell.spec.name for cell in heads]
        if repeated := {name for name in table_names if table_names.count(name) > 1}:
            raise ConfigurationError(f"table names must differ; {', '.join(sorted(repeated))} occurs more than once")
        sparse = [index for index, cell in enumerate(heads) if not cell.is_dense]
        check_files(heads[index] for index in sparse)
        for component in fields.components:
            component.specs = [sparse.index(index) for index in component.specs]
        heads = [heads[index] for index in sparse]
        device.check_sparse_tables([cell.spec.name for cell in heads])
        hide(self, "tables", {})
        optimizers: list[RowOptimizer | None] = []
        for cell in heads:
            optimizer = cell.row_optimizer or cell.host.optimizer
            if cell.row_optimizer is None and dense_optimizer is not None:
                from .row_optimizers import row_optimizer_like  # imports Numba

                own = row_optimizer_like(dense_optimizer)
                if optimizer is not None and optimizer.settings() != own.settings():
                    _logger.warning(
                        "table %r keeps the %s of the Trainer that trained it first; the dense parameters use %s. "
                        "Embedding(optimizer=...) sets a table's optimizer for every Trainer",
                        *(cell.spec.name, type(optimizer).__name__, type(own).__name__),
                    )
                optimizer = optimizer or own
            self.tables[cell.spec.name] = cell.host_table(optimizer, Shards(group.rank, group.size))
            # Without an optimizer the rows are only read and have no slots.
            optimizers.append(cell.host.optimizer)
            self._check_dtype(cell.spec, cell.host.optimizer)
        specs = [cell.spec for cell in heads]
        layout = stack_tables(fields.components, specs, _stack_keys(heads, optimizers))
        self._configure_exchange(optimizers, accumulate)
        hide(self, "planned", self._planned_tables())
        self._make_programs(layout, heads, optimizers)
        members = [[id(specs[table]) for table in stack.tables] for stack in layout.stacks]
        hide(self, "_cells_of", [[cell for cell in cells if id(cell.spec) in ids] for ids in members])
        hide(self, "planner", self._make_planner([spec.trainable for spec in specs], fields, accumulate, layout))
        self._choose_gradients(fields, accumulate)
        rows = "; ".join(
            f"{', '.join(name for name, table in self.tables.items() if table.width == width)}: {width} numbers per row"
            for width in dict.fromkeys(table.width for table in self.tables.values())
        )
        _logger.debug("%d sparse tables, read and updated as %d: %s", len(self.tables), len(layout.stacks), rows)

    def _check_dtype(self, spec: TableSpec, optimizer: RowOptimizer | None) -> None:
        """Check that a CPU kernel trains the rows if they are not float32."""
        trained = spec.trainable and optimizer is not None
        if spec.dtype != "float32" and trained and not self._has_kernel(optimizer):
            where = "" if device.current().runs_python else f" on {device.current().name}"
            raise ConfigurationError(
                f"table {spec.name!r} has dtype={spec.dtype!r}, which only CPU kernels train: optimizer takes RowAdam, "
                "RowAdagrad, RowFTRL, RowSGD or a row optimizer that defines kernel() and construct(); received "
                f"{type(optimizer).__name__}{where}; dtype='float32' takes any"
            )

    def _configure_exchange(self, optimizers: Sequence[RowOptimizer | None], accumulate: int) -> None:
        """Hook: set up the exchange of rows with other processes."""

    def _planned_tables(self) -> list[Any]:
        """Return the tables in the form that the planner and the programs use."""
        return list(self.tables.values())

    def _make_planner(self, trainable: list[bool], fields: FieldMap, accumulate: int, layout: Layout) -> Planner:
        return Planner(self.planned, trainable, fields, accumulate, layout=layout)

    def _make_programs(
        self, layout: Layout, heads: Sequence[Embedding], optimizers: Sequence[RowOptimizer | None]
    ) -> None:
        from .row_optimizers import RowSGD  # imports Numba

        programs = []
        for stack in layout.stacks:
            head = heads[stack.tables[0]]
            # A table that is alone in its stack keeps its own working set.
            working_set = head.own_working_set if len(stack.tables) == 1 else WorkingSet(head.spec.name, head.dim)
            indirect = layout.bundles[stack.bundle].indirect
            optimizer = optimizers[stack.tables[0]] or RowSGD()
            members = {index: self.planned[index] for index in stack.tables}
            kind = self._program_for(optimizer)
            programs.append(kind(head.spec.name, working_set, members, optimizer, head.spec.trainable, indirect))
        self.programs = nn.CellList(programs, auto_prefix=False)
        self.reversed_programs = nn.CellList(programs[::-1], auto_prefix=False)
        self._number_inputs(layout.bundles)
        trained = [program for program in programs if program.trainable]
        for index, program in enumerate(trained):
            program.gradient_index = index - len(trained)
        for index, program in enumerate(programs):
            program.work_index = index

    def _choose_gradients(self, fields: FieldMap, accumulate: int) -> None:
        """Choose the parameters to differentiate; create the buffers of gradient sums."""
        trained = [program for program in self.programs if program.trainable]
        for program, cells in zip(self.programs, self._cells_of, strict=True):
            # A `ReadRows` needs tables that a step reads only once: a sum of several reads could depend on their order.
            once = len(cells) == len(program.tables) and fields.repeated.isdisjoint(program.tables)
            if program.trainable and once and not self._use_columns(program, cells, fields):
                program.use_reader()
        self.has_readers = any(program.reader is not None or program.columns is not None for program in trained)
        # Parameters to differentiate: `params` in training (see `gradients`), `read_params` in a read-only program.
        hide(self, "params", [parameter for program in trained for parameter in program.differentiated])
        for parameter in (*self.params, *(program.working_set.reading for program in trained)):
            parameter.requires_grad = True
        hide(self, "read_params", [program.working_set.reading for program in trained])
        hide(self, "carried", {})  # rows of an unfinished accumulation after the last chunk, see `OpenRows`
        hide(self, "gradient_sums", [])
        hide(self, "_sums", [None] * len(self.programs))
        for index, program in enumerate(self.programs):
            if program.trainable and accumulate > 1:
                blank = Tensor(np.zeros((1, program.dim), np.float32))
                name = f"embedding.{program.name}.gradient_sum"
                self.gradient_sums.append(Parameter(blank, name=name, requires_grad=False))
                self._sums[index] = HostMirror(self.gradient_sums[-1], in_branch=True)

    def _use_columns(self, program: StackProgram, cells: Sequence[Embedding], fields: FieldMap) -> bool:
        """Let one operator read for all cells of a stack; return False if it cannot."""
        reads = {id(cell): fields.unchanged[id(cell)] for cell in cells if id(cell) in fields.unchanged}
        return len(reads) == len(cells) >= MIN_CELLS and not program.indirect and program.use_columns(reads)

    def _number_inputs(self, bundles: Sequence[Bundle]) -> None:
        """Assign each program its extra step inputs, indexed from the end."""
        inputs: list[tuple[list[int], int]] = []  # (stacks, number of inputs that they share)
        for bundle in bundles:
            bundle.in_graph = any(self.programs[index].in_graph for index in bundle.stacks)
            inputs += [(stacks, 1 + bundle.in_graph + bundle.indirect) for stacks in bundle.sharing]
        self.reading_input_count = sum(len(bundle.sharing) * (1 + bundle.indirect) for bundle in bundles)
        self.input_count = sum(count for _, count in inputs)
        first = -self.input_count
        for stacks, count in inputs:
            for index in stacks:
                self.programs[index].positions_index, self.programs[index].map_index = first, first + count - 1
                self.programs[index].owned_index = first + 1 if count > 1 else first
            first += count

    def _program_for(self, optimizer: RowOptimizer) -> Callable[..., StackProgram]:
        from .host_rows import HostStackProgram  # imports Numba

        return HostStackProgram if self._has_kernel(optimizer) else StackProgram

    def _has_kernel(self, optimizer: RowOptimizer | None) -> bool:
        """Return whether CPU kernels read and update rows; `optimizer` is None for reads.

        Otherwise the graph holds a chunk's rows while they are trained.
        """
        from .host_rows import find_kernel  # imports Numba

        return device.current().runs_python and (optimizer is None or find_kernel(optimizer) is not None)

    # -- host side -----------------------------------------------------------------------------------------------

    def load(self, plan: SparsePlan) -> None:
        """Load a chunk's rows; call it just before the program, on the same thread."""
        for cells, program in zip(self._cells_of, self.programs, strict=True):
            working_set = program.working_set
            working_set.reader = program.reader
            for cell in cells:
                # Another Trainer of the same network may have stacked the tables differently.
                vectors, current = program.vectors_of(cell), (cell.working_set, cell.indirect, cell.reader)
                if current != (working_set, program.indirect, program.reader) or cell.column_vectors is not vectors:
                    cell.adopt(working_set, program.indirect, vectors)
                cell.reading = not plan.train
        for index, parts in enumerate(plan.by_stack()):
            if parts:
                (self._load_training if plan.train else self._load_reading)(index, parts, plan)

    def _load_training(self, index: int, parts: list[TablePlan], plan: SparsePlan) -> None:
        program, step_size, table = self.programs[index], plan.step_sizes[index], parts[0].table
        program.working_set.mirror("rows").array(step_size)
        program.make_room(step_size, plan.lengths)
        mirror = self._sums[index]
        if mirror is not None and mirror.parameter.shape[0] != step_size:
            old = np.array(mirror.parameter.asnumpy())[:step_size]  # rows beyond `step_size` are zero
            array = mirror.array(step_size)
            array[:] = 0.0
            array[: len(old)] = old
            mirror.push()
        if table in plan.map_sizes:
            program.working_set.mirror("step_map").array(plan.map_sizes[table])
        program.load(parts, plan.sizes[index])

    def _load_reading(self, index: int, parts: list[TablePlan], plan: SparsePlan) -> None:
        working_set = self.programs[index].working_set
        rows = working_set.mirror("reading").array(plan.sizes[index])
        rows[0] = 0.0
        for part in parts:
            table, out = self.planned[part.table], rows[part.inside]
            if part.ids is None:
                table.store.read_part(part.rows, out)
            else:
                table.read_trained(part.ids, part.rows < 0, out)
        working_set.mirror("reading").push()
        if (positions := parts[0].reading_map) is not None:
            working_set.mirror("reading_map").array(len(positions))[:] = positions
            working_set.mirror("reading_map").push()

    def write_back(self, plan: SparsePlan) -> None:
        """Write a chunk's rows to the tables, just after the program, on the same thread."""
        if not plan.train:
            return
        for program, parts in zip(self.programs, plan.by_stack(), strict=True):
            if program.trainable and parts:
                program.write_back(parts)
        if self.gradient_sums:
            hide(self, "carried", plan.carry)
        if not plan.carry:  # the update is complete
            for table in self.tables.values():
                table.open_plans.clear()

    def rollback(self) -> None:
        """Undo every plan that was not trained; the preparing thread must have stopped."""
        for table in self.tables.values():
            table.rollback()
        self.planner.reset()

    # -- unfinished accumulation ---------------------------------------------------------------------------------

    def gradient_sum(self, stack: int) -> Parameter | None:
        """Return a stack's gradient sum, [positions, dim]; None without accumulation."""
        return None if self._sums[stack] is None else self._sums[stack].parameter

    def set_gradient_sums(self, stacks: Sequence[int], sums: Sequence[np.ndarray | None] | None) -> None:
        """Set the gradient sums of a bundle's stacks, [positions, dim]; None zeroes them."""
        rows = 0 if sums is None else max((len(value) for value in sums if value is not None), default=1) - 1
        for member, stack in enumerate(stacks):
            mirror = self._sums[stack]
            if mirror is None:
                continue
            array = mirror.array(max(padded_size(rows + 1), mirror.parameter.shape[0]))
            array[:] = 0.0
            if sums is not None:
                array[: rows + 1] = sums[member]
            mirror.push()

    def resume_accumulation(self, carry: Carry) -> None:
        """Start the next chunk with the rows of `carry`; no thread may be planning."""
        hide(self, "carried", carry)
        self.planner.carry = dict(carry)

    def discard_accumulation(self) -> None:
        """Drop the open accumulation and the sightings of its ids.

        No thread may be planning.
        """
        self.resume_accumulation({})
        for table in self.tables.values():
            table.forget_open_plans()

    # -- snapshots -----------------------------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        """Number of rows in all tables."""
        return sum(len(table) + 1 for table in self.tables.values())

    def count_changed(self, consumer: str) -> int:
        """Return how many rows changed since the consumer's last state, or all if none."""
        return sum(table.count_changed(consumer) for table in self.tables.values())

    def take(
        self, consumer: str = "snapshot", *, full: bool = True, weights_only: bool = False, folder: Path | None = None
    ) -> dict[str, Any]:
        """Return the state after the last `write_back`: {"json": ..., "arrays": ...}.

        Fast enough to call between two steps. Rows are `tensor_file.LazyArray`: a writer thread can convert them to
        arrays while training continues.

        Args:
            consumer: name of the change tracking to use ("snapshot", "serving").
            full: return all rows, not only those changed since the consumer's last state; the first state is always
                full.
            folder: unused with one process; see `ShardedTables.take`.
            weights_only: leave out optimizer slots; such a state cannot be restored.
        """
        arrays, json = dict[str, Any](), dict[str, Any]()
        updates = self._update_counts()
        for index, (name, table) in enumerate(self.tables.items()):
            first = consumer not in table.tombstones
            table.track_changes(consumer)
            state, json[name] = table_state.take(table, consumer, full=full or first, weights_only=weights_only)
            json[name]["updates"] = updates[index]
            arrays |= {f"{name}/{key}": value for key, value in state.items()}
        return {"json": json, "arrays": arrays}

    def restore(self, states: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Restore a full state and its deltas, once `check_states` has accepted them.

        No thread may be planning; untrained plans are dropped. Returns the arrays of the last state, with the rows of
        an open accumulation renumbered for these tables.
        """
        self.planner.reset()
        for state in states:
            for name, table in self.tables.items():
                table_state.restore(table, arrays_of(state["arrays"], name), state["json"][name])
            self._set_update_counts(state["json"])
        return states[-1]["arrays"] if states else {}

    def rewind(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Reset all rows to a full state and its deltas while planning continues."""
        for name, table in self.tables.items():
            table_state.rewind(table, [(arrays_of(saved["arrays"], name), saved["json"][name]) for saved in states])
        self._set_update_counts(states[-1]["json"])

    def _update_counts(self) -> dict[int, int]:
        """Return each table's update count; each model update adds one for all tables."""
        return {index: int(program.step.asnumpy()[0]) for program in self.programs for index in program.tables}

    def _set_update_counts(self, json: Mapping[str, Any]) -> None:
        names = list(self.tables)
        for program in self.programs:
            updates = max(json[names[index]]["updates"] for index in program.tables)
            ops.assign(program.step, Tensor([updates], mstype.int32))

    # -- graph side ----------------------------------------------------------------------------------------------

    def begin(self, inputs):
        """Load one step's rows into the network; return what `update` needs.

        The last `input_count` of `inputs` are the step's extra inputs.
        """
        work = ()
        for program in self.programs:
            positions = inputs[program.positions_index]
            context = program.begin(positions, inputs[program.map_index], inputs[program.owned_index], inputs)
            work += ((positions, context),)
        return work

    def gradients(self, work, gradients):
        """Replace the gradients of `params`, which come last, by row gradients [n, dim].

        Without `has_readers` they already are the row gradients.
        """
        rows = ()
        for program in self.reversed_programs:
            if program.trainable:
                rows = (program.gradient(*work[program.work_index], gradients[-program.params_count :]), *rows)
                gradients = gradients[: -program.params_count]
        return gradients + rows

    def update(self, work, gradients, lr):
        """Update the step's rows; their gradients come last. `lr` is a float32 scalar."""
        for program in self.programs:
            if program.trainable:
                program.update(*work[program.work_index], gradients[program.gradient_index], lr)


def _stack_keys(heads: Sequence[Embedding], optimizers: Sequence[RowOptimizer | None]) -> list[Hashable]:
    """Return a key for each table; tables with equal keys share a stack."""
    first = {id(optimizer): index for index, optimizer in reversed(list(enumerate(optimizers)))}
    keys: list[Hashable] = []
    for cell, optimizer in zip(heads, optimizers, strict=True):
        if optimizer is None or not cell.spec.trainable:
            keys.append((cell.dim, False, cell.spec.dtype))
            continue
        # A user's optimizer may depend on anything, so only the same object counts as equal. Its key is the index of
        # its first table, which is the same in every process.
        is_built_in = type(optimizer).__module__.startswith(f"{__package__}.")
        rule = tuple(optimizer.settings().items()) if is_built_in else first[id(optimizer)]
        keys.append((cell.dim, True, type(optimizer).__name__, rule, cell.spec.dtype))
    return keys
