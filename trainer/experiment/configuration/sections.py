"""Section types of an experiment.

A section type reads the values of a section and returns its JSON schema. Each field of `ExperimentConfig` names its
section type in its annotation.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import Field, ValidationInfo, WithJsonSchema
from pydantic_core import core_schema

from ... import checks
from ...errors import ConfigurationError, did_you_mean
from ...storage.location import is_url
from .arguments import OBJECT, Parameter, Signature, real_signature
from .class_paths import DOTTED, has_reference, is_dotted, resolve, wrong_reference
from .kinds import is_metric_name, known_metrics, supplied_names
from .object_spec import ObjectSpec, Options
from .reader import Reader, recordable
from .schema_parts import Schema, arguments_schema, variants_schema

_SERVED_OUTCOMES = "trainer.streams.ServedOutcomes"
_ROW_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")
_FEATURE_ARGUMENT = re.compile(r"\w+\((\w+)=")  # start of a feature's error message


class SectionType:
    """Base class of section types.

    A section with problems is read as any value, because the loader refuses the configuration.
    """

    def read(self, reader: Reader, value: Any, path: tuple[Any, ...]) -> Any:
        """Return the value of the section at `path`; record problems in `reader`."""
        raise NotImplementedError

    def schema(self) -> Schema:
        """Return the JSON schema of the section."""
        raise NotImplementedError

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.with_info_plain_validator_function(self._validate)

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> Schema:
        return self.schema()

    def _validate(self, value: Any, info: ValidationInfo) -> Any:
        reader: Reader = cast(Any, info.context)
        return self.read(reader, value, (*reader.above, info.field_name))


@dataclass(frozen=True)
class ObjectSection(SectionType):
    """An object, written as a class path with or without arguments.

    Attributes:
        section: name of the section, from which `kind_of_section` derives the accepted kind of object.
    """

    section: str

    def read(self, reader: Reader, value: Any, path: tuple[Any, ...]) -> ObjectSpec | None:
        return reader.object(value, path, self.section)

    def schema(self) -> Schema:
        return {**DOTTED, "type": ["string", "object"], "if": {"type": "object"}, "then": OBJECT}


class NetworkSection(ObjectSection):
    """A network, written as an object or as a name in `trainer.models`."""

    def schema(self) -> Schema:
        from ... import models

        variants, papers = {}, {}
        for name, class_name in models.MODELS.items():
            target = getattr(models, class_name)
            variants[name] = arguments_schema(target, supplied_names("network", real_signature(target), features=True))
            papers[name] = {"description": (inspect.getmodule(target).__doc__ or "").partition("\n")[0]}
        named = variants_schema("model", variants, papers)
        return {"if": {"type": "object", "required": ["model"]}, "then": named, "else": super().schema()}


class RowSource(ObjectSection):
    """A dataset or stream; with declared features, also the path of raw rows."""

    def read(self, reader: Reader, value: Any, path: tuple[Any, ...]) -> ObjectSpec | None:
        named = isinstance(value, str) and (has_reference(value) or _is_row_path(value))
        if named and not reader.has_features and os.path.exists(value):
            return reader.refuse(path, "class_path and init_args; a file of raw rows needs the section features")
        if not reader.has_features or not named:
            return reader.object(value, path, self.section)
        if problem := wrong_reference(value):
            return reader.add(path, problem)
        if not has_reference(value) and not is_url(value) and not Path(value).exists():
            return reader.refuse(path, "a file or folder of raw rows that exists, or class_path and init_args")
        kind = "trainer.streams.FileStream" if path[-1] == "stream" else "trainer.features.RawFiles"
        return ObjectSpec(kind, {"path": value}, location=reader.tree.location(path), path=".".join(path))

    def schema(self) -> Schema:
        return {"type": ["string", "object", "null"], "if": {"type": "object"}, "then": OBJECT}


class StreamSource(RowSource):
    """A stream, written as a `RowSource` or as the arguments of `ServedOutcomes`."""

    def read(self, reader: Reader, value: Any, path: tuple[Any, ...]) -> ObjectSpec | None:
        if isinstance(value, dict) and "class_path" not in value and not {"served", "outcomes"}.isdisjoint(value):
            return reader.by_arguments(_SERVED_OUTCOMES, value, path)
        return super().read(reader, value, path)

    def schema(self) -> Schema:
        served = arguments_schema(resolve(_SERVED_OUTCOMES))
        return {"if": {"type": "object", "required": ["served"]}, "then": served, "else": super().schema()}


class CallbacksSection(ObjectSection):
    """A list of callbacks, each written as an object."""

    def read(self, reader: Reader, value: Any, path: tuple[Any, ...]) -> Any:
        if not isinstance(value, list):
            return reader.refuse(path, f"a list of {path[-1]}, each with class_path and init_args")
        return tuple(reader.object(item, (*path, index), self.section) for index, item in enumerate(value))

    def schema(self) -> Schema:
        return {"type": "array", "items": super().schema()}


class MetricsSection(ObjectSection):
    """A metric or a list of metrics, each written as an object or a name."""

    def read(self, reader: Reader, value: Any, path: tuple[Any, ...]) -> Any:
        if isinstance(value, dict) and "class_path" not in value:
            return reader.refuse(path, "a list of metrics, each a name, or class_path and init_args")
        if not isinstance(value, list):
            return (self._metric(reader, value, path),)
        return tuple(self._metric(reader, item, (*path, index)) for index, item in enumerate(value))

    def _metric(self, reader: Reader, value: Any, path: tuple[Any, ...]) -> str | ObjectSpec | None:
        if isinstance(value, dict) or is_dotted(value):
            return reader.object(value, path, self.section)
        if not isinstance(value, str):
            return reader.refuse(path, "the name of a metric, or class_path and init_args")
        if is_metric_name(value):
            return value
        names = known_metrics()
        return reader.refuse(path, f"{', '.join(sorted(names))}, or class_path", did_you_mean(value, names))

    def schema(self) -> Schema:
        name = {"anyOf": [{"enum": list(known_metrics())}, {"type": "string"}]}  # "click_auc" and "gauc/user" fit
        metric = {"anyOf": [name, OBJECT]}
        return {"anyOf": [metric, {"type": "array", "items": metric}]}


@dataclass(frozen=True)
class KeywordArguments(SectionType):
    """Keyword arguments of a class or a method.

    Attributes:
        target: dotted path of the class or method.
        elsewhere: arguments that other sections set, each mapped to the name of that section.
        fill_defaults: whether missing arguments are filled in with their defaults.
        shorthand: argument that a string as the whole section sets; "" if the section must be a mapping.
    """

    target: str
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    fill_defaults: bool = True
    shorthand: str = ""

    def _signature(self, section: str) -> tuple[Signature, Any]:
        target = resolve(self.target)
        signature = real_signature(inspect.unwrap(target))
        parameters = {name: p for name, p in signature.parameters.items() if name != "self"}
        return replace(signature, name=f"section {section}", parameters=parameters), target

    def read(self, reader: Reader, value: Any, path: tuple[Any, ...]) -> Options | None:
        signature, _ = self._signature(path[-1])
        if self.shorthand and isinstance(value, str):
            return Options({self.shorthand: value})
        if self.shorthand and isinstance(value, dict):
            value = {name: item for name, item in value.items() if item is not None}
        if not isinstance(value, dict):
            keys = f" with the keys {', '.join(signature.names())}" if self.shorthand else ""
            return reader.refuse(path, f"{'a path, or ' if self.shorthand else ''}a mapping{keys}")
        given = {name: f"is given elsewhere: {where}" for name, where in self.elsewhere.items()}
        options = Options(reader.arguments(value, path, signature, given))
        for name, message in out_of_range(path[-1], options).items():
            reader.add((*path, name), message)
        if self.fill_defaults:
            defaults = recordable(signature, {*given, *options})
            options.update(defaults)
            options.defaults = tuple(defaults)
        return options

    def schema(self) -> Schema:
        signature, target = self._signature("")
        schema = arguments_schema(target, self.elsewhere, signature, required=not self.fill_defaults)
        return {**schema, "type": ["string", "object"] if self.shorthand else "object"}


def out_of_range(section: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return messages for values of the right type that are out of range, by key."""
    from ...graph import precision
    from ...metrics.calibrator import Calibrator
    from ...metrics.predictions import check_activation

    problems = {}
    options = {name: value for name, value in options.items() if not has_reference(value)}

    def attempt(name: str, check: Callable[..., Any], *values: Any) -> None:
        try:
            check(*values)
        except ConfigurationError as error:
            name = next((key for key in ("amp_level", "amp_dtype") if str(error).startswith(key)), name)
            problems[name] = str(error).removeprefix(f"{name} ")

    ranges = {**_RANGES, "sink_size": _check_sink_size if section == "fit" else checks.whole}
    for name in ranges.keys() & options.keys():
        if checks.is_number(options[name]) or name == "max_time":  # the type check reports other types
            attempt(name, ranges[name], name, options[name])
    if section == "trainer":
        if isinstance(activation := options.get("prediction_activation"), str):
            attempt("prediction_activation", check_activation, "prediction_activation", activation)
        attempt("calibration", Calibrator.of, options.get("calibration"))
        level, dtype = options.get("amp_level", "O0"), options.get("amp_dtype", "float16")
        if isinstance(level, str) and isinstance(dtype, str):
            attempt("amp_level", precision.resolve, level, dtype)
    return problems


def _check_sink_size(name: str, value: Any) -> None:
    checks.steps_per_call(True, value)


_positive = functools.partial(checks.number, above=0, optional=True)
_count = functools.partial(checks.whole, optional=True)
_RANGES: dict[str, Callable[[str, Any], Any]] = {
    "epochs": _count,
    "batch_size": _count,
    "max_steps": _count,
    "gradient_accumulation_steps": _count,
    "idle_timeout": functools.partial(checks.number, minimum=0, optional=True),
    "clip_norm": _positive,
    "clip_value": _positive,
    "max_time": checks.seconds,
    "limit_train_batches": checks.batches,
    "overfit_batches": checks.batches,
    "limit_valid_batches": functools.partial(checks.batches, minimum=0),
}


_COLUMNS = Parameter(
    Annotated[
        list[Any],
        Field(min_length=1),
        WithJsonSchema({"title": "a list of features, each a mapping with its kind"}),
    ]
)


class FeaturesSection(SectionType):
    """Arguments of `Features`; the argument `features` is written as "columns"."""

    def _signature(self) -> Signature:
        from ...features import Features

        signature = real_signature(Features)
        parameters = {name: p for name, p in signature.parameters.items() if name != "features"}
        return replace(signature, name="section features", parameters={"columns": _COLUMNS, **parameters})

    def read(self, reader: Reader, value: Any, path: tuple[Any, ...]) -> dict[str, Any] | None:
        signature, before = self._signature(), len(reader.problems)
        if not isinstance(value, dict):
            return reader.refuse(path, f"a mapping with the keys {', '.join(signature.names())}")
        columns = value.get("columns")
        for index, column in enumerate(columns if isinstance(columns, list) else ()):
            self._column(reader, column, (*path, "columns", index))
        reader.arguments(value, path, signature, {})
        if len(reader.problems) == before and not has_reference(value):
            try:
                make_features(value)
            except (ConfigurationError, TypeError) as error:
                reader.add(path, str(error))
        return value

    def _column(self, reader: Reader, value: Any, path: tuple[Any, ...]) -> None:
        from ...features import KINDS
        from ...features.feature import as_feature

        if not isinstance(value, dict):
            return reader.refuse(path, "a mapping with kind and name")
        kind = value.get("kind")
        if kind not in list(KINDS):
            hint = did_you_mean(kind, KINDS) if isinstance(kind, str) else ""
            return reader.refuse((*path, "kind"), ", ".join(KINDS), hint)
        before, options = len(reader.problems), {key: item for key, item in value.items() if key != "kind"}
        reader.arguments(options, path, real_signature(KINDS[kind]), {})
        if len(reader.problems) > before or has_reference(options):
            return
        try:
            as_feature(value)
        except (ConfigurationError, TypeError) as error:
            argument = _FEATURE_ARGUMENT.match(str(error))
            if argument is None or argument[1] not in value:
                return reader.add(path, str(error))
            reader.add((*path, argument[1]), str(error), of_key=True)

    def schema(self) -> Schema:
        from ...features import KINDS, Features

        column = variants_schema("kind", {name: arguments_schema(kind) for name, kind in KINDS.items()}, {})
        schema = arguments_schema(Features, signature=self._signature())
        columns = {"type": "array", "minItems": 1, "items": {**column, "required": ["kind", "name"]}}
        return {**schema, "properties": {**schema["properties"], "columns": columns}}


def make_features(section: Mapping[str, Any]) -> Any:
    """Create the `Features` that the section `features` declares.

    Raises:
        ConfigurationError: the declaration is invalid; the message begins with the key. Or a variable of the
            environment is not set.
    """
    from ...features import KINDS, Features

    columns = [_resolved(column, KINDS.get(column.get("kind"))) for column in section["columns"]]
    options = {name: value for name, value in section.items() if name != "columns"}
    return Features(columns, **_resolved(options, Features))


def _resolved(arguments: Mapping[str, Any], target: Any) -> Mapping[str, Any]:
    """Return arguments of `target` with their references replaced."""
    from .instantiate import keyword_values

    referring = {name: value for name, value in arguments.items() if has_reference(value)}
    return {**arguments, **keyword_values(referring, target)} if referring else arguments


def _is_row_path(text: str) -> bool:
    """Return whether `text` is the path of a file or folder rather than a class path."""
    return text.lower().endswith(_ROW_SUFFIXES) or "/" in text or Path(text).is_dir()
