"""Parts of the JSON schema: arguments with descriptions from docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from .arguments import Signature

Schema = dict[str, Any]


class Untitled(GenerateJsonSchema):
    """Omits the titles that pydantic makes of field names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Return False."""
        return False


def when(key: str, value: str, then: Schema) -> Schema:
    """Return the schema of a mapping in which `key` has the value."""
    return {"if": {"properties": {key: {"const": value}}, "required": [key]}, "then": then}


def arguments_schema(
    signature: Signature, left_out: Iterable[str], described: Mapping[str, str], *, needed: bool = True
) -> Schema:
    """Return the schema of keyword arguments; see `Signature.model`."""
    model = signature.model(set(left_out), described, needed=needed)
    schema = model.model_json_schema(schema_generator=Untitled)
    schema.pop("title")
    schema.setdefault("properties", {})
    if signature.open_keywords and not signature.extra_names:  # keyword names are not known
        del schema["additionalProperties"]
    return schema


_ARGUMENT = re.compile(r"^ {4}(\w+(?:, \w+)*)(?: \([^)]*\))?: (.*(?:\n {8}.*)*)", re.MULTILINE)


def documented(target: Any) -> Mapping[str, str]:
    """Return what docstrings say of each argument or attribute of a function or class."""
    texts: dict[str, str] = {}
    for described in reversed(target.__mro__[:-1] if inspect.isclass(target) else (target,)):
        text = inspect.getdoc(described) or "" if described.__doc__ else ""
        text = text.partition("Args:\n")[2] or text.partition("Attributes:\n")[2]
        for names, said in reversed(_ARGUMENT.findall(re.split(r"\n\n\S", text)[0])):  # the first of a name counts
            texts |= dict.fromkeys(names.split(", "), " ".join(said.split()))
    return texts
