"""Statistics and profiles that features learn from data."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..checks import whole
from ..errors import CheckpointMismatchError
from ..streams.formats.column import Column
from .feature import Feature, RawColumns, Statistic
from .profiles import SAMPLED_ROWS, ColumnProfile

_PROFILE = "@profile."  # prefix of the names of profile arrays
_RECENT = "@recent."  # prefix of the names of recent-value arrays


@dataclass(frozen=True)
class Recent:
    """Values that features saw in a stream since the last update; immutable.

    The statistics add all values at once. Batch boundaries do not matter, so a run that is interrupted and resumed
    learns bit-identical statistics.

    Attributes:
        rows: number of rows.
        values: feature name -> the values that its statistic counts, one array per batch.
    """

    rows: int = 0
    values: Mapping[str, tuple[np.ndarray, ...]] = field(default_factory=dict)

    def with_batch(self, rows: int, values: Mapping[str, np.ndarray]) -> Recent:
        """Return a copy with another batch appended."""
        return Recent(self.rows + rows, {name: (*self.values.get(name, ()), array) for name, array in values.items()})

    def joined(self) -> dict[str, np.ndarray]:
        """Return the values of all batches, concatenated, by feature name."""
        return {name: np.concatenate(parts) for name, parts in self.values.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of rows and values; empty if there are no rows."""
        if not self.rows:
            return {"json": {}, "arrays": {}}
        return {"json": {"recent_rows": self.rows}, "arrays": {_RECENT + n: a for n, a in self.joined().items()}}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Recent:
        """Restore recent values from the state of the features."""
        arrays = {key: array for key, array in state["arrays"].items() if key.startswith(_RECENT)}
        values = {key.removeprefix(_RECENT): (np.array(array),) for key, array in arrays.items()}
        return cls(whole("recent_rows", state["json"].get("recent_rows", 0), 0), values)


class Learned:
    """The statistic of each feature that learns, and the profile of each raw column."""

    def __init__(self, features: Sequence[Feature], columns: Mapping[str, Column]) -> None:
        self._learning = tuple(feature for feature in features if feature.learns)
        self.statistics: dict[str, Statistic] = {feature.name: feature.statistic() for feature in self._learning}
        self.profiles = {name: ColumnProfile(column) for name, column in columns.items()}

    @property
    def profiled_rows(self) -> int:
        """Number of rows that the profiles have seen."""
        return max((profile.rows for profile in self.profiles.values()), default=0)

    def add(self, raw: RawColumns) -> None:
        """Add the rows of a batch to the statistics, and a sample to the profiles."""
        for name, values in self.observed(raw).items():
            self.statistics[name].add(values)
        add_sample(self.profiles, raw)

    def observed(self, raw: RawColumns) -> dict[str, np.ndarray]:
        """Return the values that the statistics count, one-dimensional, by feature name."""
        return {feature.name: feature.observed(raw) for feature in self._learning}

    def updated(self, recent: Recent) -> Learned:
        """Return a copy with `recent` added to the statistics, but not to the profiles."""
        other = self.copy()
        for name, values in recent.joined().items():
            other.statistics[name].add(values)
        other.finish()
        return other

    def merge(self, other: Learned) -> None:
        for name, statistic in self.statistics.items():
            statistic.merge(other.statistics[name])
        for name, profile in self.profiles.items():
            profile.merge(other.profiles[name])

    def finish(self) -> None:
        for statistic in self.statistics.values():
            statistic.finish()

    def copy(self) -> Learned:
        """Return an independent copy.

        Shallow copies suffice, because statistics replace their arrays and never write into them.
        """
        other = copy.copy(self)
        other.statistics = {name: copy.copy(statistic) for name, statistic in self.statistics.items()}
        other.profiles = {name: profile.copy() for name, profile in self.profiles.items()}
        return other

    def state_dict(self) -> dict[str, Any]:
        statistics = {name: statistic.state_dict() for name, statistic in self.statistics.items()}
        profiles = {name: profile.state_dict() for name, profile in self.profiles.items()}
        parts = {f"{name}.": state for name, state in statistics.items()}
        parts |= {f"{_PROFILE}{name}.": state for name, state in profiles.items()}
        return {
            "json": {
                "features": {name: state["json"] for name, state in statistics.items()},
                "profiles": {name: state["json"] for name, state in profiles.items()},
            },
            "arrays": {
                prefix + key: array for prefix, state in parts.items() for key, array in state["arrays"].items()
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; missing profiles stay empty."""
        saved, profiles = state["json"]["features"], state["json"].get("profiles", {})
        if set(saved) != set(self.statistics):
            raise CheckpointMismatchError(
                f"the snapshot's features learned {sorted(saved)}; these learn {sorted(self.statistics)}"
            )

        def arrays(prefix: str) -> dict[str, Any]:
            return {key.removeprefix(prefix): a for key, a in state["arrays"].items() if key.startswith(prefix)}

        for name, statistic in self.statistics.items():
            statistic.load_state_dict({"json": saved[name], "arrays": arrays(f"{name}.")})
        for name in set(self.profiles) & set(profiles):
            self.profiles[name].load_state_dict({"json": profiles[name], "arrays": arrays(f"{_PROFILE}{name}.")})


def add_sample(profiles: Mapping[str, ColumnProfile], raw: RawColumns) -> None:
    """Add evenly spaced rows to the profiles, at least `SAMPLED_ROWS` if available."""
    for name, profile in profiles.items():
        column = raw[name]
        profile.add(column[:: max(1, len(column) // SAMPLED_ROWS)])
