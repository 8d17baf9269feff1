"""`Features`: a table's declared columns; turns raw rows into network inputs."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..checks import number, refuse, whole
from ..embedding.tables.hashing import to_ids
from ..errors import CheckpointMismatchError, ConfigurationError, DataError, did_you_mean
from ..state import Stateful
from ..streams.formats.coercion import EXACT
from ..streams.formats.csv_format import CsvFormat
from ..streams.formats.schema import Schema
from .feature import (
    IDS,
    NUMBERS,
    Feature,
    Inputs,
    Kind,
    Output,
    RawColumns,
    Statistic,
    as_feature,
    check_numbers,
    check_unique,
    id_problems,
    id_sources,
    text_column,
    time_column,
    without_marks,
)
from .learned import Learned, Recent
from .lists import aligned_columns
from .raw_rows import BadRowCounter, RawTable, Rows
from .row_roles import (
    check_role_names,
    checked_classes,
    checked_keep,
    class_column,
    class_numbers,
    label_column,
    raw_columns,
    weight_column,
)

logger = logging.getLogger(__name__)


class Features(Stateful):
    """The declared columns of a table.

    The network has these inputs, in this order and if present: "numbers", float32 [N, M], all numbers concatenated;
    "ids", int64 [N, F], one column per category; and one ragged column per list, by name.

    Args:
        features: `Feature` objects, or mappings of their arguments with "kind", as in YAML.
        label: name of the label column, or a list of several. A label column that a feature reads as ids becomes these
            ids, int64 with text hashed, as `trainer.models.InBatchSoftmax` needs them.
        weight: name of the column of loss weights, or None.
        group: name of the column that ranking metrics group rows by, or None.
        event_time: name of the column with event times (numbers, timestamps or text), or None.
        event_time_unit: unit of event times that are numbers, see `Time`; None: the unit that a `Time` feature of the
            column declares, or the unit that the number of digits shows.
        event_time_day_first: whether "03/02/2024" is the third of February, see `Time`; None: as declared by a `Time`
            feature of the column.
        label_dtype: "float32", or "int32" for class numbers.
        label_classes: the possible values of a label, text or numbers, such as ["no", "yes"]. The label becomes the
            index of its class: 0 or 1 in `label_dtype` if there are two (float32 for `nn.BCEWithLogitsLoss`), or int32
            if there are more, for `nn.CrossEntropyLoss`. Rows with another value are set aside. Predictions name them.
        keep: names of columns that `predict(rows, keep=True)` returns with the predictions. A column that nothing else
            reads is returned as text, or as numbers or booleans if the rows have such values; missing values are None.
        update_every: number of stream rows after which the learned vocabularies, means and quantiles are updated, at
            the start of the next batch; None: `online_train` does not change them.
        csv: format of CSV files, and of numbers that are given as text, such as ``{"delimiter": ";", "decimal": ","}``;
            see `trainer.streams.formats.csv_format.CsvFormat`. It applies to all files and streams of these features.
        fitted: folder with statistics, written by `trainer features CONFIG --fit --to FOLDER`; None: the features learn
            from the first data of `fit`.
        max_bad_share: largest share of rows, 0 to 1, that may be set aside in finite data. A larger share is an error
            in `fit` and `evaluate` if more than 10 rows are bad. Streams have their own `max_bad_share`.

    Attributes:
        learned: the statistics in use.
        recent: values that `online_train` has read since the last update of `learned`.

    Raises:
        ConfigurationError: two features or outputs have the same name, or a column is declared in conflicting ways.
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
        event_time_unit: str | None = None,
        event_time_day_first: bool | None = None,
        label_dtype: str = "float32",
        label_classes: Sequence[str | float] | None = None,
        keep: Sequence[str] = (),
        update_every: int | None = None,
        max_bad_share: float = 0.5,
        csv: Mapping[str, Any] | None = None,
        fitted: str | Path | None = None,
    ) -> None:
        if isinstance(features, Feature | Mapping) or not len(features):
            refuse("Features(features)", "a list of at least one feature", features)
        self.csv = CsvFormat.of(csv)
        declared = (feature if isinstance(feature, Feature) else as_feature(feature) for feature in features)
        self.features = tuple(feature.in_format(self.csv) for feature in declared)
        self.labels = () if label is None else (label,) if isinstance(label, str) else tuple(label)
        self.weight, self.group, self.event_time = weight, group, event_time
        self.event_time_unit, self.event_time_day_first = event_time_unit, event_time_day_first
        self.label_dtype = np.dtype(label_dtype)
        self.label_classes = checked_classes(label_classes, self.labels)
        self.keep = checked_keep(keep)
        self.outputs: tuple[Output, ...] = tuple(output for feature in self.features for output in feature.outputs())
        self._outputs_of = [feature.outputs() for feature in self.features]
        check_unique("feature", [feature.name for feature in self.features])
        check_unique("output", [output.name for output in self.outputs])
        check_role_names(self._role_columns, self.inputs)
        times = time_column(True, event_time_unit, event_time_day_first)
        self.columns = raw_columns(self.features, {} if event_time is None else {event_time: times})
        shared: dict[str, Any] = {"aligned": aligned_columns(self.features), "csv": self.csv}
        self.schema = replace(self._schema(), **shared)
        self.unlabelled_schema = Schema(self.columns, **shared)
        kept_columns = {name: replace(text_column(required=False), as_given=True) for name in self.keep}
        self._kept_schemas = [
            replace(schema, columns={**kept_columns, **schema.columns})
            for schema in (self.unlabelled_schema, self.schema)
        ]
        numbers = {name for name in self.keep if name in self.columns and not self.columns[name].shape}
        self._keep_as_numbers = {name for name in numbers if self.columns[name].dtype.kind == "f"}
        self._reported: set[str] = set()  # kept columns that were reported to have rounded numbers
        self.update_every = whole("Features(update_every=...)", update_every, optional=True)
        self.max_bad_share = number("Features(max_bad_share=...)", max_bad_share, minimum=0, maximum=1, what="a share")
        self.learned = Learned(self.features, self.columns)
        self.recent = Recent()
        self.is_fitted = not self.statistics
        if fitted is not None:
            from .feature_files import load_fitted

            load_fitted(self, fitted)

    def _schema(self) -> Schema:
        columns = dict(self.columns)
        for name in self.labels:
            if self.label_classes:
                if name in columns:
                    raise ConfigurationError(
                        f"a feature reads the label {name!r}, which the network predicts; remove it"
                    )
                columns[name] = class_column(self.label_classes)
                continue
            columns[name] = label_column(self.columns.get(name), self.label_dtype)
        if self.weight is not None:
            columns[self.weight] = weight_column(self.weight, self.columns.get(self.weight))
        if self.group is not None:
            columns.setdefault(self.group, text_column(required=False))
        if self.event_time is not None:
            times = time_column(True, self.event_time_unit, self.event_time_day_first)
            columns[self.event_time] = replace(columns.get(self.event_time, times), default=None, allow_nan=False)
        label = self.labels[0] if len(self.labels) == 1 else None
        return Schema(columns, label=label, event_time=self.event_time, max_future=None)

    @property
    def statistics(self) -> dict[str, Statistic]:
        """The statistic of each feature that learns, by feature name."""
        return self.learned.statistics

    def of_kind(self, kind: Kind) -> list[Output]:
        """Return the outputs of a kind, in order."""
        return [output for output in self.outputs if output.kind is kind]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the network's inputs, in order."""
        packed = [name for name, kind in ((NUMBERS, Kind.NUMBERS), (IDS, Kind.IDS)) if self.of_kind(kind)]
        return (*packed, *(output.name for output in self.outputs if output.kind in (Kind.LIST, Kind.WEIGHTS)))

    def read(self, data: Any, *, labelled: bool = True, kept: bool = False) -> Rows:
        """Return the raw columns of a frame, a mapping of columns, or one or more rows.

        Args:
            labelled: whether labels, weights and groups are required.
            kept: whether the columns of `Features(keep=...)` are read as well.

        Raises:
            DataError: a required column is absent, or the data have no rows.
        """
        schema = self.schema_of(labelled=labelled, kept=kept)
        values, count = (data if isinstance(data, RawTable) else RawTable(data)).values(schema)
        missing = [name for name, column in schema.fields.items() if name not in values and column.default is None]
        if missing:
            raise DataError(
                f"the data have no column {missing[0]!r}; they have {sorted(values)}{did_you_mean(missing[0], values)}"
            )
        converted = schema.convert(values, count)
        return Rows(dict(converted.columns), count, converted.reasons)

    def fit(self, data: Any) -> None:
        """Learn vocabularies, means and quantiles in one pass over the data.

        Args:
            data: raw rows as `Trainer.fit` takes them; files are read in parts.

        Raises:
            DataError: there are no rows, a column is absent, or more rows are bad than `max_bad_share` allows.
        """
        from .feature_data import rows_of

        count = 0
        for rows in rows_of(self, data, bad_rows=BadRowCounter(self.max_bad_share)):
            self.learn(rows.columns)
            count += rows.good
            if not self.statistics:  # only profiles are learned, for which a sample suffices
                break
        self.finish_learning(count)

    def finish_learning(self, rows: int) -> None:
        """Mark the features as fitted to `rows` rows; raise DataError if there are none."""
        if not rows:
            raise DataError("the features learned nothing: the data have no good rows")
        self.is_fitted = True
        if self.statistics:
            logger.info("features: %s learned from %d rows", ", ".join(self.statistics), rows)

    def learn(self, raw: RawColumns) -> None:
        """Learn from the rows of one batch."""
        self.learned.add(raw)

    @property
    def learns_online(self) -> bool:
        """Whether features keep learning from streams."""
        return self.update_every is not None and bool(self.statistics)

    def copy(self) -> Features:
        """Return a copy that learns independently from here on."""
        other = copy.copy(self)
        other.learned = self.learned.copy()
        return other

    def merge(self, other: Features) -> None:
        """Merge the learned state of equal features; known ids keep their table rows."""
        self.learned.merge(other.learned)
        self.is_fitted = self.is_fitted or other.is_fitted

    def drift(self, data: Any, *, max_rows: int = 1 << 17) -> dict[str, float]:
        """Return how far each raw column has drifted since learning, largest first.

        The measure is the population stability index: below 0.1 a column is usually called unchanged, above 0.25
        changed. Missing values form their own bucket; a list is represented by its last value, a vector by its mean.

        Args:
            data: raw rows as `Trainer.evaluate` takes them; labels may be absent.
            max_rows: maximum number of rows to read, from the start; a sample of these rows is compared.

        Raises:
            ConfigurationError: the features have not learned from any rows.
            DataError: there are no rows, or a column is absent.
        """
        from .feature_data import drift_of

        return drift_of(self, data, max_rows)

    def transform(self, data: Any, *, keep: bool = False, aside: dict[int, str] | None = None) -> Inputs:
        """Convert a frame, a mapping of columns, or one or more rows to network inputs.

        Args:
            keep: whether the result also has the columns named by `Features(keep=...)`, in its attribute `kept`.
            aside: dict that receives the reason for each bad row, by row index; bad rows are then left out. None: a bad
                row is an error.

        Raises:
            ConfigurationError: a feature must learn from data first, or `Features(keep=...)` names no columns.
            DataError: as for `read`; or a row is bad and `aside` is None; or all rows are bad.
        """
        if keep:
            self.check_keep()
        rows = self.read(data, labelled=False, kept=keep)
        if rows.bad and (aside is None or not rows.good):
            row, reason = next(iter(rows.bad.items()))
            raise DataError(f"row {row}: {reason}; every row gets an answer, so none can be set aside")
        if aside is not None:
            aside.update(rows.bad)
        inputs = self.apply(rows.columns)
        if keep:
            inputs.kept = self.kept_columns(rows.columns)
        return inputs

    def kept_columns(self, raw: RawColumns) -> dict[str, Any]:
        """Return the columns of `Features(keep=...)`, with None for missing ids."""
        for name in self._keep_as_numbers - self._reported:
            if (np.abs(raw[name]) >= EXACT).any():
                self._reported.add(name)
                logger.warning(
                    "features: keep: a feature reads %r as a number, which rounds integers of 2^53 or more; keep a "
                    "copy of the column under another name",
                    name,
                )
        return {name: without_marks(raw[name]) for name in self.keep}

    def check_keep(self) -> None:
        """Raise ConfigurationError if `Features(keep=...)` names no columns."""
        if not self.keep:
            raise ConfigurationError('keep=True: no columns are kept; name them, as Features(..., keep=["user_id"])')

    def apply(self, raw: RawColumns) -> Inputs:
        """Compute the network inputs from raw columns.

        Raises:
            ConfigurationError: a feature must learn from data first.
        """
        if not self.is_fitted:
            raise ConfigurationError(
                f"features: {', '.join(self.statistics)} learn from the data first; call features.fit, or Trainer.fit"
            )
        packed: dict[Kind, list[Any]] = {Kind.NUMBERS: [], Kind.IDS: []}
        lists: dict[str, Any] = {}
        for feature, outputs in zip(self.features, self._outputs_of, strict=True):
            arrays = feature.apply(raw, self.statistics.get(feature.name))
            for output, array in zip(outputs, arrays, strict=True):
                if output.kind in packed:
                    packed[output.kind].append(array)
                else:
                    lists[output.name] = array
        inputs = Inputs()
        if numbers := packed[Kind.NUMBERS]:
            inputs[NUMBERS] = np.concatenate(numbers, axis=1)
        if ids := packed[Kind.IDS]:
            inputs[IDS] = np.stack(ids, axis=1)
        inputs.update(lists)
        return inputs

    def batch(self, raw: RawColumns) -> Inputs:
        """Compute the network inputs; append the group, labels and weight in `raw`."""
        inputs = self.apply(raw)
        for name in self._role_columns:
            if name in raw:
                if name in self.labels and self.label_classes:
                    inputs[name] = class_numbers(name, raw[name], self.label_classes, self.label_dtype)
                    continue
                is_text = name in self.labels and raw[name].dtype.kind == "U"
                inputs[name] = to_ids(raw[name]) if is_text else raw[name]
                if name == self.weight:
                    inputs[name] = np.asarray(raw[name], np.float32)
        return inputs

    @property
    def _role_columns(self) -> tuple[str, ...]:
        return tuple(name for name in (self.group, *self.labels, self.weight) if name is not None)

    @property
    def batch_names(self) -> tuple[str, ...]:
        """Names of the columns that `batch` returns for labelled rows."""
        return tuple(dict.fromkeys((*self.inputs, *self._role_columns)))

    def schema_of(self, *, labelled: bool = True, kept: bool = False) -> Schema:
        """Return the schema of the raw columns, optionally with labels and kept columns."""
        return self._kept_schemas[labelled] if kept else self.schema if labelled else self.unlabelled_schema

    def declaration(self) -> dict[str, Any]:
        """Return the features and the roles of the other columns as JSON.

        Raises:
            ConfigurationError: a feature is of a custom kind, or another process could not import its function.
        """
        from . import KINDS

        kinds = {kind: name for name, kind in KINDS.items()}
        for feature in self.features:
            if type(feature) not in kinds:
                raise ConfigurationError(f"feature {feature.name!r} is of a custom kind; use Custom instead")
        roles: dict[str, Any] = {"label": list(self.labels)}
        roles |= {name: getattr(self, name) for name in ("weight", "group", "event_time")}
        options = {name: getattr(self, name) for name in ("event_time_unit", "event_time_day_first")}
        roles |= {name: value for name, value in options.items() if value is not None}
        if self.label_classes:
            roles["label_classes"] = list(self.label_classes)
        if csv := self.csv.declaration():
            roles["csv"] = csv
        features = [{"kind": kinds[type(feature)], **feature.declaration()} for feature in self.features]
        return {"features": features, **roles, "label_dtype": self.label_dtype.name, "keep": list(self.keep)}

    @classmethod
    def from_declaration(cls, declaration: Mapping[str, Any]) -> Features:
        """Create unfitted features from a `declaration`."""
        return cls(**{**declaration, "label": declaration["label"] or None})

    def state_dict(self) -> dict[str, Any]:
        """Return the learned state, and the recent values that it does not yet include."""
        state, recent = self.published_state(), self.recent.state_dict()
        return {"json": {**state["json"], **recent["json"]}, "arrays": {**state["arrays"], **recent["arrays"]}}

    def published_state(self) -> dict[str, Any]:
        """Return the learned state in use, without recent values."""
        state = self.learned.state_dict()
        sources = {feature.name: feature.number_source() for feature in self.features}
        numbers = {name: source for name, source in sources.items() if source is not None}
        declared = {"fitted": self.is_fitted, "ids": id_sources(self.features), "numbers": numbers}
        return {"json": {**declared, **state["json"]}, "arrays": state["arrays"]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict` or `published_state`.

        Raises:
            CheckpointMismatchError: the state belongs to other features, or to features that compute other ids or
                numbers.
        """
        for problem in id_problems(self.features, state).values():
            raise CheckpointMismatchError(f"the snapshot is of other features: {problem}")
        check_numbers(self.features, state)
        learned = self.learned.copy()
        learned.load_state_dict(state)
        self.recent = Recent.from_state(state)
        self.learned = learned
        self.is_fitted = bool(state["json"]["fitted"])
