"""Build JSON schemas of arguments, with descriptions from docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from .arguments import Signature

Schema = dict[str, Any]


class UntitledSchema(GenerateJsonSchema):
    """Schema generator that writes no titles for fields."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Return False."""
        return False


def when_key_is(key: str, value: str, then: Schema) -> Schema:
    """Return a schema that applies `then` to mappings whose `key` is `value`."""
    return {"if": {"properties": {key: {"const": value}}, "required": [key]}, "then": then}


def arguments_schema(
    signature: Signature, excluded: Iterable[str], descriptions: Mapping[str, str], *, required: bool = True
) -> Schema:
    """Return the schema of keyword arguments; see `Signature.model`."""
    model = signature.model(set(excluded), descriptions, required=required)
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
