"""Build the JSON schema of experiments from the models that the loader uses."""

from __future__ import annotations

import json

from .arguments import OBJECT
from .class_paths import DOTTED
from .experiment_config import ExperimentConfig
from .schema_parts import Schema, Untitled

_OBJECT: Schema = {
    "type": "object",
    "properties": {"class_path": DOTTED, "init_args": {"type": ["object", "array", "null"]}},
    "required": ["class_path"],
    "additionalProperties": False,
}


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
    properties["extends"] = {"description": "path of a base experiment, or a list of paths", **paths}
    whole = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "An experiment of mindspore-trainer",
        "type": "object",
        "properties": properties,
        "if": {"not": {"required": ["extends"]}},
        "then": {"required": needed},
        "additionalProperties": False,
        "definitions": {"object": _OBJECT},
    }
    return json.loads(json.dumps(whole).replace(OBJECT["$ref"], "#/definitions/object"))


def _nullable(schema: Schema) -> Schema:
    if "type" not in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    # editors and validators report an error at its location if this is a list of types, but not if it is anyOf
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return {**schema, "type": [*kinds, "null"]}
