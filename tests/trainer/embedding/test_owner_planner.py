"""Processes plan their own ids and owners train the rows; threads stand for processes, kernels run without a graph."""

import threading

import numpy as np
import pytest

from tests.trainer.embedding.test_sharded_state import Rank
from trainer.embedding import Eviction, MinSightings, RowAdagrad
from trainer.embedding.layers.host_rows import HostRows
from trainer.embedding.layers.owner_rows import OwnerRows
from trainer.embedding.planning.layout import ColumnPart, Component, DenseField, FieldMap, stack_tables
from trainer.embedding.planning.owner_planner import OwnerPlanner
from trainer.embedding.planning.planner import Planner
from trainer.embedding.planning.sharded_table import OwnedTable
from trainer.embedding.tables.hashing import Shards
from trainer.embedding.tables.spec import TableSpec
from trainer.embedding.tables.table import SparseTable
from trainer.embedding.tables.table_state import take
from trainer.errors import DataError

ROWS, STEPS, CALLS, DIM = 60, 3, 4, 4
RULES = {
    "plain": {},
    "lfu": {"capacity": 10_000, "eviction": Eviction("lfu", ttl=1e6)},
    "lru beside lfu": (
        {"capacity": 10_000, "eviction": Eviction("lru")},
        {"capacity": 10_000, "eviction": Eviction("lfu")},
    ),
    "float16": {"capacity": 10_000, "eviction": Eviction("lru"), "dtype": "float16"},
    "sightings": {"capacity": 10_000, "admission": MinSightings(3, width=1 << 16), "eviction": Eviction("lfu")},
}


@pytest.fixture(autouse=True)
def _address(monkeypatch):
    monkeypatch.setenv("MS_SCHED_HOST", "127.0.0.1")
    monkeypatch.setenv("MS_SCHED_PORT", "9")


def everyone(size, function):
    """Return what `function(group)` returns or raises on each of `size` processes."""
    shared, found = (threading.Barrier(size), [None] * size), [None] * size

    def run(rank):
        group = Rank(rank, size, shared)
        try:
            found[rank] = function(group)
        except Exception as error:
            found[rank] = error
            shared[0].abort()
        finally:
            if group._connections is not None:
                group._connections.close()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def fields(dense=()):
    """Two tables stacked on two columns of three and one ids."""
    parts = [ColumnPart(0), ColumnPart(1)]
    components = [Component([index], [part], [np.ones(3 - 2 * index, np.bool_)]) for index, part in enumerate(parts)]
    return FieldMap(components, [*dense], names=("items", "user"))


def make(rules, rank=0, size=1):
    items, user = RULES[rules] if isinstance(RULES[rules], tuple) else (RULES[rules], RULES[rules])
    specs = [TableSpec("items", DIM, padding=0, **items), TableSpec("user", DIM, **user)]
    optimizer = RowAdagrad(lr=0.1)
    tables = [SparseTable(spec, optimizer.first_slots(DIM), Shards(rank, size)) for spec in specs]
    layout = stack_tables(fields().components, specs, ["same", "same"])
    layout.bundles[0].in_graph = size > 1
    return tables, layout, optimizer


def batches(call):
    """Return the ids of a call: items [STEPS, rows, 3] with padding, users [STEPS, rows, 1]; the last one is short."""
    rng = np.random.default_rng(call)
    rows = ROWS if call < CALLS - 1 else 10
    items = rng.zipf(1.3, (STEPS, rows, 3)) % 200
    return items, rng.zipf(1.2, (STEPS, rows, 1)) % 90 + 5 * call


def gradients(vectors, ids):
    return vectors * np.float32(0.1) + (ids % 7)[..., None].astype(np.float32) * np.float32(0.01)


def step(rows, columns, ids, size):
    """Return the gradients of a step's rows, float32 [size, DIM], given their weights."""
    sums = np.zeros((size, DIM), np.float32)
    for positions, own in zip(columns, ids, strict=True):
        np.add.at(sums, positions.reshape(-1), gradients(rows[positions], own).reshape(-1, DIM))
    sums[0] = 0
    return sums


class Accumulated:
    """The gradients of micro-batches up to their update; rows keep their positions where a call ends before it."""

    def __init__(self, accumulate):
        self.accumulate, self.fill = accumulate, 0
        self.sums = np.zeros((0, DIM), np.float32)

    def add(self, gradients):
        """Return the sums if the update is due, else None."""
        sums = np.zeros_like(gradients)
        assert not self.sums[len(sums) :].any()
        sums[: len(self.sums)] = self.sums[: len(sums)]
        self.sums, self.fill = sums + gradients, self.fill + 1
        if self.fill < self.accumulate:
            return None
        sums, self.sums, self.fill = self.sums, self.sums[:0], 0
        return sums


def train_alone(rules, accumulate=1, step=step):
    tables, layout, optimizer = make(rules)
    planner = Planner(tables, [True, True], fields(), accumulate, layout=layout)
    open_sums = Accumulated(accumulate)
    rows = HostRows(dict(enumerate(tables)), DIM, optimizer)
    rate, updates = np.array([0.1], np.float32), np.zeros(1, np.int32)
    for call in range(CALLS):
        columns, plan = planner.plan(batches(call), True, STEPS, now=float(call), fill=open_sums.fill)
        rows.select_rows(plan.tables, plan.sizes[0])
        for number in range(STEPS):
            positions = plan.inputs[0][number]
            weights = rows.read(positions)
            given = step(weights, [c[number] for c in columns], [c[number] for c in batches(call)], len(weights))
            sums = open_sums.add(given)
            if sums is not None:
                updates += 1
                rows.update(sums, positions, rate, updates, rate)
        for table in tables:
            table.commit(None)
    return tables


def train_together(group, rules, accumulate=1, step=step):
    tables, layout, optimizer = make(rules, group.rank, group.size)
    owned = [OwnedTable(table) for table in tables]
    planner = OwnerPlanner(group, owned, [True, True], fields(), accumulate, layout=layout)
    open_sums = Accumulated(accumulate)
    rows = OwnerRows(dict(enumerate(tables)), DIM, optimizer, group)
    rate, updates = np.array([0.1], np.float32), np.zeros(1, np.int32)
    for call in range(CALLS):
        ids = batches(call)
        count = ids[0].shape[1]
        share = -(-count // group.size) if count == ROWS else count  # of a short batch, all rows go to rank 0
        first = share * group.rank
        own = [column[:, first : first + share] for column in ids]
        placeholder = first >= count
        if placeholder:
            own = [column[:, :1] for column in ids]
        now = float(call) if group.rank == 0 else float(call) - 0.5
        columns, plan = planner.plan(own, True, STEPS, now=now, placeholder=placeholder, fill=open_sums.fill)
        (exchange,) = plan.exchanges
        rows.set_exchange(exchange)
        for number in range(STEPS):
            positions, trained = plan.inputs[0][number], plan.inputs[1][number]
            weights = rows.exchange_weights(positions, rate)
            given = step(weights, [c[number] for c in columns], [c[number] for c in own], len(weights))
            sums = open_sums.add(given)
            if sums is not None:
                updates += 1
                rows.update(rows.exchange_gradients(sums, trained, rate), trained, rate, updates, rate)
        for table in owned:
            table.commit(None)
    return tables


def content(tables, number):
    """Return counters and rows by id of table `number` of all processes; default rows have to be the same."""
    for own in tables:
        own[number].track_changes("test")
    states = [take(own[number], "test", full=True) for own in tables]
    names = [name for name in states[0][0] if name not in ("rows", "removed", "sketch")]
    arrays = [{name: np.asarray(array) for name, array in arrays.items()} for arrays, _ in states]
    for other in arrays[1:]:
        for name in names:
            np.testing.assert_array_equal(other[name][other["rows"] == 0], arrays[0][name][arrays[0]["rows"] == 0])
    kept = [other["rows"] > 0 if rank else other["rows"] >= 0 for rank, other in enumerate(arrays)]
    found = {name: np.concatenate([o[name][k] for o, k in zip(arrays, kept, strict=True)]) for name in names}
    own = np.concatenate([o["rows"][k] > 0 for o, k in zip(arrays, kept, strict=True)])
    order = np.lexsort((found["ids"], own))
    found = {name: array[order] for name, array in found.items()}
    for name in ("step", "plans"):
        assert len({json[name] for _, json in states}) == 1
        found[name] = np.array(states[0][1][name])
    for name in states[0][1]["counters"]:
        found[f"counter {name}"] = np.array(sum(json["counters"][name] for _, json in states))
    return found


@pytest.mark.parametrize("rules", sorted(set(RULES) - {"float16"}))
@pytest.mark.parametrize(("size", "accumulate"), [(2, 1), (3, 1), (5, 1), (2, 2), (3, 4)])
def test_owners_come_to_the_rows_and_decisions_of_one_process(size, accumulate, rules):
    """Of 60 rows 5 processes have 12 each; of the last call's 10 rows rank 0 has all and the others none.

    With 2 or 4 micro-batches an update begins in one call of 3 and ends in the next.
    """
    alone = train_alone(rules, accumulate)
    together = everyone(size, lambda group: train_together(group, rules, accumulate))
    for error in together:
        if isinstance(error, Exception):
            raise error
    for number in range(2):
        expected, found = content([alone], number), content(together, number)
        assert expected.keys() == found.keys()
        assert rules != "sightings" or expected["counter refused"] > 0
        for name, value in expected.items():
            if name == "values":
                np.testing.assert_allclose(found[name], value, rtol=2e-6, atol=1e-6)
            else:
                np.testing.assert_array_equal(found[name], value, err_msg=name)
    assert all(0 < len(own[1]) < 0.8 * len(alone[1]) for own in together)


def coarse_step(rows, columns, ids, size):
    """Return gradients whose sums are exact in any order."""
    sums = np.zeros((size, DIM), np.float32)
    for positions, own in zip(columns, ids, strict=True):
        given = np.rint(rows[positions] * 64) / 64 + (own % 7)[..., None] / 64
        np.add.at(sums, positions.reshape(-1), given.reshape(-1, DIM).astype(np.float32))
    sums[0] = 0
    return sums


def test_owners_round_float16_rows_as_one_process_does():
    alone = train_alone("float16", 2, coarse_step)
    together = everyone(3, lambda group: train_together(group, "float16", 2, coarse_step))
    for number in range(2):
        expected, found = content([alone], number), content(together, number)
        assert expected["values"].dtype == np.float16
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_bytes_per_process_fall_with_the_number_of_processes(size):
    """A process sends 4 bytes a number for its own distinct rows that others keep, and as much for theirs."""
    dim, steps, rows = 16, 4, 6400

    def send(group):
        optimizer = RowAdagrad(lr=0.1)
        spec = TableSpec("items", dim)
        table = SparseTable(spec, optimizer.first_slots(dim), Shards(group.rank, group.size))
        part = FieldMap([Component([0], [ColumnPart(0)], [np.ones(1, np.bool_)])])
        layout = stack_tables(part.components, [spec], ["same"])
        planner = OwnerPlanner(group, [OwnedTable(table)], [True], part, layout=layout)
        exchanged = OwnerRows({0: table}, dim, optimizer, group)
        ids = np.random.default_rng(group.rank).integers(0, 10**9, (steps, rows // group.size, 1))
        _, plan = planner.plan((ids,), True, steps)
        exchanged.set_exchange(plan.exchanges[0])
        for step in range(steps):
            weights = exchanged.exchange_weights(plan.inputs[0][step], np.zeros(1, np.float32))
            exchanged.exchange_gradients(weights, plan.inputs[1][step], np.zeros(1, np.float32))
        return group.bytes_sent / steps

    row_bytes = 2 * 4 * dim + 8 + 4 + 4  # weights and gradients; id, its number, and its mention in the step's list
    formula = rows / size * (size - 1) / size * row_bytes
    for sent in everyone(size, send):
        assert 0.9 * formula < sent < 1.1 * formula


def test_a_refused_id_is_named_on_all_processes_and_no_table_has_planned():
    def plan(group):
        tables, layout, _ = make("plain", group.rank, group.size)
        dense = DenseField(ColumnPart(1), capacity=50, padding=None, name="cities")
        own = [OwnedTable(table) for table in tables]
        planner = OwnerPlanner(group, own, [True, True], fields([dense]), layout=layout)
        items, users = (column.copy() for column in batches(0))
        users %= 50
        users[1, 3] = 70 if group.rank == 1 else 7
        with pytest.raises(DataError) as error:
            planner.plan((items, users), True, STEPS)
        return str(error.value), [table.plans for table in tables]

    found = everyone(3, plan)
    assert [plans for _, plans in found] == [[0, 0]] * 3
    assert found[1][0].startswith("rank 1: column 'user': dense table 'cities' takes ids from 0 to 49; received 70")
    assert len({text for text, _ in found}) == 1


@pytest.mark.parametrize("with_last_call", [True, False])
def test_a_process_whose_data_has_ended_is_not_waited_for(with_last_call):
    """It says so with its last ids, which none trains then, or afterwards."""

    def plan(group):
        tables, layout, _ = make("plain", group.rank, group.size)
        planner = OwnerPlanner(group, [OwnedTable(table) for table in tables], [True, True], fields(), layout=layout)
        ended = pytest.raises(DataError, match="rank 1: its data ends before that of the others")
        if with_last_call:
            with ended:
                planner.plan(batches(0), True, STEPS, last=group.rank == 1)
            return [table.plans for table in tables]
        planner.plan(batches(0), True, STEPS)
        if group.rank == 1:
            planner.finish()
        else:
            with ended:
                planner.plan(batches(1), True, STEPS)
        return [table.plans for table in tables]

    assert everyone(3, plan) == [[int(not with_last_call)] * 2] * 3


def test_reading_other_ids_leaves_what_is_planned_to_train_alone():
    """Evaluations read on the thread that runs graphs, in between."""

    def plan(group):
        tables, layout, _ = make("plain", group.rank, group.size)
        owned = [OwnedTable(table) for table in tables]
        planner = OwnerPlanner(group, owned, [True, True], fields(), layout=layout)
        planner.plan(batches(0), True, STEPS)
        before = [table.plan(np.zeros((0, 0), np.int64)) for table in owned]
        planner.plan([column[0] for column in batches(1)], False, 1, train=False)
        return all(
            np.array_equal(table.plan(np.zeros((0, 0), np.int64)), rows)
            for table, rows in zip(owned, before, strict=True)
        )

    assert everyone(2, plan) == [True, True]
