"""Compile programs in less time, and clean up after failed compilations.

This module relies on the following MindSpore internals:
- `compiler_modules.api` calls `gc.collect()` before each compilation, through the name `gc` of its module. If only
  MindSpore's modules are loaded, this takes 60 ms, an eighth of a small program's compile time. `gc.freeze()` would
  save most of it, but the user may have frozen objects, and finding out with `gc.get_freeze_count()` takes 27 ms.
- `compiler_modules.parser` calls `inspect.getsourcelines` through the name `inspect` of its module, for each function
  of a graph in each compilation. A small program has 85 functions; at 0.5 ms each they take a fifth of its compile
  time.
- `Parser.get_location` copies the source of each syntax node and searches it for comments, although MindSpore keeps
  the nodes of a function for the next compilation. A small program has 1,800 nodes. Together with 3,000 calls of
  `logger.debug` that log nothing, this takes another eighth.
- `Cell.compile_cache` is the set of keys of a cell's compiled programs (since 2.0), and
  `_cell_graph_executor.del_net_res` releases these programs, as `Cell.__del__` does.
- MindSpore reads `MS_OM_PATH` at each failed compilation. If it is not set, a dump `rank_0` is written to the working
  directory.
- To report the source line of a failed compilation, MindSpore opens the file named by the code object. The files of
  notebook inputs do not exist; their text is in `linecache`. If the file is missing, MindSpore logs "Get realpath
  failed" twenty times. Inputs of IPython in a terminal have names such as "<ipython-input-3-5f2a>", no paths.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import inspect
import linecache
import os
import shutil
import tempfile
import threading
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any

from mindspore import log, nn

from .cell_structure import cells_and_names
from .compiler_modules import api, parser
from .cpu_kernels import fast_max_pooling, planned_for_one_core

# Held while a program is loaded, compiled or exported. MindSpore uses global state for these operations and releases
# the GIL, so two at once fail with "The pointer[...] is null". Running a compiled program does not need the lock.
compile_lock = threading.RLock()


@contextlib.contextmanager
def compiling(cell: nn.Cell, *, for_one_core: bool = False) -> Iterator[None]:
    """Speed up the compilation of `cell` inside the block, and the compiled program.

    `for_one_core` makes sums independent of the number of cores; see `cpu_kernels.planned_for_one_core`.
    """
    with compile_lock:
        release_dropped()
        plan = planned_for_one_core() if for_one_core else contextlib.nullcontext()
        with without_garbage_collection(), with_cached_parser(), fast_max_pooling(cell), plan:
            yield


@contextlib.contextmanager
def _patched(owner: Any, name: str, original: object, replacement: object) -> Iterator[None]:
    """Replace `owner.name` if it is `original`; restore it on exit."""
    if original is None or vars(owner).get(name) is not original:  # another MindSpore version, or already patched
        yield
        return
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _copy_of_module(module: Any, **functions: Callable[..., Any]) -> SimpleNamespace:
    """Return a copy of a module with some functions replaced."""
    return SimpleNamespace(**{**vars(module), **functions})


_gc = _copy_of_module(gc, collect=lambda generation=2: 0)


def without_garbage_collection() -> contextlib.AbstractContextManager[None]:
    """Make MindSpore compile without a garbage collection."""
    return _patched(api, "gc", gc, _gc)


_source_cache: dict[tuple[str, CodeType], tuple[list[str], int]] = {}


def _source_lines(source: Callable[..., Any]) -> tuple[list[str], int]:
    """Return a function's source lines and its first line number; cached."""
    code = getattr(inspect.unwrap(source), "__code__", None)
    if not isinstance(code, CodeType):
        return inspect.getsourcelines(source)
    key = (code.co_filename, code)  # equal code objects may come from different files
    if key not in _source_cache:
        _source_cache[key] = inspect.getsourcelines(source)
    lines, first = _source_cache[key]
    return list(lines), first


_original_get_location: Any = vars(parser.Parser).get("get_location")


def _get_location(self: Any, node: Any) -> list[Any]:
    """Return the position, source and comments of a syntax node; cached in the node."""
    if not isinstance(node, ast.AST):  # None, or several nodes
        return _in_source_file(_original_get_location(self, node))
    function = (self.filename, self.line_offset)  # functions with equal sources share nodes
    cached = getattr(node, "_trainer_location", None)
    if cached is None or cached[0] != function:
        cached = function, _in_source_file(_original_get_location(self, node))
        node._trainer_location = cached  # type: ignore[attr-defined]
    return list(cached[1])


def _in_source_file(location: list[Any]) -> list[Any]:
    """Replace the name of an input by its file."""
    return [*map(_source_file, location[:1]), *location[1:]]


def _source_file(name: str) -> str:
    """Return the file of a source.

    `notebook_sources` writes that of an input in the terminal of IPython.
    """
    if not name.startswith("<ipython-input-"):
        return name
    return os.path.join(tempfile.gettempdir(), f"mindspore-trainer-{os.getpid()}", f"{name.strip('<>')}.py")


_inspect = _copy_of_module(inspect, getsourcelines=_source_lines)
_log = _copy_of_module(log, debug=lambda *message, **options: None)


@contextlib.contextmanager
def with_cached_parser() -> Iterator[None]:
    """Make MindSpore's parser look up the source of each function and node only once."""
    with (
        _patched(parser, "inspect", inspect, _inspect),
        _patched(parser.Parser, "get_location", _original_get_location, _get_location),
        contextlib.nullcontext() if log.get_level() == "0" else _patched(parser, "logger", log, _log),
    ):
        yield


def compilations_are_short() -> bool:
    """Return whether this MindSpore has all names that this module patches."""
    with without_garbage_collection(), with_cached_parser():
        replaced = api.gc is _gc and parser.inspect is _inspect
        return replaced and parser.Parser.get_location is _get_location and parser.logger in (_log, log)


_dropped: deque[nn.Cell] = deque()  # cells for `release_dropped`


def release_with_owner(owner: object, cells: Mapping[Any, nn.Cell]) -> None:
    """Have `release_dropped` release the programs of `cells` once `owner` is gone.

    The garbage collector must not release programs itself, because it may run on any thread. To release a program,
    MindSpore waits, holding the GIL, until no program runs. A running program with Python operators needs the GIL, so
    the process would deadlock.

    No cell may refer to `owner`. Cells may be added to the mapping later.
    """
    weakref.finalize(owner, lambda: _dropped.extend(cells.values())).atexit = False


def drop_programs(cells: Iterable[nn.Cell]) -> None:
    """Release the unused programs of `cells` before the next compilation."""
    _dropped.extend(cells)


def release_dropped() -> None:
    """Release dropped programs; call it on the thread that runs graphs, between runs."""
    while _dropped:
        cell = _dropped.popleft()
        if cell.compile_cache:
            api._cell_graph_executor.del_net_res(cell, cell.compile_cache)
            cell.compile_cache.clear()


def release_failed(cell: nn.Cell) -> None:
    """Release the programs of a cell, one of which has failed while it ran.

    MindSpore refuses every later call of such a program ("An error occurred in the previous step"); the next call
    compiles another one. Call it on the thread that ran the program.
    """
    with compile_lock:
        drop_programs([cell])
        release_dropped()


def count_programs(cell: nn.Cell) -> int:
    """Return the number of programs of `cell`, one per set of shapes and modes."""
    return len(getattr(cell, "compile_cache", ()))


@contextlib.contextmanager
def redirect_graph_dumps() -> Iterator[None]:
    """Write dumps of failed compilations to a temporary folder, and remove it on exit.

    Does nothing if the user has set `MS_OM_PATH`.
    """
    if "MS_OM_PATH" in os.environ:
        yield
        return
    # MindSpore creates the folder only to write a dump, so a killed run leaves none behind.
    folder = os.environ["MS_OM_PATH"] = os.path.join(tempfile.gettempdir(), f"mindspore-trainer-{uuid.uuid4().hex}")
    try:
        yield
    finally:
        os.environ.pop("MS_OM_PATH", None)
        if os.path.exists(folder):  # faster than `rmtree` of a missing folder
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def notebook_sources(cells: Iterable[nn.Cell | None]) -> Iterator[None]:
    """Write source files for notebook inputs that define `cells`; remove them on exit.

    Writes only missing files below the temporary folder, where the names of notebook inputs point, and `_source_file`
    of inputs in a terminal.
    """
    created: list[Path] = []
    try:
        for path, name in _missing_files(cells).items():
            with contextlib.suppress(OSError):
                if not path.parent.exists():
                    path.parent.mkdir()
                    created.append(path.parent)
                path.write_text("".join(linecache.getlines(name)), encoding="utf-8")
                created.append(path)
        yield
    finally:
        for path in reversed(created):
            with contextlib.suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()


_files: weakref.WeakKeyDictionary[type, frozenset[str]] = weakref.WeakKeyDictionary()


def _files_of(kind: type) -> frozenset[str]:
    """Return the files that define a class and its bases; cached per class."""
    files = _files.get(kind)
    if files is None:
        methods = (method for base in kind.__mro__ for method in vars(base).values())
        files = frozenset(method.__code__.co_filename for method in methods if isinstance(method, FunctionType))
        _files[kind] = files
    return files


def _missing_files(cells: Iterable[nn.Cell | None]) -> dict[Path, str]:
    """Return the missing source files of `cells`, with their names in `linecache`."""
    kinds = {type(part) for cell in cells if isinstance(cell, nn.Cell) for _, part in cells_and_names(cell)}
    files = set().union(*map(_files_of, kinds))
    prefix = tempfile.gettempdir() + os.sep  # text, because comparing paths is slow and every `fit` runs this
    paths = {_source_file(name): name for name in sorted(files)}
    missing = (path for path in paths if path.startswith(prefix) and not os.path.exists(path))
    return {Path(path): paths[path] for path in missing if linecache.getlines(paths[path])}
