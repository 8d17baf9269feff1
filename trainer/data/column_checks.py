"""Checks of a dataset's columns against the network, before anything is compiled."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mindspore import nn

from ..errors import DataError
from .as_columns import Columns
from .column_form import dtype_of


class ColumnCheck:
    """Checks the first batch against the network's signature and every later one against the first.

    Args:
        network: cell whose `construct` receives the columns.
        labels: number of columns at the end that go to the loss instead of the network.
        extra: whether columns past those the network takes are fine (they are dropped).
        class_losses: for each label, the name of its loss where that takes class numbers, else None.
    """

    def __init__(
        self, network: nn.Cell, labels: int, *, extra: bool = False, class_losses: Sequence[str | None] = ()
    ) -> None:
        self.least, self.most, self.parameters = arguments_of(network)
        self.kind = type(network).__name__
        self.labels = labels
        self.extra = extra
        self.class_losses = class_losses
        self._expected: list[tuple[str, int, Any, Any]] | None = None

    def __call__(self, columns: Columns, names: tuple[str, ...]) -> None:
        """Check one batch.

        Raises:
            DataError: a wrong number of columns, class numbers that are floats, or a column whose number of axes or
                dtype changed.
        """
        if self._expected is None:
            self._check_number(columns, names)
            self._check_order(names)
            self._check_classes(columns, names)
            self._expected = [
                (name, one.ndim, one.dtype, dtype_of(one)) for name, one in zip(names, columns, strict=True)
            ]
            return
        if len(columns) != len(self._expected):
            raise DataError(f"received {len(columns)} columns, expected {len(self._expected)} as in the first batch")
        for column, (name, ndim, dtype, kind) in zip(columns, self._expected, strict=True):
            if column.ndim != ndim:
                raise DataError(
                    f"column {name!r} changed its number of axes: received shape {list(column.shape)}, "
                    f"expected {ndim} axes as in the first batch"
                )
            if dtype_of(column) != kind:
                raise DataError(
                    f"column {name!r} changed its dtype: received {column.dtype}, expected {dtype} "
                    "as in the first batch"
                )

    def _check_number(self, columns: Columns, names: tuple[str, ...]) -> None:
        given = len(columns) - self.labels
        if self.least <= given and (self.extra or self.most is None or given <= self.most):
            return
        takes = f"{self.least}" if self.most == self.least else f"{self.least} to {self.most or 'any number of'}"
        label = (
            f" and the last {self.labels} ({', '.join(names[-self.labels :])}) go to the loss" if self.labels else ""
        )
        number = self.least + self.labels
        expected = "1 column is expected" if number == 1 else f"{number} columns are expected"
        hint = ""
        if len(columns) == 1 and number > 1:
            hint = "; a list is taken as its batches: columns go into a tuple or a dict, as (x, y), with batch_size="
        if not self.labels and self.most is not None and given == self.most + 1:
            hint = "; if the last one is a label, a loss_fn is missing"
        raise DataError(
            f"received {len(columns)} columns ({', '.join(names)}); {self.kind}.construct takes {takes} "
            f"({', '.join(self.parameters)}){label}, so {expected}{hint}"
        )

    def _check_classes(self, columns: Columns, names: tuple[str, ...]) -> None:
        """Refuse one float a row as the label of a loss of classes: cut to an integer it might be another class."""
        first = len(columns) - self.labels
        for column, name, loss in zip(columns[first:], names[first:], self.class_losses, strict=False):
            if loss is not None and column.ndim == 1 and column.dtype.kind == "f":
                raise DataError(
                    f"column {name!r}: {loss} takes the class of each row as an integer (or bool), or the "
                    f"probabilities of all classes as floats [rows, classes]; received {column.dtype} of shape "
                    f"{list(column.shape)}; convert whole numbers without NaN by labels.astype(np.int32)"
                )

    def _check_order(self, names: tuple[str, ...]) -> None:
        """Refuse columns that bear the names of the network's arguments but stand in other places."""
        wanted = self.parameters[: max(self.least, 1)]
        if set(wanted) <= set(names) and list(names[: len(wanted)]) != wanted:
            raise DataError(
                f"columns are taken by position: received ({', '.join(names)}), and {self.kind}.construct takes "
                f"({', '.join(wanted)}) first; put the columns in that order"
            )


def arguments_of(network: nn.Cell) -> tuple[int, int | None, list[str]]:
    """Return (fewest, most, names) of the positional arguments `network.construct` takes; most is None for any."""
    least, most, names = _arguments_of(type(network).construct)
    return least, most, list(names)


@functools.lru_cache(maxsize=256)  # looked up with every call of a verb; a construct of its own is another function
def _arguments_of(construct: Callable[..., Any]) -> tuple[int, int | None, tuple[str, ...]]:
    parameters = list(inspect.signature(construct).parameters.values())[1:]
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    least = sum(p.default is p.empty for p in positional)
    most = None if any(p.kind is p.VAR_POSITIONAL for p in parameters) else len(positional)
    return least, most, tuple([p.name for p in positional]) or ("*columns",)


def in_order_of(model: Any, data: Any) -> Any:
    """Return `data` with its columns in the order of `model`, when both are dicts of the same columns."""
    if isinstance(model, Mapping) and isinstance(data, Mapping) and set(model) == set(data):
        return {name: data[name] for name in model}
    return data


def label_columns(loss_fn: nn.Cell | None) -> int:
    """Return how many columns the loss takes after the prediction: 1 (the label) unless it requires more."""
    if loss_fn is None:
        return 0
    construct = type(loss_fn).construct if isinstance(loss_fn, nn.Cell) else loss_fn
    parameters = list(inspect.signature(construct).parameters.values())
    if isinstance(loss_fn, nn.Cell):
        parameters = parameters[1:]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = sum(p.kind in positional and p.default is p.empty for p in parameters)
    return max(1, required - 1)
