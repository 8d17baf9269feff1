"""Source of cells written in a notebook, where MindSpore looks for it.

A notebook gives each of its inputs the name of a file that does not exist, and keeps the text in `linecache`. MindSpore
takes the text from there when it compiles, but to name a line of a failed compilation it opens the file, and logs "Get
realpath failed" some twenty times when there is none.

Relied on: that it opens the file named by the code object. Where that changes, the lines appear again.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FunctionType

from mindspore import nn


@contextlib.contextmanager
def written_sources(cells: Iterable[nn.Cell | None]) -> Iterator[None]:
    """Write the sources of notebook inputs that define these cells or their parts; they are removed afterwards.

    Only files below the folder for temporary files, where notebooks place them, and only those that do not exist.
    """
    made: list[Path] = []
    try:
        for path in _missing_files(cells):
            with contextlib.suppress(OSError):
                if not path.parent.exists():
                    path.parent.mkdir()
                    made.append(path.parent)
                path.write_text("".join(linecache.getlines(str(path))), encoding="utf-8")
                made.append(path)
        yield
    finally:
        for path in reversed(made):
            with contextlib.suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()


_files: weakref.WeakKeyDictionary[type, frozenset[str]] = weakref.WeakKeyDictionary()


def _files_of(kind: type) -> frozenset[str]:
    """Return the names of the files that a class and its bases were written in; found once for each class."""
    files = _files.get(kind)
    if files is None:
        methods = (method for base in kind.__mro__ for method in vars(base).values())
        files = frozenset(method.__code__.co_filename for method in methods if isinstance(method, FunctionType))
        _files[kind] = files
    return files


def _missing_files(cells: Iterable[nn.Cell | None]) -> list[Path]:
    kinds = {type(part) for cell in cells if isinstance(cell, nn.Cell) for _, part in cell.cells_and_names()}
    found = set().union(*map(_files_of, kinds))
    below = tempfile.gettempdir() + os.sep  # text is compared, not paths: this runs with every verb
    missing = (name for name in sorted(found) if name.startswith(below) and not os.path.exists(name))
    return [Path(name) for name in missing if linecache.getlines(name)]
