"""Names of a package that are imported when first used, so that what nobody uses costs no time and no dependency."""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .argument_errors import did_you_mean


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Look for no garbage meanwhile: imports leave little, and looking takes a sixth of MindSpore's."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def lazy_names(
    package: str, homes: Mapping[str, str], before: Callable[[], None] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's `__getattr__` and `__dir__` (PEP 562).

    Args:
        package: `__name__` of the package.
        homes: public name -> module it lives in, relative (".module") or absolute.
        before: called before a name is imported for the first time.
    """

    def getattribute(name: str) -> Any:
        if name not in homes:
            # `name` keeps Python from adding a suggestion of its own to ours
            raise AttributeError(f"module {package!r} has no attribute {name!r}{did_you_mean(name, homes)}", name=name)
        if before is not None:
            before()
        with _collector_paused():
            value = getattr(importlib.import_module(homes[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    def directory() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return getattribute, directory
