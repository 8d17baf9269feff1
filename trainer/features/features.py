"""`Features`: the declared columns of a table, from raw rows to the inputs of a network."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from ..checks import refuse
from ..embedding.tables.hashing import to_ids
from ..errors import ConfigurationError, DataError, did_you_mean
from ..state import Stateful
from ..streams.formats.column import Column
from ..streams.formats.schema import Schema
from .feature import Feature, Kind, Output, RawColumns, Statistic, text_column, time_column
from .learned import Learned, add_sample
from .profiles import ColumnProfile, ProfileBuckets, stability_index
from .raw_rows import Rows, raw_values

logger = logging.getLogger(__name__)

NUMBERS, IDS = "numbers", "ids"
PREDICTION = "prediction"


class Inputs(dict):
    """The network's inputs by name, with labels and weights behind them: what `Features.batch` returns.

    Attributes:
        kept: the columns that are kept for output, by name, where they were asked for.
    """

    kept: Mapping[str, Any] = MappingProxyType({})


class Features(Stateful):
    """The declared columns of a table.

    The network's inputs are, in this order and where there are any: "numbers" float32 [N, M], all numbers side by side;
    "ids" int64 [N, F], a column for each category; and one ragged column for each list, by name.

    Args:
        features: `Feature` objects, or mappings of their arguments with "kind", as in YAML.
        label: name of the label column, or of several. One that a feature reads as ids gives these ids, int64, text
            hashed: what `trainer.models.InBatchSoftmax` compares.
        weight: name of the column of loss weights, or None.
        group: name of the column that ranking metrics group rows by, or None.
        event_time: name of the column with the time of an event, in seconds since the epoch or as text, or None.
        label_dtype: "float32", or "int32" for class numbers.
        keep: names of columns that predictions come with where asked, `predict(rows, keep=True)`; those that nothing
            else reads are texts.

    Raises:
        ConfigurationError: two features or outputs of one name, or columns declared in different ways.
    """

    of_model = True

    def __init__(
        self,
        features: Sequence[Feature | Mapping[str, Any]],
        *,
        label: str | Sequence[str] | None = None,
        weight: str | None = None,
        group: str | None = None,
        event_time: str | None = None,
        label_dtype: str = "float32",
        keep: Sequence[str] = (),
    ) -> None:
        if isinstance(features, Feature | Mapping) or not len(features):
            refuse("Features(features)", "a list of at least one feature", features)
        self.features = tuple(feature if isinstance(feature, Feature) else as_feature(feature) for feature in features)
        self.labels = () if label is None else (label,) if isinstance(label, str) else tuple(label)
        self.weight, self.group, self.event_time = weight, group, event_time
        self.label_dtype = np.dtype(label_dtype)
        self.keep = _names_kept(keep)
        self.outputs: tuple[Output, ...] = tuple(output for feature in self.features for output in feature.outputs())
        _check_unique("feature", [feature.name for feature in self.features])
        _check_unique("output", [output.name for output in self.outputs])
        self.columns = self._raw_columns()
        self.schema = self._schema()
        self.unlabelled_schema = Schema(self.columns)
        self.kept_schema = Schema({**{name: text_column(required=False) for name in self.keep}, **self.columns})
        self.learned = Learned(self.features, self.columns)
        self.is_fitted = not self.statistics

    # -- declaration ---------------------------------------------------------------------------------------------------

    def _raw_columns(self) -> dict[str, Column]:
        """Return the raw columns of all features; of one that several read, the strictest declaration."""
        columns: dict[str, Column] = {}
        for feature in self.features:
            for name, column in feature.raw().items():
                other = columns.get(name, column)
                if (other.dtype, other.shape) != (column.dtype, column.shape):
                    raise ConfigurationError(
                        f"feature {feature.name!r} reads column {name!r} as {column.dtype} {list(column.shape)}; "
                        f"another feature reads it as {other.dtype} {list(other.shape)}"
                    )
                strictest = column if column.default is None else other
                columns[name] = replace(strictest, times=column.times or other.times)
        return columns

    def _schema(self) -> Schema:
        columns = dict(self.columns)
        for name in self.labels:
            columns[name] = self._label_column(name)
        if self.weight is not None:
            columns[self.weight] = Column(np.float32, minimum=0, coerce=True)
        if self.group is not None:
            columns.setdefault(self.group, text_column(required=False))
        if self.event_time is not None:
            columns[self.event_time] = time_column(required=True)
        return Schema(columns, label=self.labels[0] if len(self.labels) == 1 else None, event_time=self.event_time)

    @property
    def statistics(self) -> dict[str, Statistic]:
        """What each feature that learns has learned, by its name."""
        return self.learned.statistics

    def _label_column(self, name: str) -> Column:
        """Return the column of a label; one that a feature reads as ids stays what it is."""
        column = self.columns.get(name)
        if column is None or column.shape or column.dtype.kind not in "Ui":
            return Column(self.label_dtype, coerce=True)
        return replace(column, default=None)

    def of_kind(self, kind: Kind) -> list[Output]:
        """Return the outputs of a kind, in order."""
        return [output for output in self.outputs if output.kind is kind]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the network's inputs, in order."""
        packed = [name for name, kind in ((NUMBERS, Kind.NUMBERS), (IDS, Kind.IDS)) if self.of_kind(kind)]
        return (*packed, *(output.name for output in self.outputs if output.kind in (Kind.LIST, Kind.WEIGHTS)))

    # -- rows ----------------------------------------------------------------------------------------------------------

    def read(self, data: Any, *, labelled: bool = True, kept: bool = False) -> Rows:
        """Return the raw columns of rows given as a frame, a mapping of columns, a list of mappings, or one mapping.

        Args:
            data: the rows.
            labelled: whether labels, weights and groups have to be there.
            kept: whether the columns that are kept for output are read as well.

        Raises:
            DataError: a required column is absent, or nothing that has rows.
        """
        schema = self.schema_of(labelled=labelled, kept=kept)
        values, count = raw_values(data, schema)
        absent = [name for name, column in schema.fields.items() if name not in values and column.default is None]
        if absent:
            raise DataError(
                f"the data have no column {absent[0]!r}; they have {sorted(values)}{did_you_mean(absent[0], values)}"
            )
        converted = schema.convert(values, count)
        return Rows(dict(converted.columns), count, converted.reasons)

    def fit(self, data: Any) -> None:
        """Learn what the features need, in one pass: vocabularies, means, quantiles.

        Args:
            data: raw rows as `Trainer.fit` takes them; files are read a part at a time.

        Raises:
            DataError: no rows, or a column is absent.
        """
        from .feature_data import rows_of

        count = 0
        for rows in rows_of(self, data):
            self.learn(rows.columns)
            count += rows.good
            if not self.statistics:  # only profiles are taken, from a sample
                break
        self.learning_ended(count)

    def learning_ended(self, rows: int) -> None:
        """Take note that the features have learned from `rows` rows.

        Raises:
            DataError: that is none.
        """
        if not rows:
            raise DataError("the features learned nothing: the data have no good rows")
        self.is_fitted = True
        if self.statistics:
            logger.info("features: %s learned from %d rows", ", ".join(self.statistics), rows)

    def learn(self, raw: RawColumns) -> None:
        """Add the rows of one batch to what has been learned."""
        self.learned.add(raw)

    def merge(self, other: Features) -> None:
        """Add what the same features have learned from other rows; ids that have a row of a table keep it."""
        self.learned.merge(other.learned)
        self.is_fitted = self.is_fitted or other.is_fitted

    def drift(self, data: Any, *, max_rows: int = 1 << 17) -> dict[str, float]:
        """Return how far each raw column lies from the rows that the features learned from, the farthest one first.

        The measure is the population stability index: below 0.1 a column is usually called unchanged, above 0.25
        changed. Missing values are a bucket of their own; of a list the last value counts, of a vector its mean.

        Args:
            data: raw rows as `Trainer.evaluate` takes them; labels may be absent.
            max_rows: rows that are read, the first ones; a sample of them is compared.

        Raises:
            ConfigurationError: the features have learned from no rows.
            DataError: no rows, or a column is absent.
        """
        from .feature_data import rows_of

        if not self.learned.profiled_rows:
            raise ConfigurationError(
                "features: drift compares with the rows that were learned from, and there are none yet; call "
                "features.fit, or load a snapshot of a training on raw rows"
            )
        profiles = {name: ColumnProfile(column) for name, column in self.columns.items()}
        read = 0
        for rows in rows_of(self, data, labelled=False):
            add_sample(profiles, rows.columns)
            read += rows.good
            if read >= max_rows:
                break
        if not read:
            raise DataError("drift: the data have no good rows")
        distances = {}
        for name, profile in profiles.items():
            buckets = ProfileBuckets(self.learned.profiles[name])
            distances[name] = stability_index(buckets.shares, buckets.shares_of(profile))
        return dict(sorted(distances.items(), key=lambda item: -item[1]))

    def transform(self, data: Any, *, keep: bool = False) -> Inputs:
        """Return the network's inputs for raw rows: a frame, a mapping of columns, a list of mappings, or one mapping.

        Args:
            data: the rows.
            keep: whether they come with the columns that are kept for output, as their attribute `kept`.

        Raises:
            ConfigurationError: a feature learns from the data and has not yet; or no columns are kept.
            DataError: as `read`; or a row that the declaration forbids.
        """
        if keep:
            self.check_keep()
        rows = self.read(data, labelled=False, kept=keep)
        for row, reason in rows.bad.items():
            raise DataError(f"row {row}: {reason}; every row gets an answer, so none can be set aside")
        inputs = self.apply(rows.columns)
        if keep:
            inputs.kept = {name: rows.columns[name] for name in self.keep}
        return inputs

    def check_keep(self) -> None:
        """Check that columns are kept for output.

        Raises:
            ConfigurationError: none are.
        """
        if not self.keep:
            raise ConfigurationError('keep=True: no columns are kept; name them, as Features(..., keep=["user_id"])')

    def apply(self, raw: RawColumns) -> Inputs:
        """Return the network's inputs for raw columns.

        Raises:
            ConfigurationError: a feature learns from the data and has not yet.
        """
        if not self.is_fitted:
            raise ConfigurationError(
                f"features: {', '.join(self.statistics)} learn from the data first; call features.fit, or Trainer.fit"
            )
        packed: dict[Kind, list[Any]] = {Kind.NUMBERS: [], Kind.IDS: []}
        lists: dict[str, Any] = {}
        for feature in self.features:
            arrays = feature.apply(raw, self.statistics.get(feature.name))
            for output, array in zip(feature.outputs(), arrays, strict=True):
                if output.kind in packed:
                    packed[output.kind].append(array)
                else:
                    lists[output.name] = array
        inputs = Inputs()
        if packed[Kind.NUMBERS]:
            inputs[NUMBERS] = np.concatenate(packed[Kind.NUMBERS], axis=1)
        if packed[Kind.IDS]:
            inputs[IDS] = np.stack(packed[Kind.IDS], axis=1)
        inputs.update(lists)
        return inputs

    def batch(self, raw: RawColumns) -> Inputs:
        """Return the network's inputs and, behind them, what raw columns hold of group, label and weight."""
        inputs = self.apply(raw)
        for name in self._others:
            if name in raw:
                is_text = name in self.labels and raw[name].dtype.kind == "U"
                inputs[name] = to_ids(raw[name]) if is_text else raw[name]
        return inputs

    @property
    def _others(self) -> tuple[str, ...]:
        return tuple(name for name in (self.group, *self.labels, self.weight) if name is not None)

    @property
    def batch_names(self) -> tuple[str, ...]:
        """Names of the columns that `batch` returns for labelled rows."""
        return tuple(dict.fromkeys((*self.inputs, *self._others)))

    def schema_of(self, *, labelled: bool = True, kept: bool = False) -> Schema:
        """Return what the raw columns are: with labels and the like, or without, or with those kept for output."""
        return self.kept_schema if kept else self.schema if labelled else self.unlabelled_schema

    def declaration(self) -> dict[str, Any]:
        """Return the features and the roles of other columns, as JSON.

        Raises:
            ConfigurationError: a custom function that no other process could import.
        """
        from . import KINDS

        kinds = {kind: name for name, kind in KINDS.items()}
        for feature in self.features:
            if type(feature) not in kinds:
                raise ConfigurationError(f"feature {feature.name!r} is of a kind of your own; use Custom instead")
        roles = {"label": list(self.labels), "weight": self.weight, "group": self.group, "event_time": self.event_time}
        features = [{"kind": kinds[type(feature)], **feature.declaration()} for feature in self.features]
        return {"features": features, **roles, "label_dtype": self.label_dtype.name, "keep": list(self.keep)}

    @classmethod
    def from_declaration(cls, declaration: Mapping[str, Any]) -> Features:
        """Return the features of which `declaration` is that, not fitted."""
        return cls(**{**declaration, "label": declaration["label"] or None})

    def state_dict(self) -> dict[str, Any]:
        """Return what has been learned."""
        state = self.learned.state_dict()
        return {"json": {"fitted": self.is_fitted, **state["json"]}, "arrays": state["arrays"]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned.

        Raises:
            CheckpointMismatchError: it is that of other features.
        """
        self.learned.load_state_dict(state)
        self.is_fitted = bool(state["json"]["fitted"])


def as_feature(value: Mapping[str, Any]) -> Feature:
    """Return the feature of a mapping with its "kind" and arguments.

    Raises:
        ConfigurationError: an unknown kind or argument; the nearest one is named.
    """
    from . import KINDS

    arguments = dict(value)
    kind = arguments.pop("kind", None)
    if kind not in KINDS:
        raise ConfigurationError(f"kind takes {', '.join(KINDS)}; received {kind!r}{did_you_mean(kind, KINDS)}")
    accepted = list(KINDS[kind].__dataclass_fields__)
    for name in arguments:
        if name not in accepted:
            raise ConfigurationError(
                f"a feature of kind {kind!r} takes {', '.join(accepted)}; received {name!r}"
                f"{did_you_mean(name, accepted)}"
            )
    if "name" not in arguments:
        raise ConfigurationError(f"a feature of kind {kind!r} needs a name; received {dict(value)!r}")
    return KINDS[kind](**arguments)


def _names_kept(keep: Any) -> tuple[str, ...]:
    names = (keep,) if isinstance(keep, str) else tuple(keep)
    if not all(isinstance(name, str) and name for name in names):
        refuse("Features(keep=...)", "names of columns", keep)
    for name in names:
        if name == PREDICTION:
            refuse(
                "Features(keep=...)", f"names of columns other than {PREDICTION!r}, that of the network's output", name
            )
    return names


def _check_unique(what: str, names: Sequence[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ConfigurationError(f"two {what}s are named {twice[0]!r}; give each a name of its own")
    for reserved in (NUMBERS, IDS):
        if what == "output" and reserved in names:
            raise ConfigurationError(f"the name {reserved!r} is that of an input of the network; choose another")
