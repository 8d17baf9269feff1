"""Exports sparse tables for other programs, with rows sorted by id."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from ..checkpoint.manifest import FolderWriter
from ..embedding.planning.layout import FieldMap
from ..embedding.tables.spec import DEFAULT_ROW
from ..embedding.tables.table import SparseTable
from ..errors import ConfigurationError

NO_ID_ROW, UNKNOWN_ROW, FIRST_ROW = 0, 1, 2
_ROW_GROUP = 1 << 20


@dataclass(frozen=True)
class ExportedTable:
    """The rows of one table."""

    name: str
    ids: np.ndarray  # int64 [n], ascending: the ids of all tables that read the same columns
    vectors: np.ndarray  # float32 [n, dim]
    default: np.ndarray  # vector of any other id, float32 [dim]
    padding: int | None  # id that means "no entry" and has a vector of zeros, or None

    @property
    def rows(self) -> np.ndarray:
        """Rows [2 + n, dim] for the exported network: no id, unknown id, then `ids`."""
        zeros = np.zeros_like(self.default)
        return np.concatenate([zeros[None], self.default[None], self.vectors])

    def positions(self, ids: np.ndarray) -> np.ndarray:
        """Return the int32 index in `rows` of each id."""
        indices = np.searchsorted(self.ids, ids).clip(max=max(0, len(self.ids) - 1))
        known = self.ids[indices] == ids if len(self.ids) else np.zeros(ids.shape, np.bool_)
        positions = np.where(known, FIRST_ROW + indices, UNKNOWN_ROW)
        if self.padding is not None:
            positions = np.where(ids == self.padding, NO_ID_ROW, positions)
        return positions.astype(np.int32)

    def write(self, folder: FolderWriter, file: str) -> None:
        """Write ids and vectors to a Parquet file."""
        import pyarrow as pa
        from pyarrow import parquet

        vectors = pa.FixedSizeListArray.from_arrays(pa.array(self.vectors.ravel()), self.vectors.shape[1])
        table = pa.table({"id": pa.array(self.ids), "vector": vectors})
        parquet.write_table(table, folder.path / file, row_group_size=_ROW_GROUP)
        folder.adopt(file)


def exported_tables(fields: FieldMap, tables: Sequence[SparseTable]) -> list[ExportedTable]:
    """Return the trained rows of each table, in the order of `tables`.

    Raises:
        ConfigurationError: tables that read the same columns have different paddings.
    """
    exported: dict[int, ExportedTable] = {}
    for component in fields.components:
        group = [tables[index] for index in component.specs]
        if len({table.spec.padding for table in group}) > 1:
            paddings = ", ".join(f"{table.spec.name!r} padding={table.spec.padding}" for table in group)
            raise ConfigurationError(
                f"export: tables that read the same column need the same padding; they have {paddings}"
            )
        trained = [_trained_rows(table) for table in group]
        ids = np.unique(np.concatenate([numbers for numbers, _, _ in trained]))
        for index, table, (numbers, vectors, default) in zip(component.specs, group, trained, strict=True):
            rows = np.tile(default, (len(ids), 1))
            rows[np.searchsorted(ids, numbers)] = vectors
            exported[index] = ExportedTable(table.spec.name, ids, rows, default, table.spec.padding)
    return [exported[index] for index in sorted(exported)]


def _trained_rows(table: SparseTable) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a table's ids, their vectors, and the default vector of other ids."""
    with table.lock:
        ids, rows = table.items()
        trained = ~table.columns["uncommitted"][rows]
        ids, rows = ids[trained], rows[trained]
        vectors = np.empty((len(ids), table.spec.dim), np.float32)
        table.store.read_part(rows, vectors)
        default = np.empty((1, table.spec.dim), np.float32)
        table.store.read_part(np.array([DEFAULT_ROW], rows.dtype), default)
    return ids, vectors, default[0]


def table_of_each_element(
    fields: FieldMap, index: int, column: np.ndarray, tables: Sequence[ExportedTable]
) -> list[str | None] | None:
    """Return the table that each element of an input column's row reads from.

    `index` is the index of the column. The result has one table name per element, or None for an element that is not an
    id. For a column without ids, the result is None.
    """
    count = int(np.prod(column.shape[1:], dtype=np.int64))
    names: list[str | None] = [None] * count
    for component in fields.components:
        for part in component.parts:
            if part.column == index:
                for element in range(count) if part.elements is None else part.elements:
                    names[element] = tables[component.specs[0]].name
    return names if any(names) else None


def file_name(name: str, used: Collection[str]) -> str:
    """Return an unused file name for a table, of letters, digits and . _ - only."""
    plain = re.sub(r"[^A-Za-z0-9_.\-]", "_", name)[:100]
    number = 1
    while (file := f"table-{plain}{'' if number == 1 else f'-{number}'}.parquet") in used:
        number += 1
    return file
