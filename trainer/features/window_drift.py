"""Drift of declared features in the windows of a stream."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..checks import choice
from ..state import Stateful
from .feature import RawColumns
from .features import Features
from .profiles import ColumnProfile, ProfileBuckets, stability_index

Keys = Mapping[str, tuple[np.ndarray, np.ndarray]]  # raw column -> keys and missing rows, see `ColumnProfile.keys_of`


class WindowDrift(Stateful):
    """Population stability index of features per window, over all rows trained on.

    The reference is the profile of the rows that the features learned from; without one, the first window, whose own
    index is NaN. The index of a feature of several raw columns is the greatest of theirs.

    Args:
        features: the declared columns.
        names: names of the features to measure.

    Raises:
        ConfigurationError: there is no such feature; the message names the nearest one.
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
        self._reference: dict[str, ColumnProfile] = {}  # the first window, where nothing was learned before
        self.clear()

    def clear(self) -> None:
        """Forget the open window."""
        self._buckets: dict[str, ProfileBuckets] = {}
        self._counts: dict[str, np.ndarray] = {}
        self._profiles = {name: profile.copy() for name, profile in self._blank.items()}

    @property
    def value_names(self) -> tuple[str, ...]:
        """Names of the values that `close` returns."""
        return tuple(f"drift_{name}" for name in self._sources)

    def keys_of(self, raw: RawColumns) -> Keys:
        """Return what `add` takes of a batch; safe on another thread."""
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
        """Return each feature's index, NaN for an empty or first window; open the next."""
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
            f"drift_{name}": max(
                (indices[column] for column in sources), key=lambda index: (not math.isnan(index), index)
            )
            for name, sources in self._sources.items()
        }

    def join(self, windows: Iterable[Mapping[str, Any]]) -> None:
        """Replace the open window by the sum of several, as `state_dict` returned them."""
        self.clear()
        for window in windows:
            counts, profiles, _ = self._read(window)
            for name, values in counts.items():
                self._counts[name] = values + self._counts.get(name, 0)
            for name, profile in profiles.items():
                self._profiles[name].merge(profile)

    def state_dict(self) -> dict[str, Any]:
        """Return the open window, and the reference where it is the first window."""
        states = {
            **{f"window.{name}": profile.state_dict() for name, profile in self._profiles.items() if profile.rows},
            **{f"first.{name}": profile.state_dict() for name, profile in self._reference.items()},
        }
        arrays = {f"{part}/{key}": array for part, state in states.items() for key, array in state["arrays"].items()}
        arrays |= {f"counts.{name}": counts for name, counts in self._counts.items()}
        return {"json": {part: state["json"] for part, state in states.items()}, "arrays": arrays}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; columns no longer measured are skipped."""
        self.clear()
        self._counts, profiles, self._reference = self._read(state)
        self._profiles |= profiles

    def _read(
        self, state: Mapping[str, Any]
    ) -> tuple[dict[str, np.ndarray], dict[str, ColumnProfile], dict[str, ColumnProfile]]:
        """Return by column: bucket counts, the open window's profiles, the reference."""

        def profiles(part: str) -> dict[str, ColumnProfile]:
            read = {}
            for name in self.columns:
                prefix = f"{part}.{name}"
                if prefix in state["json"]:
                    read[name] = self._blank[name].copy()
                    arrays = {key: state["arrays"][f"{prefix}/{key}"] for key in ("ids", "counts")}
                    read[name].load_state_dict({"json": state["json"][prefix], "arrays": arrays})
            return read

        saved = {name: state["arrays"].get(f"counts.{name}") for name in self.columns}
        counts = {name: np.array(values, np.int64) for name, values in saved.items() if values is not None}
        return counts, profiles("window"), profiles("first")
