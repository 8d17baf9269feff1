"""Plan the training of sharded tables: the owner of a row trains it.

Each process plans its own ids. For a training call it sends every other process three messages, each of which covers
all tables:

1. the distinct ids of its batches that the other process owns. The owner gives new ids rows, as its admission, eviction
   and capacity allow;
2. the row numbers of the ids that the other process has asked for;
3. for each step, the rows of the other process that it reads.

The steps then send no ids: an owner sends the weights of the listed rows and receives their gradients in the same
order.

With accumulation, message 3 lists rows for windows instead of steps. A window is the micro-batches of one optimizer
update within a call. If an accumulation is open at the end of a call, the next call lists its rows again.

Planning has its own connections (`begin`), so the preparing thread can plan a call while another one is trained. Each
process also announces whether it has more ids, so the others do not wait for a process whose data has ended.

An id without a row uses the default row, of which every process has an equal copy. Processes list this row for all
owners. Each owner sums all of its gradients, so the copies stay equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...distributed.all_to_all import Channel
from ...distributed.group import Group
from ...errors import DataError
from ..tables.spec import DEFAULT_ROW
from .planner import step_rows
from .sharded_planner import ShardedPlanner, exchange_parts, raise_problems
from .sparse_plan import PaddedSizes, SortingIndexer, SparsePlan, StackExchange, TablePlan, UniqueIndexer

_MAX_KEYS = 1 << 31  # `UniqueIndexer` takes keys below this
_NUM_LISTS = 4  # arrays that a process sends each owner for each stack
_MORE, _LAST, _NONE = range(3)  # a process has ids and may have more later; has its last ids; has no ids left


class OwnerPlanner(ShardedPlanner):
    """A `ShardedPlanner` that also plans training."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._owned_sizes = PaddedSizes()
        self._owned_rows, self._sorted_rows = UniqueIndexer(), SortingIndexer()
        self._owned_steps = UniqueIndexer()
        self._uses_system_clock = self._placeholder = False
        self._now, self._fill = 0.0, 0
        self.begin(self.group)
        self._windows = np.zeros(0, np.int64)
        for index, table in enumerate(self.tables):
            table.keeps_seen = self._counts_sightings(index)

    def begin(self, connections: Group | Channel) -> None:
        """Exchange training plans over `connections` from now on."""
        self._connections = connections
        self._announced = _MORE

    def finish(self) -> None:
        """Tell the other processes that no ids follow, unless they already know."""
        if self._announced == _MORE:
            self._announced = _NONE
            self._exchange_requests()

    def plan(
        self,
        *arguments: Any,
        train: bool = True,
        now: float | None = None,
        placeholder: bool = False,
        fill: int = 0,
        last: bool = False,
        **options: Any,
    ) -> Any:
        """Replace ids by positions; see `Planner.plan`.

        `now` is the newest event time of this process, in seconds, or None for the system clock; the newest time of all
        processes is used. The ids of a `placeholder` are treated as padding. `last` says that this process has no ids
        for another call.

        Raises:
            DataError: on all processes, for the reasons in `Planner.plan`, or because the ids of one process end before
                those of another.
        """
        if train:  # a read may run on another thread at the same time
            self._uses_system_clock, self._placeholder, self._fill = now is None, placeholder, fill
            self._announced = _LAST if last else _MORE
        return super().plan(*arguments, train=train, now=now, fill=fill, **options)

    def _share_problem(self, problem: str, train: bool) -> None:
        if train:
            self._exchange_requests(problem=problem)
        super()._share_problem(problem, train)

    def _exchange_requests(
        self, requests: Sequence[Sequence[np.ndarray]] | None = None, now: float = 0.0, problem: str = ""
    ) -> list[list[np.ndarray]]:
        """Exchange requests, times and problems with all ranks; return the requests.

        Without `requests`, every rank gets empty arrays.
        """
        text = np.frombuffer(problem.encode(), np.uint8)
        time_bits = np.float64(now).view(np.int64)  # the message consists of int64
        clock = np.array([self._uses_system_clock, time_bits, self._placeholder, self._announced], np.int64)
        count = sum(3 if self._stepwise(table) else 1 for *_, table in self._reads())
        requests = requests or [[np.zeros(0, np.int64)] * count] * self.group.size
        received = exchange_parts(self._connections, [[clock, text, *arrays] for arrays in requests], np.int64)
        if self._announced == _NONE:
            return []
        announced = [clock[3] for clock, *_ in received]
        if len(set(announced)) > 1:
            raise DataError.of_rank(int(np.argmax(announced)), "its data ends before that of the others")
        raise_problems([text for _, text, *_ in received])
        # Ignore placeholders; ignore system clocks if any process has an event time.
        clocks = [clock for clock, *_ in received if not clock[2]] or [received[0][0]]
        times = [float(clock[1:2].view(np.float64)[0]) for clock in clocks]
        self._now = max((time for time, clock in zip(times, clocks, strict=True) if not clock[0]), default=times[0])
        return [parts for _, _, *parts in received]

    def _query_owners(self, ids: Sequence[np.ndarray], train: bool, now: float) -> None:
        if not train:
            self._query_weights(list(self._ids_of_tables(ids)))
            return
        requests: list[list[np.ndarray]] = [[] for _ in range(self.group.size)]
        read = list(self._ids_of_tables(ids))
        for index, part in read:
            stepwise = self._stepwise(index)
            table_requests = self.tables[index].start_query(part, placeholder=self._placeholder, stepwise=stepwise)
            for rank, arrays in enumerate(table_requests):
                requests[rank] += arrays
        requested = self._exchange_requests(requests, now)
        answers: list[list[np.ndarray]] = [[] for _ in range(self.group.size)]
        start = 0
        for index, part in read:
            count = 3 if self._stepwise(index) else 1
            table_requests = [parts[start : start + count] for parts in requested]
            start += count
            rows_of = self.tables[index].answer(table_requests, len(part), self._now, train=self.trainable[index])
            for rank, rows in enumerate(rows_of):
                answers[rank].append(rows)
        received = exchange_parts(self._connections, answers, np.int32)
        for position, (index, _) in enumerate(read):
            self.tables[index].receive([parts[position] for parts in received])

    # -- the rows of each step -----------------------------------------------------------------------------------

    def _inputs_of_stacks(self) -> Iterator[tuple[int, list[int]]]:
        """Yield (index of the step rows in a plan's inputs, the stacks that use them)."""
        index = 0
        for bundle in self.layout.bundles:
            for stacks in bundle.sharing:
                yield index, stacks
                index += 2 + bundle.indirect

    def _finish_plan(self, plan: SparsePlan, num_batches: int) -> None:
        """Tell owners which rows each step reads; add the exchanges to the plan."""
        if not plan.train:
            return
        self._windows = (np.arange(num_batches) + self._fill) // self.accumulate
        self._windows -= self._windows[0]
        firsts = np.searchsorted(self._windows, np.arange(self._windows[-1] + 1))  # first batch of each window
        parts_of = plan.by_stack()
        sent: list[list[list[np.ndarray]]] = [[] for _ in parts_of]
        lists: list[list[np.ndarray]] = [[] for _ in range(self.group.size)]
        inputs = list(self._inputs_of_stacks())
        order = [(index, stack) for index, stacks in inputs for stack in stacks]
        for index, stack in order:
            steps = [row[1 : 1 + np.count_nonzero(row)] for row in plan.inputs[index][firsts]]
            sent[stack], listed = self._list_rows(parts_of[stack], steps, plan.sizes[stack])
            for rank, arrays in enumerate(listed):
                lists[rank] += arrays
        received = exchange_parts(self._connections, lists, np.int32)
        exchanges: dict[int, StackExchange] = {}
        for number, (_, stack) in enumerate(order):
            requested = [parts[_NUM_LISTS * number : _NUM_LISTS * (number + 1)] for parts in received]
            exchanges[stack] = self._number_owned(parts_of[stack], sent[stack], requested, len(firsts))
        for index, stacks in inputs:
            rows_of, batches = exchanges[stacks[0]].step_rows, len(plan.inputs[index])
            needed = max(map(len, rows_of)) + 1
            size = self._owned_sizes.fitting(stacks[0], needed, needed)
            plan.inputs[index + 1] = step_rows(rows_of, self._windows, batches, size)
        plan.exchanges = [exchanges[stack] for stack in range(len(parts_of))]

    def _list_rows(
        self, parts: Sequence[TablePlan], windows: Sequence[np.ndarray], size: int
    ) -> tuple[list[list[np.ndarray]], list[list[np.ndarray]]]:
        """Divide the rows of each window, whose positions are in `windows`, by owner.

        Returns (sent, lists). `sent` has, for each window and rank, the positions within the window of the rank's
        rows. `lists` has four int32 arrays to send to each rank:

        - how many rows of each table each window reads, [windows, 2 * tables]: owned rows, then default rows;
        - the row numbers at the owner;
        - how often each row is seen in the window, or an empty array;
        - in which batch it is seen last, or an empty array.
        """
        shards, members = self.tables[parts[0].table].shards, len(parts)
        numbers, member = np.zeros(size, np.int32), np.zeros(size, np.int32)
        # Count and last batch of each row; a table that does not count sightings sees a row once per window.
        sightings = np.ones((2, size), np.int64)
        counted = self._any_counts_sightings(parts)
        for index, part in enumerate(parts):
            numbers[part.inside], member[part.inside] = part.rows, index
        # Default rows, which are sent to all owners, get the number after the last rank.
        owners = np.where(numbers == DEFAULT_ROW, shards.size, (numbers - 1) % shards.size)
        keys, rows = (owners * members + member).astype(np.int32), shards.to_local(numbers)
        bounds = np.arange((shards.size + 1) * members + 1)
        sent: list[list[np.ndarray]] = []
        counts = np.zeros((shards.size, len(windows), 2 * members), np.int32)
        lists: list[tuple[list[np.ndarray], ...]] = [([], [], []) for _ in range(shards.size)]
        for window, positions in enumerate(windows):
            window_keys = keys[positions]
            order = np.argsort(window_keys, kind="stable")
            starts = np.searchsorted(window_keys[order], bounds)
            lengths = np.diff(starts).reshape(-1, members)
            defaults = order[starts[shards.size * members] :]
            if counted:
                for part in parts:
                    if self._counts_sightings(part.table):
                        sightings[:, part.inside] = _sightings(self.tables[part.table].seen, self._windows == window)
            sent.append([])
            for rank, (listed, seen, last) in enumerate(lists):
                indices = order[starts[rank * members] : starts[(rank + 1) * members]]
                indices = np.concatenate((indices, defaults)) if len(defaults) else indices
                counts[rank, window, :members], counts[rank, window, members:] = lengths[rank], lengths[-1]
                listed.append(rows[positions[indices]])
                if counted:
                    seen.append(sightings[0, positions[indices]].astype(np.int32))
                if counted and self.accumulate > 1:
                    last.append(sightings[1, positions[indices]].astype(np.int32))
                sent[-1].append((indices + 1).astype(np.int32))
        return sent, [[count, *map(_joined, parts)] for count, parts in zip(counts, lists, strict=True)]

    def _counts_sightings(self, table: int) -> bool:
        """Return whether owners need to know how often, or when, each row is seen."""
        names = self.tables[table].table.meta_names
        return self.trainable[table] and ("frequency" in names or bool(names and self.accumulate > 1))

    def _number_owned(
        self,
        parts: Sequence[TablePlan],
        sent: list[list[np.ndarray]],
        requested: Sequence[Sequence[np.ndarray]],
        windows: int,
    ) -> StackExchange:
        """Number the rows that this process owns and that any process has listed."""
        members = len(parts)
        counts_of, rows_of, seen_of, last_of = zip(*requested, strict=True)
        counts = [count.reshape(windows, 2 * members) for count in counts_of]
        ends = np.cumsum([count.sum(axis=1) for count in counts], axis=0).T  # [windows, ranks]
        members_of = np.tile(np.arange(members), 2 * windows)
        member = _by_window([np.repeat(members_of, count) for count in counts_of], counts)
        rows = _by_window(rows_of, counts)
        seen = _by_window(seen_of, counts) if self._any_counts_sightings(parts) else None
        last = None if seen is None or self.accumulate == 1 else _by_window(last_of, counts)
        tables = [self.tables[part.table] for part in parts]
        starts = np.cumsum([0, *(max(1, table.table.next_row) for table in tables)])
        keys = np.concatenate((starts[:-1], starts[member] + rows))  # begins with the default row of each table
        indexer = self._owned_rows if starts[-1] < _MAX_KEYS else self._sorted_rows
        distinct, inverse = indexer(keys, int(starts[-1]))
        first = indexer.first
        # For each distinct row, the index of its table in the stack, and its row there; entry 0 is not a row.
        member_of = np.concatenate(([0], np.concatenate((np.arange(members), member))[first])).astype(np.int32)
        row_of = np.concatenate(([0], np.concatenate((np.zeros(members, np.int32), rows))[first])).astype(np.int32)
        inverse = inverse[members:]
        bounds = np.concatenate(([0], np.cumsum(ends[:, -1])))
        slices = [slice(bounds[window], bounds[window + 1]) for window in range(windows)]
        self._record(parts, member_of, row_of, inverse, slices, seen, last)
        indices, trained = [], []
        for span in slices:
            owned, index = self._owned_steps(inverse[span] - 1, len(distinct))
            trained.append(owned + 1)
            indices.append(index)
        table_of = np.array([part.table for part in parts], np.int32)[member_of]
        rows_sent = [inverse[span] for span in slices]
        return StackExchange(self._windows, sent, rows_sent, list(ends), indices, table_of, row_of, trained)

    def _any_counts_sightings(self, parts: Sequence[TablePlan]) -> bool:
        return any(self._counts_sightings(part.table) for part in parts)

    def _record(
        self,
        parts: Sequence[TablePlan],
        member_of: np.ndarray,
        row_of: np.ndarray,
        inverse: np.ndarray,
        slices: Sequence[slice],
        seen: np.ndarray | None,
        last: np.ndarray | None,
    ) -> None:
        """Record the sightings of the rows owned here in their tables."""
        for index, part in enumerate(parts):
            if not self.trainable[part.table]:
                continue
            table = self.tables[part.table].table
            mask = member_of == index
            mask[0] = False
            mask[index + 1] = bool(np.any(inverse == index + 1))  # the default row, if any process reads it
            renumbered = np.cumsum(mask) * mask
            steps: list[np.ndarray] = []
            if table.meta_names:
                for batch, window in enumerate(self._windows):
                    span = slices[window]
                    numbers = renumbered[inverse[span]]
                    if seen is not None:
                        # With accumulation, the last batch that sees a row records all sightings of the window.
                        counts = seen[span] if last is None else seen[span] * (last[span] == batch)
                        numbers = np.repeat(numbers, counts)
                    steps.append(numbers[numbers > 0])
            width = max(map(len, steps), default=0)
            sightings = np.zeros((len(steps), width), np.int64)
            for step, numbers in enumerate(steps):
                sightings[step, : len(numbers)] = numbers
            table.record(row_of[mask], sightings, self._now)


def _sightings(seen: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return each row's count, and its last batch, in the batches of `mask`."""
    counts, first = seen[mask], int(np.argmax(mask))
    return np.stack((counts.sum(axis=0), first + len(counts) - 1 - np.argmax(counts[::-1] > 0, axis=0)))


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int32), *parts])


def _by_window(parts: Sequence[np.ndarray], counts: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate the arrays of all ranks, ordered by window and then by rank."""
    split = [np.split(part, np.cumsum(count.sum(axis=1))[:-1]) for part, count in zip(parts, counts, strict=True)]
    return np.concatenate([piece for pieces in zip(*split, strict=True) for piece in pieces])
