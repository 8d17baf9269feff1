"""Build JSON schemas of arguments, with descriptions from docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from .arguments import Signature

Schema = dict[str, Any]


class Untitled(GenerateJsonSchema):
    """Schema generator that gives fields no titles."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Return False."""
        return False


def when(key: str, value: str, then: Schema) -> Schema:
    """Return a schema that applies `then` to mappings whose `key` is `value`."""
    return {"if": {"properties": {key: {"const": value}}, "required": [key]}, "then": then}


def arguments_schema(
    signature: Signature, left_out: Iterable[str], described: Mapping[str, str], *, needed: bool = True
) -> Schema:
    """Return the schema of keyword arguments; see `Signature.model`."""
    model = signature.model(set(left_out), described, needed=needed)
    schema = model.model_json_schema(schema_generator=Untitled)
    schema.pop("title")
    schema.setdefault("properties", {})
    if signature.open_keywords and not signature.extra_names:  # any keyword may be valid
        del schema["additionalProperties"]
    return schema


_ARGUMENT = re.compile(r"^ {4}(\w+(?:, \w+)*)(?: \([^)]*\))?: (.*(?:\n {8}.*)*)", re.MULTILINE)


def documented(target: Any) -> Mapping[str, str]:
    """Return the descriptions of arguments or attributes in docstrings, by name."""
    texts: dict[str, str] = {}
    for described in reversed(target.__mro__[:-1] if inspect.isclass(target) else (target,)):
        text = inspect.getdoc(described) or "" if described.__doc__ else ""
        text = text.partition("Args:\n")[2] or text.partition("Attributes:\n")[2]
        for names, said in reversed(_ARGUMENT.findall(re.split(r"\n\n\S", text)[0])):  # the first entry of a name wins
            texts |= dict.fromkeys(names.split(", "), " ".join(said.split()))
    return texts
