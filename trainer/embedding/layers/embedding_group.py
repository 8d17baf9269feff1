"""`EmbeddingGroup`: a table per column; `EmbeddingBag`: one vector per set of ids."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from mindspore import dtype as mstype
from mindspore import nn, ops

from ...checks import choice
from ...errors import ConfigurationError
from ...mindspore_internals.cell_structure import hide
from .embedding import Embedding


def check_arguments(what: str, names: Iterable[str]) -> None:
    """Check that `names` are arguments of an `Embedding` of given `dim` and name."""
    accepted = [
        name for name in inspect.signature(Embedding.__init__).parameters if name not in ("self", "dim", "name")
    ]
    for name in names:
        choice(what, name, accepted)


class EmbeddingGroup(nn.Cell):
    """A table per column, all read by one operator.

    Tables of equal width and row optimizer are always updated together; the group also reads them together. Each table
    keeps its own name, capacity, admission, eviction and export.

    Args:
        dim: length of a vector.
        tables: names of the tables, in the order of the columns; or a mapping from each name to arguments of its
            `Embedding`, which override `options`. The argument `table` may be the name of an earlier table to share.
        options: arguments of every `Embedding`.

    Inputs:
        ids: integers [batch, tables]; or one tensor [batch] for each table.

    Outputs:
        Tensor [batch, tables, dim], of the dtype that `Embedding` gives.

    Raises:
        ConfigurationError: there are no tables, or an argument is invalid.
    """

    def __init__(self, dim: int, tables: Sequence[str] | Mapping[str, Mapping[str, Any]], **options: Any) -> None:
        super().__init__()
        if isinstance(tables, str) or not len(tables):
            raise ConfigurationError(f"tables takes names, or a mapping from names to arguments; received {tables!r}")
        overrides = tables if isinstance(tables, Mapping) else {name: {} for name in tables}
        if len(overrides) != len(tables):
            raise ConfigurationError(f"tables must have different names; received {list(tables)}")
        modes = {name: {**options, **override}.get("mode", "auto") for name, override in overrides.items()}
        has_sparse = any(mode != "dense" for mode in modes.values())
        cells: dict[str, Embedding] = {}
        for name, override in overrides.items():
            check_arguments(f"EmbeddingGroup: an argument of the table {name!r}", (*options, *override))
            arguments = {**options, **override, "name": name}
            if modes[name] == "dense" and has_sparse and "optimizer" not in override:
                arguments["optimizer"] = None  # `options` have that of the sparse tables
            if isinstance(arguments.get("table"), str):
                shared = choice(f"EmbeddingGroup: table of {name!r}, an earlier one,", arguments["table"], list(cells))
                arguments = {"table": cells[shared]}
            cells[name] = Embedding(dim, **arguments)
        self.members = nn.CellList(list(cells.values()))
        self.count = len(self.members)
        self.is_shared = False
        for cell in self.members:
            hide(cell, "group", self)

    def refresh(self) -> None:
        """Update `is_shared`: whether a single read returns the rows of all tables."""
        first = self.members[0]
        self.is_shared = all(
            not cell.is_dense
            and not cell.indirect
            and cell.working_set is first.working_set
            and (cell.has_padding, cell.compute_dtype) == (first.has_padding, first.compute_dtype)
            for cell in self.members
        )

    def __call__(self, *ids):
        """Read rows outside a graph; see `Embedding`."""
        if self.members[0].probe is None:
            return self._read_each(ids)
        arrays = [column.asnumpy() for column in ids]
        columns = np.array(arrays[0]) if len(ids) == 1 else np.stack(arrays, 1)  # copied as in `Embedding`
        for index, cell in enumerate(self.members):
            cell.probe.append((cell, columns[:, index], False))
        return ops.zeros((*columns.shape, self.members[0].dim), mstype.float32)

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


COMBINERS = ("sum", "mean", "sqrtn")


class EmbeddingBag(Embedding):
    """One vector per set of ids: sum, mean or sum / sqrt(n), optionally weighted.

    Args:
        dim: length of a vector.
        capacity: see `Embedding`.
        combiner: "sum"; "mean", which divides the sum by the sum of weights; or "sqrtn", which divides it by the square
            root of the sum of squared weights (as TensorFlow's `safe_embedding_lookup_sparse`). An empty bag gives
            zeros.
        padding: id that pads rows to one length; None if there is none. With `table`, it is the padding of that table.
        options: further arguments of `Embedding`.

    Raises:
        ConfigurationError: the shared `table` has no padding id, so that it would read padding as an id; or as in
            `Embedding`.

    Inputs:
        ids: integers [batch, length], padded; or [n] together with `offsets`.
        weights: float32, of the shape of `ids`, or None.
        offsets: int32 [batch], ascending from 0: where each bag starts in `ids`, or None.

    Outputs:
        float32 tensor [batch, dim].
    """

    def __init__(
        self,
        dim: int,
        capacity: int | None = None,
        *,
        combiner: str = "sum",
        padding: int | None = -1,
        **options: Any,
    ) -> None:
        super().__init__(dim, capacity, padding=padding, **options)
        if not self.has_padding and padding is not None:
            raise ConfigurationError(
                f"EmbeddingBag(table=...): the shared table {self.spec.name!r} has no padding id and would read "
                f"{padding} as an id; build it with padding={padding}, or give EmbeddingBag padding=None if no list is "
                "padded"
            )
        choice("combiner", combiner, COMBINERS)
        self.combiner = combiner

    def __call__(self, ids, weights=None, offsets=None):
        """Read bags outside a graph; see `Embedding`."""
        if self.probe is not None:
            self.probe.append((self, np.array(ids.asnumpy()), False))
            batch = ids.shape[0] if offsets is None else offsets.shape[0]
            return ops.zeros((batch, self.dim), mstype.float32)
        if self.is_dense:
            return nn.Cell.__call__(self, ids, weights, offsets)
        return self._combine(self._read(ids), self._present(ids), weights, offsets)

    def construct(self, ids, weights=None, offsets=None):
        """Return one vector for each bag, [batch, dim]."""
        if self.is_dense:
            present = self._present(ids)
            values = self._dense(ids)
        else:
            positions = self.row_positions(ids)
            present = positions != 0
            values = self.vectors(positions)
        return self.lowered(self._combine(values, present, weights, offsets))

    def _present(self, ids):
        return ids != self.padding if self.has_padding else ops.ones_like(ids)

    def _combine(self, values, present, weights, offsets):
        factor = ops.cast(present, mstype.float32)
        if weights is not None:
            factor = factor * weights
        values = values * ops.expand_dims(factor, -1)
        norm = ops.square(factor) if self.combiner == "sqrtn" else factor
        if offsets is None:
            total = values.sum(1)
            norm = norm.sum(1)
        else:
            indices = ops.arange(values.shape[0])
            bags = ops.cast(ops.searchsorted(ops.cast(offsets, indices.dtype), indices, right=True), mstype.int32) - 1
            total = ops.unsorted_segment_sum(values, bags, offsets.shape[0])
            norm = ops.unsorted_segment_sum(norm, bags, offsets.shape[0])
        if self.combiner == "sum":
            return total
        empty = norm == 0
        norm = ops.select(empty, ops.ones_like(norm), norm)
        if self.combiner == "sqrtn":  # after `select`, because the root has no gradient at 0
            norm = ops.sqrt(norm)
        return total / ops.expand_dims(norm, -1)
