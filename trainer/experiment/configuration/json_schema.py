"""Build the JSON schema of experiments from the models that the loader uses."""

from __future__ import annotations

import json

from .arguments import OBJECT
from .class_paths import DOTTED
from .experiment_config import ExperimentConfig
from .schema_parts import Schema, UntitledSchema

_OBJECT: Schema = {
    "type": "object",
    "properties": {"class_path": DOTTED, "init_args": {"type": ["object", "array", "null"]}},
    "required": ["class_path"],
    "additionalProperties": False,
}


def experiment_schema() -> Schema:
    """Return the JSON schema (draft 7) of an experiment."""
    schema = ExperimentConfig.model_json_schema(schema_generator=UntitledSchema)
    definitions = schema.pop("$defs", {})
    required = schema.pop("required")
    properties = {}
    for name, property_schema in schema["properties"].items():
        merged = {**definitions.get(property_schema.pop("$ref", "").rpartition("/")[2], {}), **property_schema}
        merged.pop("default", None)
        properties[name] = merged if name in required else _nullable(merged)
    paths = {"type": ["string", "array"], "items": {"type": "string"}}
    properties["extends"] = {"description": "path of a base experiment, or a list of paths", **paths}
    whole = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "An experiment of mindspore-trainer",
        "type": "object",
        "properties": properties,
        "if": {"not": {"required": ["extends"]}},
        "then": {"required": required},
        "additionalProperties": False,
        "definitions": {"object": _OBJECT},
    }
    return json.loads(json.dumps(whole).replace(OBJECT["$ref"], "#/definitions/object"))


def _nullable(schema: Schema) -> Schema:
    if "type" not in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    # a list of types, because editors and validators report an error inside anyOf without its location
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return {**schema, "type": [*kinds, "null"]}
