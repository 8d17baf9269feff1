"""Rows given to many tables at once are those that every table gives for itself."""

import numpy as np
import pytest

from trainer.embedding import Eviction, MinSightings
from trainer.embedding.tables.table import SparseTable, TableSpec, can_plan_together, plan_same_rows, plan_together


def make(names="ab", **options):
    return [SparseTable(TableSpec(name, 3, **options), np.full(2, 0.25, np.float32)) for name in names]


def train(tables, rows):
    for table, part in zip(tables, rows, strict=True):
        unique, inverse = np.unique(part, return_inverse=True)
        table.record(unique.astype(np.int32), inverse.reshape(part.shape) + 1, 0.0)
        table.commit(None)


def extent(table):
    return table.step, table.plans, table.next_row, len(table)


def test_ids_get_the_values_and_the_bookkeeping_that_each_table_would_give():
    rng = np.random.default_rng(0)
    together, apart = make(), make()
    for _ in range(40):
        ids = [rng.zipf(1.2, (2, 300)) % 20_000 for _ in together]
        given = plan_together(together, ids, 0.0)
        own = [table.plan(part, None, 0.0) for table, part in zip(apart, ids, strict=True)]
        train(together, given)
        train(apart, own)
        for one, other, part in zip(together, apart, ids, strict=True):
            flat = part.reshape(-1)
            values = one.store.read(one.lookup(flat))
            assert np.array_equal(values, other.store.read(other.lookup(flat)))
            assert extent(one) == extent(other)
            assert one.counters == other.counters
            assert np.array_equal(one.ids_of(one.lookup(flat)), flat)
    assert together[0].next_row > 2_000


def test_a_plan_that_was_not_trained_is_taken_back():
    tables = make()
    first = [np.array([[5, 6, 5]]), np.array([[7, 8, 9]])]
    train(tables, plan_together(tables, first, 0.0))
    plan_together(tables, [np.array([[6, 100, 101]])] * 2, 0.0)
    for table, known in zip(tables, (2, 3), strict=True):
        assert table.lookup(np.array([100, 101])).tolist() == [0, 0]  # no row of its own before it is trained
        table.rollback()
        assert (len(table), table.next_row, len(table.pending)) == (known, known + 1, 0)
    again = plan_together(tables, [np.array([[300, 301]])] * 2, 0.0)
    assert again[0].tolist() == [[3, 4]]


@pytest.mark.parametrize(
    "options",
    [{"capacity": 9}, {"admission": MinSightings(2)}, {"capacity": 9, "eviction": Eviction("lru")}, {"padding": 0}],
)
def test_tables_that_choose_their_ids_plan_for_themselves(options):
    assert can_plan_together(*make("a"))
    assert not can_plan_together(*make("a", **options))


def follow(table, leader, ids):
    """Plan `ids` in both as the planner does; return the distinct ids and their rows in each."""
    (rows,) = plan_together([leader], [ids], 0.0)
    distinct, first = np.unique(rows, return_index=True)
    known = ids.reshape(-1)[first]
    distinct = distinct.astype(np.int32)
    return known, distinct, plan_same_rows(table, leader, known, distinct, 0.0)


def test_a_table_of_the_same_ids_gets_the_rows_of_the_first_and_its_own_values():
    rng = np.random.default_rng(1)
    leader, table, alone = make("abb")
    for turn in range(30):
        assert table.has_same_rows(leader)
        ids = rng.zipf(1.2, (2, 300)) % 20_000
        known, rows, found = follow(table, leader, ids)
        assert np.array_equal(found, rows)
        own = alone.plan(known[None], None, 0.0, steps=2)
        for one, part in ((leader, rows), (table, found), (alone, own)):
            train([one], [part])
        if turn == 20:
            for one in (leader, table, alone):
                one.discard(known[::3])  # their rows are given out again
        assert np.array_equal(table.lookup(known), leader.lookup(known))
        assert np.array_equal(table.store.read(table.lookup(known)), alone.store.read(alone.lookup(known)))
        assert extent(table) == extent(leader)
        assert table.counters == alone.counters
    known, *_ = follow(table, leader, np.array([[50_000, 50_001, 3]]))
    for one in (leader, table):
        one.rollback()
        assert one.lookup(known).tolist() == [leader.lookup(known)[0], 0, 0]
    assert table.has_same_rows(leader)


def test_tables_that_were_filled_apart_do_not_number_alike_until_they_hold_the_same():
    leader, table = make()
    weights = np.ones((2, 3), np.float32)
    leader.put(np.array([7, 8]), weights)
    assert not table.has_same_rows(leader)
    table.put(np.array([7, 8]), weights)
    assert table.has_same_rows(leader)
    table.discard(np.array([7]))
    assert not table.has_same_rows(leader)
    table.clear()
    table.put(np.array([8, 7]), weights)
    assert not table.has_same_rows(leader)
