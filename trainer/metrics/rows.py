"""Arrays, sample weights and groups as metrics read them; values and states of metrics by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import ConfigurationError, DataError


def to_numpy(value: Any, name: str = "array") -> np.ndarray:
    """Return a Tensor, an array or a sequence as an array; floating-point types below float32 become float32.

    Raises:
        DataError: it does not hold numbers.
    """
    array = value.asnumpy() if hasattr(value, "asnumpy") else np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name} must hold numbers; received dtype {array.dtype}")
    return array.astype(np.float32) if array.dtype.kind == "f" and array.dtype.itemsize < 4 else array


def row_weights(weights: Any, rows: int) -> np.ndarray | None:
    """Return sample weights as float64, shape [rows]; None stays None.

    Raises:
        DataError: wrong shape, or a weight that is negative or not finite.
    """
    if weights is None:
        return None
    array = to_numpy(weights, "sample weights")
    if array.size != rows or array.ndim > 2:
        raise DataError(f"sample weights take shape [{rows}] or [{rows}, 1]; received {array.shape}")
    array = array.reshape(-1).astype(np.float64)
    if not (np.isfinite(array).all() and (array >= 0).all()):
        raise DataError("sample weights must be finite and not negative")
    return array


def group_column(groups: Any, rows: int) -> np.ndarray:
    """Return groups as integers or text, shape [rows].

    Raises:
        DataError: another number of rows, or values that are neither.
    """
    column = groups.asnumpy() if hasattr(groups, "asnumpy") else np.asarray(groups)
    if column.size != rows or column.ndim > 2:
        raise DataError(f"groups take shape [{rows}] or [{rows}, 1]; received {column.shape}")
    if column.dtype.kind == "O":
        column = column.astype(str)
    elif column.dtype.kind == "S":
        column = np.char.decode(column, "utf-8", "replace")
    if column.dtype.kind not in "biuU":
        raise DataError(f"groups are integers or strings; received dtype {column.dtype}")
    return column.reshape(-1)


def named_values(name: str, value: Any) -> dict[str, float]:
    """Return what a metric gave as floats by name.

    A dict gives each of its parts under name_part, the name alone for an empty part, or name/part for a part that
    begins with "/". One value per class, such as MindSpore's precision, gives the mean under the name and the values
    under name_0, name_1, ...

    Raises:
        ConfigurationError: it is neither a number nor a vector of numbers nor a dict of numbers.
    """
    if isinstance(value, Mapping):
        base = name.partition("/")[0]
        return {
            base + part if part.startswith("/") else "_".join(filter(None, (base, part))): float(item)
            for part, item in value.items()
        }
    try:
        array = np.asarray(value.asnumpy() if hasattr(value, "asnumpy") else value, np.float64)
    except (TypeError, ValueError):
        array = None
    if array is None or array.ndim > 1 or not array.size:
        raise ConfigurationError(f"metric {name!r} must give a number or one number a class; it gave {value!r}")
    values = {name: float(array.mean())}
    if array.ndim:
        values |= {f"{name}_{place}".lstrip("_"): float(item) for place, item in enumerate(array)}
    return values


def joined_states(states: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return states by name, each ``{"json": ..., "arrays": {name: array}}``, as one of the same form."""
    arrays = {f"{index}.{key}": a for index, state in enumerate(states.values()) for key, a in state["arrays"].items()}
    return {"json": [[name, state["json"]] for name, state in states.items()], "arrays": arrays}


def split_states(state: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the states that `joined_states` joined."""
    return {
        name: {"json": json, "arrays": below(f"{index}.", state["arrays"])}
        for index, (name, json) in enumerate(state["json"])
    }


def below(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays whose names begin with `prefix`, by the rest of their names."""
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}
