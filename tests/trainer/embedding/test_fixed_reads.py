"""Reading the rows of a batch's ids for a program of fixed shape, against one look-up per table."""

import numpy as np
import pytest

from trainer.embedding.planning.fixed_reads import FixedReads
from trainer.embedding.planning.layout import ColumnPart, Component, FieldMap, read_layout
from trainer.embedding.tables.hashing import to_ids
from trainer.embedding.tables.id_map import ZERO_KEY_ID
from trainer.embedding.tables.spec import DEFAULT_ROW, TableSpec
from trainer.embedding.tables.table import SparseTable
from trainer.errors import DataError

BATCH, PADDING = 50, -7
RNG = np.random.default_rng(0)


def make_table(name, dim, ids, padding=None):
    table = SparseTable(TableSpec(name, dim, padding=padding), np.zeros(2, np.float32))
    table.put(np.asarray(ids, np.int64), RNG.standard_normal((len(ids), dim)).astype(np.float32))
    table.store.write(np.array([DEFAULT_ROW]), np.full((1, dim + 2), 0.5, np.float32))
    return table


def read(tables, components, columns, names=()):
    """Return the columns, each stack's rows and maps, and the layout."""
    fields = FieldMap(components, names=names)
    layout = read_layout(components, [table.spec for table in tables])
    size = 1 + sum(np.asarray(column).size for column in columns)
    rows = [np.full((size, tables[stack.tables[0]].spec.dim), np.nan, np.float32) for stack in layout.stacks]
    maps = [np.zeros(size, np.int32) if bundle.indirect else None for bundle in layout.bundles for _ in bundle.stacks]
    out = FixedReads(tables, fields, layout)(columns, rows, maps)
    return out, rows, maps, layout


def vectors_of(table, ids):
    """Return the vectors of ids one by one; zeros for padding."""
    known, rows = table.map.items()
    row_of = dict(zip(known.tolist(), rows.tolist(), strict=True))
    values = table.store.read(np.array([row_of.get(i, DEFAULT_ROW) for i in ids.reshape(-1).tolist()]))
    values = values[:, : table.spec.dim].reshape(*ids.shape, table.spec.dim)
    return values if table.spec.padding is None else values * (ids != table.spec.padding)[..., None]


def everything(indices):
    return [np.ones(indices, np.bool_)]


def test_tables_of_one_width_are_read_as_one_with_their_own_rows_each():
    """Two columns of ids per table pair, wide and deep, as FM networks have them; unknown ids read the default row."""
    ids = [RNG.permutation(200)[:80] for _ in range(3)]
    wide = [make_table(f"wide-{n}", 1, own) for n, own in enumerate(ids)]
    deep = [make_table(f"deep-{n}", 6, own) for n, own in enumerate(ids)]
    tables = [table for pair in zip(wide, deep, strict=True) for table in pair]
    components = [Component([2 * n, 2 * n + 1], [ColumnPart(0, np.array([n]))], everything(1) * 2) for n in range(3)]
    column = RNG.integers(0, 200, (BATCH, 4))
    column[3, 1] = ZERO_KEY_ID
    deep[1].put(np.array([ZERO_KEY_ID]), np.full((1, 6), 9, np.float32))
    (positions,), rows, _, layout = read(tables, components, [column])
    assert [stack.tables for stack in layout.stacks] == [[0, 2, 4], [1, 3, 5]]
    assert positions.dtype == np.int32
    np.testing.assert_array_equal(positions[:, 3], column[:, 3])  # no table reads it
    for stack, own in ((0, wide), (1, deep)):
        for n, table in enumerate(own):
            np.testing.assert_array_equal(rows[stack][positions[:, n]], vectors_of(table, column[:, n]))
    assert (rows[1][positions[3, 1]] == 9).all()
    assert (rows[0][positions[3, 1]] == 0.5).all()


def test_a_table_whose_map_has_grown_is_read_in_full():
    table = make_table("growing", 2, np.arange(10))
    column = np.arange(BATCH)
    for more in (0, 5_000):
        table.put(np.arange(10, 10 + more), RNG.standard_normal((more, 2)).astype(np.float32))
        (positions,), (rows,), _, _ = read([table], [Component([0], [ColumnPart(0)], everything(1))], [column])
        np.testing.assert_array_equal(rows[positions], vectors_of(table, column))


def test_lists_have_position_zero_at_their_padding():
    table = make_table("films", 3, np.arange(30), PADDING)
    column = RNG.integers(0, 40, (BATCH, 5))
    column[RNG.random(column.shape) < 0.3] = PADDING
    (positions,), (rows,), _, _ = read([table], [Component([0], [ColumnPart(0)], everything(5))], [column])
    np.testing.assert_array_equal(positions == 0, column == PADDING)
    np.testing.assert_array_equal(rows[positions], vectors_of(table, column))


def test_one_column_with_a_padding_for_one_of_its_tables_only_is_translated():
    tables = [make_table("padded", 3, np.arange(30), PADDING), make_table("plain", 3, [*range(30), PADDING])]
    column = RNG.integers(0, 40, (BATCH, 2))
    column[::3, 1] = PADDING
    component = Component([0, 1], [ColumnPart(0)], everything(2) * 2)
    (positions,), rows, maps, layout = read(tables, [component], [column])
    assert layout.bundles[0].indirect
    for table, own, row_map in zip(tables, rows, maps, strict=True):
        np.testing.assert_array_equal(own[row_map[positions]], vectors_of(table, column))


def test_rows_follow_a_table_that_has_changed_in_between():
    table = make_table("items", 4, np.arange(10))
    component = Component([0], [ColumnPart(0)], everything(1))
    reads = FixedReads([table], FieldMap([component]), read_layout([component], [table.spec]))
    column = np.arange(5000)
    rows = np.empty((5001, 4), np.float32)
    for last in (10, 5000):  # the second time in other memory
        table.put(np.arange(last), np.full((last, 4), last, np.float32))
        (positions,) = reads([column], [rows], [None])
        np.testing.assert_array_equal(rows[positions], vectors_of(table, column))
    table.discard(np.arange(7))
    (positions,) = reads([column], [rows], [None])
    np.testing.assert_array_equal(rows[positions], vectors_of(table, column))
    assert (rows[positions][:7] == 0.5).all()


def test_text_is_hashed_and_other_types_are_refused_by_name():
    table = make_table("cities", 2, to_ids(np.array(["a", "b"])))
    component = Component([0], [ColumnPart(1, np.array([0]))], everything(1))
    columns = [np.array([0.25, 1.0], np.float32), np.array([["b", "x"], ["new", "y"]])]
    (number, positions), (rows,), _, _ = read([table], [component], columns)
    np.testing.assert_array_equal(number, columns[0])
    np.testing.assert_array_equal(rows[positions[:, 0]], vectors_of(table, to_ids(columns[1][:, 0])))
    with pytest.raises(DataError, match="column 'city' must hold integer or string ids; received dtype float64"):
        read([table], [component], [columns[0], np.zeros((2, 2))], ("n", "city"))
