"""Raw data as the network's inputs: whole tables and files for finite verbs, streams batch by batch."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError
from ..streams.base import Stream
from ..streams.batch import Batch, is_frame
from ..streams.dead_letter import BadRow, DeadLetter
from ..streams.sources.files import FileStream
from .features import Features, Inputs
from .raw_files import RawFiles
from .raw_rows import Rows, SetAside

logger = logging.getLogger(__name__)

PART_ROWS = 1 << 16


def is_raw(data: Any) -> bool:
    """Return whether `data` are raw rows: a frame, a mapping, a list of mappings, or the path of a file or folder."""
    if isinstance(data, Mapping):
        return not isinstance(data, Inputs)
    rows = isinstance(data, Sequence) and bool(data) and all(isinstance(row, Mapping) for row in data)
    return isinstance(data, str | Path | RawFiles) or is_frame(data) or rows


def rows_of(features: Features, data: Any, *, labelled: bool = True, aside: SetAside | None = None) -> Iterator[Rows]:
    """Yield raw rows in parts: those of a table at once, those of files part by part.

    Args:
        features: the declared columns.
        data: see `is_raw`.
        labelled: whether labels have to be there.
        aside: counts the rows that are set aside.

    Raises:
        DataError: no such file, nothing that has rows, or a required column is absent.
    """
    aside = SetAside() if aside is None else aside
    keep = None
    if isinstance(data, RawFiles):
        data, keep = data.path, data.rows_kept(features)
    if not isinstance(data, str | Path):
        rows = features.read(data, labelled=labelled)
        aside.add(rows, 0)
        if rows.good:
            yield rows
        return
    if not Path(data).exists():
        raise DataError(f"{data}: no such file or folder")
    schema = features.schema if labelled else features.unlabelled_schema
    with contextlib.closing(FileStream(data, schema, end="at_last", dead_letter=aside)) as stream:
        while not stream.exhausted:
            batch = stream.poll(PART_ROWS, 1.0)
            if batch is not None:
                rows = Rows(batch.columns, batch.rows)
                yield rows if keep is None else keep(rows)


def inputs_of(features: Features, data: Any, *, fit: bool = False, labelled: bool = True) -> Any:
    """Return the inputs of the network, and labels, for raw rows; other data as they are.

    Args:
        features: the declared columns.
        data: the data of a verb; or a mapping from names to several.
        fit: whether the features learn from these rows when they have not learned yet.
        labelled: whether labels have to be there.

    Raises:
        DataError: no row is good, or a required column is absent.
    """
    if data is None or not is_raw(data):
        return data
    if (
        isinstance(data, Mapping)
        and data
        and not set(data) & set(features.schema.fields)
        and all(map(is_raw, data.values()))
    ):
        return {name: inputs_of(features, part, fit=fit, labelled=labelled) for name, part in data.items()}
    labelled = labelled or (isinstance(data, RawFiles) and data.part is not None)  # parts are of labelled rows
    if fit and not (features.is_fitted and features.learned.profiled_rows):
        features.fit(data)
    aside = SetAside()
    batches = [features.batch(rows.columns) for rows in rows_of(features, data, labelled=labelled, aside=aside)]
    report = aside.report()
    if report is not None and not labelled:
        raise DataError(f"every row gets a prediction, so none can be set aside: {report}")
    if report is not None:
        logger.warning("features: %s", report)
    if not batches:
        raise DataError(f"the data have no good rows{'' if report is None else f': {report}'}")
    return Inputs({name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]})


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
