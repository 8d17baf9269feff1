"""Tables of named columns, of pandas, polars or Arrow, known by what they can do."""

from __future__ import annotations

from typing import Any


def is_frame(data: Any) -> bool:
    """Return whether `data` is a table of named columns: a pandas or polars frame, or an Arrow table."""
    return hasattr(data, "columns") and any(hasattr(data, name) for name in ("column_names", "iloc", "lazy"))


def columns_of(frame: Any) -> dict[str, Any]:
    """Return the columns of a frame by name."""
    return {str(name): frame[name] for name in getattr(frame, "column_names", None) or list(frame.columns)}
