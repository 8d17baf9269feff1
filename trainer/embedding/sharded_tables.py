"""The tables of a network whose rows are divided among processes, and what these exchange in each call.

Before a call that trains: (1) the owner of each distinct id says which row it has; (2) the owner of each distinct row
gives it, with the optimizer's columns. Then every process has the rows of the call, applies the same updates to them,
their gradients added up with the dense ones, and keeps those it owns. Before a call that only reads: (1) every process
says which ids it wants; (2) their owners give the weights. All of it on the thread that runs graphs, one message for
all tables each, through `Group.gather_known`: AllGather, the one such operator that MindSpore has on CPU. AlltoAll
would send a row only to those that asked for it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .fields import FieldMap
from .host_rows import HostGroupProgram
from .layers import hide
from .planner import Planner
from .row_optimizers import RowOptimizer
from .sharded_state import gather_table, own_states, renumbered
from .sharded_table import Question, ShardedTable
from .sparse_plan import SparsePlan, TablePlan, padding_of
from .tables import SparseTables, of_table
from .unique_indexer import SortingIndexer
from .working_set import GroupProgram


class ShardedPlanner(Planner):
    """A `Planner` that asks the other processes; called by all of them, on the thread that runs graphs.

    To train, all give the same ids, those of all; to read, each gives its own.
    """

    def __init__(self, group: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.group = group
        # a list of all row numbers there are would not get shorter with more processes
        self._rows = SortingIndexer()
        self._found: dict[int, np.ndarray] = {}

    def plan(self, columns, stacked, num_batches, *, train=True, now=None, **options):
        """See `Planner.plan`."""
        now = time.time() if now is None else now
        try:
            for component in self.fields.components:
                self._found[id(component)] = super()._gather(component, columns, stacked, num_batches)
            if train:
                self._ask_for_rows(now)
            else:
                self._ask_for_weights(self._ids_of_tables())
            return super().plan(columns, stacked, num_batches, train=train, now=now, **options)
        finally:
            self._found.clear()

    def stand_by(self) -> None:
        """Take part in what the others read, with nothing to read oneself."""
        self._ask_for_weights([(index, np.zeros((1, 0), np.int64)) for index, _ in self._readers()])

    def _gather(self, component, columns, stacked: bool, num_batches: int) -> np.ndarray:
        return self._found[id(component)]

    def _rows_of_all(self, tables: Sequence[int], ids: Sequence[np.ndarray], now: float) -> list[np.ndarray]:
        return [self._rows_of(index, part, now) for index, part in zip(tables, ids, strict=True)]

    def _readers(self) -> list[tuple[int, tuple[Any, np.ndarray | None]]]:
        """Return every table's index with its component and the columns it reads, in the order of all processes."""
        found = []
        for bundle in self.bundles:
            for component in (self.fields.components[index] for index in bundle.components):
                for index, reads in zip(component.specs, component.reads, strict=True):
                    found.append((index, (component, reads if bundle.indirect else None)))
        return found

    def _ids_of_tables(self) -> list[tuple[int, np.ndarray]]:
        ids = []
        for index, (component, reads) in self._readers():
            found = self._found[id(component)]
            chosen = found if reads is None else np.ascontiguousarray(found[:, :, reads])
            ids.append((index, chosen.reshape(len(found), -1)))
        return ids

    def _ask_for_rows(self, now: float) -> None:
        asked = [(self.tables[index], index, ids) for index, ids in self._ids_of_tables()]
        own = [table.ask(ids, now, train=self.trainable[index]) for table, index, ids in asked]
        counts = np.array([table.answer_counts() for table, *_ in asked])
        flat = np.concatenate([*own, np.zeros(0, np.int32)])
        for (table, *_), parts in zip(asked, exchange(self.group, flat, counts), strict=True):
            table.learn(parts)

    def _ask_for_weights(self, wanted: Sequence[tuple[int, np.ndarray]]) -> None:
        questions = []
        for index, ids in wanted:
            table = self.tables[index]
            questions.append((table, Question(ids, padding_of(table, ids), stepwise=False)))
        asked = [question.keys for _, question in questions]
        head = np.array([len(keys) for keys in asked], np.int64)
        messages = self.group.gather_bytes(np.concatenate([head, *asked]).tobytes())
        words = [np.frombuffer(message, np.int64) for message in messages]
        starts = [len(asked)] * len(words)
        own, everyones, counts = [], [], []
        for place, (table, _) in enumerate(questions):
            parts = []
            for rank, message in enumerate(words):
                parts.append(message[starts[rank] : starts[rank] + message[place]])
                starts[rank] += int(message[place])
            keys = np.unique(np.concatenate(parts))
            owners = table.shards.owners(keys)
            mine = keys[owners == self.group.rank]
            weights = np.empty((len(mine), table.spec.dim), np.float32)
            table.table.read_trained(mine, np.zeros(len(mine), np.bool_), weights)
            own.append(weights.reshape(-1))
            everyones.append((keys, owners))
            counts.append(np.bincount(owners, minlength=self.group.size) * table.spec.dim)
        flat = np.concatenate([*own, np.zeros(0, np.float32)])
        given = exchange(self.group, flat, np.array(counts))
        for (table, question), (keys, owners), parts in zip(questions, everyones, given, strict=True):
            weights = np.empty((len(keys), table.spec.dim), np.float32)
            for rank, part in enumerate(parts):
                weights[owners == rank] = part.reshape(-1, table.spec.dim)
            table.store.values = weights[np.searchsorted(keys, question.keys)]
            question.answers = np.arange(len(question.keys), dtype=np.int32)
            table.question = question


def exchange(group: Any, flat: np.ndarray, counts: np.ndarray) -> list[list[np.ndarray]]:
    """Return what every process gives of every table.

    Args:
        group: the processes.
        flat: what this one gives, one table after the other.
        counts: how many elements each process gives of each table, int64 [tables, size].
    """
    everyones = group.gather_known(flat, counts.sum(axis=0).tolist() if len(counts) else [0] * group.size)
    ends = counts.cumsum(axis=0)
    return [
        [part[end - count : end] for part, end, count in zip(everyones, row_ends, row, strict=True)]
        for row_ends, row in zip(ends, counts, strict=True)
    ]


class CallBuffer:
    """The rows of a call in memory, as `HostRows` reads and trains them: row p stands at position p.

    Attributes:
        rows: float32 [size, width].
    """

    is_frozen = False  # no snapshot is taken in the middle of a call

    def __init__(self, width: int) -> None:
        self.width = width
        self.lock = contextlib.nullcontext()
        self.rows = np.zeros((1, width), np.float32)

    @property
    def address(self) -> int:
        """Where the rows are in memory."""
        return self.rows.__array_interface__["data"][0]


class CallGroupProgram(HostGroupProgram):
    """A `HostGroupProgram` whose kernels train the rows of a call where they were gathered."""

    def stores(self) -> dict[int, Any]:
        """Return the rows of the call, as of one table."""
        hide(self, "buffer", CallBuffer(self.width))
        return {0: self.buffer}

    def load(self, parts: list[TablePlan], size: int) -> None:
        """Put the chunk's rows at their positions."""
        buffer = self.buffer
        if len(buffer.rows) != size:
            buffer.rows = np.zeros((size, buffer.width), np.float32)
            self.host_rows.choose([TablePlan(0, np.arange(1, size, dtype=np.int32), parts[0].group)], size)
        for part in parts:
            self.tables[part.table].store.read(part.rows, buffer.rows[part.start : part.start + len(part.rows)])

    def write_back(self, parts: list[TablePlan]) -> None:
        """Let the tables keep what is theirs of the trained rows."""
        for part in parts:
            self.tables[part.table].commit(self.buffer.rows[part.start : part.start + len(part.rows)])


class ShardedTables(SparseTables):
    """`SparseTables` of which every process keeps a part of the rows. All of them call its methods, in one order."""

    def _plan_for(self) -> list[Any]:
        # the admission sketches that all processes began with; each goes on counting its own ids only
        hide(self, "_sketches", {})
        return [ShardedTable(table) for table in self.tables.values()]

    def _make_planner(self, trainable: list[bool], fields: FieldMap, accumulate: int, grouping: Any) -> Planner:
        return ShardedPlanner(self.group, self.planned, trainable, fields, accumulate, grouping=grouping)

    def _program_for(self, optimizer: RowOptimizer) -> type[GroupProgram]:
        kind = super()._program_for(optimizer)
        return CallGroupProgram if kind is HostGroupProgram else kind

    @property
    def rows(self) -> int:
        """Number of rows of all tables in all processes."""
        return self._total(len(table) for table in self.tables.values()) + len(self.tables)

    def changed(self, consumer: str) -> int:
        """See `SparseTables.changed`; of all processes."""
        return self._total([super().changed(consumer)])

    def _total(self, counts: Iterable[int]) -> int:
        return int(self.group.total(np.array([sum(counts)], np.int64))[0])

    def load(self, plan: SparsePlan) -> None:
        """See `SparseTables.load`."""
        if plan.train:
            self._bring_rows(plan)
        super().load(plan)

    def _bring_rows(self, plan: SparsePlan) -> None:
        parts = [(self.planned[part.table], part.rows) for part in plan.tables]
        counts = np.array([table.row_counts(rows) * table.width for table, rows in parts])
        own = [table.give(rows).reshape(-1) for table, rows in parts]
        given = exchange(self.group, np.concatenate([*own, np.zeros(0, np.float32)]), counts)
        for (table, rows), everyones in zip(parts, given, strict=True):
            table.take_in(rows, [one.reshape(-1, table.width) for one in everyones])

    # -- snapshots -----------------------------------------------------------------------------------------------

    def take(self, consumer: str = "snapshot", *, full: bool = True, folder: Path | None = None) -> dict[str, Any]:
        """Return on rank 0 what `SparseTables.take` of one process returns, and a state of no tables on the others.

        The processes give their rows block by block while all of them wait.

        Args:
            consumer: see there.
            full: see there; the same on all processes.
            folder: where rank 0 puts large arrays together, in files without a name.
        """
        own = super().take(consumer, full=full)
        whole: dict[str, Any] = {"json": {}, "arrays": {}}
        for name, table in self.tables.items():
            before = self._sketches.get(name)
            arrays, json = gather_table(
                self.group, table, of_table(own["arrays"], name), own["json"][name], before, folder
            )
            if self.group.is_main:
                whole["json"][name] = json
                whole["arrays"] |= {f"{name}/{key}": value for key, value in arrays.items()}
        return whole

    def restore_all(self, states: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """See `SparseTables.restore_all`; each process takes its part."""
        super().restore_all(own_states(self.tables, states))
        sketches = {name: table.admission.sketch for name, table in self.tables.items()}
        hide(self, "_sketches", {name: sketch.copy() for name, sketch in sketches.items() if sketch is not None})
        return renumbered(self.group, self.tables, states)
