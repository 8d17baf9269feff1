"""What features have learned from the data, as one value: copied, merged and saved together."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import CheckpointMismatchError
from ..streams.formats.column import Column
from .feature import Feature, RawColumns, Statistic
from .profiles import SAMPLED_ROWS, ColumnProfile

_PROFILE = "@profile."  # begins the names of the profiles' arrays


class Learned:
    """A statistic for each feature that learns, and a profile of each raw column.

    Args:
        features: the declared features.
        columns: the raw columns they read.

    Attributes:
        statistics: by the name of the feature.
        profiles: by the name of the raw column.
    """

    def __init__(self, features: Sequence[Feature], columns: Mapping[str, Column]) -> None:
        self._learning = tuple(feature for feature in features if feature.learns)
        self.statistics: dict[str, Statistic] = {feature.name: feature.statistic() for feature in self._learning}
        self.profiles = {name: ColumnProfile(column) for name, column in columns.items()}

    @property
    def profiled_rows(self) -> int:
        """Rows that the profiles have seen."""
        return max((profile.rows for profile in self.profiles.values()), default=0)

    def add(self, raw: RawColumns) -> None:
        """Add the rows of a batch, to the profiles a sample of them."""
        for feature in self._learning:
            self.statistics[feature.name].add(feature.observed(raw))
        add_sample(self.profiles, raw)

    def merge(self, *others: Learned) -> None:
        """Add what others have learned from other rows."""
        for name, statistic in self.statistics.items():
            statistic.merge(*[other.statistics[name] for other in others])
        for name, profile in self.profiles.items():
            profile.merge(*[other.profiles[name] for other in others])

    def settle(self) -> None:
        """Let every statistic decide what follows from the values so far."""
        for statistic in self.statistics.values():
            statistic.settle()

    def copy(self) -> Learned:
        """Return a copy that changes by itself; statistics replace their arrays and never write into them."""
        other = copy.copy(self)
        other.statistics = {name: copy.copy(statistic) for name, statistic in self.statistics.items()}
        other.profiles = {name: profile.copy() for name, profile in self.profiles.items()}
        return other

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"json": ..., "arrays": ...}``."""
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
        """Restore what `state_dict` returned; profiles that it lacks stay empty.

        Raises:
            CheckpointMismatchError: it is that of other features.
        """
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
    """Add rows at even distances, at least `SAMPLED_ROWS` of them where there are as many, to profiles."""
    for name, profile in profiles.items():
        column = raw[name]
        profile.add(column[:: max(1, len(column) // SAMPLED_ROWS)])
