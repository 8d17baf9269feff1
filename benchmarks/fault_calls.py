"""Calls to the outside, counted and made to fail: files, folders, mappings, sockets, pyarrow, Redis and Kafka.

`Faults` replaces the functions through which Python code reaches the system while it is active. It counts the calls
that concern one folder (files below it), those on Unix sockets and those of the clients of brokers, by kind, and lets
those that a `Plan` names fail as the system would: a write leaves half of its bytes behind, a close has closed, and
all else did nothing.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import mmap
import os
import pathlib
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks import fault_brokers

WRITING = ("open", "write", "flush", "fsync", "rename", "make folder", *fault_brokers.REQUESTS)
ERRORS: dict[str, tuple[str, ...]] = {
    "open": ("EACCES", "EIO", "EMFILE"),
    "read": ("EIO",),
    "write": ("ENOSPC", "EIO"),
    "fsync": ("EIO", "ENOSPC"),
    "close": ("EIO",),
    "rename": ("EIO", "EACCES"),
    "remove": ("EACCES",),
    "make folder": ("ENOSPC", "EACCES"),
    "list": ("EIO", "EACCES"),
    "stat": ("EIO", "EACCES"),
    "map": ("ENOMEM",),
    "connect": ("ECONNREFUSED",),
    "send": ("ECONNRESET", "EPIPE"),
    "receive": ("ECONNRESET", "ETIMEDOUT"),
    "pyarrow open": ("EIO",),
    "pyarrow read": ("EIO",),
    **fault_brokers.ERRORS,
}


@dataclass(frozen=True)
class Plan:
    """Which calls fail.

    Attributes:
        kind: of the call, a key of `ERRORS`.
        number: which call of that kind, counted from 0.
        error: name of the error.
        lasting: whether calls of the kind go on failing so, as on a disk that stays full.
        second: the call of any kind after the first failure that fails too, counted from 0; None: none does.
    """

    kind: str
    number: int
    error: str
    lasting: bool = False
    second: int | None = None


class Faults:
    """Counts calls that concern `folder` and lets those of a plan fail.

    Attributes:
        cluster: the `MockKafka` whose answers fail too, or None.
        calls: how many there were since `arm`, by kind.
        fired: the kinds that failed since `arm`.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = os.path.realpath(folder) + os.sep
        self.cluster: Any = None
        self.calls: Counter[str] = Counter()
        self.fired: list[str] = []
        self._plan: Plan | None = None
        self._armed = False
        self._later = 0
        self._lift_requests: Callable[[], None] = lambda: None
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def arm(self, plan: Plan | None) -> Iterator[None]:
        """Count, and let the calls of `plan` fail, for a while."""
        self.calls, self.fired, self._plan, self._later = Counter(), [], plan, 0
        with contextlib.ExitStack() as requests:
            if self.cluster is not None:
                fault_brokers.requests(self.cluster)
            if plan is not None and plan.kind in fault_brokers.REQUESTS:
                failing = fault_brokers.failing_requests(self.cluster, plan.kind, plan.number, plan.error, plan.lasting)
                requests.enter_context(failing)
            self._lift_requests, self._armed = requests.close, True
            try:
                yield
            finally:
                self._armed = False
        if self.cluster is not None:
            self.calls += fault_brokers.requests(self.cluster)
            if plan is not None and plan.kind in fault_brokers.REQUESTS and self.calls[plan.kind] > plan.number:
                self.fired.append(plan.kind)

    def lift(self) -> None:
        """Let nothing fail any more."""
        self._plan = None
        self._lift_requests()

    def concerns(self, path: Any) -> bool:
        """Return whether a path or descriptor leads into the folder."""
        if not self._armed:
            return False
        if isinstance(path, int):
            with contextlib.suppress(OSError):
                return _REAL["readlink"](f"/proc/self/fd/{path}").startswith(self.folder)
            return False
        try:
            return (os.path.abspath(os.fsdecode(path)) + os.sep).startswith(self.folder)
        except TypeError:
            return False

    def hit(self, kind: str) -> OSError | None:
        """Count a call; return the error it is to fail with, or None."""
        with self._lock:
            if not self._armed:
                return None
            number, self.calls[kind] = self.calls[kind], self.calls[kind] + 1
            plan = self._plan
            if plan is None:
                return None
            name = None
            if self.fired:
                number_later, self._later = self._later, self._later + 1
                if plan.lasting and (kind == plan.kind or (plan.error == "ENOSPC" and kind == "write")):
                    name = plan.error
                elif plan.second == number_later:
                    name = ERRORS[kind][number_later % len(ERRORS[kind])]
            elif (kind, number) == (plan.kind, plan.number):
                name = plan.error
            if name is None:
                return None
            self.fired.append(kind)
        return _error(name)

    def check(self, kind: str) -> None:
        """Count a call, and raise the error it is to fail with."""
        error = self.hit(kind)
        if error is not None:
            raise error

    @contextlib.contextmanager
    def active(self) -> Iterator[Faults]:
        """Replace the functions, and put them back."""
        with contextlib.ExitStack() as stack:
            for owner, name, replacement in self._replacements():
                original = getattr(owner, name)
                own = name in vars(owner)
                setattr(owner, name, replacement)
                stack.callback(setattr if own else lambda o, n, _: delattr(o, n), owner, name, original)
            yield self

    def _replacements(self) -> Iterator[tuple[Any, str, Any]]:
        opener = self._opener(builtins.open)
        yield builtins, "open", opener
        yield io, "open", opener
        yield pathlib.Path, "open", lambda path, mode="r", *args, **named: opener(path, mode, *args, **named)
        for name, kind in _OF_PATHS.items():
            yield os, name, self._before(getattr(os, name), kind)
        for name, kind in (("read", "read"), ("fsync", "fsync"), ("ftruncate", "write"), ("fstat", "stat")):
            yield os, name, self._before(getattr(os, name), kind)
        yield os, "write", self._write(os.write)
        yield os, "close", self._close(os.close)
        yield mmap, "mmap", self._mmap()
        for name, kind in (("connect", "connect"), ("sendall", "send"), ("recv", "receive"), ("recv_into", "receive")):
            yield socket.socket, name, self._of_socket(getattr(socket.socket, name), kind)
        yield from self._of_pyarrow()
        yield from fault_brokers.replacements(self.check)

    def _before(self, function: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def failing(path: Any, *args: Any, **named: Any) -> Any:
            if self.concerns(path):
                self.check(kind)
            return function(path, *args, **named)

        return failing

    def _opener(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def failing(path: Any, mode: str = "r", *args: Any, **named: Any) -> Any:
            if not self.concerns(path):
                return function(path, mode, *args, **named)
            self.check("open")
            return _File(function(path, mode, *args, **named), self)

        return failing

    def _write(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def failing(descriptor: int, data: Any) -> int:
            error = self.hit("write") if self.concerns(descriptor) else None
            if error is not None:
                function(descriptor, data[: len(data) // 2])
                raise error
            return function(descriptor, data)

        return failing

    def _close(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def failing(descriptor: int) -> None:
            error = self.hit("close") if self.concerns(descriptor) else None
            function(descriptor)
            if error is not None:
                raise error

        return failing

    def _mmap(self) -> type:
        faults = self

        class Mapping(mmap.mmap):
            def __new__(cls, descriptor: int, *args: Any, **named: Any) -> Mapping:
                if descriptor >= 0 and faults.concerns(descriptor):
                    faults.check("map")
                return super().__new__(cls, descriptor, *args, **named)

        return Mapping

    def _of_socket(self, function: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def failing(connection: socket.socket, *args: Any) -> Any:
            if self._armed and connection.family == socket.AF_UNIX:
                self.check(kind)
            return function(connection, *args)

        return failing

    def _of_pyarrow(self) -> Iterator[tuple[Any, str, Any]]:
        import pyarrow
        import pyarrow.parquet

        faults, parquet = self, pyarrow.parquet.ParquetFile

        class File(parquet):
            def __init__(self, source: Any, *args: Any, **named: Any) -> None:
                if faults.concerns(source):
                    faults.check("pyarrow open")
                super().__init__(source, *args, **named)

            def read_row_group(self, *args: Any, **named: Any) -> Any:
                faults.check("pyarrow read")
                return super().read_row_group(*args, **named)

        yield pyarrow.parquet, "ParquetFile", File
        yield pyarrow.ipc, "open_stream", self._always(pyarrow.ipc.open_stream, "pyarrow read")

    def _always(self, function: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def failing(*args: Any, **named: Any) -> Any:
            self.check(kind)
            return function(*args, **named)

        return failing


class _File:
    """A file whose calls are counted and may fail."""

    def __init__(self, file: Any, faults: Faults) -> None:
        self._file, self._faults = file, faults

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._file, name)
        if name in ("read", "readinto", "readline", "readlines", "readall"):
            self._faults.check("read")
        elif name == "flush":
            self._faults.check("write")
        return value

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        self._faults.check("read")
        return iter(self._file)

    def write(self, data: Any) -> int:
        """Write `data`, or half of it and fail."""
        error = self._faults.hit("write")
        if error is not None:
            self._file.write(data[: len(data) // 2])
            raise error
        return self._file.write(data)

    def close(self) -> None:
        """Close, and then fail."""
        error = None if self._file.closed else self._faults.hit("close")
        self._file.close()
        if error is not None:
            raise error


_OF_PATHS = {
    "open": "open",
    "rename": "rename",
    "replace": "rename",
    "unlink": "remove",
    "remove": "remove",
    "rmdir": "remove",
    "mkdir": "make folder",
    "listdir": "list",
    "scandir": "list",
    "stat": "stat",
    "lstat": "stat",
    "utime": "stat",
}
_REAL = {"readlink": os.readlink}


def _error(name: str) -> Exception:
    if not hasattr(errno, name):
        return fault_brokers.error(name)
    number = getattr(errno, name)
    return OSError(number, f"{os.strerror(number)} (injected)")
