"""Read a batch's rows for a program of fixed shape, such as an export."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..tables.hashing import hash_text, to_ids
from ..tables.id_map import CHOICES
from ..tables.table import SparseTable
from .layout import Bundle, FieldMap, Layout


@dataclass(frozen=True)
class _Reads:
    """Elements of one column that a bundle reads. The lists have one entry per stack."""

    column: int
    name: str  # name of the column, for messages
    elements: np.ndarray | None  # flat indices into a row of the column, or None for all
    tables: list[np.ndarray]  # table of each element, int32 [elements]
    padding: list[np.ndarray]  # padding id of each element, or 0 if it has none, int64 [elements]
    padded: list[np.ndarray | None]  # mask of the elements with a padding id, bool [elements], or None without any

    def ids(self, values: np.ndarray) -> np.ndarray:
        values = values.reshape(len(values), -1)
        return to_ids(values if self.elements is None else values[:, self.elements], self.name)

    def is_padding(self, stack: int, ids: np.ndarray) -> np.ndarray | None:
        """Return where `ids` are padding, bool [rows, elements], or None if nowhere."""
        padded = self.padded[stack]
        return None if padded is None else (ids == self.padding[stack]) & padded


class FixedReads:
    """Reads the rows of a batch into one array per stack, a position for every id.

    The number of kernel calls does not grow with the number of tables, so reading few rows is fast. No table may change
    during a call.
    """

    def __init__(self, tables: Sequence[SparseTable], fields: FieldMap, layout: Layout) -> None:
        from ..tables import id_kernels, kernels  # imports Numba

        self._find, self._gather = id_kernels.find_rows.ready(), kernels.gather_of_tables.ready()
        self._map_length = id_kernels.MAP_LENGTH
        self._tables, self._fields = list(tables), fields
        self._bundles = [(bundle, list(self._reads_of(bundle, fields, layout))) for bundle in layout.bundles]
        self._numberings: list[object] = []
        self._maps = self._stores = np.zeros((0, 0), np.int64)

    def _reads_of(self, bundle: Bundle, fields: FieldMap, layout: Layout) -> Iterator[_Reads]:
        """Yield the bundle's reads, one entry per column."""
        members: dict[int, list[tuple[int, np.ndarray | None]]] = {}
        for member, index in enumerate(bundle.components):
            for part in fields.components[index].parts:
                members.setdefault(part.column, []).append((member, part.elements))
        for column, parts in members.items():
            # A component that reads whole rows is the only reader of its column.
            listed = [indices for _, indices in parts if indices is not None]
            elements = np.concatenate(listed) if listed else None
            counts = [1 if indices is None else len(indices) for _, indices in parts]
            owners = np.repeat([member for member, _ in parts], counts)
            tables = [np.array(layout.stacks[stack].tables, np.int32)[owners] for stack in bundle.stacks]
            paddings = [[self._tables[table].spec.padding for table in indices] for indices in tables]
            padding = [np.array([value or 0 for value in values], np.int64) for values in paddings]
            masks = [np.array([value is not None for value in values]) for values in paddings]
            padded = [mask if mask.any() else None for mask in masks]
            yield _Reads(column, fields.name_of(column), elements, tables, padding, padded)

    def __call__(
        self, columns: Sequence[np.ndarray], rows: Sequence[np.ndarray], maps: Sequence[np.ndarray | None]
    ) -> list[np.ndarray]:
        """Read rows; return the columns with int32 positions for ids and hashes for text.

        Args:
            columns: raw columns, [batch, ...]; not changed.
            rows: receives the rows of each stack, float32 [positions, dim]; position 0 is padding.
            maps: for each stack, None or, in an indirect bundle, int32 [positions], which receives the position of each
                id's row.

        Raises:
            DataError: a column of ids holds neither integers nor text, or an id is out of range of a dense table.
        """
        self._update_addresses()
        out = [np.asarray(column) for column in columns]
        self._fields.check_dense([column[None] for column in out])
        for bundle, reads in self._bundles:
            for stack in bundle.stacks:
                rows[stack][0] = 0.0
            start = 1
            for part in reads:
                ids = part.ids(np.asarray(columns[part.column]))
                positions = np.arange(start, start + ids.size, dtype=np.int32).reshape(ids.shape)
                flat = np.ascontiguousarray(ids).reshape(-1)
                for member, stack in enumerate(bundle.stacks):
                    self._read(part.tables[member], flat, rows[stack][start : start + ids.size])
                    padding = part.is_padding(member, ids)
                    row_map = maps[stack]
                    if row_map is not None:
                        row_positions = positions if padding is None else np.where(padding, np.int32(0), positions)
                        row_map[start : start + ids.size] = row_positions.reshape(-1)
                padding = None if bundle.indirect else part.is_padding(0, ids)
                start += ids.size
                if padding is not None:
                    positions[padding] = 0
                _replace(out, part, columns[part.column], positions)
        return [hash_text(column) for column in out]

    def _read(self, table_of: np.ndarray, ids: np.ndarray, out: np.ndarray) -> None:
        rows = np.empty(len(ids), np.int32)
        self._find(self._maps, table_of, CHOICES, ids, rows)
        self._gather(self._stores, table_of, rows, out)

    def _update_addresses(self) -> None:
        """Update the addresses of the tables' ids and rows if any has changed."""
        numberings = [table.numbering for table in self._tables]
        if len(numberings) == len(self._numberings) and all(map(operator.is_, numberings, self._numberings)):
            return
        maps = [table.map.kernel_arguments() for table in self._tables]
        self._maps = np.array(maps, np.int64).reshape(-1, self._map_length)
        stores = [[table.store.address, table.store.width] for table in self._tables]
        self._stores = np.array(stores, np.int64).reshape(-1, 2)
        self._numberings = numberings


def _replace(out: list[np.ndarray], part: _Reads, original: np.ndarray, positions: np.ndarray) -> None:
    """Replace a column's ids in `out` by `positions`, int32 [rows, elements]."""
    if part.elements is None:
        out[part.column] = positions.reshape(np.shape(original))
        return
    column = out[part.column]
    if column.dtype != np.int32 or column is original:
        column = out[part.column] = hash_text(column).astype(np.int32)
    column.reshape(len(column), -1)[:, part.elements] = positions
