"""A table on the host against a plain dict: rows, admission, eviction, undoing."""

import numpy as np
import pytest

from trainer.embedding import Eviction, MinSightings, Probability
from trainer.embedding.planning.sparse_plan import UniqueIndexer
from trainer.embedding.tables.eviction import PINNED_PLANS, smallest
from trainer.embedding.tables.hashing import initial_rows
from trainer.embedding.tables.spec import DEFAULT_ROW
from trainer.embedding.tables.table import SparseTable, TableSpec

DIM = 3
distinct = UniqueIndexer()


def make(**options):
    return SparseTable(TableSpec("t", DIM, **options), np.full(2, 0.25, np.float32))


def step(table, ids, now=0.0, add=None):
    """Plan one step on `ids` [n]; with `add`, also train it: add a number to every column of every row."""
    ids = np.asarray(ids, np.int64)[None]
    rows = table.plan(ids, None, now)
    unique, inverse = distinct(rows.reshape(-1), table.next_row)
    table.record(unique, inverse.reshape(rows.shape), now)
    if add is not None:
        table.commit(table.store.read(unique) + np.float32(add))
    return rows[0]


def weights(table, ids):
    return table.store.read(table.lookup(np.asarray(ids, np.int64)))


def test_distinct_numbers_come_in_order_of_first_occurrence():
    numbers = np.array([4, 2, -1, 4, 0, 2, -1], np.int32)
    unique, inverse = distinct(numbers, 5)
    assert unique.tolist() == [4, 2, 0]
    assert inverse.tolist() == [1, 2, 0, 1, 3, 2, 0]


def test_a_new_row_is_a_function_of_the_id():
    one, other = make(seed=4), make(seed=4)
    step(one, [10, 11, 12], add=0)
    step(other, [12], add=0)
    step(other, [99, 10], add=0)
    assert np.array_equal(weights(one, [10, 12]), weights(other, [10, 12]))
    assert np.array_equal(weights(one, [10])[0, :DIM], initial_rows(np.array([10]), DIM, one.seed)[0])
    assert (weights(one, [10])[0, DIM:] == 0.25).all()


def live_ids(table):
    used = slice(1, table.next_row)
    return set(table.ids_of(np.arange(table.next_row))[used][table.columns["live"][used]].tolist())


def test_rows_follow_a_dict_through_a_million_sightings():
    """No id is ever served from another id's row, with a full table, eviction and expiry all at work."""
    rng = np.random.default_rng(5)
    table = make(capacity=3_000, eviction=Eviction("lru", ttl=12.0))
    model = {}  # id -> how many steps have trained its row since it was born
    for turn in range(250):
        spread = 4_000 if turn % 50 < 25 else 50  # busy times fill the table, quiet ones let ids expire
        ids = (rng.zipf(1.2, 4_000) % spread + turn % 50 * 400).astype(np.int64) * 7_919
        before = live_ids(table)
        rows = step(table, ids, now=float(turn))
        own = rows != DEFAULT_ROW
        row_of = dict(zip(ids[own].tolist(), rows[own].tolist(), strict=True))
        for gone in before - live_ids(table):
            del model[gone]
        owner = {row: one for one, row in row_of.items()}
        assert len(owner) == len(row_of)
        for one, row in row_of.items():
            if table.columns["uncommitted"][row]:
                model[one] = 0
        trained = table.pending[0].rows
        values = table.store.read(trained)
        owners = np.array([owner.get(row, -1) for row in trained.tolist()])
        mine = trained != DEFAULT_ROW
        trainings = np.array([model[one] for one in owners[mine].tolist()], np.float32)
        assert np.array_equal(values[mine, -1], 0.25 + trainings)
        assert np.array_equal(values[mine, :DIM], initial_rows(owners[mine], DIM, table.seed))
        values[:, -1] += 1
        table.commit(values)
        model |= {one: model[one] + 1 for one in owners[mine].tolist()}
        assert len(table) <= 3_000
    assert table.counters["evicted"] > 1_000
    assert table.counters["expired"] > 1_000
    ids = np.array(list(model))
    assert np.array_equal(weights(table, ids)[:, -1], 0.25 + np.array(list(model.values()), np.float32))


def test_rotating_ids_with_a_time_to_live_keep_memory_constant():
    table = make(eviction=Eviction(None, ttl=3_600.0))
    sizes = []
    for minute in range(24 * 60):
        step(table, minute * 50 + np.arange(100), now=minute * 60.0, add=1)
        sizes.append(table.nbytes)
    assert max(sizes[120:]) <= 1.02 * sizes[119]
    assert len(table) <= 50 * (60 + 4) + 100
    assert table.counters["expired"] == table.counters["admitted"] - len(table)


def test_a_late_event_makes_no_row_older():
    table = make(eviction=Eviction(None, ttl=60.0))
    for turn, now in enumerate((100.0, 10.0, *np.arange(101.0, 150.0, 5.0))):
        step(table, [1] if turn < 2 else [2], now=now, add=1)
    assert 1 in live_ids(table)
    assert table.counters["expired"] == 0
    step(table, [2], now=500.0)
    assert 1 not in live_ids(table)


def test_a_full_table_without_eviction_shares_the_default_row():
    table = make(capacity=4)
    assert sorted(step(table, [1, 2, 3, 4], add=1).tolist()) == [1, 2, 3, 4]
    assert step(table, [5, 6, 1], add=1).tolist()[:2] == [DEFAULT_ROW, DEFAULT_ROW]
    assert table.counters["overflowed"] == 2
    assert (weights(table, [5])[0, :DIM] == 1).all()


def test_rows_in_use_are_never_evicted():
    table = make(capacity=4, eviction=Eviction("lru"))
    step(table, [1, 2, 3, 4])
    assert (step(table, [5]) == DEFAULT_ROW).all()
    table.commit(table.store.read(table.pending[0].rows))
    table.commit(table.store.read(table.pending[0].rows))
    for _ in range(PINNED_PLANS):
        step(table, [2, 3, 4], add=0)
    assert step(table, [5], add=0)[0] != DEFAULT_ROW
    assert table.lookup(np.array([1])) == DEFAULT_ROW


def test_least_frequently_used_keeps_the_popular():
    table = make(capacity=3, eviction=Eviction("lfu", share=0.01))
    step(table, [1, 1, 1, 2, 2, 3], add=0)
    for _ in range(PINNED_PLANS):
        step(table, [1], add=0)
    step(table, [9], add=0)
    assert table.lookup(np.array([1, 2, 3, 9])).tolist() == [1, 2, DEFAULT_ROW, 3]


def test_least_takes_the_lower_of_equals():
    keys = np.array([5, 1, 1, 1, 0])
    assert smallest(keys, np.array([True, True, True, True, False]), 2).tolist() == [1, 2]


def test_admission_after_some_sightings():
    table = make(admission=MinSightings(3))
    assert step(table, [7, 7, 8], add=0).tolist() == [0, 0, 0]
    assert step(table, [7, 8], add=0).tolist() == [1, 0]
    assert step(table, [8, 7], add=0).tolist() == [2, 1]
    assert table.counters["refused"] == 3


def test_admission_by_chance_is_repeatable():
    ids = np.arange(1_000)
    one, other = make(admission=Probability(0.2)), make(admission=Probability(0.2))
    first = step(one, ids, add=0)
    assert 120 < (first > 0).sum() < 280
    step(one, ids, add=0)
    assert 0.3 < len(one) / 1_000 < 0.42
    other.plan(np.stack([ids, ids]))
    assert sorted(one.map.items()[0]) == sorted(other.map.items()[0])


@pytest.mark.parametrize("admission", [None, MinSightings(2)])
def test_plans_that_were_not_trained_can_be_undone(admission):
    rng = np.random.default_rng(2)
    batches = [rng.integers(0, 400, 200) for _ in range(60)]
    options = {"capacity": 150, "admission": admission, "eviction": Eviction("lfu", ttl=30.0)}
    straight, interrupted = make(**options), make(**options)
    for turn, ids in enumerate(batches):
        step(straight, ids, turn, add=1)
        if turn % 7 == 3:
            for ahead in range(3):
                step(interrupted, batches[(turn + ahead) % 60], turn + ahead)
            interrupted.rollback()
        step(interrupted, ids, turn, add=1)
    everything = np.arange(400)
    assert np.array_equal(straight.lookup(everything), interrupted.lookup(everything))
    assert np.array_equal(weights(straight, everything), weights(interrupted, everything))
    assert straight.counters == interrupted.counters
    assert straight.counters["evicted"] > 0
    if admission is not None:
        assert np.array_equal(straight.admission.sketch, interrupted.admission.sketch)


def test_the_ids_of_rows_are_kept_only_for_those_who_ask_for_them():
    table, other = make(), make()
    other.track_changes("snapshot")
    for ids in ([5, 6, 7], [7, 8], list(range(100, 5000))):
        step(table, ids, add=1)
        step(other, ids, add=1)
    assert other.nbytes - table.nbytes >= 8 * len(table)
    table.plan(np.array([[9, 10]]))  # and is never trained
    table.track_changes("snapshot")
    other.plan(np.array([[9, 10]]))
    rows = np.arange(1, table.next_row)
    assert table.ids_of(rows).tolist() == other.ids_of(rows).tolist()
    for one in (table, other):
        one.rollback()
        assert live_ids(one) == {5, 6, 7, 8, *range(100, 5000)}


def test_ids_in_preparation_are_unknown_to_readers():
    table = make()
    step(table, [1, 2])
    assert table.lookup(np.array([1])) == DEFAULT_ROW
    table.commit(table.store.read(table.pending[0].rows))
    assert table.lookup(np.array([1])) == 1


def test_the_time_to_live_of_rows_put_from_elsewhere_begins_with_the_first_plan():
    table = make(eviction=Eviction(None, ttl=100.0))
    given = np.arange(50)
    table.put(given, np.ones((50, DIM), np.float32))
    for n in range(2 * PINNED_PLANS):
        step(table, [1000], now=1e9 + n, add=0)
    step(table, given[:10], now=1e9 + 60, add=0)
    assert (weights(table, given)[:, :DIM] == 1).all()
    for n in range(2 * PINNED_PLANS):
        step(table, [1000], now=1e9 + 120 + n, add=0)
    assert live_ids(table) == {1000, *range(10)}
