"""Converts users' data to columns (NumPy or `Ragged`), and checks the columns."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import DataError, did_you_mean
from ..streams.batch import columns_of, is_frame
from ..streams.formats.ragged_column import text_only
from .ragged import Ragged, data_arguments

Columns = tuple[Any, ...]  # arrays, or `Ragged`
_KINDS = "biuf"
_TEXT_KINDS = "US"
_NO_ROWS = np.empty(0, np.int64)


def as_array(value: Any, name: str) -> Any:
    """Return a column as a NumPy array, or `Ragged` if its rows are unequal lists.

    float64 and bfloat16, which NumPy lacks, become float32, and numbers get the byte order of this machine. Text stays
    text: sparse tables accept text as ids, and `check_dtype` refuses any other text.
    """
    if not isinstance(value, np.ndarray):
        value = _from_library(value, name)
    if value.dtype == object and value.ndim == 1:
        if any(isinstance(row, list | tuple | np.ndarray) for row in value):
            value = _from_lists(value, name)
        else:
            _check_missing(value, name)
    if value.ndim > 1 and value.shape[1] == 0:
        return Ragged.of_empty(value)
    if not value.dtype.isnative:  # MindSpore reads all bytes in the machine's order
        value = value.astype(value.dtype.newbyteorder("="))
    return value.astype(np.float32) if value.dtype == np.float64 else value


def _from_library(value: Any, name: str) -> Any:
    if isinstance(value, Ragged):
        return value
    if hasattr(value, "asnumpy"):
        return (value.float() if _is_bfloat16(value) else value).asnumpy()
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        return (value.float() if _is_bfloat16(value) else value).numpy()
    if "list" in str(getattr(value, "type", "")) and hasattr(value, "to_pylist"):  # a pyarrow list array
        return Ragged.of(value).as_array()
    try:
        return text_only(value, np.asarray(value))
    except ValueError:  # rows of different lengths
        return _from_lists(value, name)


def _is_bfloat16(tensor: Any) -> bool:
    return str(getattr(tensor, "dtype", "")).lower().endswith("bfloat16")


def _from_lists(rows: Any, name: str) -> Any:
    try:
        return Ragged.of(rows).as_array()
    except DataError as error:
        raise DataError(f"column {name!r}: {error}") from None


def _check_missing(column: np.ndarray, name: str) -> None:
    """Refuse missing values, which would become the ids "None" or "nan"."""
    for row, value in enumerate(column):
        if value is None or type(value).__name__ == "NAType" or (isinstance(value, float) and math.isnan(value)):
            raise DataError(
                f"column {name!r}: row {row} holds {value!r}; give missing values their own id, such as 0 or "
                f"'missing': {name} = frame[{name!r}].fillna(0), or [0 if v is None else v for v in {name}]"
            )


def check_dtype(column: np.ndarray, name: str) -> None:
    """Check that a graph can take the column: bool, integer or float."""
    if column.dtype.kind not in _KINDS:
        hint = "feed text to a trainer.embedding.Embedding, or turn it into integers first"
        if column.dtype.kind in "Mm":
            hint = "turn times into numbers first, as (times - times.min()) / np.timedelta64(1, 's')"
        raise DataError(
            f"column {name!r}: received dtype {column.dtype}; accepted are bool, integers and floats ({hint})"
        )


def as_columns(item: Any, names: tuple[str, ...] | None) -> tuple[Columns, tuple[str, ...]]:
    """Return the columns and names of a batch: a frame, mapping, tuple, list or array.

    The keys of a mapping must be the `names` of the previous batches, in any order.
    """
    if is_frame(item):
        item = columns_of(item)
    if isinstance(item, Mapping):
        keys = tuple(str(key) for key in item)
        if names is not None and keys != names:
            if set(keys) != set(names):
                raise DataError(f"the columns changed: received {list(keys)}, expected {list(names)}")
            item, keys = {name: item[name] for name in names}, names
        return tuple(as_array(value, name) for name, value in zip(keys, item.values(), strict=True)), keys
    if not isinstance(item, tuple | list):
        item = (item,)
    if names is None or len(names) != len(item):
        names = default_names(len(item))
    return tuple(as_array(value, name) for name, value in zip(names, item, strict=True)), names


def default_names(count: int) -> tuple[str, ...]:
    """Return default names for columns without names."""
    return tuple(f"column_{index}" for index in range(count))


def are_unnamed(names: Sequence[str]) -> bool:
    """Return whether the names are default names."""
    return tuple(names) == default_names(len(names))


def dtype_of(column: Any) -> Any:
    """Return the column's dtype; for text, without the length."""
    dtype = column.dtype
    return dtype.type if dtype.kind in _TEXT_KINDS else dtype


def form_of(columns: Any) -> tuple[Any, ...]:
    """Return (shape, `dtype_of`) of every column, as a hashable tuple."""
    return tuple([(column.shape, dtype_of(column)) for column in columns])


def common_dtype(columns: Any) -> np.dtype:
    """Return the common dtype of columns with equal `dtype_of`: the widest for text."""
    first = columns[0].dtype
    return np.result_type(*[column.dtype for column in columns]) if first.kind in _TEXT_KINDS else first


def describe_non_finite(
    columns: Sequence[np.ndarray | Ragged], names: Sequence[str], ignored: Collection[str] = ()
) -> str | None:
    """Describe the first column with NaN or infinity, and its first such row; or None.

    NaN in `ignored` columns is accepted; infinity is not.
    """
    for name, column in zip(names, columns, strict=False):
        rows = non_finite_rows(column, nan_allowed=name in ignored)
        if len(rows):
            return f"column {name!r} holds NaN or infinite values, first in row {rows[0]} ({len(rows)} rows)"
    return None


def non_finite_rows(column: np.ndarray | Ragged, *, nan_allowed: bool = False) -> np.ndarray:
    """Return the rows with NaN (unless allowed) or values infinite in float32."""
    values = column[:].values if isinstance(column, Ragged) else column
    if values.dtype.kind != "f":
        return _NO_ROWS
    if values.dtype.itemsize > 4:
        with np.errstate(over="ignore"):
            values = values.astype(np.float32)
    is_valid = ~np.isinf(values) if nan_allowed else np.isfinite(values)
    if np.count_nonzero(is_valid) == is_valid.size:  # faster than `all`
        return _NO_ROWS
    is_bad_row = ~is_valid.reshape(len(values) if values.ndim else 1, -1).all(axis=1)
    if isinstance(column, Ragged):
        return np.unique(np.repeat(np.arange(len(column)), column.lengths)[is_bad_row])
    return np.flatnonzero(is_bad_row)


def with_finite_inputs(columns: Columns, names: Sequence[str], others: int) -> Columns:
    """Return columns in which rows of weight 0 have 0 for NaN and infinite inputs.

    These rows count for nothing, but the gradient of 0 times NaN is NaN.

    Args:
        others: number of columns after the inputs; the last one holds the row weights.

    Raises:
        DataError: a weight is negative, NaN or infinite.
    """
    weights = columns[-1].reshape(-1)
    if weights.dtype.kind not in "fiub" or not weights.size:
        return columns  # refused later
    lowest = weights.min()
    if not (lowest >= 0 and weights.max() < np.inf):
        row = int(np.argmin((weights >= 0) & (weights < np.inf)))
        raise DataError(
            f"column {names[-1]!r} weighs the rows and takes finite numbers from 0; received {weights[row]} in row "
            f"{row} of a batch"
        )
    if lowest > 0:
        return columns
    weightless = np.flatnonzero(weights == 0)
    return (*(_finite_at(weightless, len(weights), column) for column in columns[:-others]), *columns[-others:])


def _finite_at(rows: np.ndarray, batch_size: int, column: np.ndarray) -> np.ndarray:
    if column.dtype.kind != "f" or column.shape[:1] != (batch_size,):
        return column
    values = column[rows]
    is_finite = np.isfinite(values)
    if is_finite.all():
        return column
    column = column.copy()
    column[rows] = np.where(is_finite, values, column.dtype.type(0))
    return column


@dataclass(frozen=True)
class ColumnOrder:
    """Arranges the columns of a batch by their names."""

    max_columns: float = math.inf  # maximum number of columns that network and loss take
    labels: Sequence[str] = ()  # label columns of several tasks in the order of the loss; moved to the end
    host_columns: Sequence[str] = ()  # metrics' groups, kept on the host if a batch has more than `max_columns` columns
    inputs: Sequence[str] = ()  # required arguments of the network, moved to the front if the batch has them all
    requires_labels: bool = True  # whether a batch with named columns must have all labels

    def __bool__(self) -> bool:
        return bool(self.labels or self.host_columns or self.inputs)

    def __call__(
        self, columns: Columns, names: tuple[str, ...]
    ) -> tuple[Columns, tuple[str, ...], Mapping[str, Any] | None]:
        """Return columns and names in order, and the columns kept on the host by name."""
        order = list(range(len(names)))
        host_columns: dict[str, Any] = {}
        for name in self.host_columns:
            if len(order) > self.max_columns and name in names:
                index = names.index(name)
                host_columns[name] = columns[index]
                order.remove(index)
        if self.requires_labels:
            check_task_labels(self.labels, names)
        if self.labels and set(self.labels) <= set(names):
            label_indices = [names.index(name) for name in self.labels]
            order = [index for index in order if index not in label_indices] + label_indices
        inputs = [names.index(name) for name in data_arguments(self.inputs, names) if name in names]
        if len(inputs) == len(data_arguments(self.inputs, names)):
            order = inputs + [index for index in order if index not in inputs]
        if order == list(range(len(names))):
            return columns, names, None
        return tuple(columns[index] for index in order), tuple(names[index] for index in order), host_columns or None


def check_task_labels(labels: Sequence[str], names: Sequence[str]) -> None:
    """Check that all tasks have a label column; columns without names always pass."""
    missing = [label for label in labels if label not in names]
    if not missing or are_unnamed(names):
        return
    hints = "".join(did_you_mean(label, names) for label in missing)
    raise DataError(
        f"the label columns of several tasks are chosen by name: no column {', '.join(map(repr, missing))} among "
        f"{', '.join(names)}{hints}; rename the columns, or map "
        "tasks to columns by MultiTaskLoss(labels={task: column})"
    )
