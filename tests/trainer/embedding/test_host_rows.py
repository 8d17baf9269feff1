"""Rows of several tables read and trained in place, as the graph's thread does it."""

import numpy as np
import pytest

from trainer.embedding import RowAdagrad, RowAdam, RowFTRL, RowOptimizer, RowSGD
from trainer.embedding.layers.host_rows import HostRows, find_kernel
from trainer.embedding.planning.sparse_plan import TablePlan
from trainer.embedding.tables.spec import TableSpec
from trainer.embedding.tables.table import SparseTable

DIM = 3
TOKEN = np.zeros(1, np.float32)


def tables_of(optimizer, count=2, rows=50):
    tables = {}
    for index in range(count):
        table = SparseTable(TableSpec(f"t{index}", DIM), optimizer.first_slots(DIM))
        table.put(np.arange(rows), np.random.default_rng(index).standard_normal((rows, DIM)).astype(np.float32))
        tables[index] = table
    return tables


def everything(table):
    return table.store.read(np.arange(table.next_row, dtype=np.int32))


@pytest.fixture
def sgd():
    optimizer = RowSGD()
    tables = tables_of(optimizer)
    rows = HostRows({index: table.store for index, table in tables.items()}, DIM, optimizer)
    # positions 1 to 3 are rows of the first table, 4 and 5 of the second
    parts = [
        TablePlan(0, np.array([7, 2, 50], np.int32), 0, 1),
        TablePlan(1, np.array([2, 9], np.int32), 0, 4),
    ]
    rows.choose(parts, 8)
    return tables, rows


def test_positions_read_the_rows_of_their_tables_and_zero_reads_nothing(sgd):
    tables, rows = sgd
    found = rows.read(np.array([4, 1, 0, 3, 5, 7], np.int32))
    first, second = everything(tables[0]), everything(tables[1])
    assert np.array_equal(found, np.stack([second[2], first[7], np.zeros(DIM), first[50], second[9], np.zeros(DIM)]))


def test_an_update_changes_the_rows_it_names_and_no_other(sgd):
    tables, rows = sgd
    before = [everything(table) for table in tables.values()]
    gradients = np.arange(12, dtype=np.float32).reshape(4, DIM)
    rows.update(gradients, np.array([0, 3, 4, 0], np.int32), np.array([0.5], np.float32), TOKEN)
    before[0][50] -= np.float32(0.5) * gradients[1]
    before[1][2] -= np.float32(0.5) * gradients[2]
    for table, expected in zip(tables.values(), before, strict=True):
        assert np.array_equal(everything(table), expected)


def test_rows_may_move_to_other_memory_between_steps(sgd):
    tables, rows = sgd
    expected = everything(tables[0])[7]
    tables[0].reserve(1 << 20)
    assert np.array_equal(rows.read(np.array([1], np.int32))[0], expected)


def test_a_frozen_view_keeps_the_values_from_before_an_update_in_place(sgd):
    tables, rows = sgd
    before = everything(tables[0])
    view = tables[0].store.view(np.ones(len(before), np.bool_))
    rows.update(np.ones((2, DIM), np.float32), np.array([1, 3], np.int32), np.array([1], np.float32), TOKEN)
    rows.update(np.ones((2, DIM), np.float32), np.array([1, 4], np.int32), np.array([1], np.float32), TOKEN)
    assert np.array_equal(view.values(), before)
    np.testing.assert_allclose(everything(tables[0])[7], before[7] - 2, rtol=1e-5)


@pytest.mark.parametrize("optimizer", [RowSGD(), RowAdagrad(), RowAdam()], ids=["SGD", "Adagrad", "Adam"])
def test_nan_and_infinity_stay_what_they_are_in_their_row(optimizer):
    tables = tables_of(optimizer, 1)
    rows = HostRows({index: table.store for index, table in tables.items()}, DIM, optimizer)
    rows.choose([TablePlan(0, np.array([1, 2, 3], np.int32), 0, 1)], 4)
    gradients = np.ones((3, DIM), np.float32)
    gradients[0], gradients[1, 1] = np.nan, np.inf
    rows.update(gradients, np.array([1, 2, 3], np.int32), np.array([0.1], np.float32), TOKEN)
    values = everything(tables[0])
    assert np.isnan(values[1, :DIM]).all()
    assert np.isfinite(values[2, :DIM]).tolist() == [True, False, True]
    assert np.isfinite(values[3]).all()


@pytest.mark.parametrize("optimizer", [RowSGD(), RowAdam(), RowFTRL()], ids=["SGD", "Adam", "FTRL"])
def test_many_rows_at_once_become_what_few_at_a_time_do(optimizer):
    """Many are divided among the processor's cores."""
    count = 400_001
    gradients = np.random.default_rng(0).standard_normal((count, DIM)).astype(np.float32)
    positions = np.random.default_rng(1).permutation(count).astype(np.int32) + 1
    trained, read = [], []
    for step in (count, 1_000):
        tables = tables_of(optimizer, 1, count)
        rows = HostRows({0: tables[0].store}, DIM, optimizer)
        rows.choose([TablePlan(0, np.arange(1, count + 1, dtype=np.int32), 0, 1)], count + 1)
        for start in range(0, count, step):
            some = slice(start, start + step)
            rows.update(gradients[some], positions[some], np.array([0.1], np.float32), TOKEN)
        read.append(np.concatenate([rows.read(positions[at : at + step]) for at in range(0, count, step)]))
        trained.append(everything(tables[0]))
    assert np.array_equal(*trained)
    assert np.array_equal(*read)
    assert np.array_equal(read[0], trained[0][positions][:, :DIM])


def test_a_row_optimizer_has_the_kernel_that_its_own_class_declares():
    class Own(RowSGD):
        pass

    class Other(RowOptimizer):
        pass

    class Twice(RowSGD):
        def kernel(self):
            return RowSGD.kernel(self)

        def construct(self, rows, gradients, lr, step):
            return rows - lr * gradients

    assert find_kernel(Own()) is None
    assert find_kernel(Other()) is None
    assert find_kernel(Twice()) == find_kernel(RowSGD())


def test_rows_of_a_call_that_failed_count_as_changed():
    (table,) = tables_of(RowSGD(), 1).values()
    table.follow("snapshot")
    table.columns["dirty.snapshot"][:] = False
    rows = table.plan(np.array([[3, 4, 1_000]]))
    table.record(np.unique(rows), np.array([[1, 2, 3]]), 0.0)
    table.start()
    table.rollback()
    assert table.changed("snapshot") == 2
