"""Turn a stream's raw rows into network inputs; learn online; measure drift."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..checks import choice
from ..state import Stateful
from ..streams.base import Stream
from ..streams.batch import Batch
from ..streams.dead_letter import BadRow, DeadLetter
from ..streams.formats.times import datetimes
from .feature import RawColumns
from .features import Features
from .learned import Learned, Recent
from .profiles import ColumnProfile, ProfileBuckets, stability_index
from .raw_rows import AbsentColumns, Rows

logger = logging.getLogger(__name__)

_ROWS_TO_JUDGE = 1000  # a column without a value in so many rows is named
RAW = "@raw."  # prefix of the names of raw columns in a batch of inputs


class BatchTransform:
    """Turns a stream's raw rows into network inputs; bad rows go to the dead letter.

    Online learning runs on the reading thread, ahead of training. Each batch is transformed with the statistics of the
    rows before it. Once a batch has been trained, `trained_to` gives its statistics to the trainer's features.

    Args:
        features: the trainer's features.
        stream: the stream; without a dead letter, it gets one that only counts.
        batches_per_step: batches of a step, one for each process. The learned state changes only between steps, so that
            it is the same for any number of processes.

    Attributes:
        drift: measures the drift of the trained rows; or None.
    """

    def __init__(self, features: Features, stream: Stream, batches_per_step: int = 1) -> None:
        self.features, self.source = features, type(stream).__name__
        self._batches_per_step = batches_per_step
        self._read_batches = 0
        if stream.dead_letter is None:
            stream.dead_letter = DeadLetter()
        self.dead_letter = stream.dead_letter
        self.drift: WindowDrift | None = None
        # Rows that the stream has decoded with the features' schema are not converted again.
        declared, decoded = features.schema.fields, {} if stream.decoded is None else stream.decoded.fields
        self._is_converted = stream.counts_rows and decoded == declared
        optional = [
            name for name, column in declared.items() if column.default is not None and name != features.event_time
        ]
        if absent := [name for name in optional if decoded and name not in decoded]:
            logger.warning(
                "features: the schema of %s lacks %s, so every row misses them: add them, or leave the schema out",
                self.source,
                ", ".join(map(repr, absent)),
            )
        # Times that another schema has decoded are in seconds, not in the unit that the features declare.
        times = [name for name, column in declared.items() if column.times]
        self._times = [name for name in times if name in decoded and decoded[name].times]
        self._absent: AbsentColumns | None = None if absent else AbsentColumns(features.schema)
        self._seen: set[str] = set()  # declared columns that rows have had
        self._versions: deque[tuple[Any, Learned, Recent, Keys | None]] = deque()
        self._ahead = features  # the features of the reading thread
        self._updated = features.learned, features.recent  # at the last complete update

    def begin(self) -> None:
        """Start from the learned state of the trainer's features."""
        self._versions.clear()
        self._read_batches = 0
        self._ahead = self.features.copy() if self.features.learns_online else self.features
        self._updated = self.features.learned, self.features.recent

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch of the good rows, with their positions in the stream."""
        features = self._ahead
        begins_step = self._read_batches % self._batches_per_step == 0
        if features.learns_online and begins_step and features.recent.rows >= (features.update_every or 0):
            features.learned, features.recent = features.learned.updated(features.recent), Recent()
        event_time = features.event_time
        raw: dict[str, Any] = dict(batch.columns)
        if self._is_converted:
            rows = Rows(raw, batch.rows)
        else:
            raw |= {name: datetimes(raw[name]) for name in self._times if name in raw}
            if event_time is not None and batch.event_time is not None:
                raw.setdefault(event_time, datetimes(batch.event_time))
            # A column that earlier batches had, but this one lacks, counts as missing in every row.
            raw |= {name: np.full(batch.rows, None, object) for name in self._seen - raw.keys()}
            self._seen |= raw.keys() & features.schema.fields.keys()
            rows = features.read(raw)
        if self._absent is not None:
            self._absent.note(rows.columns, rows.good)
            if self._absent.rows >= _ROWS_TO_JUDGE:
                self._absent.report(list(raw), "the first")
                self._absent = None
        if rows.bad:
            bad_rows = [
                BadRow(*batch.origin_of(row), reason, {name: str(column[row]) for name, column in raw.items()})
                for row, reason in sorted(rows.bad.items())
            ]
            self.dead_letter.record(self.source, bad_rows, batch.spans)
            self.dead_letter.count(0, len(bad_rows))
            mask = np.ones(batch.rows, bool)
            mask[list(rows.bad)] = False
            batch = batch.keep(mask)
        times = batch.event_time
        if times is None and event_time is not None:
            times = rows.columns[event_time]
        columns: dict[str, Any] = dict(features.batch(rows.columns))
        columns |= {RAW + name: rows.columns[name] for name in self._included_columns}
        return Batch(columns, times, batch.spans)

    def learn(self, batch: Batch, state: Any) -> None:
        """Learn from one or more joined results of `__call__`, in the stream's order."""
        features, drift = self._ahead, None
        raw = {name: batch.columns[RAW + name] for name in self._included_columns}
        self._read_batches += 1
        if features.learns_online:
            features.recent = features.recent.with_batch(batch.rows, features.learned.observed(raw))
        if self.drift is not None:
            drift = self.drift.keys_of(raw)
        if self._included_columns:
            self._versions.append((state, features.learned, features.recent, drift))

    @property
    def _included_columns(self) -> tuple[str, ...]:
        """Names of the raw columns that a batch of inputs includes."""
        if self._ahead.learns_online:
            return tuple(self._ahead.columns)
        return () if self.drift is None else tuple(self.drift.columns)

    def trained_to(self, state: Any, *, updated: bool = True) -> None:
        """Set the trainer's features to the learned state at position `state`.

        This does nothing if the position was reached before, as for a placeholder batch. `updated` says whether an
        update is complete at the position.
        """
        self._advance(state)
        if updated:
            self._updated = self.features.learned, self.features.recent

    def go_back(self) -> None:
        """Go back to the last complete update; the rows after it will be read again."""
        self.features.learned, self.features.recent = self._updated

    def _advance(self, state: Any) -> None:
        if not any(position is state for position, *_ in self._versions):
            return
        while self._versions:
            position, learned, recent, drift = self._versions.popleft()
            if self.drift is not None and drift is not None:
                self.drift.add(drift)
            if position is state:
                self.features.learned, self.features.recent = learned, recent
                return


Keys = Mapping[str, tuple[np.ndarray, np.ndarray]]  # raw column -> keys and missing rows, see `ColumnProfile.keys_of`


class WindowDrift(Stateful):
    """Population stability index of features per window, over all rows trained on.

    The reference is the profile of the rows that the features learned from. If there is none, the first window is the
    reference, and its own index is NaN. If a feature has several raw columns, its index is the largest of their
    indices.
    """

    def __init__(self, features: Features, names: Iterable[str]) -> None:
        declared = {feature.name: tuple(feature.raw()) for feature in features.features}
        for name in names:
            choice("DriftMonitor(feature=...)", name, declared)
        self._sources = {name: declared[name] for name in names}
        columns = {column for sources in self._sources.values() for column in sources}
        self.columns = {name: column for name, column in features.columns.items() if name in columns}
        self._features = features
        self._blank = {name: ColumnProfile(column) for name, column in self.columns.items()}
        self._reference: dict[str, ColumnProfile] = {}  # the first window, if the features had learned nothing
        self.clear()

    def clear(self) -> None:
        """Clear the open window."""
        self._buckets: dict[str, ProfileBuckets] = {}
        self._counts: dict[str, np.ndarray] = {}
        self._profiles = {name: profile.copy() for name, profile in self._blank.items()}

    @property
    def value_names(self) -> tuple[str, ...]:
        """Names of the values that `close` returns."""
        return tuple(f"drift_{name}" for name in self._sources)

    def keys_of(self, raw: RawColumns) -> Keys:
        """Return the arguments of `add` for a batch; safe on another thread."""
        return {name: self._blank[name].keys_of(raw[name]) for name in self.columns}

    def add(self, keys: Keys) -> None:
        """Add a batch to the open window."""
        for name, (values, missing) in keys.items():
            reference = self._reference_of(name)
            if reference is None:
                self._profiles[name].add_keys(values, missing)
                continue
            if name not in self._buckets:
                self._buckets[name] = ProfileBuckets(reference)
            buckets = self._buckets[name]
            counts = np.bincount(buckets.bucket_of(values, missing), minlength=buckets.count)
            self._counts[name] = counts + self._counts.get(name, 0)

    def _reference_of(self, name: str) -> ColumnProfile | None:
        learned = self._features.learned.profiles[name]
        return learned if learned.rows else self._reference.get(name)

    def close(self) -> dict[str, float]:
        """Return each feature's index, NaN if unknown, and start the next window."""
        indices = {}
        for name in self.columns:
            indices[name] = float("nan")
            counts, reference = self._counts.get(name), self._reference_of(name)
            if reference is None and self._profiles[name].rows:
                self._reference[name] = self._profiles[name]
            elif reference is not None and counts is not None and counts.sum():
                indices[name] = stability_index(ProfileBuckets(reference).shares, counts / counts.sum())
        self.clear()
        return {
            f"drift_{name}": float(np.fmax.reduce([indices[column] for column in sources]))  # NaN only if all are
            for name, sources in self._sources.items()
        }

    def join(self, windows: Iterable[Mapping[str, Any]]) -> None:
        """Replace the open window by the sum of windows that `state_dict` returned."""
        self.clear()
        for window in windows:
            counts, profiles, _ = self._read(window)
            for name, values in counts.items():
                self._counts[name] = values + self._counts.get(name, 0)
            for name, profile in profiles.items():
                self._profiles[name].merge(profile)

    def state_dict(self) -> dict[str, Any]:
        """Return the open window, and the first window if it is the reference."""
        states = {
            **{f"window.{name}": profile.state_dict() for name, profile in self._profiles.items() if profile.rows},
            **{f"first.{name}": profile.state_dict() for name, profile in self._reference.items()},
        }
        arrays = {f"{part}/{key}": array for part, state in states.items() for key, array in state["arrays"].items()}
        arrays |= {f"counts.{name}": counts for name, counts in self._counts.items()}
        return {"json": {part: state["json"] for part, state in states.items()}, "arrays": arrays}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`; skip columns that are no longer measured."""
        self.clear()
        self._counts, profiles, self._reference = self._read(state)
        self._profiles |= profiles

    def _read(
        self, state: Mapping[str, Any]
    ) -> tuple[dict[str, np.ndarray], dict[str, ColumnProfile], dict[str, ColumnProfile]]:
        """Return by column: bucket counts, the open window's profiles, the reference."""

        def profiles(part: str) -> dict[str, ColumnProfile]:
            result = {}
            for name in self.columns:
                prefix = f"{part}.{name}"
                if prefix in state["json"]:
                    result[name] = self._blank[name].copy()
                    arrays = {key: state["arrays"][f"{prefix}/{key}"] for key in ("ids", "counts")}
                    result[name].load_state_dict({"json": state["json"][prefix], "arrays": arrays})
            return result

        saved = {name: state["arrays"].get(f"counts.{name}") for name in self.columns}
        counts = {name: np.array(values, np.int64) for name, values in saved.items() if values is not None}
        return counts, profiles("window"), profiles("first")
