"""The id map agrees with a dict, whatever is added and removed."""

import numpy as np

from trainer.embedding.tables.id_map import ZERO_KEY_ID, IdMap


def test_agrees_with_a_dict_over_a_long_life():
    rng = np.random.default_rng(0)
    table, model = IdMap(), {}
    next_row = 0
    pool = np.concatenate((rng.integers(-(2**63), 2**63 - 1, 60_000), np.arange(-20_000, 20_000), [ZERO_KEY_ID]))
    for _ in range(60):
        ids = np.unique(rng.choice(pool, 4_000))
        rows = table.get(ids)
        assert rows.tolist() == [model.get(i, -1) for i in ids.tolist()]
        new = ids[rows < 0]
        table.add(new, np.arange(next_row, next_row + len(new)))
        model |= dict(zip(new.tolist(), range(next_row, next_row + len(new)), strict=True))
        next_row += len(new)
        gone = np.unique(rng.choice(pool, 3_000))
        table.remove(gone)
        for i in gone.tolist():
            model.pop(i, None)
        assert len(table) == len(model)
    ids, rows = table.items()
    assert dict(zip(ids.tolist(), rows.tolist(), strict=True)) == model


def test_ids_made_to_collide_are_all_found():
    ids = np.arange(50_000, dtype=np.int64) << np.int64(40)
    table = IdMap()
    table.add(ids, np.arange(len(ids)))
    assert (table.get(ids) == np.arange(len(ids))).all()
    assert (table.get(ids + 1) == -1).all()


def test_rotating_ids_leave_no_trace():
    table = IdMap()
    window, size = 4_000, []
    for start in range(0, 400_000, 1_000):
        new = np.arange(start, start + 1_000)
        table.add(new, np.zeros(1_000))
        table.remove(new - window)
        size.append(table.nbytes)
    assert len(table) == window
    assert size[-1] == size[len(size) // 10]
    table.remove(table.items()[0])
    assert len(table) == 0


def test_gives_rows_to_unknown_ids_in_the_order_they_come():
    rng = np.random.default_rng(1)
    pool = np.concatenate((np.arange(40_000) << np.int64(40), rng.integers(-(2**63), 2**63 - 1, 40_000), [ZERO_KEY_ID]))
    table, model, refused = IdMap(), {}, 0
    for _ in range(80):
        ids = rng.choice(pool, 3_000)
        expected = dict(model)
        for one in ids.tolist():
            expected.setdefault(one, len(expected))
        rows = np.empty(len(ids), np.int32)
        places = table.get_or_add(ids, len(model), rows)
        if places is None:  # it may lack room
            refused += 1
            new = np.array([one for one in expected if one not in model], np.int64)
            table.add(new, np.arange(len(model), len(expected)))
        else:
            assert rows.tolist() == [expected[one] for one in ids.tolist()]
            assert ids[places].tolist() == list(expected)[len(model) :]
        model = expected
        assert len(table) == len(model)
        assert table.get(ids).tolist() == [model[one] for one in ids.tolist()]
    assert 0 < refused < 20
