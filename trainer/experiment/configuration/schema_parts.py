"""Build JSON schemas of arguments, with descriptions from docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from .arguments import Signature, real_signature

Schema = dict[str, Any]


class UntitledSchema(GenerateJsonSchema):
    """Schema generator that writes no titles for fields."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Return False."""
        return False


def variants_schema(key: str, variants: Mapping[str, Schema], descriptions: Mapping[str, Schema]) -> Schema:
    """Return the schema of mappings whose `key` names one of `variants`."""
    choices = []
    for name, schema in variants.items():
        chosen = {"const": name, **descriptions.get(name, {})}
        then = {**schema, "properties": {key: chosen, **schema["properties"]}}
        choices.append({"if": {"properties": {key: {"const": name}}, "required": [key]}, "then": then})
    return {"type": "object", "properties": {key: {"enum": list(variants)}}, "allOf": choices}


def arguments_schema(
    target: Any, excluded: Iterable[str] = (), signature: Signature | None = None, *, required: bool = True
) -> Schema:
    """Return the schema of the keyword arguments of `target`; see `Signature.model`."""
    signature = signature or real_signature(target)
    model = signature.model(set(excluded), argument_descriptions(target), required=required)
    schema = model.model_json_schema(schema_generator=UntitledSchema)
    schema.pop("title")
    schema.setdefault("properties", {})
    if signature.open_keywords and not signature.extra_names:  # any keyword may be valid
        del schema["additionalProperties"]
    return schema


_ARGUMENT = re.compile(r"^ {4}(\w+(?:, \w+)*)(?: \([^)]*\))?: (.*(?:\n {8}.*)*)", re.MULTILINE)


def argument_descriptions(target: Any) -> Mapping[str, str]:
    """Return the descriptions of arguments or attributes in docstrings, by name."""
    texts: dict[str, str] = {}
    for documented in reversed(target.__mro__[:-1] if inspect.isclass(target) else (target,)):
        text = inspect.getdoc(documented) or "" if documented.__doc__ else ""
        text = text.partition("Args:\n")[2] or text.partition("Attributes:\n")[2]
        entries = _ARGUMENT.findall(re.split(r"\n\n\S", text)[0])
        for names, description in reversed(entries):  # reversed, so that the first entry of a name wins
            texts |= dict.fromkeys(names.split(", "), " ".join(description.split()))
    return texts
