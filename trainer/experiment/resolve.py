"""A dotted path to the class or callable it names, with the nearest name where there is none."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import keyword
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import did_you_mean


class UnresolvedError(Exception):
    """A dotted path that names nothing, or whose import fails; the message says which part."""


def is_dotted(text: Any) -> bool:
    """Return whether `text` has the form of a dotted path with at least one dot."""
    if not isinstance(text, str) or "." not in text:
        return False
    return all(part.isidentifier() and not keyword.iskeyword(part) for part in text.split("."))


def resolve(class_path: str) -> Any:
    """Return what `class_path` names, importing the modules on the way.

    Raises:
        UnresolvedError: a module or attribute is missing, or its import raises.
    """
    if not is_dotted(class_path):
        raise UnresolvedError("accepts a dotted path as in mindspore.nn.Adam")
    first, *rest = class_path.split(".")
    found, so_far = _import(first), first
    if found is None:
        raise UnresolvedError(f"there is no module {first!r}{_similar_module(first)}")
    for part in rest:
        below = f"{so_far}.{part}"
        attribute = _attribute(found, part, below)
        if attribute is None and isinstance(found, ModuleType) and hasattr(found, "__path__"):
            attribute = _import(below)
        if attribute is None:
            kind = "module" if isinstance(found, ModuleType) else "class"
            raise UnresolvedError(f"{kind} {so_far!r} has no {part!r}{did_you_mean(part, _names_in(found))}")
        found, so_far = attribute, below
    return found


def _attribute(owner: Any, name: str, path: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        return None
    except Exception as error:
        raise UnresolvedError(_failed(path, error)) from error


def _import(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            return None
        raise UnresolvedError(_failed(name, error)) from error
    except (Exception, SystemExit) as error:
        raise UnresolvedError(_failed(name, error)) from error


def _failed(name: str, error: BaseException) -> str:
    return f"importing {name} failed: {type(error).__name__}: {error}"


def _names_in(owner: Any) -> list[str]:
    names = [name for name in dir(owner) if not name.startswith("_")]
    with contextlib.suppress(Exception):
        names += [module.name for module in pkgutil.iter_modules(getattr(owner, "__path__", ()))]
    return names


def _similar_module(name: str) -> str:
    # among hundreds of installed modules something is always a little similar
    found = difflib.get_close_matches(name, [module.name for module in pkgutil.iter_modules()], n=1, cutoff=0.75)
    return f"; did you mean {found[0]!r}?" if found else ""


def shadow(package: str, member: str) -> Path | None:
    """Return the file that is found in place of `package`, or None.

    Args:
        package: name of a package of ours.
        member: a file it has, by which it is recognised.
    """
    loaded = sys.modules.get(package)
    origin = getattr(loaded, "__file__", None)
    if loaded is None:
        spec = importlib.util.find_spec(package)
        origin = spec.origin if spec is not None else None
    return None if origin is None or Path(origin).with_name(member).is_file() else Path(origin)


@contextlib.contextmanager
def import_paths(first: Iterable[Path], last: Iterable[Path] = ()) -> Iterator[None]:
    """Put folders at the front and the end of ``sys.path`` for the length of the block, then take them out again."""
    known = {entry or "." for entry in sys.path}
    front = [str(folder) for folder in first if str(folder) not in known]
    back = [str(folder) for folder in last if str(folder) not in known and str(folder) not in front]
    sys.path[:0] = front
    sys.path.extend(back)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        for entry in (*front, *back):
            with contextlib.suppress(ValueError):
                sys.path.remove(entry)
