"""Checks batches against the network and converts them for the program."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from mindspore import nn

from ..errors import DataError, did_you_mean
from ..mindspore_internals.dict_networks import ATTRIBUTE, batch_keys, require_declared_keys
from .as_columns import Columns, are_unnamed, check_dtype, dtype_of, form_of, with_finite_inputs
from .chunk import FeedOptions
from .ragged import RaggedColumns
from .source import Item, Source

logger = logging.getLogger(__name__)


class ColumnCheck:
    """Checks the first batch against the network and later batches against the first."""

    def __init__(
        self,
        network: nn.Cell,
        labels: int,  # number of columns at the end that go to the loss, not to the network
        *,
        extra: bool = False,  # whether more columns than the network takes are allowed; they are dropped
        class_losses: Sequence[str | None] = (),  # per label, the name of its loss if that takes class numbers
        numeric_labels: bool = False,  # whether text among the labels is refused; else the loss receives its hash
        assumed: Collection[str] = (),  # list columns of assumed dtype, all lists having been empty (`ListTypes`)
    ) -> None:
        self.minimum, self.maximum, self.parameters = arguments_of(network)
        require_declared_keys(network)
        self.keys = batch_keys(network)
        self.network_type = type(network).__name__
        self.labels = labels
        self.extra = extra
        self.class_losses = class_losses
        self.numeric_labels = numeric_labels
        self.assumed = assumed
        self._retyped: set[str] = set()
        self._expected: list[tuple[str, int, Any, Any]] | None = None

    def __call__(self, columns: Columns, names: tuple[str, ...]) -> None:
        if self._expected is None:
            if columns and all(column.ndim == 0 for column in columns):
                raise DataError(rows_instead_of_batches(columns, names))
            self._check_keys(names)
            self._check_number(columns, names)
            self._check_order(names)
            self._check_labels(columns, names)
            self._check_classes(columns, names)
            self._expected = [
                (name, column.ndim, column.dtype, dtype_of(column)) for name, column in zip(names, columns, strict=True)
            ]
            self._retyped = set(self.assumed)
            return
        if len(columns) != len(self._expected):
            raise DataError(f"received {len(columns)} columns, expected {len(self._expected)} as in the first batch")
        for index, (column, (name, ndim, dtype, kind)) in enumerate(zip(columns, self._expected, strict=True)):
            if name in self._retyped:
                self._expected[index] = (name, column.ndim, column.dtype, dtype_of(column))
                self._retyped &= set(self.assumed)
                continue
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

    def _check_keys(self, names: tuple[str, ...]) -> None:
        """Refuse batches that lack a key the network reads; one column needs no name."""
        missing = [key for key in self.keys if key not in names]
        if not missing or (len(self.keys) == 1 and are_unnamed(names)):
            return
        hints = "".join(did_you_mean(key, names) for key in missing)
        raise DataError(
            f"{self.network_type}.construct reads {', '.join(map(repr, self.keys))} of its batch by name; no column "
            f"{', '.join(map(repr, missing))} among {', '.join(names)}{hints}; give a dict of columns, or name the "
            f"columns it takes by {self.network_type}.{ATTRIBUTE} = (...)"
        )

    def _check_number(self, columns: Columns, names: tuple[str, ...]) -> None:
        count = len(columns) - self.labels
        if self.minimum <= count and (self.extra or self.maximum is None or count <= self.maximum):
            return
        takes = f"{self.minimum} to {self.maximum or 'any number of'}"
        takes = f"{self.minimum}" if self.maximum == self.minimum else takes
        label = (
            f" and the last {self.labels} ({', '.join(names[-self.labels :])}) go to the loss" if self.labels else ""
        )
        expected_count = self.minimum + self.labels
        expected = "1 column is expected" if expected_count == 1 else f"{expected_count} columns are expected"
        hint = ""
        if len(columns) == 1 and expected_count > 1:
            hint = "; a list is read as a list of batches: pass columns as a tuple or dict with batch_size="
            if self.labels == 1 and self.minimum == 1:
                hint += ". If the input is also the target, as in an autoencoder, pass (x, x) or use a loss_fn(outputs)"
        if not self.labels and self.maximum is not None and count == self.maximum + 1:
            hint = "; if the last one is a label, a loss_fn is missing"
        if self.minimum == 1 and not self.keys and count > 1 and not are_unnamed(names):
            example = f"{self.network_type}.{ATTRIBUTE} = ('{names[0]}', ...)"
            hint += f"; a network that takes one dict declares the names: {example}"
        raise DataError(
            f"received {len(columns)} columns ({', '.join(names)}); {self.network_type}.construct takes {takes} "
            f"({', '.join(self.parameters)}){label}, so {expected}{hint}"
        )

    def _check_labels(self, columns: Columns, names: tuple[str, ...]) -> None:
        """Refuse labels that are no numbers; warn if a custom loss may read ids."""
        first = len(columns) - self.labels
        for column, name in zip(columns[first:], names[first:], strict=True):
            if self.numeric_labels:
                check_dtype(column, name)
            elif column.dtype.kind in "USO":
                logger.warning("column %r is %s: the loss receives the hash of each value", name, column.dtype)

    def _check_classes(self, columns: Columns, names: tuple[str, ...]) -> None:
        """Refuse float labels for a class loss, because truncation could change the class."""
        first = len(columns) - self.labels
        for column, name, loss in zip(columns[first:], names[first:], self.class_losses, strict=False):
            if loss is not None and column.ndim == 1 and column.dtype.kind == "f":
                raise DataError(
                    f"column {name!r}: {loss} takes the class of each row as an integer (or bool), or the "
                    f"probabilities of all classes as floats [rows, classes]; received {column.dtype} of shape "
                    f"{list(column.shape)}; convert whole numbers without NaN by labels.astype(np.int32)"
                )

    def _check_order(self, names: tuple[str, ...]) -> None:
        """Refuse columns named like the network's arguments but in another order."""
        wanted = self.parameters[: max(self.minimum, 1)]
        if set(wanted) <= set(names) and list(names[: len(wanted)]) != wanted:
            raise DataError(
                f"columns are taken by position: received ({', '.join(names)}), and {self.network_type}.construct "
                f"takes ({', '.join(wanted)}) first; put the columns in that order"
            )


def rows_instead_of_batches(columns: Columns, names: Sequence[str]) -> str:
    """Return a hint if a column is a single value, not a batch; else ""."""
    name = next((name for name, column in zip(names, columns, strict=True) if column.ndim == 0), None)
    if name is None:
        return ""
    return (
        f"column {name!r} is a single value, so the dataset delivers rows where batches are expected; give whole "
        f"columns with batch_size=, as pandas.DataFrame(rows) or {{{name!r}: [row[{name!r}] for row in rows], ...}}, "
        "or a pipeline with .batch(64)"
    )


def arguments_of(network: nn.Cell | type[nn.Cell]) -> tuple[int, int | None, list[str]]:
    """Return (minimum, maximum, names) of the columns that a network takes.

    The maximum is None if it takes any number. The columns are the positional arguments of `construct`, or the keys of
    the batch if its only argument is a dict.
    """
    keys = batch_keys(network)
    if keys:
        return len(keys), len(keys), list(keys)
    network_class: Any = network if isinstance(network, type) else type(network)
    minimum, maximum, names = _arguments_of(network_class.construct)
    return minimum, maximum, list(names)


@functools.lru_cache(maxsize=256)  # called for every fit, evaluate and predict
def _arguments_of(construct: Callable[..., Any]) -> tuple[int, int | None, tuple[str, ...]]:
    parameters = list(inspect.signature(construct).parameters.values())[1:]
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    minimum = sum(p.default is p.empty for p in positional)
    maximum = None if any(p.kind is p.VAR_POSITIONAL for p in parameters) else len(positional)
    return minimum, maximum, tuple([p.name for p in positional]) or ("*columns",)


def label_columns(loss_fn: nn.Cell | None) -> int:
    """Return how many columns the loss takes after the prediction.

    The result is 0 without a loss, or if it takes only the network's outputs (self-supervision). Otherwise it is the
    number of required arguments after the prediction, at least 1.
    """
    if loss_fn is None:
        return 0
    construct = loss_fn.construct if isinstance(loss_fn, nn.Cell) else loss_fn
    parameters = list(inspect.signature(construct).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(parameters) == len(positional) == 1:
        return 0
    return max(1, sum(p.default is p.empty for p in positional) - 1)


class BatchConversion:
    """Checks and converts the batches of one source.

    A batch with the same shapes and dtypes as the one before is only checked by `FeedOptions.inspect`.
    """

    def __init__(self, source: Source, options: FeedOptions) -> None:
        self._source, self._options = source, options
        self.ragged = RaggedColumns(options.arguments)
        self.names: tuple[str, ...] = ()
        self.equal_rows: bool | None = None  # whether all columns are equally long; None before the first batch
        self._checked: tuple[Any, ...] = ()  # form of the newest batch whose shapes were checked
        self._unchanged: Any = None  # form of the batches that need no conversion

    def __call__(self, item: Item, number: int, epoch: int) -> None:
        """Check a batch and replace its columns with those that the program takes."""
        form = item.form or form_of(item.columns)
        if form == self._unchanged and item.lengths is None:
            item.form = form
            return
        columns, names, extras = item.columns, self._source.names or (), item.extras
        if self._options.order is not None:
            columns, names, host_columns = self._options.order(columns, names)
            extras = host_columns if extras is None else {**extras, **(host_columns or {})}
        if self._options.list_types is not None:
            columns = self._options.list_types(columns, names)
        columns, self.names = self.ragged(columns, names, item.lengths if self._options.pads_alike else None)
        item_form = self._check(columns, number, epoch)
        if self._options.weighed:  # after the check, because the last column may not be the weights
            columns = with_finite_inputs(columns, self.names, self._options.weighed)
        problem = self._options.inspect(columns, self.names) if self._options.inspect else None
        if problem is not None:
            logger.error("batch %d of epoch %d: %s", number, epoch, problem)
        if self._options.columns is not None:
            columns, item_form = columns[: self._options.columns], item_form[: self._options.columns]
        if self._source.reuses_buffers:
            # The batch waits in a group while the source reads the next one into the same memory.
            columns = tuple(np.array(column) for column in columns)
        unchanged = columns is item.columns and extras is item.extras
        unchanged = unchanged and self._options.inspect is None and not self._options.weighed
        self._unchanged = form if unchanged else None
        item.columns, item.extras, item.form = columns, extras, item_form

    def _check(self, columns: Columns, number: int, epoch: int) -> tuple[Any, ...]:
        form = form_of(columns)
        if form != self._checked:
            self._check_shapes(columns, number, epoch)
            self._checked = form
        return form

    def rows(self, columns: Columns) -> int:
        """Return the number of rows of a batch."""
        index = 0 if self.equal_rows else self._options.rows_column
        if flat := self.ragged.flat:
            index = next(i for i, name in enumerate(self.names) if name not in flat)
        column = columns[index]
        return len(column) if column.ndim else 1

    def _check_shapes(self, columns: Columns, number: int, epoch: int) -> None:
        names = self.names
        equal_rows = len({column.shape[:1] for column in columns}) == 1 and columns[0].ndim > 0 and not self.ragged.flat
        if equal_rows != self.equal_rows:
            shapes = {name: column.shape for name, column in zip(names, columns, strict=True)}
            if self.equal_rows:
                raise DataError(
                    f"batch {number} of epoch {epoch}: columns have different numbers of rows: {shapes}, but those "
                    "of the previous batch had equal numbers"
                )
            if self.equal_rows is None and not equal_rows and not self.ragged.inputs:
                logger.warning(
                    "columns have different numbers of rows: %s; %r is counted (is the dataset not batched?)",
                    shapes,
                    list(shapes)[self._options.rows_column],
                )
            self.equal_rows = bool(self.equal_rows is None and equal_rows)
        if self.rows(columns) == 0:
            hint = rows_instead_of_batches(columns, names)
            raise DataError(f"batch {number} of epoch {epoch}: the batch has no rows{hint and '; ' + hint}")
        if self._options.check is not None:
            try:
                self._options.check(columns, names)
            except DataError as error:
                raise DataError(f"batch {number} of epoch {epoch}: {error}") from None
