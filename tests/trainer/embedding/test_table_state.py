"""Snapshots of tables: exact, incremental, and unaware of what comes after them."""

import json
import queue
import threading

import numpy as np
import pytest

from trainer.embedding import Eviction, MinSightings
from trainer.embedding.planning.sparse_plan import UniqueIndexer
from trainer.embedding.tables.row_store import RowStore
from trainer.embedding.tables.table import SparseTable, TableSpec
from trainer.embedding.tables.table_state import check_states, restore, rewind, take
from trainer.errors import CheckpointDamagedError, CheckpointMismatchError

distinct = UniqueIndexer()
OPTIONS = {"capacity": 320, "admission": MinSightings(2, width=1024), "eviction": Eviction("lfu", ttl=12.0)}


def make(**changes):
    return SparseTable(TableSpec("t", 3, **(OPTIONS | changes)), np.zeros(2, np.float32))


def plan(table, turn):
    rng = np.random.default_rng(turn)
    spread = 500 if turn % 30 < 12 else 20  # busy times fill the table, quiet ones let ids expire
    ids = (rng.zipf(1.3, (2, 300)) % spread + 5 * turn).astype(np.int64)
    rows = table.plan(ids, None, float(turn))
    unique, inverse = distinct(rows.reshape(-1), table.next_row)
    table.record(unique, inverse.reshape(rows.shape), float(turn))


def commit(table):
    values = table.store.read(table.pending[0].rows)
    table.commit(values * np.float32(1.5) + np.float32(0.25))


def run(table, start, stop, ahead=3):
    """Train turns start to stop, planning `ahead` of training, as a prefetch thread does."""
    planned = start
    for turn in range(start, stop):
        while planned <= turn + ahead:
            plan(table, planned)
            planned += 1
        commit(table)


def content(table):
    """Everything that decides what a table does next."""
    table.rollback()
    ids, rows = table.map.items()
    order = np.argsort(ids)
    ids, rows = ids[order], rows[order]
    meta = {name: table.columns[name][rows].tolist() for name in table.meta_names}
    numbers = (table.step, table.next_row, table.last_sweep, table.plans, table.counters, table.free.tolist())
    return (
        ids.tolist(),
        rows.tolist(),
        table.store.read(rows).tobytes(),
        meta,
        numbers,
        table.admission.sketch.tobytes(),
    )


def saved(state):
    """What a file would hold."""
    arrays, meta = state
    return {name: np.array(array) for name, array in arrays.items()}, json.loads(json.dumps(meta))


def all_tables(state):
    """The state of a network whose one table is "t"."""
    arrays, meta = saved(state)
    return {"json": {"t": {**meta, "updates": 0}}, "arrays": {f"t/{name}": array for name, array in arrays.items()}}


def test_a_restored_table_goes_on_exactly_as_the_interrupted_one():
    straight, interrupted, resumed = make(), make(), make()
    run(straight, 0, 60)
    run(interrupted, 0, 40)
    assert interrupted.pending
    interrupted.track_changes("snapshot")
    restore(resumed, *saved(take(interrupted, "snapshot", full=True)))
    run(resumed, 40, 60)
    assert content(resumed) == content(straight)
    assert straight.counters["evicted"] > 50
    assert straight.counters["expired"] > 50


def test_a_full_state_and_its_deltas_give_the_same_table():
    trained, resumed = make(), make()
    trained.track_changes("snapshot")
    run(trained, 0, 10, ahead=0)
    chain = [saved(take(trained, "snapshot", full=True))]
    for turn in range(10, 50, 8):
        run(trained, turn, turn + 8, ahead=0)
        plan(trained, turn + 8)  # a plan under way at every cut
        chain.append(saved(take(trained, "snapshot", full=False)))
        trained.rollback()
    for state in chain:
        restore(resumed, *state)
    assert content(resumed) == content(trained)
    assert sum(len(arrays["removed"]) for arrays, _ in chain[1:]) > 50


@pytest.mark.parametrize(("dtype", "slots"), [("float32", 2), ("float16", 2), ("float16", 0)])
def test_rows_that_a_plan_under_way_has_evicted_are_rewound_with_the_others(dtype, slots):
    spec = TableSpec("t", 3, **(OPTIONS | {"dtype": dtype, "admission": None}))
    table = SparseTable(spec, np.zeros(slots, np.float32))
    run(table, 0, 20, ahead=0)
    table.track_changes("snapshot")
    state = saved(take(table, "snapshot", full=True))
    _, rows = table.items()
    table.store.write(rows, np.full(table.width, 99.0))
    evicted = []
    for turn in range(20, 60):
        plan(table, turn)
        evicted += [part.ids for record in table.pending for part in record.evicted]
    rewind(table, [state])
    table.rollback()
    values = dict(zip(state[0]["ids"].tolist(), map(bytes, state[0]["values"]), strict=True))
    ids = np.intersect1d(np.concatenate(evicted), state[0]["ids"])
    assert len(ids) > 10
    restored = table.store.stored(table.rows_of(ids))[:, : state[0]["values"].shape[1]]
    assert [*map(bytes, restored)] == [values[number] for number in ids.tolist()]
    assert not (table.store.read(table.items()[1]) == 99).any()


@pytest.mark.parametrize("under_way", [0, 20])  # plans that evict the ids again
def test_ids_that_a_delta_removed_and_that_came_back_are_rewound_to_their_first_values(under_way):
    table = make(admission=None)
    table.track_changes("snapshot")
    run(table, 0, 20, ahead=0)
    chain = [saved(take(table, "snapshot", full=True))]
    run(table, 20, 50, ahead=0)
    chain.append(saved(take(table, "snapshot", full=False)))
    left = np.intersect1d(chain[1][0]["removed"], chain[0][0]["ids"])
    left = left[table.rows_of(left) < 0]
    rows = table.plan(left[None], None, 50.0)
    unique, inverse = distinct(rows.reshape(-1), table.next_row)
    table.record(unique, inverse[None], 50.0)
    commit(table)
    back = left[table.rows_of(left) >= 0]
    assert len(back) > 10
    for turn in range(51, 51 + under_way):
        plan(table, turn)
    assert any(np.isin(part.ids, back).any() for record in table.pending for part in record.evicted) == bool(under_way)
    rewind(table, chain)
    table.rollback()
    np.testing.assert_array_equal(table.store.read(table.rows_of(back)), table.initial_values(back))


def test_a_delta_holds_only_what_changed():
    table = make(admission=None, eviction=None)
    table.track_changes("snapshot")
    run(table, 0, 5, ahead=0)
    take(table, "snapshot", full=True)
    table.plan(np.array([[7, 8, 7]]))
    unique, inverse = distinct(table.map.get(np.array([7, 8, 7])), table.next_row)
    table.record(unique, inverse[None], 0.0)
    commit(table)
    arrays, _ = saved(take(table, "snapshot", full=False))
    assert sorted(arrays["ids"].tolist()) == [7, 8]
    assert len(saved(take(table, "snapshot", full=False))[0]["ids"]) == 0


def test_two_followers_do_not_take_changes_from_each_other():
    table = make(admission=None, eviction=None)
    for consumer in ("snapshot", "serving"):
        table.track_changes(consumer)
    run(table, 0, 3, ahead=0)
    first = saved(take(table, "snapshot", full=False))[0]
    second = saved(take(table, "serving", full=False))[0]
    assert sorted(first["ids"]) == sorted(second["ids"])
    assert len(first["ids"]) > 100


def test_training_on_does_not_change_a_state_that_was_taken():
    table = make()
    table.track_changes("snapshot")
    run(table, 0, 30, ahead=0)
    expected = saved(take(table, "snapshot", full=True))[0]
    arrays, _ = take(table, "snapshot", full=True)
    run(table, 30, 90, ahead=0)
    assert np.array_equal(np.array(arrays["values"]), expected["values"])
    assert not np.array_equal(table.store.read(expected["rows"]), expected["values"])
    assert not table.store.is_frozen


@pytest.mark.parametrize("full", [True, False])
def test_weights_alone_are_those_of_the_whole_rows(full):
    """Also of rows that a plan ahead evicts, and of rows that are trained before they are read."""
    tables = make(), make()
    for table in tables:
        table.track_changes("snapshot")
        run(table, 0, 40)
    assert any(plan.evicted for plan in tables[0].pending)
    expected = saved(take(tables[0], "snapshot", full=full))[0]
    arrays, _ = take(tables[1], "snapshot", full=full, weights_only=True)
    for turn in range(43, 60):
        plan(tables[1], turn)
        commit(tables[1])
    assert expected["values"].shape[1] == 5
    np.testing.assert_array_equal(np.asarray(arrays["values"]), expected["values"][:, :3])
    np.testing.assert_array_equal(np.asarray(arrays["ids"]), expected["ids"])
    assert not tables[1].store.is_frozen


def test_a_cut_survives_growth_and_partial_copies(tmp_path):
    store = RowStore(3, 100, tmp_path / "rows")
    everything = np.arange(100)
    store.write(everything, np.repeat(everything[:, None], 3, axis=1).astype(np.float32))
    cut = store.view((everything >= 10) & (everything < 90))
    store.write(np.array([95, 50, 12]), np.float32(-1) * np.ones((3, 3), np.float32))
    store.reserve(5_000)
    store.write(np.array([50, 4_000]), np.full((2, 3), 7, np.float32))
    assert np.array_equal(cut.values()[:, 0], np.arange(10, 90))
    assert store.read(np.array([50, 12, 13, 4_000]))[:, 0].tolist() == [7, -1, 13, 7]
    store.close()


def test_another_table_is_refused():
    table = make()
    table.track_changes("snapshot")
    state = take(table, "snapshot", full=True)
    with pytest.raises(CheckpointMismatchError, match="width 6, the saved one 5: they differ in optimizer"):
        check_states({"t": SparseTable(TableSpec("t", 3), np.zeros(3, np.float32))}, [all_tables(state)])


def test_a_delta_without_its_base_is_noticed():
    table, other = make(admission=None, eviction=None), make(admission=None, eviction=None)
    for turn, each in enumerate((table, other)):
        each.track_changes("snapshot")
        plan(each, turn)
        commit(each)
    chain = [all_tables(take(other, "snapshot", full=True)), all_tables(take(table, "snapshot", full=False))]
    with pytest.raises(CheckpointDamagedError, match="does not fit the state before it"):
        check_states({"t": make(admission=None, eviction=None)}, chain)


def test_states_taken_while_another_thread_plans_are_exact():
    table = make()
    table.track_changes("snapshot")
    ready, room = queue.Queue(), threading.Semaphore(4)
    states = []

    def prepare():
        for turn in range(61):
            room.acquire()
            plan(table, turn)
            ready.put(turn)

    thread = threading.Thread(target=prepare)
    thread.start()
    for turn in range(60):
        assert ready.get() == turn
        commit(table)
        if turn % 10 == 9:
            states.append((turn + 1, take(table, "snapshot", full=turn < 10)))
        room.release()
    room.release()
    thread.join()
    resumed, alone, done = make(), make(), 0
    for turns, state in states:
        run(alone, done, turns, ahead=0)
        done = turns
        restore(resumed, *saved(state))
        assert content(resumed) == content(alone)


def test_what_was_frozen_stays_when_the_table_starts_over():
    table = SparseTable(TableSpec("t", 3), np.zeros(0, np.float32))
    table.put(np.arange(2000), np.ones((2000, 3), np.float32))
    table.track_changes("folder")
    arrays, _ = take(table, "folder", full=True)
    ids, weights = table.rebuild(np.zeros(2, np.float32), table.shards)
    table.put(ids, 2 * weights)
    assert sorted(ids.tolist()) == list(range(2000))
    assert (np.asarray(arrays["values"])[1:] == 1).all()
    assert (table.store.read(table.lookup(ids)) == [2, 2, 2, 0, 0]).all()


def test_a_delta_after_an_earlier_state_is_restored_removes_the_ids_that_came_later():
    """`ModelCheckpoint(restore_best=True)` goes back; a server that has the newer version must lose those ids, too."""
    table, served = make(admission=None, eviction=None), make(admission=None, eviction=None)
    table.track_changes("serving")
    run(table, 0, 2, ahead=0)
    early = saved(take(table, "serving", full=True))
    run(table, 2, 6, ahead=0)
    restore(served, *saved(take(table, "serving", full=True)))
    later = set(served.map.items()[0].tolist())
    restore(table, *early)
    restore(served, *saved(take(table, "serving", full=False)))
    kept = set(table.map.items()[0].tolist())
    assert later - kept
    assert set(served.map.items()[0].tolist()) == kept
