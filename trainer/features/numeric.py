"""Numbers: scaled, bucketized, or computed from other columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from ..checks import choice, is_number, number, refuse, whole
from ..errors import ConfigurationError
from ..streams.formats.column import Column
from .feature import MISSING_ROW, Feature, Kind, NumberVector, Output, RawColumns, Table, number_column, to_float32
from .statistics import MAX_FLOAT32, Moments, Quantiles

TRANSFORMS = {
    "log1p": lambda x: np.sign(x) * np.log1p(np.abs(x)),
    "sqrt": lambda x: np.sign(x) * np.sqrt(np.abs(x)),
}
NORMALIZATIONS = ("standard", "min_max")
VECTORS = ("autodis", "mlp")


@dataclass(frozen=True)
class Numeric(Feature):
    """A number, optionally with an indicator of missing values: float32 [N, 1 or 2].

    The steps are, in this order: clip, transform, normalize, fill in missing values. A value that is not finite in
    float32 after normalization counts as missing.

    Args:
        clip: (lowest, highest) value; either may be None.
        transform: "log1p" (sign(x) log(1 + |x|)), "sqrt" (sign(x) sqrt(|x|)) or None.
        normalize: "standard" (subtract the mean, divide by the standard deviation), "min_max" (to 0..1) or None. Mean,
            deviation and range are learned from the data, after clip and transform.
        missing: replacement for a missing value, after normalization; "mean" is the learned mean.
        indicator: whether a second number is added that is 1 if the value is missing, else 0.
        embedding: "autodis" or "mlp": the network gets a vector among its fields instead of the number; missing values
            have their own vector. The number should be normalized. Options of
            `trainer.features.feature.NumberVector` are given as a mapping, such as {"kind": "autodis", "buckets": 20}.
            None: the network gets the number.
    """

    clip: tuple[float | None, float | None] | None = None
    transform: str | None = None
    normalize: str | None = None
    missing: float | str = 0.0
    indicator: bool = False
    embedding: str | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _number_vector(self.embedding)  # checks the options
        if self.embedding is not None and self.indicator:
            raise ConfigurationError("Numeric(embedding=...): missing values have their own vector; omit indicator")
        choice("Numeric(transform=...)", self.transform, TRANSFORMS, optional=True)
        choice("Numeric(normalize=...)", self.normalize, NORMALIZATIONS, optional=True)
        if self.missing != "mean":
            number(
                "Numeric(missing=...)",
                self.missing,
                minimum=-MAX_FLOAT32,
                maximum=MAX_FLOAT32,
                what='"mean" or a number',
            )
        if self.clip is not None:
            edges = self.clip if isinstance(self.clip, Sequence) and not isinstance(self.clip, str) else ()
            bounds = [None if edge is None else number("Numeric(clip=...)", edge) for edge in edges]
            known = [edge for edge in bounds if edge is not None]
            if len(bounds) != 2 or known != sorted(known) or not np.isfinite(known).any():
                refuse("Numeric(clip=...)", "(lowest, highest), one of which may be None", self.clip)
            if not np.isfinite(known).all():  # no state holds infinite numbers
                finite = [edge if edge is not None and math.isfinite(edge) else None for edge in bounds]
                object.__setattr__(self, "clip", tuple(finite))

    @property
    def learns(self) -> bool:  # type: ignore[override]
        return self.normalize is not None or self.missing == "mean"

    def raw(self) -> dict[str, Column]:
        return {self.source: number_column(self.required)}

    def outputs(self) -> list[Output]:
        return [Output(self.name, Kind.NUMBERS, 1 + self._has_indicator, vector=_number_vector(self.embedding))]

    @property
    def _has_indicator(self) -> bool:
        return self.indicator or self.embedding is not None

    def number_source(self) -> dict[str, Any]:
        clip = None if self.clip is None else list(self.clip)
        return {"clip": clip, "transform": self.transform, "normalize": self.normalize}

    def statistic(self) -> Moments:
        return Moments()

    def observed(self, raw: RawColumns) -> np.ndarray:
        """Return the clipped and transformed values, float64 [N]; missing ones are NaN."""
        return self._transformed(np.asarray(raw[self.source], np.float64))

    def _transformed(self, values: np.ndarray) -> np.ndarray:
        if self.clip is not None:
            values = np.clip(values, *self.clip)
        return values if self.transform is None else TRANSFORMS[self.transform](values)

    def apply(self, raw: RawColumns, statistic: Any) -> list[Any]:
        return [self._normalized(self.observed(raw), statistic)]

    def _normalized(self, values: np.ndarray, moments: Moments | None) -> np.ndarray:
        """Normalize transformed values [N] and fill missing ones: float32 [N, 1 or 2]."""
        fill: Any = self.missing
        if moments is not None:
            minimum = moments.minimum if moments.count else 0.0
            extent = moments.maximum - moments.minimum
            extent = extent if 0 < extent < np.inf else 1.0  # no scaling if the numbers do not vary
            if self.missing == "mean":
                fill = moments.mean
            if self.normalize == "standard":
                values = (values - moments.mean) / moments.deviation
                fill = 0.0 if self.missing == "mean" else fill
            elif self.normalize == "min_max":
                values = (values - minimum) / extent
                fill = (moments.mean - minimum) / extent if self.missing == "mean" else fill
        values = to_float32(values)
        missing = ~np.isfinite(values)
        values = np.where(missing, fill, values).astype(np.float32)
        return np.stack([values, missing.astype(np.float32)], -1) if self._has_indicator else values[:, None]


def _number_vector(embedding: Any) -> NumberVector | None:
    """Check and return the options of a number's vector; None if it has none."""
    if embedding is None:
        return None
    options = dict(embedding) if isinstance(embedding, Mapping) else {"kind": embedding}
    choice("Numeric(embedding=...)", options.get("kind"), VECTORS)
    accepted = [entry.name for entry in fields(NumberVector)]
    for name in options:
        choice(f"Numeric(embedding=...), a mapping with the options of {options['kind']!r}:", name, accepted)
    vector = NumberVector(**options)
    whole("Numeric(embedding=...) buckets", vector.buckets)
    number("Numeric(embedding=...) temperature", vector.temperature, above=0)
    number("Numeric(embedding=...) skip", vector.skip)
    return vector


@dataclass(frozen=True)
class Bucketized(Feature):
    """A number as the id of its bucket; missing values have their own bucket.

    Args:
        boundaries: ascending boundaries, or a number of buckets. A number of buckets learns the quantiles of the data,
            to a relative error of 1 %, so that all buckets hold equally many values. Bucket i holds
            boundaries[i - 1] <= x < boundaries[i].
        dim: length of a bucket's vector; None: that of the `FeatureEmbedding`.
        options: further arguments of `trainer.embedding.Embedding`; see `trainer.features.categorical.IdFeature`.
    """

    boundaries: int | Sequence[float] = 10
    dim: int | None = None
    options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_dim(self.dim)
        boundaries: Any = self.boundaries
        if isinstance(boundaries, Sequence | np.ndarray) and not isinstance(boundaries, str):
            boundaries = tuple(float(edge) if is_number(edge) else math.nan for edge in boundaries)
            if not len(boundaries) or not np.isfinite(boundaries).all() or not (np.diff(boundaries) > 0).all():
                wanted = "a number of buckets, or ascending numbers (the outer buckets are open)"
                refuse("Bucketized(boundaries=...)", wanted, self.boundaries)
        else:
            boundaries = whole("Bucketized(boundaries=...)", boundaries, 2, also=", or ascending numbers")
        object.__setattr__(self, "boundaries", boundaries)

    @property
    def learns(self) -> bool:  # type: ignore[override]
        return isinstance(self.boundaries, int)

    def raw(self) -> dict[str, Column]:
        return {self.source: number_column(self.required)}

    def outputs(self) -> list[Output]:
        count = self.boundaries if isinstance(self.boundaries, int) else len(self.boundaries) + 1
        return [Output(self.name, Kind.IDS, table=Table(self.name, self.dim, 1 + count, self.options))]

    def id_sources(self) -> dict[str, dict[str, Any]]:
        boundaries = self.boundaries if isinstance(self.boundaries, int) else list(self.boundaries)
        return {self.name: {"kind": "buckets", "boundaries": boundaries}}

    def statistic(self) -> Quantiles:
        return Quantiles()

    def observed(self, raw: RawColumns) -> np.ndarray:
        return np.asarray(raw[self.source], np.float64)

    def edges(self, statistic: Quantiles | None) -> np.ndarray:
        """Return the boundaries, float64, ascending."""
        if statistic is None:
            return np.asarray(self.boundaries)
        assert isinstance(self.boundaries, int)
        edges = statistic.values(np.arange(1, self.boundaries) / self.boundaries)
        return np.unique(edges[~np.isnan(edges)])

    def apply(self, raw: RawColumns, statistic: Any) -> list[Any]:
        """Return int64 [N]: 0 for missing, else 1 + bucket index."""
        values = self.observed(raw)
        ids = 1 + np.searchsorted(self.edges(statistic), values, side="right")
        return [np.where(np.isnan(values), MISSING_ROW, ids).astype(np.int64)]


@dataclass(frozen=True)
class Vector(Feature):
    """A fixed-length vector per row, such as a pretrained one: float32 [N, width].

    Missing values become 0.

    Args:
        width: number of values per row.
    """

    width: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("Vector(width=...)", self.width)

    def raw(self) -> dict[str, Column]:
        default = None if self.required else [float("nan")] * self.width
        return {
            self.source: Column(np.float64, (self.width,), default=default, allow_nan=not self.required, coerce=True)
        }

    def outputs(self) -> list[Output]:
        return [Output(self.name, Kind.NUMBERS, self.width)]

    def apply(self, raw: RawColumns, statistic: Any) -> list[Any]:
        return [np.nan_to_num(to_float32(np.asarray(raw[self.source])), nan=0.0, posinf=0.0, neginf=0.0)]


@dataclass(frozen=True)
class Expression(Feature):
    """A number computed from other columns: float32 [N, 1].

    Args:
        expression: arithmetic over names of raw columns: ``+ - * / ** %``, comparisons, ``and or not``, numbers, and
            the functions of `FUNCTIONS`, as in ``"log1p(price) / where(items > 0, items, 1)"``.
        missing: replacement for a result that is not finite, for example because a column is missing.
    """

    FUNCTIONS: ClassVar[Mapping[str, Any]] = {
        "abs": np.abs,
        "exp": np.exp,
        "log": np.log,
        "log1p": np.log1p,
        "sqrt": np.sqrt,
        "floor": np.floor,
        "min": np.minimum,
        "max": np.maximum,
        "where": np.where,
        "is_missing": np.isnan,
    }

    expression: str = ""
    missing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        number("Expression(missing=...)", self.missing, minimum=-MAX_FLOAT32, maximum=MAX_FLOAT32)
        if self.column is not None or self.required:
            raise ConfigurationError("Expression takes names of columns in the expression, not column= or required=")
        self.raw()  # raises if the expression cannot be parsed

    @cached_property
    def _parsed(self) -> Any:
        from .expressions import parse

        return parse(self.expression, self.FUNCTIONS)

    def raw(self) -> dict[str, Column]:
        return {name: number_column(False) for name in self._parsed.names}

    def outputs(self) -> list[Output]:
        return [Output(self.name, Kind.NUMBERS, 1)]

    def number_source(self) -> dict[str, Any]:
        return {"expression": self.expression}

    def apply(self, raw: RawColumns, statistic: Any) -> list[Any]:
        with np.errstate(all="ignore"):
            value = self._parsed.evaluate({name: np.asarray(raw[name], np.float64) for name in self._parsed.names})
        value = to_float32(np.asarray(value))
        return [np.where(np.isfinite(value), value, np.float32(self.missing))[:, None]]
