"""Real signatures, and type checks of configuration values against them.

MindSpore's optimizers show ``(*args, **kwargs)``; `real_signature` unwraps them. The type of a parameter is taken from
its annotation, else from its docstring line ``name (TYPE): ...``, else from its default value; without any of these,
every value fits. Values come from a configuration: None, bool, int, float, str, list, dict, or an `ObjectSpec` that
stands for the object it will create.
"""

from __future__ import annotations

import collections.abc
import contextlib
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...checks import is_whole
from ...mindspore_internals.decorated_functions import names_read, undecorated
from .class_paths import UnresolvedError, is_dotted, resolve
from .experiment_config import ObjectSpec


@dataclass(frozen=True)
class Accepted:
    """The values that a parameter accepts."""

    text: str  # description for messages: "a number"
    fits: Callable[[Any], bool]  # whether a value is accepted
    convert: Callable[[Any], Any] = lambda value: value  # to a type that a configuration cannot express
    takes_object: bool = False  # whether a dotted string that does not fit names an object
    annotation: Any = inspect.Parameter.empty


ANYTHING = Accepted("anything", lambda value: True)


def accepted(parameter: inspect.Parameter, documented: str | None, names: Mapping[str, Any]) -> Accepted:
    """Return the values that `parameter` accepts.

    Args:
        documented: the TYPE of its docstring line ``name (TYPE): ...``, or None.
        names: globals in which an annotation given as text is evaluated.
    """
    annotation = _evaluate(parameter.annotation, names)
    if annotation is not inspect.Parameter.empty:
        return _from_annotation(annotation, parameter.default)
    types = _from_documentation(documented, parameter.default) or _from_default(parameter.default)
    return replace(types, convert=_as_tuple) if isinstance(parameter.default, tuple) else types


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _evaluate(annotation: Any, names: Mapping[str, Any]) -> Any:
    if not isinstance(annotation, str):
        return annotation
    with contextlib.suppress(Exception):  # names imported under TYPE_CHECKING
        return eval(annotation, dict(names))
    return inspect.Parameter.empty


def _from_annotation(annotation: Any, default: Any) -> Accepted:
    parts = alternatives(annotation)
    kinds = {typing.get_origin(part) or part for part in parts}
    return Accepted(
        describe(annotation),
        lambda value: (value is None and default is None) or fits(value, annotation),
        lambda value: _convert(value, annotation),
        takes_object=str not in kinds and any(is_object_type(kind) for kind in kinds),
        annotation=annotation,
    )


_WORDS = re.compile(r"[A-Za-z_][\w.]*")
_FILLERS = {"union", "optional", "default", "numbers", "or", "number"}
_SIMPLE: dict[str, type] = {
    "int": int,
    "float": float,
    "bool": bool,
    "str": str,
    "none": types.NoneType,
    "list": list,
    "tuple": list,
    "dict": dict,
}


def _from_documentation(documented: str | None, default: Any) -> Accepted | None:
    """Return the values of a documented TYPE; strict if it names plain types only."""
    if not documented:
        return None
    kinds = re.sub(r"\[[^\[\]]*\](?=[^\[\]]*\])", "", documented)  # list[int] inside Union[...]: the list counts
    words = [word.lower() for word in _WORDS.findall(kinds)]
    if "number" in words:
        words.append("float")
    named = [_SIMPLE[word] for word in words if word in _SIMPLE]
    others = [word for word in words if word not in _SIMPLE and word not in _FILLERS]
    if others:
        # objects are accepted too, but a string for a number is still an error
        return ANYTHING if str in named or isinstance(default, str) else _from_default(default)
    if not named:
        return None
    text = " or ".join(dict.fromkeys(_name(kind) for kind in named))
    return Accepted(
        text,
        lambda value: value is None or value == default or any(fits(value, kind) for kind in named),
        _as_tuple if "tuple" in words and "list" not in words else lambda value: value,
    )


def _from_default(default: Any) -> Accepted:
    if isinstance(default, bool):
        return Accepted("true or false", lambda value: value is None or isinstance(value, bool | ObjectSpec))
    if isinstance(default, int | float):
        return Accepted("a number", lambda value: not isinstance(value, str | bool | dict))
    return ANYTHING


def alternatives(annotation: Any) -> tuple[Any, ...]:
    """Return the parts of a union, or the annotation itself."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return tuple(part for arg in typing.get_args(annotation) for part in alternatives(arg))
    return (annotation,)


LISTS = (
    list,
    tuple,
    set,
    frozenset,
    collections.abc.Sequence,
    collections.abc.MutableSequence,
    collections.abc.Iterable,
    collections.abc.Collection,
    collections.abc.Set,
)
REFERENCES = (type, collections.abc.Callable)
MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


def fits(value: Any, annotation: Any) -> bool:
    """Return whether `value` fits `annotation`; an uncheckable one fits anything."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, part) for part in arguments)
    if origin is typing.Literal:
        return any(value == choice and type(value) is type(choice) for choice in arguments)
    if origin is typing.Annotated:
        return fits(value, arguments[0])
    if annotation is None or annotation is types.NoneType:
        return value is None
    if annotation is typing.Any:  # a class since Python 3.11
        return True
    kind = origin or annotation
    if not isinstance(kind, type) or kind is object or getattr(kind, "_is_protocol", False):
        return True
    if isinstance(value, ObjectSpec):
        return _makes(value, kind)
    if kind in REFERENCES:
        return is_dotted(value) and _names(value, kind, arguments)
    if kind in LISTS:
        return isinstance(value, list) and _items_fit(value, kind, arguments)
    if kind in MAPPINGS:
        of_keys, of_values = arguments if len(arguments) == 2 else (Any, Any)
        return isinstance(value, dict) and all(fits(k, of_keys) and fits(v, of_values) for k, v in value.items())
    if kind in (float, complex):
        return isinstance(value, int | float) and not isinstance(value, bool)
    if issubclass(kind, int) and kind is not bool:
        return is_whole(value)
    if kind is Path or kind.__name__ == "PathLike":
        return isinstance(value, str)
    with contextlib.suppress(TypeError):
        return isinstance(value, kind)
    return True


def _convert(value: Any, annotation: Any) -> Any:
    """Convert a fitting `value`: lists to tuples, strings to paths or classes."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        fitting = [part for part in arguments if fits(value, part)]
        return _convert(value, fitting[0]) if fitting else value
    kind = origin or annotation
    if isinstance(value, str):
        return resolve(value) if kind in REFERENCES else Path(value) if kind is Path else value
    if isinstance(value, list) and kind in LISTS and arguments:
        each = arguments if kind is tuple and Ellipsis not in arguments else arguments[:1] * len(value)
        value = [_convert(item, part) for item, part in zip(value, each, strict=False)]
    return kind(value) if isinstance(value, list) and kind in (tuple, set, frozenset) else value


def _names(path: str, kind: type, arguments: tuple[Any, ...]) -> bool:
    """Return whether `path` names a fitting class, or a callable."""
    try:
        named = resolve(path)
    except UnresolvedError:
        return False
    if kind is not type:
        return callable(named)
    with contextlib.suppress(TypeError):
        return isinstance(named, type) and (not arguments or issubclass(named, arguments[0]))
    return True


def _items_fit(values: list[Any], kind: type, arguments: tuple[Any, ...]) -> bool:
    if not arguments:
        return True
    if kind is tuple and Ellipsis not in arguments:
        return len(values) == len(arguments) and all(map(fits, values, arguments))
    return all(fits(value, arguments[0]) for value in values)


def _makes(spec: ObjectSpec, kind: type) -> bool:
    """Return whether `spec` can create a `kind`; functions may return anything."""
    try:
        target = resolve(spec.class_path)
    except UnresolvedError:
        return True  # reported with the object itself
    if not isinstance(target, type):
        return True
    with contextlib.suppress(TypeError):
        return issubclass(target, kind)
    return True


def is_object_type(kind: Any) -> bool:
    """Return whether `kind` is a class whose values can only be created as objects."""
    plain = (bool, int, float, complex, Path, types.NoneType, *LISTS, *MAPPINGS, *REFERENCES)
    return isinstance(kind, type) and kind not in plain


_NAMES: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    types.NoneType: "null",
    dict: "a mapping",
    list: "a list",
    collections.abc.Mapping: "a mapping",
}


def _name(kind: Any) -> str:
    return _NAMES.get(kind) or getattr(kind, "__name__", str(kind))


def describe(annotation: Any) -> str:
    """Describe in words what `annotation` accepts."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(describe(part) for part in arguments))
    if origin is typing.Literal:
        return "one of " + ", ".join(repr(choice) for choice in arguments)
    if annotation is None or annotation is types.NoneType:
        return "null"
    kind = origin or annotation
    if kind in REFERENCES:
        of = f" of {_name(arguments[0])}" if kind is type and arguments else ""
        return f"the dotted path of a {'class' if kind is type else 'function'}{of}"
    if kind in LISTS:
        items = dict.fromkeys(describe(argument) for argument in arguments if argument not in (Ellipsis, Any))
        return f"a list of ({', '.join(items)})" if items else "a list"
    if kind in _NAMES:
        return _NAMES[kind]
    return f"an object of {_name(kind)} (class_path and init_args)" if isinstance(kind, type) else str(annotation)


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class Signature:
    """The call signature of a class or function."""

    name: str  # its name, for messages
    parameters: Mapping[str, inspect.Parameter]  # named parameters in order, without ``self``
    positional: int | None  # maximum number of positional arguments, or None if unlimited
    open_keywords: bool  # whether it takes ``**kwargs``
    extra_names: frozenset[str]  # names it is known to read from its ``**kwargs``
    accepts: Mapping[str, Accepted]  # what each named parameter accepts

    @property
    def required(self) -> list[str]:
        """Names of the parameters without a default."""
        return [name for name, parameter in self.parameters.items() if parameter.default is parameter.empty]

    def names(self) -> list[str]:
        """Return the names of the parameters that can be passed by keyword."""
        return [name for name, p in self.parameters.items() if p.kind is not p.POSITIONAL_ONLY]


def real_signature(target: Callable[..., Any]) -> Signature | None:
    """Return the signature behind the wrappers of `target`, or None if it has none."""
    function, skip = _function_of(target)
    try:
        raw = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    named = {name: p for name, p in list(raw.parameters.items())[skip:] if p.kind not in _VARIADIC}
    kinds = {p.kind for p in raw.parameters.values()}
    positional = [p for p in named.values() if p.kind is not p.KEYWORD_ONLY]
    documented = _documented_types(target)
    open_keywords = inspect.Parameter.VAR_KEYWORD in kinds
    extra = names_read(function) | set(documented) - set(named) if open_keywords else set()
    return Signature(
        name=getattr(target, "__name__", repr(target)),
        parameters=named,
        positional=None if inspect.Parameter.VAR_POSITIONAL in kinds else len(positional),
        open_keywords=open_keywords,
        extra_names=frozenset(extra),
        accepts={
            name: accepted(parameter, documented.get(name), getattr(function, "__globals__", {}))
            for name, parameter in named.items()
        },
    )


def _function_of(target: Any) -> tuple[Any, int]:
    """Return the innermost function, and how many leading parameters to skip."""
    if not inspect.isclass(target):
        return undecorated(target), 0
    if "__signature__" in vars(target) or not inspect.isfunction(target.__init__):
        return target, 0
    return undecorated(target.__init__), 1


_DOCUMENTED = re.compile(r"^[ \t]+(\w+) \(([^\n]*?)\)[ \t]*:", re.MULTILINE)


def _documented_types(target: Any) -> dict[str, str]:
    doc = getattr(target, "__doc__", None)
    return dict(reversed(_DOCUMENTED.findall(doc))) if isinstance(doc, str) else {}  # the first of a name counts
