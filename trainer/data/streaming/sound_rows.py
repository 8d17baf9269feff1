"""The rows of a stream that can be trained on; the others go to its dead letter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...streams import Batch, DeadLetter, Stream
from ...streams.batch import far_ahead
from ...streams.dead_letter import BadRow
from ..as_columns import as_array, non_finite_rows
from ..ragged import Ragged

Counted = Callable[[Sequence[np.ndarray]], Sequence["np.ndarray | None"]]


class SoundRows:
    """Sets aside a stream's rows with NaN or infinity, or times in the far future.

    NaN and infinity may be allowed. Columns that a schema declares are checked there: those with `Column.allow_nan`
    pass here too.

    Args:
        stream: its dead letter takes the rows; without one it gets one that only counts.
        tasks: number of tasks, whose labels are the last columns that are trained on.
        counted: returns which rows of these columns count for each task (bool [rows], or None for all); the others may
            hold any value.
    """

    def __init__(self, stream: Stream, tasks: int = 0, counted: Counted | None = None) -> None:
        self.stream = stream
        if stream.dead_letter is None:
            stream.dead_letter = DeadLetter()
        self.tasks = tasks
        self.counted = counted
        schema = stream.schema
        self._declared = () if schema is None else tuple(schema.columns)
        self._max_future = stream.max_future if schema is None else schema.max_future

    def __call__(self, batch: Batch, names: Sequence[str]) -> Batch:
        """Return the trainable rows; `names` are those of the columns trained on."""
        reasons: dict[int, str] = {}
        for name in names:
            allowed = self.stream.allow_nan
            if name not in self._declared and not (allowed if isinstance(allowed, bool) else name in allowed):
                for row in self._bad_rows(batch, name, names):
                    reasons.setdefault(int(row), f"column {name!r} holds NaN or an infinite value (see allow_nan)")
        reasons = {**far_ahead(batch.event_time, self._max_future), **reasons}
        dead_letter = self.stream.dead_letter
        if reasons:
            rows = [
                BadRow(*batch.origin_of(row), reason, {n: _plain(column[row]) for n, column in batch.columns.items()})
                for row, reason in sorted(reasons.items())
            ]
            dead_letter.record(type(self.stream).__name__, rows, batch.spans)
            mask = np.ones(batch.rows, bool)
            mask[list(reasons)] = False
            batch = batch.keep(mask)
        dead_letter.count(0 if self.stream.counts_rows else batch.rows, len(reasons))
        return batch

    def _bad_rows(self, batch: Batch, name: str, names: Sequence[str]) -> np.ndarray:
        column = batch.columns[name]
        if not isinstance(column, np.ndarray | Ragged):  # lists, of a user's own stream
            column = as_array(column, name)
        bad = non_finite_rows(column)
        labels = names[len(names) - self.tasks :]
        if len(bad) and self.counted is not None and name in labels and isinstance(column, np.ndarray):
            counted = self.counted([batch.columns[label] for label in labels])
            of_column = [rows for label, rows in zip(labels, counted, strict=True) if label == name]
            if all(rows is not None for rows in of_column):
                bad = bad[np.any(of_column, axis=0)[bad]]
        return bad


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value
