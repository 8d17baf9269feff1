"""`Feature`: maps raw columns to network inputs, with learned statistics."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from ..checks import choice, nonempty_text, whole
from ..errors import CheckpointMismatchError, ConfigurationError
from ..state import Stateful
from ..streams.formats.coercion import MISSING_NUMBER
from ..streams.formats.column import Column
from ..streams.formats.csv_format import CsvFormat
from ..streams.formats.ragged_column import Ragged

RawColumns = Mapping[str, Any]  # name -> array [N] or `Ragged`, as returned by `Schema.convert`
NO_ID = MISSING_NUMBER  # a missing integer id
PADDING = NO_ID + 1  # the id that pads lists
MIN_ID = NO_ID + 2  # the smallest valid integer id; the two smaller integers are reserved

NUMBERS, IDS = "numbers", "ids"  # names of the network's inputs
PREDICTION, SET_ASIDE = "prediction", "set_aside"  # names of columns that predictions add to the kept columns
MISSING_ROW, UNSEEN_ROW, FIRST_ROW = 0, 1, 2  # rows of tables with a vocabulary


class Kind(Enum):
    """The kind of a feature's output."""

    NUMBERS = "numbers"  # float32 [N, width]
    IDS = "ids"  # int64 [N]
    LIST = "list"  # `Ragged` of int64 ids
    WEIGHTS = "weights"  # `Ragged` of float32, one weight per id of its list


@dataclass(frozen=True, slots=True)
class Table:
    """The table in which ids are looked up.

    Attributes:
        dim: length of a vector; None: that of the `FeatureEmbedding`.
        size: number of ids if known, else None.
        options: further arguments of `trainer.embedding.Embedding` (capacity, admission, eviction...).
    """

    name: str
    dim: int | None = None
    size: int | None = None
    options: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class NumberVector:
    """Options to turn a number into a vector; see `NumberEmbedding`.

    Attributes:
        kind: "autodis" or "mlp".
        buckets: number of meta-embeddings of AutoDis, or of hidden units of the perceptron.
        temperature: temperature of AutoDis' softmax.
        skip: factor of AutoDis' skip connection around the second layer.
    """

    kind: str
    buckets: int = 16
    temperature: float = 0.1
    skip: float = 0.8


@dataclass(frozen=True, slots=True)
class Output:
    """One network input.

    Attributes:
        name: unique among all outputs.
        kind: kind of its values.
        width: number of columns, for NUMBERS.
        table: table in which ids are looked up, for IDS and LIST.
        pooling: pooling of a LIST: "mean", "sum", "sqrtn", or None for a sequence.
        weights: name of the output that holds the weights of a LIST, or None.
        vector: options to turn the number into a vector, for NUMBERS of width 2 (the number, then 1 if it is missing);
            None: it stays a number.
    """

    name: str
    kind: Kind
    width: int = 1
    table: Table | None = None
    pooling: str | None = None
    weights: str | None = None
    vector: NumberVector | None = None

    @property
    def id_table(self) -> Table:
        """The table of an output of ids."""
        assert self.table is not None
        return self.table


class Inputs(dict):
    """Network inputs by name, then labels and weights; see `Features.batch`.

    Attributes:
        kept: the columns of `Features(keep=...)` by name, if requested.
        set_aside: how many of the raw rows were set aside and why, or None.
    """

    kept: Mapping[str, Any] = MappingProxyType({})
    set_aside: str | None = None


class Statistic(Stateful):
    """Mergeable statistics that one feature learns from data."""

    def add(self, values: Any) -> None:
        """Add the values of a batch."""
        raise NotImplementedError

    def merge(self, other: Any) -> None:
        """Add the values that another statistic has seen."""
        raise NotImplementedError

    def finish(self) -> None:
        """Compute results that need all values; called before features are applied."""


@dataclass(frozen=True)
class Feature:
    """Base of all features; the constructor checks the arguments.

    Args:
        name: name of the feature, and of the raw column unless `column` is given.
        column: name of the raw column.
        required: whether a row without a value is set aside; otherwise the kind of the feature decides what a missing
            value becomes.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    learns: ClassVar[bool] = False  # whether it must learn a statistic from data
    csv_format: ClassVar[CsvFormat] = CsvFormat()  # how numbers and missing values are written within texts

    name: str
    column: str | None = None
    required: bool = False

    def __post_init__(self) -> None:
        nonempty_text(f"{type(self).__name__}(name=...)", self.name)
        nonempty_text(f"{type(self).__name__}(column=...)", self.column, optional=True)

    @property
    def source(self) -> str:
        """Name of the raw column."""
        return self.column or self.name

    def in_format(self, csv_format: CsvFormat) -> Feature:
        """Return the feature with another `csv_format`."""
        if csv_format == self.csv_format:
            return self
        feature = copy.copy(self)
        feature.__dict__["csv_format"] = csv_format
        return feature

    def raw(self) -> dict[str, Column]:
        """Return the raw columns that the feature reads."""
        raise NotImplementedError

    def outputs(self) -> list[Output]:
        """Return the feature's network inputs, in order."""
        raise NotImplementedError

    def statistic(self) -> Statistic:
        """Return a new, empty statistic; only called if the feature `learns`."""
        raise NotImplementedError

    def observed(self, raw: RawColumns) -> Any:
        """Return the values of a batch that the statistic counts."""
        raise NotImplementedError

    def apply(self, raw: RawColumns, statistic: Any) -> list[Any]:
        """Compute the arrays of `outputs`; `statistic` is None if nothing is learned."""
        raise NotImplementedError

    def id_sources(self) -> dict[str, dict[str, Any]]:
        """Return {table: kind and arguments that determine a value's id}, as JSON.

        Features with equal sources can reuse a saved table. Arguments that only decide which ids occur, such as
        `min_count`, are left out. A feature that returns an empty dict is not compared.
        """
        return {}

    def number_source(self) -> dict[str, Any] | None:
        """Return the arguments that determine the scale of the numbers, or None."""
        return None

    def declaration(self) -> dict[str, Any]:
        """Return the non-default arguments as JSON, without table training options.

        Raises:
            ConfigurationError: an argument cannot be written as JSON.
        """
        return {
            entry.name: list(value) if isinstance(value, tuple) else value
            for entry in fields(self)
            if entry.name != "options" and (value := getattr(self, entry.name)) is not entry.default
        }

    def _check_dim(self, dim: int | None) -> None:
        whole(f"{type(self).__name__}(dim=...)", dim, optional=True)


def number_column(required: bool) -> Column:
    """Return a raw column of numbers; missing values are NaN unless `required`."""
    return Column(np.float64, default=None if required else float("nan"), allow_nan=not required, coerce=True)


def time_column(required: bool, unit: str | None = None, day_first: bool | None = None) -> Column:
    """Return a raw column of times; missing values are NaN unless `required`."""
    return replace(number_column(required), times=True, time_unit=unit, day_first=day_first)


def to_float32(values: np.ndarray) -> np.ndarray:
    """Return the values as float32; values that are too large become infinite."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def text_column(required: bool) -> Column:
    """Return a raw column of text; missing values are "" unless `required`."""
    return Column(np.str_, default=None if required else "", coerce=True)


def id_column(dtype: str, required: bool) -> Column:
    """Return a raw column of ids; missing ones are "" or `NO_ID` unless `required`."""
    if dtype == "str":
        return text_column(required)
    return Column(np.int64, default=None if required else NO_ID, minimum=MIN_ID, coerce=True)


def list_column(dtype: str, required: bool = False) -> Column:
    """Return a raw column of lists; missing lists are empty unless `required`."""
    return Column(
        np.str_ if dtype == "str" else dtype,
        (None,),
        default=None if required else [],
        allow_nan=dtype == "float64",
        minimum=MIN_ID if dtype == "int64" else None,
        coerce=True,
    )


def without_marks(values: Any) -> Any:
    """Return the values of a raw column, or lists, with None for missing integer ids."""
    if isinstance(values, Ragged):
        return Ragged(without_marks(values[:].values), values.offsets)
    if values.dtype.kind != "i" or not (missing := values == NO_ID).any():
        return values
    marked = values.astype(object)
    marked[missing] = None
    return marked


def id_sources(features: Iterable[Feature]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return {table: {feature: its `Feature.id_sources`}}, as JSON."""
    sources: dict[str, dict[str, dict[str, Any]]] = {}
    for feature in features:
        for table, source in feature.id_sources().items():
            sources.setdefault(table, {})[feature.name] = source
    return sources


def check_shared_tables(features: Iterable[Feature]) -> None:
    """Check that features with a table in common give equal values equal ids.

    Raises:
        ConfigurationError: two of them differ in what decides an id, or learn a vocabulary each.
    """
    for table, sources in id_sources(features).items():
        (name, source), *others = sources.items()
        for other, declared in others:
            if declared != source or source.get("vocabulary") == "learn":
                raise ConfigurationError(
                    f"features {name!r} and {other!r} share the table {table!r}, and the same value would have another "
                    f"row in each: {name!r} is declared with {_format_source(source)}, {other!r} with "
                    f"{_format_source(declared)}. Declare both alike, without a learned vocabulary, or give each its "
                    "own table"
                )


def id_problems(
    features: Iterable[Feature], state: Mapping[str, Any], saved_name: Callable[[str], str] = str
) -> dict[str, str]:
    """Return {table: how its ids conflict with those of a saved state}.

    Args:
        features: the current features.
        state: a state of `Features.state_dict`. States of old versions, which lack id sources, cause no conflict.
        saved_name: returns the name of a table in the state.
    """
    problems: dict[str, str] = {}
    recorded = state["json"].get("ids") or {}
    for table, sources in id_sources(features).items():
        saved = recorded.get(saved_name(table)) or {}
        for name, declared in sources.items():
            if saved and declared not in saved.values():
                other = name if name in saved else next(iter(saved))
                owner = "the same feature" if other == name else f"feature {other!r}"
                problems.setdefault(
                    table,
                    f"feature {name!r} is declared with {_format_source(declared)}, and the rows of its table are of "
                    f"{owner} with {_format_source(saved[other])}: the same value would map to another row or "
                    "none. Declare it as it was, or give it its own table, under another name",
                )
    return problems


def check_numbers(features: Iterable[Feature], state: Mapping[str, Any]) -> None:
    """Raise CheckpointMismatchError if the scale of numbers differs from a state."""
    saved = state["json"].get("numbers") or {}
    for feature in features:
        declared, trained = feature.number_source(), saved.get(feature.name)
        if declared is not None and trained is not None and declared != trained:
            raise CheckpointMismatchError(
                f"the snapshot is of other features: feature {feature.name!r} is declared with "
                f"{_format_arguments(declared)}, and the network was trained on {_format_arguments(trained)}: the same "
                "value would become a different number. Declare it as before"
            )


def _format_arguments(source: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in source.items() if name != "kind")


def _format_source(source: Mapping[str, Any]) -> str:
    return _format_arguments(source) if source["kind"] == "values" else f"{source['kind']}: {_format_arguments(source)}"


def as_feature(value: Mapping[str, Any]) -> Feature:
    """Create a feature from a mapping with its "kind" and arguments."""
    from . import KINDS

    arguments = dict(value)
    kind = choice("kind", arguments.pop("kind", None), KINDS)
    for name in arguments:
        choice(f"a feature of kind {kind!r}", name, KINDS[kind].__dataclass_fields__)
    if "name" not in arguments:
        raise ConfigurationError(f"a feature of kind {kind!r} needs a name; received {dict(value)!r}")
    return KINDS[kind](**arguments)


def check_unique(what: str, names: Sequence[str]) -> None:
    """Check that names are unique and differ from the network's inputs."""
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise ConfigurationError(f"two {what}s are named {repeated[0]!r}; give each its own name")
    reserved = next((name for name in (NUMBERS, IDS) if name in names), None)
    if what == "output" and reserved is not None:
        raise ConfigurationError(f"the name {reserved!r} is that of an input of the network; choose another")
