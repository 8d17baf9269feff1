"""Raw data as the network's inputs: whole tables and files for finite verbs, streams batch by batch."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError
from ..streams.base import Stream
from ..streams.batch import Batch, is_frame
from ..streams.dead_letter import BadRow, DeadLetter
from .features import PREDICTION, Features, Inputs
from .raw_blocks import open_files, parts_of
from .raw_files import RawFiles
from .raw_rows import Rows, SetAside

logger = logging.getLogger(__name__)


def is_raw(data: Any) -> bool:
    """Return whether `data` are raw rows: a frame, a mapping, a list of mappings, or the path of a file or folder."""
    if isinstance(data, Mapping):
        return not isinstance(data, Inputs)
    rows = isinstance(data, Sequence) and bool(data) and all(isinstance(row, Mapping) for row in data)
    return isinstance(data, str | Path | RawFiles) or is_frame(data) or rows


def rows_of(
    features: Features, data: Any, *, labelled: bool = True, kept: bool = False, aside: SetAside | None = None
) -> Iterator[Rows]:
    """Yield raw rows in parts: those of a table at once, those of files part by part.

    Args:
        features: the declared columns.
        data: see `is_raw`.
        labelled: whether labels have to be there.
        kept: whether the columns that are kept for output are read as well.
        aside: counts the rows that are set aside.

    Raises:
        DataError: no such file, nothing that has rows, or a required column is absent.
    """
    aside = SetAside() if aside is None else aside
    keep = None
    if isinstance(data, RawFiles):
        data, keep = data.path, data.rows_kept(features)
    if not isinstance(data, str | Path):
        rows = features.read(data, labelled=labelled, kept=kept)
        aside.add(rows, 0)
        if rows.good:
            yield rows
        return
    first = 0
    with open_files(Path(data), features, aside, labelled=labelled, kept=kept) as stream:
        for rows in parts_of(stream):
            yield rows if keep is None else keep(rows, first)
            first += rows.count


def inputs_of(
    features: Features, data: Any, *, fit: bool = False, labelled: bool = True, kept: KeptColumns | None = None
) -> Any:
    """Return the inputs of the network, and labels, for raw rows; other data as they are.

    Args:
        features: the declared columns.
        data: the data of a verb.
        fit: whether the features learn from these rows when they have not learned yet.
        labelled: whether labels have to be there.
        kept: takes the columns that are kept for output, or None.

    Raises:
        DataError: no row is good, or a required column is absent.
    """
    if data is None or not is_raw(data):
        return data
    labelled = labelled or has_parts(data)
    if fit and learns_from_next(features):
        features.fit(data)
    aside = SetAside()
    batches = list(batches_of(features, data, aside, labelled=labelled, kept=kept))
    report = aside.report()
    if report is not None:
        logger.warning("features: %s", report)
    if not batches:
        raise DataError(f"the data have no good rows{'' if report is None else f': {report}'}")
    return Inputs({name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]})


def batches_of(
    features: Features, data: Any, aside: SetAside, *, labelled: bool = True, kept: KeptColumns | None = None
) -> Iterator[Inputs]:
    """Yield the inputs of the network for raw rows, part by part; arguments as of `inputs_of`.

    Raises:
        DataError: without labels, a row that the declaration forbids; see also `rows_of`.
    """
    for rows in rows_of(features, data, labelled=labelled, kept=kept is not None, aside=aside):
        _check_all_answered(aside, labelled)
        if kept is not None:
            kept.add({name: rows.columns[name] for name in features.keep}, rows.good)
        yield features.batch(rows.columns)
    _check_all_answered(aside, labelled)


def _check_all_answered(aside: SetAside, labelled: bool) -> None:
    if aside.bad and not labelled:
        raise DataError(f"every row gets a prediction, so none can be set aside: {aside.report()}")


def is_named(features: Features, data: Any) -> bool:
    """Return whether `data` is a mapping from names to several sets of raw rows."""
    if not isinstance(data, Mapping) or not data or set(data) & set(features.schema.fields):
        return False
    return not isinstance(data, Inputs) and all(map(is_raw, data.values()))


def has_parts(data: Any) -> bool:
    """Return whether `data` is a part of files, whose rows are labelled."""
    return isinstance(data, RawFiles) and data.part is not None


def learns_from_next(features: Features) -> bool:
    """Return whether features learn from the rows of the next training."""
    return not (features.is_fitted and features.learned.profiled_rows)


class KeptColumns:
    """Columns of the rows that predictions are made for, in the order of the predictions."""

    def __init__(self) -> None:
        self._parts: deque[dict[str, Any]] = deque()
        self._rows: deque[int] = deque()

    def add(self, columns: dict[str, Any], rows: int) -> None:
        """Take the columns of the next rows."""
        self._parts.append(columns)
        self._rows.append(rows)

    def take(self, rows: int) -> dict[str, Any]:
        """Return the columns of the next `rows` rows, and forget them."""
        taken = []
        while rows:
            part, count = self._parts.popleft(), self._rows.popleft()
            if count > rows:
                rest = {name: column[rows:] for name, column in part.items()}
                self._parts.appendleft(rest)
                self._rows.appendleft(count - rows)
                part, count = {name: column[:rows] for name, column in part.items()}, rows
            taken.append(part)
            rows -= count
        return {name: np.concatenate([part[name] for part in taken]) for name in taken[0]}

    def beside(self, predictions: Any) -> dict[str, Any]:
        """Return the next predictions, under "prediction", with the columns of their rows."""
        return {PREDICTION: predictions, **self.take(_rows(predictions))}


def _rows(predictions: Any) -> int:
    return _rows(predictions[0]) if isinstance(predictions, tuple) else len(predictions)


class BatchTransform:
    """Turns batches of a stream's raw rows into the network's inputs; bad rows go to the stream's dead letter.

    Args:
        features: the declared columns, fitted.
        stream: the stream; it gets a dead letter that only counts if it has none.
    """

    def __init__(self, features: Features, stream: Stream) -> None:
        self.features, self.source = features, type(stream).__name__
        if stream.dead_letter is None:
            stream.dead_letter = DeadLetter()
        self.dead_letter = stream.dead_letter

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch of the good rows, with the positions they have in the stream.

        Raises:
            StreamError: too many rows are bad, or the dead-letter file cannot be written.
        """
        event_time = self.features.event_time
        raw: dict[str, Any] = dict(batch.columns)
        if event_time is not None and batch.event_time is not None:
            raw.setdefault(event_time, batch.event_time)
        rows = self.features.read(raw)
        if rows.bad:
            bad = [
                BadRow(*batch.origin_of(row), reason, {name: str(column[row]) for name, column in raw.items()})
                for row, reason in sorted(rows.bad.items())
            ]
            self.dead_letter.record(self.source, bad, batch.spans)
            self.dead_letter.count(0, len(bad))
            mask = np.ones(batch.rows, bool)
            mask[list(rows.bad)] = False
            batch = batch.keep(mask)
        times = batch.event_time
        if times is None and event_time is not None:
            times = rows.columns[event_time]
        return Batch(dict(self.features.batch(rows.columns)), times, batch.spans)
