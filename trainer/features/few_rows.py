"""Applies features to raw columns; for a few rows, all features of a kind at once.

A feature costs some microseconds whatever the number of rows, which is most of the time of one row. Features that
differ in their columns and statistics alone are therefore applied to one array. The operations are the same, number by
number, and so are the bits of the results.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from .feature import Feature, RawColumns, Statistic

FEW_ROWS = 32


def alike_features(features: Sequence[Feature]) -> list[list[int]]:
    """Return the indices of features that can be applied together, as lists."""
    groups: dict[Hashable, list[int]] = {}
    for index, feature in enumerate(features):
        groups.setdefault(index if feature.alike is None else (type(feature), feature.alike), []).append(index)
    return list(groups.values())


def apply_features(
    features: Sequence[Feature], groups: Sequence[Sequence[int]], raw: RawColumns, statistics: Mapping[str, Statistic]
) -> list[list[Any]]:
    """Return the arrays of each feature's outputs, in the order of the features.

    Args:
        features: the features.
        groups: of `alike_features`.
        raw: raw columns by name.
        statistics: what features learned, by their name.
    """
    if not raw or len(next(iter(raw.values()))) > FEW_ROWS:
        return [feature.apply(raw, statistics.get(feature.name)) for feature in features]
    applied: dict[int, list[Any]] = {}
    for group in groups:
        members = [features[index] for index in group]
        learned = [statistics.get(feature.name) for feature in members]
        if len(group) == 1:
            applied[group[0]] = members[0].apply(raw, learned[0])
        else:
            applied |= zip(group, members[0].apply_alike(members, raw, learned), strict=True)
    return [applied[index] for index in range(len(features))]
