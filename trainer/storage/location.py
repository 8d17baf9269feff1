"""`Location`: a folder in an object store, addressed by URL.

The implementation uses PyArrow's file systems. PyArrow is already used for Parquet and Arrow, supports S3, Google Cloud
Storage, Azure and HDFS without further packages, and transfers bytes without holding the GIL. `fsspec` with `s3fs`
would add eleven packages and a thread with an event loop. If `fsspec` is installed, URLs such as ``fsspec+memory://``
work too.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import re
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoint import durable
from ..checks import require
from ..errors import ConfigurationError, did_you_mean
from ..masking import mask_text

logger = logging.getLogger(__name__)

SCHEMES = ("s3", "gs", "abfs", "abfss", "hdfs", "file")
_ALIASES = ("gcs", "viewfs", "hf")
_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://(.*)", re.DOTALL)
_BUCKET_SCHEMES = ("s3", "gs", "gcs")
_BLOCK = 1 << 20
_MIN_PYARROW = 18  # minimum version of PyArrow
_TEMPORARY_ERRORS = re.compile(r"NETWORK|SLOW_DOWN|INTERNAL_FAILURE|SERVICE_UNAVAILABLE|[Tt]imed? ?out")


def is_url(value: object) -> bool:
    """Return whether a value is a store URL such as ``s3://bucket/folder``."""
    return isinstance(value, str) and _URL.match(value) is not None


@dataclass(frozen=True, slots=True)
class Entry:
    """A file in a store."""

    size: int  # bytes
    mtime_ns: int  # modification time by the store's clock


class Location:
    """A folder in an object store.

    File names are relative to the folder and use ``/`` as separator. Methods raise FileNotFoundError for a missing
    file, and OSError with a short message for any other store or network failure.

    Args:
        url: ``s3://bucket/folder``, ``gs://``, ``abfs://``, ``hdfs://`` or ``file:///folder``. To use an S3 server
            other than Amazon's, set ``AWS_ENDPOINT_URL`` or append ``?endpoint_override=HOST:PORT&scheme=http``.

    Attributes:
        url: the URL, without a trailing ``/``.

    Raises:
        ConfigurationError: the URL has an unknown scheme or contains credentials, PyArrow or its support for the scheme
            is missing, the bucket does not exist or is not readable, or the server cannot be reached.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._filesystem, self._path = _open_filesystem(url)
        # Unlike file systems, object stores have no folders and show a file only once it is complete.
        self._has_folders = self._filesystem.type_name not in ("s3", "gcs", "abfs")
        _check_bucket(self.url, self._filesystem, self._path)

    def child(self, name: str) -> Location:
        """Return the subfolder `name`."""
        return self._at_path(f"{self.display_url('')}/{name}", self._full_path(name))

    def parent(self) -> tuple[Location, str]:
        """Return the parent folder and this folder's name; the name of a bucket is ""."""
        above, _, name = self._path.rpartition("/")
        if not above:
            return self, ""
        return self._at_path(self.display_url("")[: -len(name) - 1], above), name

    def _at_path(self, url: str, path: str) -> Location:
        """Return another folder of this store; `url` must have no query."""
        moved = copy.copy(self)
        moved.url, moved._path = url + "".join(self.url.partition("?")[1:]), path
        return moved

    def _full_path(self, name: str) -> str:
        return f"{self._path}/{name}" if name else self._path

    def display_url(self, name: str) -> str:
        """Return the URL of a file, for messages."""
        return self.url.partition("?")[0] + (f"/{name}" if name else "")

    # -- reading -------------------------------------------------------------------------------------------------

    def files(self, *, recursive: bool = True) -> dict[str, Entry]:
        """List the files, recursively if `recursive`; empty if the folder does not exist."""
        import pyarrow.fs as fs

        with _short_errors(self.url):
            selector = fs.FileSelector(self._path, allow_not_found=True, recursive=recursive)
            entries = self._filesystem.get_file_info(selector)
        start = len(self._path) + 1
        return {info.path[start:]: Entry(info.size, info.mtime_ns or 0) for info in entries if info.is_file}

    def entry(self, name: str = "") -> Entry | None:
        """Return a file's `Entry`, or None if it is absent; "" is the location itself."""
        with _short_errors(self.display_url(name)):
            info = self._filesystem.get_file_info(self._full_path(name))
        return Entry(info.size, info.mtime_ns or 0) if info.is_file else None

    def exists(self) -> bool:
        """Return whether this file or folder exists."""
        with _short_errors(self.url):
            return bool(self._filesystem.get_file_info(self._path).type.name != "NotFound")

    def open(self, name: str = "") -> Any:
        """Open a file for random-access reading; "" is the location itself."""
        with _short_errors(self.display_url(name)):
            return self._filesystem.open_input_file(self._full_path(name))

    def read(self, name: str, limit: int = 1 << 26) -> bytes:
        """Return a file's content, at most `limit` bytes."""
        with _short_errors(self.display_url(name)), self._filesystem.open_input_stream(self._full_path(name)) as file:
            return bytes(file.read(limit))

    def download(self, name: str, path: Path) -> tuple[int, int]:
        """Copy a file to a new local file and sync it to disk; return size and CRC-32."""
        return durable.write_file(path, self._blocks(name))

    def _blocks(self, name: str) -> Iterator[bytes]:
        with _short_errors(self.display_url(name)), self._filesystem.open_input_stream(self._full_path(name)) as file:
            while block := file.read(_BLOCK):
                yield block

    # -- writing -------------------------------------------------------------------------------------------------

    def upload(self, path: Path, name: str) -> tuple[int, int]:
        """Copy a local file to the store; return size and CRC-32 of the bytes sent."""
        with open(path, "rb", buffering=0) as file:
            return self._send(name, iter(lambda: file.read(_BLOCK), b""))

    def write(self, name: str, content: bytes) -> None:
        """Replace a file's content atomically."""
        self._send(name, iter([content]))

    def _send(self, name: str, blocks: Iterator[bytes]) -> tuple[int, int]:
        size = crc = 0
        final = target = self._full_path(name)
        with _short_errors(self.display_url(name)):
            if self._has_folders:
                folder, _, last = final.rpartition("/")
                self._filesystem.create_dir(folder, recursive=True)
                target = f"{folder}/.{last}.{uuid.uuid4().hex[:12]}.tmp"
            with self._filesystem.open_output_stream(target) as file:
                for block in blocks:
                    size, crc = size + len(block), zlib.crc32(block, crc)
                    file.write(block)
            if target != final:
                self._filesystem.move(target, final)
        return size, crc

    def delete(self, name: str) -> None:
        """Remove a file if it exists."""
        with _short_errors(self.display_url(name)), contextlib.suppress(FileNotFoundError):
            self._filesystem.delete_file(self._full_path(name))

    def delete_folder(self, name: str) -> None:
        """Remove a folder with all its files if it exists."""
        with _short_errors(self.display_url(name)), contextlib.suppress(FileNotFoundError):
            self._filesystem.delete_dir(self._full_path(name))

    def __repr__(self) -> str:
        return f"Location({self.url!r})"


@dataclass(frozen=True)
class RemoteFile:
    """A file in a store that is read without a local copy."""

    location: Location
    name: str

    def open(self) -> Any:
        """Open the file for random-access reading."""
        return self.location.open(self.name)

    def __str__(self) -> str:
        return self.location.display_url(self.name)


def with_retries(action: Callable[[], Any], label: str, seconds: float = 60.0) -> Any:
    """Return the result of `action`, retrying temporary store errors for `seconds`.

    Raises:
        OSError: the error persists, is not temporary, or is a FileNotFoundError.
    """
    deadline, pause = time.monotonic() + seconds, 0.5
    while True:
        try:
            return action()
        except FileNotFoundError:
            raise
        except OSError as error:
            if not _TEMPORARY_ERRORS.search(str(error)) or time.monotonic() + pause > deadline:
                raise
            logger.warning("retrying %s: %s", label, error)
            time.sleep(pause)
            pause = min(2 * pause, 10.0)


def url_problem(url: str) -> str | None:
    """Return what is wrong with the text of a URL, or None."""
    match, shown = _URL.match(url), mask_text(url)
    if match is None:
        return f"{shown!r} is not a URL; accepts for example s3://bucket/folder"
    scheme, bucket = match[1].lower(), match[2].partition("?")[0].partition("/")[0]
    if scheme not in (*SCHEMES, *_ALIASES) and not scheme.startswith("fsspec+"):
        return f"{shown}: unknown scheme {scheme!r}; accepts {', '.join(SCHEMES)}{did_you_mean(scheme, SCHEMES)}"
    if "@" in bucket and (scheme not in ("abfs", "abfss") or ":" in bucket.partition("@")[0]):
        return (
            f"{shown}: credentials do not belong in a URL, which is written to logs and run folders; give them in the "
            "environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY) or in ~/.aws/credentials"
        )
    return None


def _open_filesystem(url: str) -> tuple[Any, str]:
    problem = url_problem(url)
    if problem is not None:
        raise ConfigurationError(problem)
    scheme, shown = url.partition(":")[0].lower(), mask_text(url)
    pyarrow = require("pyarrow", f"{shown} needs PyArrow", "s3")
    fs = require("pyarrow.fs", f"{shown} needs PyArrow", "s3")
    if int(pyarrow.__version__.partition(".")[0]) < _MIN_PYARROW:
        raise ConfigurationError(
            f"{shown} needs PyArrow {_MIN_PYARROW} or later; installed is {pyarrow.__version__}: "
            "pip install 'mindspore-trainer[s3]'"
        )
    if scheme == "s3":  # write a small file with one request instead of three
        url += ("&" if "?" in url else "?") + "allow_delayed_open=true"
    try:
        filesystem, path = fs.FileSystem.from_uri(url)
    except ImportError as error:
        raise ConfigurationError(f"{shown} needs a package that is missing: {error}") from None
    except (pyarrow.ArrowException, ValueError, OSError) as error:
        raise ConfigurationError(f"{shown} cannot be used: {_one_line(error)}") from None
    if not path.strip("/"):
        kind = "bucket" if scheme in _BUCKET_SCHEMES else "folder"
        raise ConfigurationError(f"{shown} names no {kind}; accepts for example {scheme}://{kind}/run")
    return filesystem, path.rstrip("/")


def _check_bucket(url: str, filesystem: Any, path: str) -> None:
    """Request the bucket once, to detect a bad configuration before a run starts."""
    if filesystem.type_name not in ("s3", "gcs"):
        return
    bucket = path.partition("/")[0]
    try:
        info = filesystem.get_file_info(bucket)
    except OSError as error:
        raise ConfigurationError(f"{url} cannot be used: {_one_line(error)}") from None
    if info.type.name == "NotFound":
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        where = f" at {mask_text(endpoint)}" if endpoint and filesystem.type_name == "s3" else ""
        raise ConfigurationError(f"{url}: there is no bucket {bucket!r}{where}; create it first, or correct the name")


@contextlib.contextmanager
def _short_errors(url: str) -> Iterator[None]:
    """Convert PyArrow errors to an OSError with a short message that names the URL."""
    import pyarrow

    try:
        yield
    except FileNotFoundError as error:
        if error.filename is None:
            raise FileNotFoundError(2, "there is no such file", url) from None
        raise
    except (OSError, pyarrow.ArrowException) as error:
        raise OSError(f"{mask_text(url)}: {_one_line(error)}") from None


def _one_line(error: BaseException) -> str:
    """Return a store's error message as one line without credentials."""
    return mask_text(" ".join(str(error).split()))
