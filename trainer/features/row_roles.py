"""Schema columns for the raw columns of features, labels, weights and event times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..checks import refuse
from ..errors import ConfigurationError, DataError
from ..streams.formats.coercion import TRUTH_WORDS
from ..streams.formats.column import Column
from .feature import PREDICTION, SET_ASIDE, Feature


def label_column(read: Column | None, dtype: np.dtype) -> Column:
    """Return the column of a label, in the type of features that `read` it as ids."""
    if read is None or read.shape or read.dtype.kind not in "Ui":
        return Column(dtype, coerce=True)
    return replace(read, default=None)


def class_column(classes: tuple[Any, ...]) -> Column:
    """Return the column of a label with named classes, which are text or numbers."""
    return Column(np.str_ if isinstance(classes[0], str) else np.float64, coerce=True, accepts=classes)


def checked_classes(classes: Any, labels: Sequence[str]) -> tuple[Any, ...]:
    """Check and return the named classes of a label; () if there are none."""
    if classes is None:
        return ()
    names = tuple(classes) if isinstance(classes, Sequence) and not isinstance(classes, str) else ()
    names = tuple(TRUTH_WORDS.get(name, name) if isinstance(name, str) else name for name in names)
    texts = all(isinstance(name, str) and name for name in names)
    numbers = all(isinstance(name, int | float) and not isinstance(name, bool) for name in names)
    if len(names) < 2 or len(set(names)) < len(names) or not (texts or numbers):
        refuse(
            "Features(label_classes=...)",
            "two or more different texts, or as many numbers (quote true and no)",
            classes,
        )
    if len(labels) != 1:
        raise ConfigurationError(
            f"Features(label_classes=...) needs exactly one label; received {', '.join(labels) or 'none'}"
        )
    return names


def class_numbers(name: str, values: np.ndarray, classes: tuple[Any, ...], of_two: np.dtype) -> np.ndarray:
    """Return class indices of values: of dtype `of_two` for two classes, else int32.

    Raises:
        DataError: a value is not one of the classes.
    """
    order = np.argsort(np.array(classes), kind="stable")
    ordered = np.array(classes)[order]
    indices = np.minimum(np.searchsorted(ordered, values), len(classes) - 1)
    unknown = np.flatnonzero(ordered[indices] != values)
    if len(unknown):
        accepted = ", ".join(map(repr, classes))
        raise DataError(f"label {name!r} takes {accepted}; received {values[unknown[0]].item()!r}")
    return order[indices].astype(of_two if len(classes) == 2 else np.int32)


def weight_column(name: str, read: Column | None) -> Column:
    """Return the column of loss weights, in the type of features that `read` it.

    Raises:
        ConfigurationError: a feature reads something other than numbers from it.
    """
    if read is None:
        return Column(np.float32, minimum=0, coerce=True)
    if read.shape or read.dtype.kind != "f":
        raise ConfigurationError(
            f"Features(weight={name!r}): a feature reads this column as {read.dtype} {list(read.shape)}, and weights "
            "are numbers; give the weight its own column"
        )
    return replace(read, default=None, minimum=0, maximum=float(np.finfo(np.float32).max), allow_nan=False)


def raw_columns(features: Iterable[Feature], event_time: Mapping[str, Column]) -> dict[str, Column]:
    """Return the raw columns of all features, each with its strictest declaration.

    Args:
        event_time: the column of event times by name, or nothing. A feature that reads it reads times, in serving as in
            training.

    Raises:
        ConfigurationError: two features read a column as different types, or one reads the event times as another type.
    """
    columns: dict[str, Column] = {}
    for feature in features:
        for name, column in feature.raw().items():
            other = columns.get(name, column)
            if (other.dtype, other.shape) != (column.dtype, column.shape):
                raise ConfigurationError(
                    f"feature {feature.name!r} reads column {name!r} as {column.dtype} {list(column.shape)}; "
                    f"another feature reads it as {other.dtype} {list(other.shape)}"
                )
            strictest = column if column.default is None else other
            columns[name] = replace(strictest, times=column.times or other.times, **_time_options(name, column, other))
    for name, times in event_time.items():
        if name in columns:
            columns[name] = _as_times(name, columns[name], times)
    return columns


def _as_times(name: str, read: Column, times: Column) -> Column:
    """Return the column of event times as features read it."""
    if read.shape or read.dtype.kind != "f":
        raise ConfigurationError(
            f"Features(event_time={name!r}): a feature reads this column as {read.dtype} {list(read.shape)}, and event "
            "times are seconds; read it by Time or as a number, or give the feature its own column"
        )
    return replace(read, times=True, **_time_options(name, times, read))


def _time_options(name: str, column: Column, other: Column) -> dict[str, Any]:
    """Merge the time options of two declarations of a column; refuse contradictions."""
    options = {}
    for option in ("time_unit", "day_first"):
        values = {value for value in (getattr(column, option), getattr(other, option)) if value is not None}
        if len(values) > 1:
            raise ConfigurationError(
                f"column {name!r}: one feature declares {option} {values.pop()!r}, another {values.pop()!r}"
            )
        options[option] = values.pop() if values else None
    return options


def check_role_names(names: Iterable[str], inputs: Sequence[str]) -> None:
    """Check that no label, weight or group has the name of an input of the network.

    Raises:
        ConfigurationError: one has; it would replace the input in a batch.
    """
    for name in names:
        if name in inputs:
            raise ConfigurationError(
                f"Features: {name!r} is the name of a label, weight or group and of an input of the network "
                f"({', '.join(inputs)}), which it would replace; rename the feature or the column"
            )


def checked_keep(keep: Any) -> tuple[str, ...]:
    """Check and return the names of the columns to return with predictions."""
    names = (keep,) if isinstance(keep, str) else tuple(keep)
    if not all(isinstance(name, str) and name for name in names):
        refuse("Features(keep=...)", "names of columns", keep)
    for name in names:
        if name in (PREDICTION, SET_ASIDE):
            what = "the network's output" if name == PREDICTION else "why rows are left out"
            refuse("Features(keep=...)", f"names of columns other than {name!r}, that of {what}", name)
    return names
