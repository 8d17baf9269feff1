"""Declared features turn raw rows into network inputs, in training and serving."""

from __future__ import annotations

from typing import TYPE_CHECKING

from callbacks.lazy_names import declared_imports, lazy_names

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

__getattr__, __dir__ = lazy_names(__name__, declared_imports(__file__))
