"""Rows of several tables read and trained in place, as the graph's thread does it."""

import importlib
import sys

import numpy as np
import pytest

from trainer.embedding import RowAdagrad, RowAdam, RowFTRL, RowOptimizer, RowSGD
from trainer.embedding.layers.host_rows import HostRows, find_kernel
from trainer.embedding.planning.sparse_plan import TablePlan
from trainer.embedding.tables import kernels
from trainer.embedding.tables.spec import TableSpec
from trainer.embedding.tables.table import SparseTable
from trainer.native.compiled import inlined

DIM = 3
TOKEN, STEP = np.zeros(1, np.float32), np.ones(1, np.int32)


def tables_of(optimizer, count=2, rows=50, dtype="float32"):
    tables = {}
    for index in range(count):
        table = SparseTable(TableSpec(f"t{index}", DIM, dtype=dtype), optimizer.first_slots(DIM))
        table.put(np.arange(rows), np.random.default_rng(index).standard_normal((rows, DIM)).astype(np.float32))
        tables[index] = table
    return tables


def everything(table):
    return table.store.read(np.arange(table.next_row, dtype=np.int32))


@pytest.fixture
def sgd():
    optimizer = RowSGD()
    tables = tables_of(optimizer)
    rows = HostRows(tables, DIM, optimizer)
    # positions 1 to 3 are rows of the first table, 4 and 5 of the second
    parts = [
        TablePlan(0, np.array([7, 2, 50], np.int32), 0, 1),
        TablePlan(1, np.array([2, 9], np.int32), 0, 4),
    ]
    rows.select_rows(parts, 8)
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
    rows.update(gradients, np.array([0, 3, 4, 0], np.int32), np.array([0.5], np.float32), STEP, TOKEN)
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
    rows.update(np.ones((2, DIM), np.float32), np.array([1, 3], np.int32), np.array([1], np.float32), STEP, TOKEN)
    rows.update(np.ones((2, DIM), np.float32), np.array([1, 4], np.int32), np.array([1], np.float32), STEP, TOKEN)
    assert np.array_equal(view.values(), before)
    np.testing.assert_allclose(everything(tables[0])[7], before[7] - 2, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("optimizer", [RowSGD(), RowAdagrad(), RowAdam()], ids=["SGD", "Adagrad", "Adam"])
def test_nan_and_infinity_stay_what_they_are_in_their_row(optimizer, dtype):
    """But float16 has no infinite weight: SGD's becomes the largest finite one."""
    tables = tables_of(optimizer, 1, dtype=dtype)
    rows = HostRows(tables, DIM, optimizer)
    rows.select_rows([TablePlan(0, np.array([1, 2, 3], np.int32), 0, 1)], 4)
    gradients = np.ones((3, DIM), np.float32)
    gradients[0], gradients[1, 1] = np.nan, np.inf
    rows.update(gradients, np.array([1, 2, 3], np.int32), np.array([0.1], np.float32), STEP, TOKEN)
    values = everything(tables[0])
    assert np.isnan(values[1, :DIM]).all()
    if dtype == "float16" and isinstance(optimizer, RowSGD):
        assert values[2, 1] == -65504
    else:
        assert np.isfinite(values[2, :DIM]).tolist() == [True, False, True]
    assert np.isfinite(values[3]).all()


@pytest.mark.parametrize(
    ("optimizer", "dtype"),
    [(RowSGD(), "float32"), (RowAdam(), "float16"), (RowFTRL(), "float32")],
    ids=["SGD", "Adam", "FTRL"],
)
def test_many_rows_at_once_become_what_few_at_a_time_do(optimizer, dtype):
    """Many are divided among the processor's cores."""
    count = 400_001
    gradients = np.random.default_rng(0).standard_normal((count, DIM)).astype(np.float32)
    positions = np.random.default_rng(1).permutation(count).astype(np.int32) + 1
    trained, read = [], []
    for step in (count, 1_000):
        tables = tables_of(optimizer, 1, count, dtype)
        rows = HostRows({0: tables[0]}, DIM, optimizer)
        rows.select_rows([TablePlan(0, np.arange(1, count + 1, dtype=np.int32), 0, 1)], count + 1)
        for start in range(0, count, step):
            some = slice(start, start + step)
            rows.update(gradients[some], positions[some], np.array([0.1], np.float32), STEP, TOKEN)
        read.append(np.concatenate([rows.read(positions[at : at + step]) for at in range(0, count, step)]))
        trained.append(everything(tables[0]))
    assert np.array_equal(*trained)
    assert np.array_equal(*read)
    assert np.array_equal(read[0], trained[0][positions][:, :DIM])


def test_float16_weights_add_up_updates_that_rounding_to_nearest_would_drop():
    """The steps are an eighth of the distance of float16 numbers below 1, and for small weights below any of them."""
    optimizer, count, steps = RowSGD(), 400, 600
    table = SparseTable(TableSpec("t", DIM, dtype="float16"), optimizer.first_slots(DIM))
    table.put(np.arange(count), np.full((count, DIM), [1, -0.25, 0], np.float32))
    rows = HostRows({0: table}, DIM, optimizer)
    rows.select_rows([TablePlan(0, table.map.get(np.arange(count)), 0, 1)], count + 1)
    distance = np.array([2.0**-11, 2.0**-12, 2.0**-24])  # of a weight's neighbours
    gradients = np.tile(distance / 8, (count, 1)).astype(np.float32)
    positions, rate = np.arange(1, count + 1, dtype=np.int32), np.ones(1, np.float32)
    seen = []
    for step in range(1, steps + 1):
        before = table.store.stored(table.map.get(np.arange(count)))
        rows.update(gradients, positions, rate, np.array([step], np.int32), TOKEN)
        seen.append(rows.read(positions) != before[:, :DIM].astype(np.float32))
    moved = (np.array([1, -0.25, 0]) - rows.read(positions)) / distance
    # a row's steps are independent of each other and of other rows': the mean of many is known to 5 standard errors
    error = 5 * np.sqrt(steps * 0.125 * 0.875 / count)
    np.testing.assert_allclose(moved.mean(0), steps / 8, rtol=0, atol=error)
    assert np.std(moved, axis=0) == pytest.approx(np.sqrt(steps * 0.125 * 0.875), rel=0.2)
    seen = np.array(seen, np.float32).reshape(steps, -1)
    together = seen @ seen.T / seen.shape[1]  # how often two steps, and two weights, move at once
    assert together[~np.eye(steps, dtype=np.bool_)].max() < 0.08
    assert (seen.T @ seen / steps)[~np.eye(count * DIM, dtype=np.bool_)].max() < 0.12


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
    table.track_changes("snapshot")
    table.columns["dirty.snapshot"][:] = False
    rows = table.plan(np.array([[3, 4, 1_000]]))
    table.record(np.unique(rows), np.array([[1, 2, 3]]), 0.0)
    table.start()
    table.rollback()
    assert table.count_changed("snapshot") == 2


KERNEL = """
from trainer.embedding.tables import kernels
from trainer.native.compiled import inlined


@inlined
def add(row, value, columns, numbers):
    for column in range(columns):
        row[column] += value[column]


@kernels.RowKernel
def update(block):
    return kernels.update_rows(add, block)
"""


def test_a_kernel_that_another_release_compiled_is_compiled_anew(tmp_path, monkeypatch):
    """A user's kernel is cached beside their file, and holds the loop of the release that compiled it."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "users_kernel.py").write_text(KERNEL)

    @inlined
    def loop_of_another_release(rule, block):
        return np.int64(0)

    rows, table = np.ones((4, 8), np.float32), np.zeros((4, 8), np.float32)
    added = []
    for loop in (loop_of_another_release, kernels.update_rows):
        with monkeypatch.context() as patched:
            patched.setattr(kernels, "update_rows", loop)
            patched.delitem(sys.modules, "users_kernel", raising=False)
            run = importlib.import_module("users_kernel").update.ready()
            bases = np.array([table.ctypes.data], np.int64)
            run(bases, np.arange(4), np.arange(4, dtype=np.int32), 8, rows, 8, np.zeros(1, np.float32))
            added.append(table.sum())
    assert added == [0, 32]
    assert list(tmp_path.rglob("*.nbi"))
