"""Convert raw tables and files to network inputs; fit features to them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..distributed.group import Group
from ..distributed.packing import gather_states
from ..errors import ConfigurationError, DataError
from ..streams.formats.ragged_column import exactly_joinable
from .feature import PREDICTION, Inputs
from .features import Features
from .learned import Learned, add_sample
from .profiles import ColumnProfile, ProfileBuckets, stability_index
from .raw_files import RawFiles
from .raw_rows import BadRowCounter, RawData, RawTable, Rows, is_table

logger = logging.getLogger(__name__)


def is_raw(data: Any) -> bool:
    """Return whether `data` are raw rows: a table, one or more rows, or a file path."""
    return isinstance(data, str | Path | RawData) or (is_table(data) and not isinstance(data, Inputs))


def raw_data(data: Any) -> RawData:
    """Return raw rows of any form as `RawData`; raise DataError for other data."""
    if isinstance(data, RawData):
        return data
    return RawFiles(data) if isinstance(data, str | Path) else RawTable(data)


def rows_of(features: Features, data: Any, *, bad_rows: BadRowCounter | None = None, **options: bool) -> Iterator[Rows]:
    """Yield raw rows of any form in parts; see `RawData.parts`."""
    return raw_data(data).parts(features, BadRowCounter() if bad_rows is None else bad_rows, **options)


def inputs_of(
    features: Features,
    data: Any,
    *,
    fit: bool = False,
    labelled: bool = True,
    kept: KeptColumns | None = None,
    set_aside: bool = False,
) -> Inputs:
    """Convert raw rows to network inputs and labels.

    Args:
        fit: whether unfitted features learn from these rows.
        labelled: whether labels, weights and groups are required; False for rows to predict.
        kept: collects the columns of `Features(keep=...)`.
        set_aside: whether any number of bad rows may be left out; otherwise `Features(max_bad_share=...)` is the limit,
            and no row to predict may be left out.

    Raises:
        DataError: too many rows are bad, or a required column is absent.
    """
    data = raw_data(data)
    if fit and learns_from_next(features):
        features.fit(data)
    bad_rows, parts = batches_of(features, data, labelled=labelled, kept=kept, set_aside=set_aside)
    batches = list(parts)
    inputs = Inputs({name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]})
    inputs.set_aside = bad_rows.report()
    return inputs


def batches_of(
    features: Features, data: RawData, *, labelled: bool, kept: KeptColumns | None, set_aside: bool, log: bool = True
) -> tuple[BadRowCounter, Iterator[Inputs]]:
    """Return the counter of bad rows, and an iterator over the inputs of raw rows.

    The arguments and errors are those of `inputs_of`. With `log` the iterator reports bad rows at its end.
    """
    set_aside = set_aside or (data.part is not None and not labelled)  # predict the rows that an evaluation reads
    labelled = labelled or data.part is not None
    bad_rows = BadRowCounter(1.0 if set_aside or not labelled else features.max_bad_share)

    def read() -> Iterator[Inputs]:
        empty, answer_all = True, not labelled and not set_aside
        for rows in data.parts(features, bad_rows, labelled=labelled, kept=kept is not None):
            _check_no_bad_rows(bad_rows, answer_all)
            if kept is not None:
                kept.add(features.kept_columns(rows.columns))
            empty = False
            # a kept label or weight of rows to predict is no label: it may be missing or of any type
            yield features.batch(rows.columns) if labelled else features.apply(rows.columns)
        _check_no_bad_rows(bad_rows, answer_all)
        report = bad_rows.report()
        if report is not None and log:
            logger.warning("features: %s", report)
        if empty:
            raise DataError(f"{data}: no good rows{f': {report}' if report else ''}")

    return bad_rows, read()


def _check_no_bad_rows(bad_rows: BadRowCounter, answer_all: bool) -> None:
    if bad_rows.bad and answer_all:
        raise DataError(
            f"every row gets a prediction, so none can be set aside: {bad_rows.report()}; predict(..., "
            "set_aside=True), or trainer predict --output FILE --keep COLUMN --set-aside, leaves such rows out"
        )


def drift_of(features: Features, data: Any, max_rows: int) -> dict[str, float]:
    """Implement `Features.drift`."""
    if not features.learned.profiled_rows:
        raise ConfigurationError(
            "features: drift compares with the rows that were learned from, and there are none yet; call "
            "features.fit, or load a snapshot of a training on raw rows"
        )
    profiles = {name: ColumnProfile(column) for name, column in features.columns.items()}
    count = 0
    # Splitting files into parts needs the event time, which is only read together with the labels.
    data = raw_data(data)
    for rows in data.parts(features, BadRowCounter(), labelled=data.part is not None):
        add_sample(profiles, rows.columns)
        count += rows.good
        if count >= max_rows:
            break
    if not count:
        raise DataError("drift: the data have no good rows")
    distances = {}
    for name, profile in profiles.items():
        buckets = ProfileBuckets(features.learned.profiles[name])
        distances[name] = stability_index(buckets.shares, buckets.shares_of(profile))
    return dict(sorted(distances.items(), key=lambda item: -item[1]))


def learns_from_next(features: Features) -> bool:
    """Return whether the next training run fits or profiles the features."""
    return not (features.is_fitted and features.learned.profiled_rows)


def learn_together(features: Features, data: RawData, group: Group) -> None:
    """Learn from the rows of all processes, so that all have the same statistics."""
    if group.any(learns_from_next(features)):
        merged = features.learned.copy()  # ids keep the table rows that they already have
        features.learned = Learned(features.features, features.columns)
        features.fit(data)
        for state in gather_states(group, features.learned.state_dict()):
            part = Learned(features.features, features.columns)
            part.load_state_dict(state)
            merged.merge(part)
        features.learned = merged
    group.check_same("what the features have learned", features.learned.state_dict()["arrays"])


class KeptColumns:
    """Columns of `Features(keep=...)`, in the order of the predicted rows."""

    def __init__(self) -> None:
        self._parts: deque[dict[str, Any]] = deque()

    def add(self, columns: dict[str, Any]) -> None:
        """Append the columns of the next rows."""
        self._parts.append(columns)

    def take(self, rows: int) -> dict[str, Any]:
        """Remove and return the columns of the next `rows` rows."""
        parts = []
        while rows:
            part = self._parts.popleft()
            count = len(next(iter(part.values())))
            if count > rows:
                self._parts.appendleft({name: column[rows:] for name, column in part.items()})
                part, count = {name: column[:rows] for name, column in part.items()}, rows
            parts.append(part)
            rows -= count
        return {name: np.concatenate(exactly_joinable([part[name] for part in parts])) for name in parts[0]}

    def with_predictions(self, predictions: Any) -> dict[str, Any]:
        """Return the predictions, named "prediction", and the columns of their rows."""
        return {PREDICTION: predictions, **self.take(_count_rows(predictions))}


def _count_rows(predictions: Any) -> int:
    """Return the rows of the first output that has any."""
    if isinstance(predictions, list):  # of batches
        return sum(map(_count_rows, predictions))
    if isinstance(predictions, tuple | dict):
        parts = predictions.values() if isinstance(predictions, dict) else predictions
        return next(filter(None, map(_count_rows, parts)), 0)
    return len(predictions) if predictions.ndim else 0
