"""Where data is not finite, in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..streams.ragged_column import Ragged


def describe_non_finite(columns: Sequence[np.ndarray | Ragged], names: Sequence[str]) -> str | None:
    """Return which column holds NaN or infinite values, and the first such row; None when all are finite."""
    for name, column in zip(names, columns, strict=False):
        if column.dtype.kind != "f":
            continue
        values = column.values if isinstance(column, Ragged) else column
        if np.isfinite(values).all():
            continue
        places = np.flatnonzero(~np.isfinite(values.reshape(len(values) if values.ndim else 1, -1)).all(axis=1))
        rows = _rows_of(column, places) if isinstance(column, Ragged) else places
        if len(rows):
            return f"column {name!r} holds NaN or infinite values, first in row {rows[0]} ({len(rows)} rows)"
    return None


def _rows_of(column: Ragged, places: np.ndarray) -> np.ndarray:
    """Return the rows that the values at `places` belong to; a part of a column may hold values of no row."""
    inside = places[(places >= column.offsets[0]) & (places < column.offsets[-1])]
    return np.unique(np.searchsorted(column.offsets, inside, side="right") - 1)
