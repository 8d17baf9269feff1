"""`EmbeddingGroup`: many columns, a table for each, one read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mindspore import dtype as mstype
from mindspore import nn, ops

from ...errors import ConfigurationError
from ...mindspore_internals.cell_structure import hide
from .embedding import Embedding


class EmbeddingGroup(nn.Cell):
    """A table for each of several columns, read by one operator: faster than as many `Embedding` cells.

    Tables of one width and row optimizer are one update in any case; the group makes them one read as well. Each is a
    table of its own: name, capacity, admission, eviction, export.

    Args:
        dim: length of a vector.
        tables: names of the tables, in the order of the columns; or name -> arguments of that `Embedding` that differ,
            of which `table` may be the name of an earlier column whose table this one shares.
        options: arguments of every `Embedding`.

    Inputs:
        ids: integers [batch, tables]; or one tensor [batch] for each table.

    Outputs:
        Tensor [batch, tables, dim], of the dtype that `Embedding` gives.

    Raises:
        ConfigurationError: no tables, or an argument cannot work.
    """

    def __init__(self, dim: int, tables: Sequence[str] | Mapping[str, Mapping[str, Any]], **options: Any) -> None:
        super().__init__()
        if isinstance(tables, str) or not len(tables):
            raise ConfigurationError(f"tables takes names, or a mapping from names to arguments; received {tables!r}")
        own = tables if isinstance(tables, Mapping) else {name: {} for name in tables}
        if len(own) != len(tables):
            raise ConfigurationError(f"tables must have different names; received {list(tables)}")
        cells: dict[str, Embedding] = {}
        for name, more in own.items():
            arguments = {**options, **more, "name": name}
            if isinstance(arguments.get("table"), str):
                arguments = {"table": cells[arguments["table"]]}
            cells[name] = Embedding(dim, **arguments)
        self.members = nn.CellList(list(cells.values()))
        self.count = len(self.members)
        self.is_shared = False
        for cell in self.members:
            hide(cell, "group", self)

    def refresh(self) -> None:
        """Find out whether one read gives the rows of all tables."""
        first = self.members[0]
        self.is_shared = all(
            not cell.is_dense
            and not cell.indirect
            and cell.working_set is first.working_set
            and (cell.has_padding, cell.compute_dtype) == (first.has_padding, first.compute_dtype)
            for cell in self.members
        )

    def __call__(self, *ids):
        """Read rows outside of a graph; see `Embedding`."""
        return self._read_each(ids)

    def _read_each(self, ids):
        vectors = ()
        for index in range(self.count):
            column = ids[0][:, index] if len(ids) == 1 else ids[index]
            vectors += (self.members[index](column),)
        return ops.stack(vectors, 1)

    def construct(self, *ids):
        """Return the vectors of `ids`, [batch, tables, dim]."""
        if not self.is_shared:
            return self._read_each(ids)
        positions = ids[0] if len(ids) == 1 else ops.stack(ids, 1)
        vectors = self.members[0].vectors(positions)
        if self.members[0].has_padding:
            vectors = vectors * ops.cast(ops.expand_dims(positions != 0, -1), mstype.float32)
        return self.members[0].lowered(vectors)
