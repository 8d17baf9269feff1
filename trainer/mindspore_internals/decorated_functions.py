"""The real parameters of decorated functions, without importing MindSpore.

Relied on:
- Decorators of MindSpore's optimizers and cells (`opt_init_args_register`, `cell_attr_register`) set no
  ``__wrapped__``, so that `inspect.signature(nn.Adam)` is ``(*args, **kwargs)``; they hold the function they wrap in
  their closure, and a wrapped constructor is called ``__init__``. Otherwise arguments in a configuration are checked by
  the docstring of the class, if at all.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def undecorated(function: Any) -> Any:
    """Return the innermost function behind `function`."""
    for _ in range(20):  # a decorator could point at itself
        inner = getattr(function, "__wrapped__", None)
        if inner is None and _tells_nothing(function):
            inner = _in_closure(function)
        if not callable(inner):
            return function
        function = inner
    return function


def names_read(function: Any) -> set[str]:
    """Return the names among a function's constants; some are its ``kwargs`` keys."""
    code = getattr(function, "__code__", None)
    return {text for text in getattr(code, "co_consts", ()) if isinstance(text, str) and text.isidentifier()}


def _tells_nothing(function: Any) -> bool:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    named = [p.name for p in parameters if p.kind not in _VARIADIC]
    return len(named) < len(parameters) and named in ([], ["self"])


def _in_closure(function: Any) -> Any:
    found = []
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # an empty cell
            if inspect.isfunction(cell.cell_contents):
                found.append(cell.cell_contents)
    constructors = [inner for inner in found if inner.__name__ == "__init__"] or found
    return constructors[0] if len(constructors) == 1 else None
