"""What a user calls a batch, and what libraries call an array -> columns: NumPy arrays or `Ragged` ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import DataError
from ..streams.frames import columns_of, is_frame
from .ragged import Ragged

Columns = tuple[np.ndarray, ...]
_KINDS = "biuf"


def as_array(value: Any, name: str) -> np.ndarray:
    """Return one column as a NumPy array, or as a `Ragged` one where its rows are lists of different lengths.

    float64 becomes float32, as does bfloat16, which NumPy lacks. Text stays text: sparse tables turn it into rows, and
    what they leave is refused by `check_dtype`.

    Raises:
        DataError: lists of different depths.
    """
    if not isinstance(value, np.ndarray):
        value = _from_library(value, name)
    if value.dtype == object and value.ndim == 1 and len(value) and isinstance(value[0], list | tuple | np.ndarray):
        value = _from_lists(value, name)
    return value.astype(np.float32) if value.dtype == np.float64 else value


def _from_library(value: Any, name: str) -> Any:
    if isinstance(value, Ragged):
        return value
    if hasattr(value, "asnumpy"):
        return (value.float() if _is_bfloat16(value) else value).asnumpy()
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        return (value.float() if _is_bfloat16(value) else value).numpy()
    if "list" in str(getattr(value, "type", "")) and hasattr(value, "to_pylist"):  # of pyarrow
        return Ragged.of(value)
    try:
        return np.asarray(value)
    except ValueError:  # rows of different lengths
        return _from_lists(value, name)


def _is_bfloat16(tensor: Any) -> bool:
    return str(getattr(tensor, "dtype", "")).lower().endswith("bfloat16")


def _from_lists(rows: Any, name: str) -> Any:
    try:
        found = Ragged.of(rows)
    except DataError as error:
        raise DataError(f"column {name!r}: {error}") from None
    if len(found) and (found.lengths == found.lengths[0]).all():
        return found.padded(int(found.lengths[0]))
    return found


def check_dtype(column: np.ndarray, name: str) -> None:
    """Check that a graph can take the column.

    Raises:
        DataError: a dtype that is none of bool, integer and float.
    """
    if column.dtype.kind not in _KINDS:
        cure = "feed text to a trainer.embedding.Embedding, or turn it into integers first"
        if column.dtype.kind in "Mm":
            cure = "turn times into numbers first, as (times - times.min()) / np.timedelta64(1, 's')"
        raise DataError(
            f"column {name!r}: received dtype {column.dtype}; accepted are bool, integers and floats ({cure})"
        )


def as_columns(item: Any, names: tuple[str, ...] | None) -> tuple[Columns, tuple[str, ...]]:
    """Return the columns of what a user calls a batch (a frame, a mapping, a sequence or one array) and their names.

    Args:
        item: the batch.
        names: the names of the batches before it, which it has to have in any order; None before the first.

    Raises:
        DataError: other names than before, or what `as_array` refuses.
    """
    if is_frame(item):
        item = columns_of(item)
    if isinstance(item, Mapping):
        found = tuple(str(key) for key in item)
        if names is not None and found != names:
            if set(found) != set(names):
                raise DataError(f"the columns changed: received {list(found)}, expected {list(names)}")
            item, found = {name: item[name] for name in names}, names
        return tuple(as_array(value, name) for name, value in zip(found, item.values(), strict=True)), found
    if not isinstance(item, tuple | list):
        item = (item,)
    if names is None or len(names) != len(item):
        names = tuple(f"column_{index}" for index in range(len(item)))
    return tuple(as_array(value, name) for name, value in zip(names, item, strict=True)), names
