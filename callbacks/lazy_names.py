"""Imports a package's public names on first use.

Unused names need no import time and no dependencies.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import gc
import importlib
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

# Names that earlier versions exported -> how to replace them (see docs/upgrading.md).
REMOVED_NAMES = {
    "BatchSizeFinder": "measure sizes with fit(..., batch_size=..., max_steps=...)",
    "HealthFile": "JSONLinesLogger(every=...) writes the run's numbers to a file, PrometheusMonitor serves them",
    "PredictionWriter": "write what trainer.predict(data) returns, or use `trainer predict --output FILE`",
    "ShadowScoring": "predict with one ServedModel(folder, version=...) per version, and give each a metric of "
    "trainer.metrics",
}


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause garbage collection, which takes a sixth of MindSpore's import time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def declared_imports(file: str) -> dict[str, str]:
    """Return name -> module of the imports under ``if TYPE_CHECKING:`` in a file.

    Star imports are ignored. Type checkers read these imports, and `lazy_names` executes them on first use, so each
    name is written only once.
    """
    blocks = [node for node in ast.parse(Path(file).read_bytes()).body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {
        alias.name: "." * node.level + (node.module or "")
        for node in imports
        for alias in node.names
        if alias.name != "*"
    }


def hint(name: str, names: Iterable[str]) -> str:
    """Return a hint for a missing name: its replacement, or a similar name."""
    did_you_mean = importlib.import_module("trainer.errors").did_you_mean
    return f"; it was removed: {REMOVED_NAMES[name]}" if name in REMOVED_NAMES else did_you_mean(name, names)


def _is_import(frame: types.FrameType) -> bool:
    """Return whether a frame is executing ``from package import name``.

    There, Python would replace the text of an AttributeError and lose the hint.
    """
    return frame.f_code.co_code[frame.f_lasti] == dis.opmap["IMPORT_FROM"]


def lazy_names(
    package: str, modules: Mapping[str, str], fallback: str | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's `__getattr__` and `__dir__` (PEP 562).

    Args:
        package: `__name__` of the package.
        modules: public name -> module that defines it, relative (".module") or absolute.
        fallback: module whose `__all__` has further public names; imported when a name is not in `modules`.
    """

    def getattribute(name: str) -> Any:
        module = modules.get(name)
        if module is None and fallback is not None and name[0] != "_":
            module = fallback if name in importlib.import_module(fallback, package).__all__ else None
        if module is None:
            frame = inspect.currentframe()
            caller = None if frame is None else frame.f_back
            kind = ImportError if caller is not None and _is_import(caller) else AttributeError
            # Passing `name` keeps Python from adding its own suggestion.
            raise kind(f"module {package!r} has no attribute {name!r}{hint(name, modules)}", name=name)
        with _collector_paused():
            value = getattr(importlib.import_module(module, package), name)
        setattr(sys.modules[package], name, value)
        return value

    def directory() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return getattribute, directory
