"""Where data is not finite, in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def describe_non_finite(columns: Sequence[np.ndarray], names: Sequence[str]) -> str | None:
    """Return which column holds NaN or infinite values, and the first such row; None when all are finite."""
    for name, column in zip(names, columns, strict=False):
        if column.dtype.kind == "f" and not np.isfinite(column).all():
            rows = np.flatnonzero(~np.isfinite(column.reshape(len(column) if column.ndim else 1, -1)).all(axis=1))
            return f"column {name!r} holds NaN or infinite values, first in row {rows[0]} ({len(rows)} rows)"
    return None
