"""What a capacity, an eviction and an admission that each process decides for its part keep, beside one process."""

import numpy as np
import pytest

from trainer.embedding import Eviction, MinSightings, RowSGD
from trainer.embedding.tables.hashing import Shards
from trainer.embedding.tables.spec import TableSpec
from trainer.embedding.tables.table import SparseTable

STEPS, IDS = 120, 2000


def feed(size, spec):
    """Return the ids that `size` processes keep after the same steps, and their tables."""
    tables = [SparseTable(spec, RowSGD().first_slots(spec.dim), Shards(rank, size)) for rank in range(size)]
    rng, fed = np.random.default_rng(0), []
    for step in range(STEPS):
        ids = np.unique(rng.zipf(1.1, IDS) % 10**6)
        fed.append(ids)
        for table in tables:
            own = ids[table.shards.owned(ids)]
            rows = table.plan(own[None], None, float(step)).reshape(-1)
            table.record(rows, np.arange(1, len(rows) + 1)[None] * (rows > 0), float(step))
            table.commit(None)
    seen = np.unique(np.concatenate(fed))
    return {id_ for table in tables for id_ in seen[table.lookup(seen) > 0].tolist()}, tables


@pytest.mark.parametrize("size", [2, 3, 7, 8])
@pytest.mark.parametrize("total", [10, 1000, 99_999])
def test_the_shares_of_a_capacity_add_up_and_follow_the_shards(size, total):
    shares = [Shards(rank, size).capacity(total) for rank in range(size)]
    shards = [len(range(rank, 1024, size)) for rank in range(size)]
    assert sum(shares) == total
    assert np.abs(np.array(shares) - total * np.array(shards) / 1024).max() < 1


@pytest.mark.parametrize("size", [2, 3, 8])
def test_processes_that_evict_by_themselves_keep_almost_what_one_process_keeps(size):
    """docs/scaling.md: on average sqrt(C (N - 1) / (2 pi)) ids more or less, and the share that goes at once."""
    spec = TableSpec("items", 2, capacity=8000, eviction=Eviction("lru", share=0.01))
    alone, (table,) = feed(1, spec)
    together, tables = feed(size, spec)
    assert table.counters["evicted"] > 3 * spec.capacity
    assert len(alone) <= spec.capacity
    assert sum(len(part) for part in tables) <= spec.capacity
    bound = 2 * np.sqrt(spec.capacity * (size - 1) / (2 * np.pi)) + 0.01 * spec.capacity
    assert len(alone - together) <= bound
    assert len(together - alone) <= bound


def test_processes_that_count_sightings_by_themselves_admit_no_id_that_one_process_refuses():
    """Fewer ids share a cell of the sketch, so fewer are admitted too early."""
    spec = TableSpec("items", 2, admission=MinSightings(5, width=1 << 12, depth=1))
    alone, _ = feed(1, spec)
    together, _ = feed(4, spec)
    exact, _ = feed(1, TableSpec("items", 2, admission=MinSightings(5, width=1 << 22, depth=8)))
    assert exact <= together <= alone
    assert len(together) < len(alone)
