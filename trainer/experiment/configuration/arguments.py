"""Build pydantic models from signatures, to check configured arguments.

The type of a parameter comes from its annotation, else from its docstring line ``name (TYPE): ...``, else from its
default value. Without any of these, every value is accepted. MindSpore hides the signatures of its optimizers behind
``(*args, **kwargs)``; `real_signature` unwraps them.

A checked value is None, bool, int, float, str, list, dict, or an `ObjectSpec` for an object that is created later.
"""

from __future__ import annotations

import collections.abc
import contextlib
import functools
import inspect
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, Union

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    WrapValidator,
    create_model,
)

from ...mindspore_internals.decorated_functions import names_read, undecorated
from .class_paths import DOTTED, UnresolvedError, resolve
from .object_spec import ObjectSpec

OBJECT = {"$ref": "https://object"}  # pydantic does not resolve URLs; `experiment_schema` replaces it
_REFERENCE = {"type": "string", "pattern": r"\$\{env:"}
_LISTS = tuple(getattr(collections.abc, name) for name in ("Sequence", "MutableSequence", "Iterable", "Collection"))
_SETS = (set, frozenset, collections.abc.Set)
_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_UNIONS = (Union, types.UnionType)
_PLAIN = (bool, int, float, str, list, dict, types.NoneType)


# -- annotations -------------------------------------------------------------------------------------------------------


def pydantic_type(annotation: Any) -> Any:
    """Return the pydantic type that checks configuration values for an annotation."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in _UNIONS:
        parts = dict.fromkeys(map(pydantic_type, arguments))
        union: Any = Union[tuple(parts)]  # noqa: UP007
        return Annotated[union, Field(union_mode="left_to_right")] if len(parts.keys() - {None}) > 1 else union
    if origin is Annotated:
        return pydantic_type(arguments[0])
    if origin is Literal:
        return Annotated[annotation, WrapValidator(_same_type)]
    if annotation is None or annotation is types.NoneType:
        return None
    kind = origin or annotation
    if not isinstance(kind, type) or kind in (object, Any) or getattr(kind, "_is_protocol", False):
        return Any  # cannot be checked
    return Annotated[_type_of_class(kind, arguments), WrapValidator(functools.partial(_object_or_plain, kind))]


def _type_of_class(kind: type, arguments: tuple[Any, ...]) -> Any:
    items: Any = tuple(item if item in (Ellipsis, []) else pydantic_type(item) for item in arguments)
    if kind in (type, collections.abc.Callable):
        title = f"the dotted path of a {'class' if kind is type else 'function'}"
        of = f" of {getattr(arguments[0], '__name__', arguments[0])}" if kind is type and arguments else ""
        named = AfterValidator(functools.partial(_named_object, kind, arguments))
        return Annotated[StrictStr, named, WithJsonSchema({**DOTTED, "title": title + of})]
    if kind is tuple:
        return tuple[items or (Any, ...)]  # type: ignore[misc]
    if kind is list or kind in (*_LISTS, *_SETS):
        return (kind if kind in (set, frozenset) else list)[items or Any]  # type: ignore[index]
    if kind in _MAPPINGS:
        return dict[items if len(items) == 2 else (Any, Any)]  # type: ignore[misc]
    if kind is Path:
        path = WithJsonSchema({"type": "string", "title": "a path"})
        return Annotated[StrictStr, AfterValidator(lambda text: Path(text)), path]
    plain = {bool: StrictBool, str: StrictStr, float: StrictFloat, complex: StrictFloat, os.PathLike: StrictStr}
    if kind in plain or issubclass(kind, int):
        return plain.get(kind, StrictInt)
    schema = {**OBJECT, "title": f"an object of {kind.__name__} (class_path and init_args)"}
    return Annotated[Any, AfterValidator(functools.partial(_instance, kind)), WithJsonSchema(schema)]


def _object_or_plain(kind: type, value: Any, validate: Callable[[Any], Any]) -> Any:
    if isinstance(value, ObjectSpec):
        return _instance(kind, value)
    if not isinstance(value, _PLAIN):
        return value  # already an object
    converted = validate(value)
    return value if isinstance(value, int | float) else converted  # 1 given for a float stays an int


def _instance(kind: type, value: Any) -> Any:
    """Return `value` if it is a `kind` or may create one, else raise ValueError."""
    with contextlib.suppress(TypeError, UnresolvedError):  # an unresolved class path is reported elsewhere
        if isinstance(value, ObjectSpec):
            target = resolve(value.class_path)
            fits = not isinstance(target, type) or issubclass(target, kind)
        else:
            fits = isinstance(value, kind)
        _require(fits)
    return value


def _named_object(kind: type, arguments: tuple[Any, ...], path: str) -> Any:
    """Return the class or callable that `path` names, else raise ValueError."""
    try:
        named = resolve(path)
    except UnresolvedError as error:
        raise ValueError(str(error)) from error
    _require(isinstance(named, type) if kind is type else callable(named))
    with contextlib.suppress(TypeError):
        _require(kind is not type or not arguments or issubclass(named, arguments[0]))
    return named


def _same_type(value: Any, validate: Callable[[Any], Any]) -> Any:
    _require(type(validate(value)) is type(value))  # otherwise True would pass as 1
    return value


def _number_or_object(value: Any) -> Any:
    _require(not isinstance(value, str | bool | dict))
    return value


def _require(fits: bool) -> None:
    if not fits:
        raise ValueError("does not fit")


# -- parameters --------------------------------------------------------------------------------------------------------

_TYPE_WORDS = {
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "null": "null",
    "object": "a mapping",
}


def describe_schema(schema: Mapping[str, Any]) -> str:
    """Describe in words what a JSON schema accepts."""
    if "title" in schema:
        return str(schema["title"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(describe_schema, schema["anyOf"])))
    if "enum" in schema or "const" in schema:
        return "one of " + ", ".join(map(repr, schema.get("enum", [schema.get("const")])))
    if schema.get("type") == "array":
        items = filter(None, schema.get("prefixItems", [schema.get("items")]))
        kinds = dict.fromkeys(map(describe_schema, items))
        return f"a list of ({', '.join(kinds)})" if kinds else "a list"
    return _TYPE_WORDS.get(schema.get("type", ""), "anything")


@dataclass(frozen=True)
class Parameter:
    """A parameter of a class or function, with the values that it accepts."""

    type: Any = Any  # pydantic type of the accepted values
    default: Any = field(default=inspect.Parameter.empty, compare=False)
    is_keyword: bool = field(default=True, compare=False)  # whether it can be passed by keyword

    @functools.cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.type)

    @functools.cached_property
    def text(self) -> str:
        """Accepted values in words, such as "a number"."""
        return describe_schema(self._adapter.json_schema())

    @property
    def takes_object(self) -> bool:
        """Whether a string with the form of a dotted path names an object."""
        schema = self._adapter.json_schema()
        parts = schema.get("anyOf", [schema])
        return any("$ref" in part for part in parts) and {"type": "string"} not in parts

    def convert(self, value: Any) -> tuple[bool, Any]:
        """Return (whether `value` fits, the converted value: a path, tuple, class, ...)."""
        try:
            return True, self._adapter.validate_python(value)
        except ValidationError:
            return False, value

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Callable[[Any], Any]) -> dict[str, Any]:
        """Return the schema of the type, extended by objects and ``${env:NAME}``.

        Any object is accepted, because the result of the function that creates it is not known yet.
        """
        schema = handler(core_schema)
        parts = schema.get("anyOf", [schema])
        if {} in parts:
            return {}
        others = [OBJECT] if {"type": "string"} in parts else [_REFERENCE, OBJECT]
        return {"anyOf": [*parts, *(other for other in others if other not in parts)]}


def _parameter(parameter: inspect.Parameter, documented: str, names: Mapping[str, Any]) -> Parameter:
    """Return a parameter with the values that it accepts.

    Args:
        documented: the TYPE in its docstring line ``name (TYPE): ...``, or "".
        names: globals for the evaluation of an annotation that is a string.
    """
    annotation, default = parameter.annotation, parameter.default
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, dict(names))
        except Exception:  # the annotation may use a name that is imported only under TYPE_CHECKING
            annotation = parameter.empty
    is_annotated = annotation is not parameter.empty
    accepts = pydantic_type(annotation) if is_annotated else _from_documentation(documented, default)
    if isinstance(default, tuple) and not is_annotated:
        accepts = Annotated[accepts, AfterValidator(lambda value: tuple(value) if isinstance(value, list) else value)]
    accepts = Optional[accepts] if default is None else accepts  # noqa: UP045
    return Parameter(accepts, default, parameter.kind is not parameter.POSITIONAL_ONLY)


_WORDS = re.compile(r"[A-Za-z_][\w.]*")
_FILLER_WORDS = {"union", "optional", "default", "numbers", "or", "number"}
_PLAIN_TYPES: dict[str, type] = {
    "int": int,
    "float": float,
    "bool": bool,
    "str": str,
    "none": types.NoneType,
    "list": list,
    "tuple": tuple,
    "dict": dict,
}


def _from_documentation(documented: str, default: Any) -> Any:
    """Return the accepted type, from the docstring or else from the default value.

    The check is strict only if the docstring names plain types alone.
    """
    kinds = re.sub(r"\[[^\[\]]*\](?=[^\[\]]*\])", "", documented)  # drop the [int] in Union[list[int], ...]
    lowered = [word.lower() for word in _WORDS.findall(kinds)]
    named = [_PLAIN_TYPES[word] for word in lowered if word in _PLAIN_TYPES] + [float] * ("number" in lowered)
    if all(word in _PLAIN_TYPES or word in _FILLER_WORDS for word in lowered) and named:
        more = [type(default)] if type(default) in _PLAIN else []
        # tuple last, so that a list stays a list if lists are accepted
        named = sorted(dict.fromkeys([*named, *more]), key=lambda kind: kind is tuple)
        return pydantic_type(Union[tuple(named)])  # noqa: UP007
    # the docstring names other types too: accept any object, but no string in place of a number
    if str in named or not isinstance(default, int | float):
        return Any
    if isinstance(default, bool):
        return pydantic_type(bool | None)
    return Annotated[Any, AfterValidator(_number_or_object), WithJsonSchema({"title": "a number"})]


# -- signatures --------------------------------------------------------------------------------------------------------

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class Signature:
    """Call signature of a class or function."""

    name: str  # name used in messages
    parameters: Mapping[str, Parameter]  # named parameters in order, without ``self``
    positional: int | None  # maximum number of positional arguments, or None if unlimited
    open_keywords: bool  # whether there are ``**kwargs``
    extra_names: frozenset[str]  # names known to be read from ``**kwargs``

    def names(self) -> list[str]:
        """Return the names of the parameters that can be passed by keyword."""
        return [name for name, p in self.parameters.items() if p.is_keyword]

    def model(
        self, excluded: Iterable[str] = (), descriptions: Mapping[str, str] | None = None, *, required: bool = True
    ) -> type[BaseModel]:
        """Return a pydantic model of the keyword arguments except `excluded`.

        Args:
            descriptions: descriptions of the arguments for the JSON schema, by name.
            required: whether arguments without a default are required.
        """
        fields: dict[str, Any] = {}
        for name in [*self.names(), *sorted(self.extra_names)]:
            parameter = self.parameters.get(name, Parameter(default=None))
            is_required = required and parameter.default is inspect.Parameter.empty
            # pydantic rejects field names such as "schema" and "_x", so the name is an alias; a default factory makes
            # the field optional without a default in the JSON schema
            rest: dict[str, Any] = {} if is_required else {"default_factory": lambda: None}
            info = Field(alias=name, description=(descriptions or {}).get(name), **rest)
            if name not in excluded:
                fields[f"argument_{name}"] = (Annotated[parameter.type, parameter], info)
        return create_model(self.name, __config__=ConfigDict(extra="forbid"), **fields)


# of a class or function that shows none, such as one written in C
UNKNOWN = Signature("a function", {}, positional=None, open_keywords=True, extra_names=frozenset())


def real_signature(target: Callable[..., Any]) -> Signature:
    """Return the signature behind the wrappers of `target`, or `UNKNOWN`."""
    function, skip = _function_of(target)
    try:
        raw = inspect.signature(function)
    except (TypeError, ValueError):
        return UNKNOWN
    named = {name: p for name, p in list(raw.parameters.items())[skip:] if p.kind not in _VARIADIC}
    kinds = {p.kind for p in raw.parameters.values()}
    positional = [p for p in named.values() if p.kind is not p.KEYWORD_ONLY]
    documented = _documented_types(target)
    open_keywords = inspect.Parameter.VAR_KEYWORD in kinds
    extra = names_read(function) | set(documented) - set(named) if open_keywords else set()
    return Signature(
        name=getattr(target, "__name__", repr(target)),
        parameters={
            name: _parameter(parameter, documented.get(name, ""), getattr(function, "__globals__", {}))
            for name, parameter in named.items()
        },
        positional=None if inspect.Parameter.VAR_POSITIONAL in kinds else len(positional),
        open_keywords=open_keywords,
        extra_names=frozenset(extra),
    )


def _function_of(target: Any) -> tuple[Any, int]:
    """Return the undecorated function, and how many leading parameters to skip."""
    if not inspect.isclass(target):
        return undecorated(target), 0
    if "__signature__" in vars(target) or not inspect.isfunction(target.__init__):
        return target, 0
    return undecorated(target.__init__), 1


_DOCUMENTED = re.compile(r"^[ \t]+(\w+) \(([^\n]*?)\)[ \t]*:", re.MULTILINE)


def _documented_types(target: Any) -> dict[str, str]:
    doc = getattr(target, "__doc__", None)
    return dict(reversed(_DOCUMENTED.findall(doc))) if isinstance(doc, str) else {}  # the first entry of a name wins
