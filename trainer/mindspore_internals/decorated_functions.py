"""Find the functions behind MindSpore's decorators, to read their parameters.

The decorators of MindSpore's optimizers and cells (`opt_init_args_register`, `cell_attr_register`) set no
``__wrapped__``, so `inspect.signature(nn.Adam)` is ``(*args, **kwargs)``. This module relies on these decorators to
keep the wrapped function in their closure, and to wrap a constructor named ``__init__``. If this changes, arguments in
a configuration are checked only against the docstring of the class, if at all.
`opt_init_args_register` also keeps the arguments of an optimizer in its attribute `init_args`, without the parameters
and the learning rate; without it, sparse tables start with the default accumulators.

This module does not import MindSpore.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping
from typing import Any

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def undecorated(function: Any) -> Any:
    """Return the innermost function behind `function`."""
    for _ in range(20):  # bounded, because a decorator could refer to itself
        inner = getattr(function, "__wrapped__", None)
        if inner is None and _is_variadic(function):
            inner = _wrapped_in_closure(function)
        if not callable(inner):
            return function
        function = inner
    return function


def names_read(function: Any) -> set[str]:
    """Return the identifiers in a function's constants, which include keys of kwargs."""
    code = getattr(function, "__code__", None)
    return {text for text in getattr(code, "co_consts", ()) if isinstance(text, str) and text.isidentifier()}


def _is_variadic(function: Any) -> bool:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    named = [p.name for p in parameters if p.kind not in _VARIADIC]
    return len(named) < len(parameters) and named in ([], ["self"])


def _wrapped_in_closure(function: Any) -> Any:
    functions = []
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # the closure's cell is empty
            if inspect.isfunction(cell.cell_contents):
                functions.append(cell.cell_contents)
    candidates = [inner for inner in functions if inner.__name__ == "__init__"] or functions
    return candidates[0] if len(candidates) == 1 else None


def constructor_arguments(optimizer: Any) -> Mapping[str, Any]:
    """Return arguments of an `nn` optimizer by name, with defaults, where known."""
    arguments = getattr(optimizer, "init_args", None)
    return arguments if isinstance(arguments, Mapping) else {}
