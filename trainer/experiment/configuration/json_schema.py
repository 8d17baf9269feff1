"""The JSON schema of experiments, from the models that the loader checks with."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import import_module

from .arguments import OBJECT, real_signature
from .class_paths import DOTTED
from .experiment_config import ExperimentConfig
from .kinds import supplied_names
from .schema_parts import Schema, Untitled, arguments_schema, documented, when


def experiment_schema() -> Schema:
    """Return the JSON schema (draft 7) of an experiment."""
    schema = ExperimentConfig.model_json_schema(schema_generator=Untitled)
    parts = schema.pop("$defs", {})
    needed = schema.pop("required")
    properties = {}
    for name, given in schema["properties"].items():
        part = {**parts.get(given.pop("$ref", "").rpartition("/")[2], {}), **given}
        part.pop("default", None)
        properties[name] = part if name in needed else _nullable(part)
    paths = {"type": ["string", "array"], "items": {"type": "string"}}
    properties["extends"] = {"description": "an experiment, or several, that this one changes", **paths}
    whole = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "An experiment of mindspore-trainer",
        "type": "object",
        "properties": properties,
        "if": {"not": {"required": ["extends"]}},
        "then": {"required": needed},
        "additionalProperties": False,
        "definitions": {"object": _object()},
    }
    return json.loads(json.dumps(whole).replace(OBJECT["$ref"], "#/definitions/object"))


def _nullable(schema: Schema) -> Schema:
    if "type" not in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    # not anyOf: this way editors and validators report the error at its location
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return {**schema, "type": [*kinds, "null"]}


def _object() -> Schema:
    """Return the schema of class_path and init_args, which known classes refine."""
    from mindspore import nn

    known = []
    for path, target in known_classes():
        signature = real_signature(target)
        if signature is None:
            continue
        free = supplied_names("optimizer" if issubclass(target, nn.Optimizer) else "network", signature, features=True)
        arguments = arguments_schema(signature, free, documented(target), needed=False)
        listed = {"type": "array", **({} if signature.positional is None else {"maxItems": signature.positional})}
        condition = {"init_args": {"anyOf": [arguments, listed, {"type": "null"}]}}
        known.append(when("class_path", path, {"properties": condition}))
    return {
        "type": "object",
        "properties": {"class_path": DOTTED, "init_args": {"type": ["object", "array", "null"]}},
        "required": ["class_path"],
        "additionalProperties": False,
        "allOf": known,
    }


def known_classes() -> Iterable[tuple[str, type]]:
    """Yield this package's classes and MindSpore's losses and optimizers by path."""
    from mindspore import nn
    from mindspore.nn.loss.loss import LossBase

    from ... import features, models, serving, streams

    callbacks, root = import_module("callbacks"), import_module("trainer")
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
