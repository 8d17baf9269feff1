"""The JSON schema of experiments, from the signatures that the loader checks."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from mindspore_trainer import home_of

from .experiment_config import DATA_KEYS, REQUIRED, SECTIONS, ExperimentConfig
from .sections import features_keys, known_metrics, section_signature, supplied_names
from .signature import LISTS, MAPPINGS, REFERENCES, Signature, alternatives, is_object_type, real_signature

Schema = dict[str, Any]

_DOTTED = {"type": "string", "pattern": r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$"}
_REFERENCE = {"type": "string", "pattern": r"\$\{env:"}
_OBJECT = {"$ref": "#/definitions/object"}
_SIMPLE: dict[Any, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    Path: {"type": "string"},
    types.NoneType: {"type": "null"},
}


def experiment_schema() -> Schema:
    """Return the JSON schema (draft 7) of an experiment."""
    sections: dict[str, Schema] = {
        "experiment": {"type": "string", "pattern": r"^[A-Za-z0-9_][\w.-]*$"},
        "seed": {"type": ["integer", "null"], "minimum": 0, "maximum": 2**32 - 1},
        "run_dir": {"type": ["string", "null"]},
        "mirror": {"type": ["string", "null"], "pattern": r"^[A-Za-z][\w+.-]*://|\$\{env:"},
        "init_from": _init_from(),
        "features": _optional(_features()),
        "network": {"if": {"type": "object", "required": ["model"]}, "then": _models(), "else": _object_or_path()},
        "metrics": _metrics(),
        "data": _optional(_data()),
        "callbacks": _optional({"type": "array", "items": _object_or_path()}),
        **{name: _optional(_keywords(name)) for name in ("trainer", "fit", "online")},
    }
    described = _documented(ExperimentConfig)
    described_sections = {name: sections.get(name) or _optional(_object_or_path()) for name in SECTIONS}
    properties = {name: {"description": described.get(name, ""), **s} for name, s in described_sections.items()}
    paths = {"type": ["string", "array"], "items": {"type": "string"}}
    properties["extends"] = {"description": "an experiment, or several, that this one changes", **paths}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "An experiment of mindspore-trainer",
        "type": "object",
        "properties": properties,
        "if": {"not": {"required": ["extends"]}},
        "then": {"required": list(REQUIRED)},
        "additionalProperties": False,
        "definitions": {"object": _object()},
    }


# -- sections ----------------------------------------------------------------------------------------------------------


def _optional(schema: Schema) -> Schema:
    # not anyOf: this way editors and validators report the error at its location
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return {**schema, "type": [*kinds, "null"]}


def _metrics() -> Schema:
    name = {"anyOf": [{"enum": list(known_metrics())}, {"type": "string"}]}  # "click_auc", "gauc/user"
    metric = {"anyOf": [name, _OBJECT]}
    return {"anyOf": [metric, {"type": "array", "items": metric}, {"type": "null"}]}


def _init_from() -> Schema:
    from ...trainer import Trainer

    signature = _signature(Trainer.init_from)
    schema = _arguments(signature, ("self",), _documented(Trainer.init_from))
    return {**schema, "type": ["string", "object", "null"], "required": ["path"]}


def _data() -> Schema:
    source = _optional({"type": ["string", "object"], "if": {"type": "object"}, "then": _OBJECT})
    return {"type": "object", "properties": dict.fromkeys(DATA_KEYS, source), "additionalProperties": False}


def _keywords(section: str) -> Schema:
    from ...trainer import Trainer

    signature, supplied = section_signature(section)
    methods = {"trainer": Trainer, "fit": Trainer.fit, "online": Trainer.online_train}
    return _arguments(signature, supplied, _documented(methods[section]), needed=False)


def _features() -> Schema:
    from ...features import KINDS, Features

    kinds = []
    for name, kind in KINDS.items():
        signature = _signature(kind)
        schema = _arguments(signature, (), _inherited(kind))
        schema["properties"] = {"kind": {"const": name}, **schema["properties"]}
        kinds.append(_when("kind", name, schema))
    column = {
        "type": "object",
        "properties": {"kind": {"enum": list(KINDS)}},
        "required": ["kind", "name"],
        "allOf": kinds,
    }
    described = _documented(Features)
    roles = _signature(Features)
    properties = {name: _argument(roles, name, described) for name in features_keys() if name in roles.parameters}
    properties["columns"] = {"type": "array", "minItems": 1, "items": column}
    return {"type": "object", "properties": properties, "required": ["columns"], "additionalProperties": False}


def _models() -> Schema:
    from ... import models

    variants = []
    for name, class_name in models.MODELS.items():
        target = getattr(models, class_name)
        signature = _signature(target)
        schema = _arguments(signature, supplied_names("network", signature, features=True), _documented(target))
        paper = (inspect.getmodule(target).__doc__ or "").partition("\n")[0]
        schema["properties"] = {"model": {"const": name, "description": paper}, **schema["properties"]}
        variants.append(_when("model", name, schema))
    return {"type": "object", "properties": {"model": {"enum": list(models.MODELS)}}, "allOf": variants}


# -- objects -----------------------------------------------------------------------------------------------------------


def _object_or_path() -> Schema:
    return {**_DOTTED, "type": ["string", "object"], "if": {"type": "object"}, "then": _OBJECT}


def _object() -> Schema:
    """Return the schema of class_path and init_args, which known classes refine."""
    from mindspore import nn

    known = []
    for path, target in known_classes():
        signature = real_signature(target)
        if signature is None:
            continue
        free = supplied_names("optimizer" if issubclass(target, nn.Optimizer) else "network", signature, features=True)
        arguments = _arguments(signature, free, _documented(target), needed=False)
        listed = {"type": "array", **({} if signature.positional is None else {"maxItems": signature.positional})}
        condition = {"init_args": {"anyOf": [arguments, listed, {"type": "null"}]}}
        known.append(_when("class_path", path, {"properties": condition}))
    return {
        "type": "object",
        "properties": {"class_path": _DOTTED, "init_args": {"type": ["object", "array", "null"]}},
        "required": ["class_path"],
        "additionalProperties": False,
        "allOf": known,
    }


def known_classes() -> Iterable[tuple[str, type]]:
    """Yield this package's classes and MindSpore's losses and optimizers by path."""
    from mindspore import nn
    from mindspore.nn.loss.loss import LossBase

    from ... import features, models, serving, streams

    callbacks, root = import_module(home_of("callbacks")), import_module(home_of("trainer"))
    for package, names in (
        (callbacks, sorted(set(dir(callbacks)) - {"Callback", "CallbackList"})),
        (root, ["Every", "Window", "Schedule"]),
        (streams, streams.__all__),
        (serving, ["Publish"]),
        (features, ["RawFiles"]),
        (models, [*models.MODELS.values(), "InBatchSoftmax"]),
    ):
        for name in names:
            target = getattr(package, name, None)
            if isinstance(target, type):
                yield f"{package.__name__}.{name}", target
    for name in dir(nn):
        target = getattr(nn, name)
        bases = (nn.Optimizer, LossBase)
        if isinstance(target, type) and issubclass(target, bases) and target not in bases:
            yield f"mindspore.nn.{name}", target


def _signature(target: Callable[..., Any]) -> Signature:
    signature = real_signature(target)
    assert signature is not None
    return signature


def _when(key: str, value: str, then: Schema) -> Schema:
    return {"if": {"properties": {key: {"const": value}}, "required": [key]}, "then": then}


def _arguments(
    signature: Signature, left_out: Iterable[str], described: Mapping[str, str], *, needed: bool = True
) -> Schema:
    names = [name for name in signature.names() if name not in set(left_out)]
    properties = {name: _argument(signature, name, described) for name in names}
    properties |= {name: {} for name in sorted(signature.extra_names) if name not in set(left_out)}
    schema: Schema = {"type": "object", "properties": properties}
    if not signature.open_keywords or signature.extra_names:  # keyword names are known
        schema["additionalProperties"] = False
    required = [name for name in signature.required if name in names]
    return {**schema, "required": required} if needed and required else schema


def _argument(signature: Signature, name: str, described: Mapping[str, str]) -> Schema:
    schema = schema_of(signature.accepts[name].annotation, signature.parameters[name].default)
    return {"description": described[name], **schema} if name in described else schema


# -- types -------------------------------------------------------------------------------------------------------------


def schema_of(annotation: Any, default: Any = inspect.Parameter.empty) -> Schema:
    """Return the schema of configuration values for a parameter annotation."""
    parts = [_part(part) for part in alternatives(annotation)]
    if {} in parts:
        return {}
    if default is None:
        parts.append({"type": "null"})
    unique = [part for index, part in enumerate(parts) if part not in parts[:index]]
    if {"type": "string"} not in unique:
        unique.append(_REFERENCE)
    if _OBJECT not in unique:
        unique.append(_OBJECT)  # a function may return anything
    return {"anyOf": unique}


def _part(annotation: Any) -> Schema:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in (inspect.Parameter.empty, typing.Any, object):
        return {}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin is typing.Annotated:
        return _part(arguments[0])
    if annotation is None:
        return {"type": "null"}
    kind = origin or annotation
    if kind in _SIMPLE:
        return dict(_SIMPLE[kind])
    if kind in REFERENCES:
        return dict(_DOTTED)
    if kind in LISTS:
        items = [part for part in arguments if part is not Ellipsis]
        return {"type": "array", "items": schema_of(items[0])} if len(set(map(str, items))) == 1 else {"type": "array"}
    if kind in MAPPINGS:
        return {"type": "object", "additionalProperties": schema_of(arguments[1]) if len(arguments) == 2 else True}
    if isinstance(kind, type) and kind.__name__ == "PathLike":
        return {"type": "string"}
    if is_object_type(kind) and not getattr(kind, "_is_protocol", False):
        return dict(_OBJECT) if not issubclass(kind, int | float | str) else {}
    return {}


_ARGUMENT = re.compile(r"^ {4}(\w+(?:, \w+)*)(?: \([^)]*\))?: (.*(?:\n {8}.*)*)", re.MULTILINE)


@functools.cache
def _documented(target: Any) -> Mapping[str, str]:
    """Return the docstring's description of each argument or attribute, by name."""
    text = inspect.getdoc(target) or ""
    text = text.partition("Args:\n")[2] or text.partition("Attributes:\n")[2]
    text = re.split(r"\n\n\S", text)[0]
    described = reversed(_ARGUMENT.findall(text))  # the first description of a name counts
    return {name: " ".join(words.split()) for names, words in described for name in names.split(", ")}


def _inherited(kind: type) -> Mapping[str, str]:
    """Return the argument descriptions of a class and its bases."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__ in sys.modules and base.__doc__ is not None and base is not object:
            texts |= _documented(base)
    return texts
