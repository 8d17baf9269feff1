"""Tables whose rows are divided among any number of processes: who keeps what, and snapshots that others go on from."""

import json
import threading
from pathlib import Path

import numpy as np
import pytest

from trainer import checkpoint
from trainer.checkpoint import block_arrays, tensor_file
from trainer.checkpoint.block_arrays import VerifiedFile
from trainer.checkpoint.durable import write_file
from trainer.distributed.group import World
from trainer.embedding import Eviction, MinSightings
from trainer.embedding.planning import sharded_state
from trainer.embedding.planning.sharded_state import gather_table, joined_json, own_part, own_states, renumbered
from trainer.embedding.planning.sparse_plan import SortingIndexer, UniqueIndexer
from trainer.embedding.tables.hashing import Shards
from trainer.embedding.tables.table import SparseTable, TableSpec
from trainer.embedding.tables.table_state import check_states, restore, take

SNAPSHOTS = Path(__file__).parents[2] / "data" / "snapshots_0_1_0"
OPTIONS = {"capacity": 230, "admission": MinSightings(2, width=1024), "eviction": Eviction("lru", ttl=60.0)}


class Rank(World):
    """One of several processes that are threads."""

    def __init__(self, rank, size, shared):
        super().__init__(rank, size)
        self.barrier, self.slots = shared

    def connect(self):
        pass

    def _exchange(self, parts, collective, **options):
        self.slots[self.rank] = [bytearray(part) for part in parts]
        self.bytes_sent += (
            sum(24 + len(part) for part in self.slots[self.rank]) - 24 - len(self.slots[self.rank][self.rank])
        )
        self.barrier.wait(timeout=30)
        found = [parts[self.rank] for parts in self.slots]
        self.barrier.wait(timeout=30)
        return found


def everyone(size, function):
    """Return what `function(group)` returns on each of `size` processes."""
    shared = threading.Barrier(size), [None] * size
    found = [None] * size

    def run(rank):
        try:
            found[rank] = function(Rank(rank, size, shared))
        except BaseException as error:
            found[rank] = error
            shared[0].abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in found:
        if isinstance(error, BaseException):
            raise error
    return found


def make(rank=0, size=1, **changes):
    return SparseTable(TableSpec("t", 3, **(OPTIONS | changes)), np.zeros(2, np.float32), Shards(rank, size))


def run(table, start, stop):
    """Train turns start to stop on the ids that the table's process owns, as all do at the same time."""
    for turn in range(start, stop):
        rng = np.random.default_rng(turn)
        ids = (rng.zipf(1.2, 300) % 400 + 3 * turn).astype(np.int64)
        own = ids[table.shards.owned(ids)]
        rows = table.plan(own[None], None, float(turn))
        unique, inverse = UniqueIndexer()(rows.reshape(-1), table.next_row)
        table.record(unique, inverse.reshape(rows.shape), float(turn))
        values = table.store.read(unique) * np.float32(1.5) + np.float32(0.25)
        values[unique == 0] = turn  # what all make of the default row alike
        table.commit(values)


def content(tables):
    """What all parts hold together, by ids."""
    found = {}
    for table in tables:
        ids, rows = table.map.items()
        for one, row, value in zip(ids.tolist(), rows.tolist(), table.store.read(rows), strict=True):
            assert one not in found
            found[one] = (value.tobytes(), *(table.columns[name][row].item() for name in table.meta_names))
    defaults = {table.store.read(np.array([0])).tobytes() for table in tables}
    assert len(defaults) == 1
    return found, defaults, {name: sum(table.counters[name] for table in tables) for name in tables[0].counters}


def gather(tables, *, full, sketches=(None,) * 9):
    """Return the whole state that rank 0 would write; as a file would hold it."""

    def give(group):
        table = tables[group.rank]
        table.track_changes("snapshot")
        arrays, about = take(table, "snapshot", full=full)
        json = joined_json(group, {"t": about})["t"]
        return gather_table(group, own_part(table, arrays, sketches[group.rank]), None), json

    found = everyone(len(tables), give) if len(tables) > 1 else [take(tables[0], "snapshot", full=full)]
    assert all(arrays == {} for arrays, _ in found[1:])
    arrays, about = found[0]
    about = json.loads(json.dumps(about)) | {"updates": 0}
    return {"json": {"t": about}, "arrays": {f"t/{key}": np.array(value) for key, value in arrays.items()}}


def join(tables, *, full, sketches=(None,) * 9):
    """Return the whole state that all ranks write in parts; as their files would be read."""

    def give(group):
        table = tables[group.rank]
        table.track_changes("snapshot")
        arrays, about = take(table, "snapshot", full=full)
        own = own_part(table, arrays, sketches[group.rank])
        return {f"t/{key}": np.array(value) for key, value in own.items()}, joined_json(group, {"t": about})

    found = everyone(len(tables), give)
    about = json.loads(json.dumps(found[0][1]["t"])) | {"updates": 0}
    return {"json": {"t": about}, "arrays": tensor_file.join([arrays for arrays, _ in found])}


def total(sketch):
    """The counts of all ranks, which parts hold one after another."""
    return np.asarray(sketch).sum(0, dtype=sketch.dtype) if len(sketch.shape) > 2 else sketch


def load(states, size):
    """Return the tables of `size` processes, restored."""
    tables = [make(rank, size) for rank in range(size)]
    for table in tables:
        check_states({"t": table}, states)
        for state in own_states({"t": table}, states) if size > 1 else states:
            arrays = {key.removeprefix("t/"): value for key, value in state["arrays"].items()}
            restore(table, arrays, state["json"]["t"])
    return tables


@pytest.fixture(scope="module", params=[gather, join])
def chain(request):
    """A full state and two deltas of three processes, with rows given and taken in between; and the tables."""
    tables = [make(rank, 3) for rank in range(3)]
    states = []
    for turn in (20, 24, 27):
        for table in tables:
            run(table, 0 if turn == 20 else turn - 4, turn)
        states.append(request.param(tables, full=turn == 20))
    assert tables[0].counters["evicted"], "the table was full"
    assert tables[0].counters["expired"] == 0
    assert len(states[1]["arrays"]["t/removed"]), "ids lost their rows"
    return tables, states


def test_every_id_has_one_keeper_and_the_parts_are_even():
    ids = np.random.default_rng(0).integers(-(2**63), 2**63, 40_000)
    for size in (2, 3, 8, 512):
        owners = Shards(0, size).owners(ids)
        counts = np.bincount(owners, minlength=size)
        assert len(counts) == size
        assert counts.min() > 0.6 * len(ids) / size - 20
        np.testing.assert_array_equal(Shards(1, size).owned(ids), owners == 1)
        assert sum(Shards(rank, size).capacity(1001) for rank in range(size)) == 1001
    assert Shards(1, 2).capacity(None) is None


def test_row_numbers_among_all_processes_tell_the_keeper_and_its_row():
    rows = np.arange(5, dtype=np.int32)
    parts = [Shards(rank, 3).to_global(rows) for rank in range(3)]
    assert sorted(np.concatenate([part[1:] for part in parts]).tolist()) == list(range(1, 13))
    for rank, part in enumerate(parts):
        shards = Shards(rank, 3)
        assert part[0] == 0
        np.testing.assert_array_equal(shards.to_local(part), rows)
        assert set(shards.owners_of_rows(part[1:]).tolist()) == {rank}


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_chain_of_snapshots_loads_on_any_number_of_processes(chain, size):
    tables, states = chain
    restored = load(states, size)
    assert content(restored) == content(tables)
    for table in restored:
        held = table.map.items()[0]
        assert len(held) == len(table)
        assert table.shards.owned(held).all()
        np.testing.assert_array_equal(table.admission.sketch, total(states[-1]["arrays"]["t/sketch"]))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_large_files_are_read_in_blocks_while_they_are_loaded(chain, size, tmp_path, monkeypatch):
    tables, states = chain
    monkeypatch.setattr(block_arrays, "CHECKED_BYTES", 1 << 10)
    monkeypatch.setattr(block_arrays, "BLOCK_BYTES", 1 << 10)
    stored = []
    for number, state in enumerate(states):
        pieces = []
        for part in range(2):  # as if two processes had written it
            halves = {name: np.array_split(np.asarray(array), 2)[part] for name, array in state["arrays"].items()}
            path = tmp_path / f"{number}.{part}"
            pieces.append(tensor_file.parse_file(VerifiedFile(path, *write_file(path, tensor_file.blocks(halves)))))
        stored.append({**state, "arrays": tensor_file.join(pieces)})
    lengths, read = [], VerifiedFile.read
    monkeypatch.setattr(VerifiedFile, "read", lambda *given: lengths.append(given[2] - given[1]) or read(*given))
    restored = load(stored, size)
    assert content(restored) == content(tables)
    rows, sketch = max(len(table) for table in restored), restored[0].admission.sketch.nbytes
    most = max(1 << 10, 8 * (rows + 1))  # a block, or what one column of the own rows takes
    assert {length for length in lengths if length > most} <= {sketch, sketch // 2}
    assert sum(lengths) > 20 * most


def test_as_many_processes_go_on_exactly_as_the_interrupted_ones(chain):
    tables, states = chain
    restored = load(states, 3)
    for table, other in zip(tables, restored, strict=True):
        other.admission.sketch[...] = table.admission.sketch  # the whole one tells it of other processes' ids
        mine, its = (sorted(zip(*(part.tolist() for part in one.map.items()), strict=True)) for one in (table, other))
        assert mine == its, "the rows they had"
        run(other, 27, 40)
    straight = [make(rank, 3) for rank in range(3)]
    for table in straight:
        for start, stop in ((0, 20), (20, 24), (23, 27), (27, 40)):
            run(table, start, stop)
    assert content(restored)[:2] == content(straight)[:2]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_another_number_of_processes_goes_on_within_the_capacity(chain, size):
    restored = load(chain[1], size)
    sketches = [table.admission.sketch.copy() for table in restored]
    for table in restored:
        run(table, 27, 60)
        assert len(table) <= table.capacity
    assert sum(table.capacity for table in restored) == OPTIONS["capacity"]
    again = load([gather(restored, full=True, sketches=sketches)], 3)
    assert content(again) == content(restored)


@pytest.mark.parametrize("collect", [gather, join])
def test_sightings_are_counted_once_by_the_owner_of_the_id(collect):
    """The sum of what all have counted is what one process counts, however often snapshots changed hands."""
    # wide enough that no two ids share their cells: then the owner's estimates are those of one process
    options = {"eviction": None, "capacity": None, "admission": MinSightings(2, width=1 << 16)}
    alone, tables = make(**options), [make(rank, 2, **options) for rank in range(2)]
    for table in (alone, *tables):
        run(table, 0, 10)
    state = collect(tables, full=True)
    np.testing.assert_array_equal(total(state["arrays"]["t/sketch"]), alone.admission.sketch)
    for table in tables:
        table.admission.sketch[...] = total(state["arrays"]["t/sketch"])
    before = [table.admission.sketch.copy() for table in tables]
    for table in (alone, *tables):
        run(table, 10, 15)
    state = collect(tables, full=True, sketches=before)
    np.testing.assert_array_equal(total(state["arrays"]["t/sketch"]), alone.admission.sketch)


def test_large_arrays_are_put_together_in_a_file_block_by_block(chain, monkeypatch):
    monkeypatch.setattr(sharded_state, "BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(sharded_state, "SPOOLED_BYTES", 1 << 10)
    found = gather(chain[0], full=True)
    assert content(load([found], 2))[:2] == content(chain[0])[:2]


def test_sorting_finds_the_same_distinct_numbers_in_the_same_order():
    numbers = np.random.default_rng(0).integers(-1, 40, 300).astype(np.int32)
    for part in (numbers, numbers[:0], np.full(3, -1, np.int32)):
        one, other = UniqueIndexer(), SortingIndexer()
        for expected, found in zip(one(part, 40), other(part, 40), strict=True):
            np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(other.first, one.first)


def test_a_snapshot_of_an_earlier_version_is_divided_too():
    snapshot = checkpoint.find(SNAPSHOTS / "online")
    state = {"json": snapshot.state["parts"]["tables"], "arrays": snapshot.tensors("part.tables")}
    tables = [{name: make_like(about, name, rank) for name, about in state["json"].items()} for rank in range(3)]
    parts = [own_states(own, [state])[0] for own in tables]
    for name in state["json"]:
        arrays = {key.partition("/")[2]: value for key, value in state["arrays"].items() if key.startswith(f"{name}/")}
        whole = dict(zip(arrays["ids"][1:].tolist(), arrays["values"][1:].tolist(), strict=True))
        found = {}
        for rank, part in enumerate(parts):
            ids, rows, values = (part["arrays"][f"{name}/{key}"] for key in ("ids", "rows", "values"))
            assert rows.tolist() == list(range(len(rows))), "the default row, and its own without holes"
            assert part["json"][name]["next_row"] == len(rows)
            assert Shards(rank, 3).owned(ids[1:]).all()
            np.testing.assert_array_equal(values[0], arrays["values"][0])
            found |= dict(zip(ids[1:].tolist(), values[1:].tolist(), strict=True))
        assert found == whole
        assert sum(part["json"][name]["counters"]["admitted"] for part in parts) == len(whole)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_rows_of_an_open_accumulation_window_are_found_again(chain, size):
    """They are saved by their numbers, and others may have them by then."""
    tables, states = chain
    rows = np.concatenate([table.shards.to_global(table.map.items()[1]) for table in tables])
    ids = np.concatenate([table.map.items()[0] for table in tables])
    saved = np.append(rows, 0).astype(np.int32)
    newest = {**states[-1], "arrays": {**states[-1]["arrays"], "t/accumulated_rows": saved}}
    restored = load(states, size)

    def find(group):
        return renumbered(group, {"t": restored[group.rank]}, [*states[:-1], newest])["t/accumulated_rows"]

    for found in everyone(size, find):
        assert found[-1] == 0
        for table in restored:
            own = np.flatnonzero(table.shards.owned(ids))
            np.testing.assert_array_equal(found[own], table.shards.to_global(table.map.get(ids[own])))


def make_like(about, name, rank):
    return SparseTable(TableSpec(name, about["dim"]), np.zeros(about["width"] - about["dim"]), Shards(rank, 3))
