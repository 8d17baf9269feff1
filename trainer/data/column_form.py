"""What of a column decides whether batches of it go together: its shape and its dtype, for text without the width."""

from __future__ import annotations

from typing import Any

import numpy as np

_TEXT = "US"


def dtype_of(column: Any) -> Any:
    """Return the column's dtype; for text its type alone, because NumPy's dtype changes with the longest string."""
    dtype = column.dtype
    return dtype.type if dtype.kind in _TEXT else dtype


def form_of(columns: Any) -> tuple[Any, ...]:
    """Return (shape, `dtype_of`) of every column, which can be compared and hashed."""
    return tuple([(column.shape, dtype_of(column)) for column in columns])


def common_dtype(columns: Any) -> np.dtype:
    """Return the dtype that holds the values of all `columns`, which have one `dtype_of`: of text the widest."""
    first = columns[0].dtype
    return np.result_type(*[column.dtype for column in columns]) if first.kind in _TEXT else first
