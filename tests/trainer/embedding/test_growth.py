"""A table is the same whether it grows while it is used or was large enough from the start."""

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.embedding import Eviction
from trainer.embedding.planning.sparse_plan import UniqueIndexer
from trainer.embedding.tables import id_map
from trainer.embedding.tables.hashing import mix64
from trainer.embedding.tables.id_map import ZERO_KEY_ID, IdMap
from trainer.embedding.tables.table import SparseTable, TableSpec
from trainer.embedding.tables.table_state import take
from trainer.native.memory import Columns, Memory

# zero is what an empty cell holds, and the odd id is what cannot be kept in one
POOL = np.concatenate((np.arange(-600, 600), np.arange(1, 400) << np.int64(48), [ZERO_KEY_ID]))
OPERATIONS = st.tuples(st.sampled_from(("add", "remove", "get")), st.integers(1, 60) | st.integers(300, 900))


def check(table, model):
    expected = [model.get(one, -1) for one in POOL.tolist()]
    assert table.get(POOL).tolist() == expected
    assert len(table) == len(model)
    ids, rows = table.items()
    assert len(ids) == len(model)
    assert dict(zip(ids.tolist(), rows.tolist(), strict=True)) == model


@pytest.mark.parametrize("choices", [32, 2])  # with two, buckets run out of room and the map is rebuilt
@given(st.integers(0, 2**32), st.integers(250, 420), st.lists(OPERATIONS, min_size=5, max_size=40))
@settings(max_examples=120, deadline=None)
def test_agrees_with_a_dict_while_it_grows(choices, seed, first, operations):
    rng = np.random.default_rng(seed)
    with mock.patch.object(id_map, "CHOICES", choices):
        table, model, next_row = IdMap(), {}, 0
        for kind, count in [("add", first), *operations]:
            ids = rng.choice(POOL, count, replace=False)
            if kind == "add":
                new = ids[table.get(ids) < 0]
                rows = np.arange(next_row, next_row + len(new))
                table.add(new, rows)
                model |= dict(zip(new.tolist(), rows.tolist(), strict=True))
                next_row += len(new)
            elif kind == "remove":
                table.remove(ids)
                for one in ids.tolist():
                    model.pop(one, None)
            else:
                assert table.get(ids).tolist() == [model.get(one, -1) for one in ids.tolist()]
            check(table, model)


def test_ids_whose_buckets_are_full_move_to_a_larger_table():
    with mock.patch.object(id_map, "CHOICES", 1):
        table = IdMap()
        candidates = np.arange(1_000, 200_000)
        crowd = candidates[mix64(candidates) & np.uint64(1_023) == 5][:20]
        few = np.setdiff1d(candidates, crowd)[:8]
        table.add(few, np.arange(8))
        table.add(crowd, np.arange(100, 120))
        assert table.get(few).tolist() == list(range(8))
        assert table.get(crowd).tolist() == list(range(100, 120))
        assert len(table.items()[0]) == 28


def test_a_large_map_grows_by_one_addition_and_by_many():
    ids = np.arange(20_000) * 7_919
    together, one_by_one = IdMap(), IdMap()
    together.add(ids, np.arange(20_000))
    for start in range(0, len(ids), 50):
        one_by_one.add(ids[start : start + 50], np.arange(start, start + 50))
    for table in (together, one_by_one):
        assert table.get(ids).tolist() == list(range(20_000))
        assert (table.get(ids + 1) == -1).all()
        assert table.nbytes <= 14.25 * 2 * len(ids) / 0.7


def grown(growing):
    spec = TableSpec("t", 3, eviction=Eviction("lfu", ttl=300.0), seed=9)
    table = SparseTable(spec, np.full(2, 0.25, np.float32))
    table.map = IdMap() if growing else IdMap(expected=1 << 17)
    if not growing:
        table.reserve(1 << 15)
    table.track_changes("snapshot")
    return table


def test_snapshots_do_not_show_that_a_table_grew():
    """Deltas and full states, plans ahead and undone ones included, are the same bit by bit."""
    rng, distinct = np.random.default_rng(4), UniqueIndexer()
    tables = grown(True), grown(False)
    sizes = set()
    for turn in range(200):
        ids = rng.integers(turn * 60, turn * 60 + 3_000, (2, 150)) * 7_919 - 10_000
        states = []
        for table in tables:
            rows = table.plan(ids, None, float(turn))
            unique, inverse = distinct(rows.reshape(-1), table.next_row)
            table.record(unique, inverse.reshape(rows.shape), float(turn))
            if turn % 9 == 5:
                table.rollback()
            elif turn % 3 == 2:
                while table.pending:
                    table.commit(table.store.read(table.pending[0].rows) + np.float32(1))
            if turn % 7 == 6:
                arrays, json = take(table, "snapshot", full=turn % 2 == 0)
                states.append(({name: np.asarray(array).tobytes() for name, array in arrays.items()}, json))
            states.append((rows.tobytes(), table.lookup(ids.reshape(-1)).tobytes()))
        sizes.add(tables[0].map.nbytes)
        half = len(states) // 2
        assert states[:half] == states[half:]
    assert len(sizes) > 1
    assert len(tables[0].columns["live"]) > 1_024


def test_columns_keep_what_they_hold_and_grow_with_zeros():
    columns = Columns(10)
    columns.add("id", np.int64)
    columns.add("time", np.float64)
    columns.add("live", np.bool_)
    for name in columns:
        columns[name][:] = np.arange(10)
    expected = {name: column.copy() for name, column in columns.items()}
    for rows in (11, 500, 100_000):
        columns.reserve(rows)
        for name, before in expected.items():
            assert len(columns[name]) >= rows
            assert columns[name].dtype == before.dtype
            assert np.array_equal(columns[name][:10], before)
            assert not columns[name][10:].any()
    columns["id"][99_999] = 7
    assert columns["id"][99_999] == 7


def test_a_column_in_use_stays_readable_when_the_table_grows():
    columns = Columns(1_000)
    columns.add("id", np.int64)
    columns["id"][:] = np.arange(1_000)
    held = columns["id"]
    columns.reserve(1 << 20)
    assert columns["id"][:1_000].tolist() == held.tolist()
    columns["id"][:1_000] = -1
    assert held.tolist() == list(range(1_000))


def test_memory_in_a_file_grows_with_an_array_in_use(tmp_path):
    memory = Memory(tmp_path / "rows")
    memory.grow(100)
    held = memory.array(np.int32, 25)
    held[:] = np.arange(25)
    memory.grow(1 << 20)
    assert memory.array(np.int32, 1 << 18)[:25].tolist() == list(range(25))
    assert held.tolist() == list(range(25))
    del held
    memory.close()


def test_a_file_that_is_mapped_again_leaves_the_first_one_its_rows(tmp_path):
    """An evaluation beside a training uses the same path; so does another Trainer of one process."""
    (tmp_path / "rows").write_bytes(b"of an earlier run")
    (tmp_path / "link").symlink_to(tmp_path / "rows")
    first, second = Memory(tmp_path / "rows"), None
    for value in (1, 2):
        first.grow(100 * value)
        first.array(np.int32, 25)[:] = value
        second = Memory(tmp_path / "link")
        second.grow(1 << 16)
        assert not second.array(np.int32, 25).any()
        second.array(np.int32, 25)[:] = 7
        assert first.array(np.int32, 25).tolist() == [value] * 25
    first.grow(1 << 20)
    assert first.array(np.int32, 25).tolist() == [2] * 25
    assert (tmp_path / "link").is_symlink()
    first.close()
    second.close()


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux tells how a file is mapped")
def test_a_file_of_rows_is_mapped_for_access_at_random(tmp_path):
    """Otherwise the system may read and write 2 MB for each row: 30 steps on 4 GB wrote 254 GB."""
    memory = Memory(tmp_path / "rows")
    memory.grow(100)
    memory.grow(1 << 20)
    mapped = Path("/proc/self/smaps").read_text().split(f"{tmp_path / 'rows'}\n")[1]
    memory.close()
    assert "rr" in mapped.split("VmFlags:")[1].splitlines()[0].split()
