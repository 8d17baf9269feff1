"""Converts a source's batch to the checked columns that the program takes."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from ..errors import DataError
from .as_columns import Columns, form_of
from .chunk import FeedOptions
from .column_checks import rows_instead_of_batches
from .ragged import RaggedColumns
from .source import Item, Source

logger = logging.getLogger(__name__)


class BatchConversion:
    """Checks and converts the batches of one source.

    Batches of the same form as the one before are only checked again where the options say so.

    Args:
        source: gives the batches.
        options: what the program takes.

    Attributes:
        ragged: converts columns of lists.
        names: names of the columns of the newest batch.
        equal_rows: whether all columns have the same number of rows; None before the first batch.
    """

    def __init__(self, source: Source, options: FeedOptions) -> None:
        self._source, self._options = source, options
        self.ragged = RaggedColumns(options.arguments)
        self.names: tuple[str, ...] = ()
        self.equal_rows: bool | None = None
        self._checked: tuple[Any, ...] = ()  # form of the newest batch whose shapes were checked
        self._unchanged: Any = None  # form of the batches that need no conversion

    def __call__(self, item: Item, number: int, epoch: int) -> None:
        """Check a batch and replace its columns by the program's, in memory of their own."""
        form = item.form or form_of(item.columns)
        if form == self._unchanged and item.lengths is None:
            item.form = form
            return
        columns, names, extras = item.columns, self._source.names or (), item.extras
        if self._options.order is not None:
            columns, names, aside = self._options.order(columns, names)
            extras = aside if extras is None else {**extras, **(aside or {})}
        if self._options.list_types is not None:
            columns = self._options.list_types(columns, names)
        columns, self.names = self.ragged(columns, names, item.lengths if self._options.alike else None)
        item_form = self._check(columns, number, epoch)
        if self._options.columns is not None:
            columns, item_form = columns[: self._options.columns], item_form[: self._options.columns]
        if self._source.reuses_buffers:
            # batches wait in a group while the next one is read
            columns = tuple(np.array(column) for column in columns)
        unchanged = columns is item.columns and extras is item.extras and self._options.inspect is None
        self._unchanged = form if unchanged else None
        item.columns, item.extras, item.form = columns, extras, item_form

    def _check(self, columns: Columns, number: int, epoch: int) -> tuple[Any, ...]:
        form = form_of(columns)
        if form != self._checked:
            self._check_shapes(columns, number, epoch)
            self._checked = form
        problem = self._options.inspect(columns, self.names) if self._options.inspect else None
        if problem is not None:
            logger.error("batch %d of epoch %d: %s", number, epoch, problem)
        return form

    def rows(self, columns: Columns) -> int:
        """Return the number of rows of a batch."""
        index = 0 if self.equal_rows else self._options.counted
        if flat := self.ragged.flat:
            index = next(i for i, name in enumerate(self.names) if name not in flat)
        counted = columns[index]
        return len(counted) if counted.ndim else 1

    def _check_shapes(self, columns: Columns, number: int, epoch: int) -> None:
        names = self.names
        equal_rows = len({column.shape[:1] for column in columns}) == 1 and columns[0].ndim > 0 and not self.ragged.flat
        if equal_rows != self.equal_rows:
            shapes = {name: column.shape for name, column in zip(names, columns, strict=True)}
            if self.equal_rows:
                raise DataError(
                    f"batch {number} of epoch {epoch}: columns have different numbers of rows: {shapes}, where those "
                    "of the batch before it had the same"
                )
            if self.equal_rows is None and not equal_rows and not self.ragged.cells:
                logger.warning(
                    "columns have different numbers of rows: %s; %r counts (is the dataset not batched?)",
                    shapes,
                    list(shapes)[self._options.counted],
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
