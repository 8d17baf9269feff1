"""Read a batch's rows for a program of fixed shape, such as an export."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..tables.hashing import to_ids, to_plain
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
        self._tables = list(tables)
        self._bundles = [(bundle, list(self._reads_of(bundle, fields, layout))) for bundle in layout.bundles]
        self._described: list[object] = []
        self._maps = self._stores = np.zeros((0, 0), np.int64)

    def _reads_of(self, bundle: Bundle, fields: FieldMap, layout: Layout) -> Iterator[_Reads]:
        """Yield the bundle's reads, one entry per column."""
        members: dict[int, list[tuple[int, np.ndarray | None]]] = {}
        for member, index in enumerate(bundle.components):
            for part in fields.components[index].parts:
                members.setdefault(part.column, []).append((member, part.elements))
        for column, parts in members.items():
            # a component that reads whole rows is the only reader of its column
            elements = None if parts[0][1] is None else np.concatenate([own for _, own in parts if own is not None])
            counts = [1 if own is None else len(own) for _, own in parts]
            owners = np.repeat([member for member, _ in parts], counts)
            tables = [np.array(layout.stacks[stack].tables, np.int32)[owners] for stack in bundle.stacks]
            paddings = [[self._tables[table].spec.padding for table in own] for own in tables]
            padding = [np.array([padding or 0 for padding in own], np.int64) for own in paddings]
            padded = [np.array([padding is not None for padding in own]) for own in paddings]
            used = [own if own.any() else None for own in padded]
            yield _Reads(column, fields.name_of(column), elements, tables, padding, used)

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
            DataError: a column of ids holds neither integers nor text.
        """
        self._describe()
        out = [np.asarray(column) for column in columns]
        for bundle, reads in self._bundles:
            for stack in bundle.stacks:
                rows[stack][0] = 0.0
            start = 1
            for part in reads:
                ids = part.ids(np.asarray(columns[part.column]))
                positions = np.arange(start, start + ids.size, dtype=np.int32).reshape(ids.shape)
                flat = np.ascontiguousarray(ids).reshape(-1)
                for number, stack in enumerate(bundle.stacks):
                    self._read(part.tables[number], flat, rows[stack][start : start + ids.size])
                    padding = part.is_padding(number, ids)
                    row_map = maps[stack]
                    if row_map is not None:
                        own = positions if padding is None else np.where(padding, np.int32(0), positions)
                        row_map[start : start + ids.size] = own.reshape(-1)
                padding = None if bundle.indirect else part.is_padding(0, ids)
                start += ids.size
                if padding is not None:
                    positions[padding] = 0
                _replace(out, part, columns[part.column], positions)
        return [to_plain(column) for column in out]

    def _read(self, table_of: np.ndarray, ids: np.ndarray, out: np.ndarray) -> None:
        found = np.empty(len(ids), np.int32)
        self._find(self._maps, table_of, CHOICES, ids, found)
        self._gather(self._stores, table_of, found, out)

    def _describe(self) -> None:
        """Update the addresses of the tables' ids and rows if any has changed."""
        numberings = [table.numbering for table in self._tables]
        if len(numberings) == len(self._described) and all(map(operator.is_, numberings, self._described)):
            return
        with_maps = [table.map.described() for table in self._tables]
        self._maps = np.array(with_maps, np.int64).reshape(-1, self._map_length)
        stores = [[table.store.address, table.store.width] for table in self._tables]
        self._stores = np.array(stores, np.int64).reshape(-1, 2)
        self._described = numberings


def _replace(out: list[np.ndarray], part: _Reads, given: np.ndarray, positions: np.ndarray) -> None:
    """Replace a column's ids in `out` by `positions`, int32 [rows, elements]."""
    if part.elements is None:
        out[part.column] = positions.reshape(np.shape(given))
        return
    column = out[part.column]
    if column.dtype != np.int32 or column is given:
        column = out[part.column] = to_plain(column).astype(np.int32)
    column.reshape(len(column), -1)[:, part.elements] = positions
