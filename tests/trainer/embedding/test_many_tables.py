"""Rows given to many tables at once are those that every table gives for itself."""

import numpy as np
import pytest

from trainer.embedding import Eviction, MinSightings
from trainer.embedding.planning.layout import ColumnPart, Component, FieldMap, stack_tables
from trainer.embedding.planning.planner import Planner
from trainer.embedding.tables import table_state
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


def planner_of(tables, columns):
    """A planner of one cell for each table; table i reads column `columns[i]`, and those of one column share it."""
    groups = {column: [i for i, own in enumerate(columns) if own == column] for column in sorted(set(columns))}
    components = [
        Component(members, [ColumnPart(column)], [np.ones(1, np.bool_)] * len(members))
        for column, members in groups.items()
    ]
    layout = stack_tables(components, [table.spec for table in tables], list(range(len(tables))))
    return Planner(tables, [True] * len(tables), FieldMap(components), layout=layout)


def run(tables, planner, columns):
    """Plan a chunk and commit it, as a training step does."""
    _, plan = planner.plan([column[:, None] for column in columns], False, 1)
    for part in plan.tables:
        tables[part.table].commit(None)


def contents(table):
    ids, rows = table.items()
    order = np.argsort(ids)
    return ids[order], rows[order], table.store.read(rows[order])


def assert_same_contents(tables, others):
    for table, other in zip(tables, others, strict=True):
        assert extent(table) == extent(other)
        for mine, its in zip(contents(table), contents(other), strict=True):
            assert np.array_equal(mine, its)


def ids_of(rng, count):
    return rng.zipf(1.2, count) % 50_000


def trainer_of_both(rng, tables, apart):
    """A function that trains the same ids in tables that share their ids and in tables that do not."""
    planner, lone = planner_of(tables, [0] * len(tables)), [planner_of([table], [0]) for table in apart]

    def train_both():
        ids = ids_of(rng, 500)
        run(tables, planner, [ids])
        for table, alone in zip(apart, lone, strict=True):
            run([table], alone, [ids])
        assert_same_contents(tables, apart)

    return train_both


def test_tables_fed_by_the_same_ids_share_one_id_map_until_one_of_them_changes_alone():
    rng = np.random.default_rng(2)
    tables, apart = make("abc"), make("abc")
    train_both = trainer_of_both(rng, tables, apart)

    for _ in range(10):
        train_both()
    assert tables[0].map is tables[1].map is tables[2].map
    assert sum(table.nbytes for table in tables) < sum(table.nbytes for table in apart) - tables[0].map.nbytes
    for change in (
        lambda a, b, c: b.put(np.array([7, 10**9]), np.ones((2, 3), np.float32)),
        lambda a, b, c: a.discard(np.array([7, 8])),
        lambda a, b, c: c.clear(),
        lambda a, b, c: a.rebuild(np.zeros(1, np.float32), a.shards),
    ):
        change(*tables)
        change(*apart)
        assert_same_contents(tables, apart)
        train_both()


def test_what_one_table_has_planned_is_unknown_to_the_other_of_the_map_until_it_has_planned_too():
    leader, table = make()
    run([leader, table], planner_of([leader, table], [0, 0]), [np.arange(1, 9)])
    assert table.map is leader.map
    new = np.array([5, 100, 101])
    plan_together([leader], [new[None]], 0.0)
    assert table.lookup(new).tolist() == [5, 0, 0]
    assert (len(table), len(table.items()[0])) == (8, 8)
    table.track_changes("snapshot")
    table.put(np.array([200]), np.ones((1, 3), np.float32))  # takes a map of its own, without the leader's new ids
    assert table.map is not leader.map
    assert (table.lookup(new).tolist(), table.lookup(np.array([200])).tolist()) == ([5, 0, 0], [9])
    leader.rollback()
    assert leader.lookup(np.array([*new, 200])).tolist() == [5, 0, 0, 0]


def test_a_rollback_and_a_restored_state_leave_shared_ids_as_separate_ones():
    rng = np.random.default_rng(3)
    tables, apart = make(), make()
    planner, lone = planner_of(tables, [0, 0]), [planner_of([table], [0]) for table in apart]
    for turn in range(12):
        ids = ids_of(rng, 500)
        if turn % 4 == 3:  # planned and not trained
            planner.plan([ids[:, None]], False, 1)
            for table in tables:
                table.rollback()
            planner.reset()
            continue
        run(tables, planner, [ids])
        for table, alone in zip(apart, lone, strict=True):
            run([table], alone, [ids])
        if turn == 5:
            for table in (*tables, *apart):
                table.track_changes("snapshot")
                full = table_state.take(table, "snapshot", full=True)
                full[0].update({name: np.asarray(array) for name, array in full[0].items()})
                table.saved = [full]
        if turn == 9:
            for table in (*tables, *apart):
                ((arrays, json),) = table.saved
                table_state.restore(table, arrays, json)
            planner.reset()
        assert_same_contents(tables, apart)
    assert tables[0].map is tables[1].map


def test_another_network_that_feeds_the_tables_with_different_ids_parts_them():
    rng = np.random.default_rng(4)
    tables, apart = make(), make()
    together, separate = planner_of(tables, [0, 0]), planner_of(tables, [0, 1])
    only_second, lone = planner_of(tables[1:], [0]), [planner_of([table], [0]) for table in apart]
    for turn in range(12):
        first, second = ids_of(rng, 300), ids_of(rng, 300)
        if turn in (6, 7):
            run(tables[1:], only_second, [second])
            run(apart[1:], lone[1], [second])
        else:
            second = second if turn in (4, 5) else first
            run(tables, separate if turn in (4, 5) else together, [first, second])
            run(apart[:1], lone[0], [first])
            run(apart[1:], lone[1], [second])
        assert_same_contents(tables, apart)
    assert tables[0].map is not tables[1].map


def test_tables_that_are_given_the_same_ids_in_turn_keep_their_shared_map():
    rng = np.random.default_rng(5)
    tables, apart = make("abc"), make("abc")
    train_both = trainer_of_both(rng, tables, apart)

    def put(given, ids):
        for table in given:
            table.put(ids, np.full((len(ids), 3), 0.5, np.float32))

    train_both()
    for first in (10**6, 2 * 10**6):
        for start in range(0, 300, 100):  # known and new ids together
            for pair in zip(tables, apart, strict=True):
                put(pair, np.r_[0:5, first + start : first + start + 100])
                assert_same_contents(tables, apart)
        assert tables[0].map is tables[1].map is tables[2].map
        train_both()
    for given in (tables, apart):  # only two of the three receive these ids, one of them in another order
        put(given[:1], np.arange(70_000, 70_010))
        put(given[2:], np.arange(70_000, 70_010)[::-1])
    assert_same_contents(tables, apart)
    train_both()
    assert len({id(table.map) for table in tables}) == 3


def test_a_leader_behind_its_map_plans_with_its_own_ids():
    tables, apart = make(), make()
    planner, lone = planner_of(tables, [0, 0]), [planner_of([table], [0]) for table in apart]
    for ids in (np.arange(1, 9), np.arange(5, 40)):
        run(tables, planner, [ids])
        for table, alone in zip(apart, lone, strict=True):
            run([table], alone, [ids])
        assert_same_contents(tables, apart)
        for table in (tables[1], apart[1]):
            table.put(np.arange(20, 30), np.ones((10, 3), np.float32))
