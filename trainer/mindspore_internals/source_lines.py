"""Compiling without looking the source of a function up more than once.

Relied on: `mindspore.graph._parse.parser` calls `inspect.getsourcelines` through the name `inspect` of its module, for
each function of a graph in each compilation. Finding the file and where the function ends takes half a millisecond,
and a small program has 85 functions: that is a fifth of the processor time of its compilation.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from mindspore.graph._parse import parser

_known: dict[tuple[str, CodeType], tuple[list[str], int]] = {}


class _Inspect:
    """The module `inspect`, but for `getsourcelines`, which remembers."""

    def __getattr__(self, name: str) -> Any:
        return getattr(inspect, name)

    @staticmethod
    def getsourcelines(source: Callable[..., Any]) -> tuple[list[str], int]:
        """Return the lines of a function and the number of the first, as they were when it was first asked for."""
        code = getattr(inspect.unwrap(source), "__code__", None)
        if not isinstance(code, CodeType):
            return inspect.getsourcelines(source)
        key = (code.co_filename, code)  # equal code objects may be of different files
        if key not in _known:
            _known[key] = inspect.getsourcelines(source)
        lines, first = _known[key]
        return list(lines), first


@contextlib.contextmanager
def sources_remembered() -> Iterator[None]:
    """Let MindSpore's parser find what it has found before."""
    before = parser.__dict__.get("inspect")
    if before is not inspect:  # another MindSpore, or inside such a block already
        yield
        return
    parser.inspect = _Inspect()
    try:
        yield
    finally:
        parser.inspect = before
