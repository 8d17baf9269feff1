"""Declared features: raw rows to network inputs, alike in training and serving."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .categorical import Categorical, Time
from .feature import Feature
from .features import Features
from .lists import ListFeature, Text, WeightedList
from .numeric import Bucketized, Expression, Numeric, Vector
from .relations import Cross, Custom, Lookup, Overlap

if TYPE_CHECKING:
    from .feature_embedding import FeatureEmbedding as FeatureEmbedding
    from .raw_files import RawFiles as RawFiles

KINDS: dict[str, type[Feature]] = {
    "numeric": Numeric,
    "bucketized": Bucketized,
    "vector": Vector,
    "expression": Expression,
    "categorical": Categorical,
    "cross": Cross,
    "time": Time,
    "list": ListFeature,
    "weighted_list": WeightedList,
    "text": Text,
    "lookup": Lookup,
    "overlap": Overlap,
    "custom": Custom,
}

__all__ = [
    "KINDS",
    "Feature",
    "FeatureEmbedding",
    "Features",
    "RawFiles",
    *sorted(kind.__name__ for kind in KINDS.values()),
]


def __getattr__(name: str) -> object:
    if name == "FeatureEmbedding":  # the only part that needs MindSpore
        from .feature_embedding import FeatureEmbedding

        return FeatureEmbedding
    if name == "RawFiles":
        from .raw_files import RawFiles

        return RawFiles
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
