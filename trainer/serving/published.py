"""The files of a published model, with checksums.

    root/
      current.json        names the folders of the current model; replaced atomically after they are complete
      graph-<id>/         network.mindir, graph.json (which columns feed which table), manifest.json
      v_00000007/         weights.safetensors, rows.safetensors (changed rows),
                          full.safetensors (all rows; only in some versions),
                          items.json, items.safetensors (with `Publish(items=...)`),
                          calibration.json, calibration.safetensors (with `Trainer(calibration=...)`),
                          manifest.json; several processes write rows.<rank>.safetensors etc., see `version_parts`
      pins.json           the version that servers are pinned to and the versions to keep; optional

Each folder is written under a temporary name, with its manifest last, then synced to disk and renamed.
``current.json`` names the graph, a full version and the incremental versions after it, each with the digest of its
manifest. The file contains its own checksum. See `trainer.checkpoint.manifest`.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoint import catalog, durable, manifest, strict_json, tensor_file
from ..checkpoint.manifest import FolderWriter
from ..checks import is_number
from ..errors import CheckpointDamagedError, CheckpointError, CheckpointNotFoundError
from ..storage.fetch import PUBLISHED
from .finite import check_finite

CURRENT, PINS = "current.json", "pins.json"
GRAPH, VERSION = "graph", "version"
WEIGHTS, ROWS, FULL, FEATURES, ITEMS = "weights", "rows", "full", "features", "items"
CALIBRATION = "calibration"

_NAMES = {GRAPH: re.compile(r"graph-[0-9a-f]{12}"), VERSION: re.compile(r"v_\d{8,18}")}
_DIGEST = re.compile("[0-9a-f]{64}")
_VERSION_IN_POINTER = re.compile(rb"(?<![\w-])v_(\d{8,18})(?!\w)")


@dataclass(frozen=True)
class FolderRef:
    """A reference to a published folder: its name and the digest of its manifest."""

    name: str
    digest: str

    @classmethod
    def of(cls, kind: str, value: Any) -> FolderRef:
        """Return an instance from JSON, or raise ValueError, TypeError or KeyError."""
        return cls(manifest.checked_name(_NAMES[kind], value["name"]), manifest.checked_name(_DIGEST, value["digest"]))


@dataclass(frozen=True)
class Current:
    """Content of ``current.json``; times are seconds since the epoch."""

    version: int  # number of the current version
    step: int  # optimizer steps that the version was trained for
    time: float  # time of publication
    event_time: float | None  # time of the newest trained event
    graph: FolderRef  # the network
    chain: tuple[FolderRef, ...]  # a full version and the incremental versions after it
    full: str  # file with all rows in the first version of the chain: "rows" or "full"

    def write(self, root: Path) -> None:
        """Write ``current.json`` atomically; raise OSError if that fails."""
        durable.replace_file(root / CURRENT, manifest.seal("current", asdict(self)))

    @classmethod
    def of(cls, body: Mapping[str, Any], chain: tuple[FolderRef, ...], full: Any) -> Current:
        """Return an instance from JSON, or raise ValueError, TypeError or KeyError."""
        if not chain or full not in (ROWS, FULL):
            raise ValueError(f"chain is {chain!r}, full is {full!r}")
        version, step = manifest.checked_count(body["version"]), manifest.checked_count(body["step"])
        event_time = None if body["event_time"] is None else _seconds(body["event_time"])
        return cls(version, step, _seconds(body["time"]), event_time, FolderRef.of(GRAPH, body["graph"]), chain, full)

    @classmethod
    def read(cls, root: Path) -> Current:
        """Read ``current.json``.

        Raises:
            CheckpointNotFoundError: nothing has been published.
            CheckpointDamagedError: the file is damaged, or was written by an early version of this package, which
                stored no checksums.
            CheckpointError: the file is not readable, or was written by a newer version of this package.
        """
        path = root / CURRENT
        with durable.reading(path):
            try:
                os.lstat(path)
            except (FileNotFoundError, NotADirectoryError):
                inside = root / PUBLISHED
                hint = f"; there is one at {inside}" if (inside / CURRENT).is_file() else ""
                raise CheckpointNotFoundError(f"no model has been published at {root}{hint}") from None
        try:
            body = manifest.unseal(path, "current")
        except CheckpointDamagedError as error:
            raise CheckpointDamagedError(
                f"{error} (earlier versions of this package published without checksums: publish the model again)"
            ) from None
        try:
            return cls.of(body, tuple(FolderRef.of(VERSION, reference) for reference in body["chain"]), body["full"])
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointDamagedError(f"{path} does not describe a published model: {error!r}") from None


@contextlib.contextmanager
def locked(root: Path, current: Current) -> Iterator[None]:
    """Keep `Publish` from removing the folders of a model while they are read."""
    with contextlib.ExitStack() as locks:
        for name in (current.graph.name, *(reference.name for reference in current.chain)):
            with contextlib.suppress(OSError):  # already removed, so reading the folder will raise
                locks.callback(os.close, durable.lock_folder(root / name, shared=True))
        yield


def remove(path: Path) -> None:
    """Remove a published folder, unless a server is reading it."""
    try:
        lock = durable.lock_folder(path)
    except OSError:
        return
    try:
        catalog.delete(path)
    finally:
        os.close(lock)


def _seconds(value: Any) -> float:
    if not is_number(value) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a time")
    return float(value)


def publish_folder(root: Path, folder: FolderWriter, kind: str, name: str, body: Mapping[str, Any]) -> FolderRef:
    """Write a folder's manifest and rename it to its final name, or raise OSError."""
    reference = FolderRef(name, manifest.digest(folder.seal(kind, body)))
    os.rename(folder.path, root / name)
    durable.sync_folder(root)
    return reference


class Folder:
    """A published folder with a verified manifest; files are verified when read.

    Args:
        root: folder of the published model.
        kind: `GRAPH` or `VERSION`.
        part: name of the folder and the expected digest of its manifest.

    Attributes:
        path: path of the folder.
        before: the previous version, to which this version's changes apply, or None.

    Raises:
        CheckpointDamagedError: the folder is missing or damaged, or its manifest has another digest.
    """

    def __init__(self, root: Path, kind: str, reference: FolderRef) -> None:
        self.path = root / reference.name
        body = manifest.unseal(self.path / manifest.MANIFEST, kind)
        if manifest.digest(body) != reference.digest:
            raise CheckpointDamagedError(f"{self.path} is not the {kind} that {root / CURRENT} names")
        try:
            self._files = manifest.files_of(body)
            self._parts = manifest.part_counts(body, self._files)
            before = body.get("before")
            self.before = None if before is None else FolderRef.of(VERSION, before)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointDamagedError(
                f"{self.path / manifest.MANIFEST} is not a manifest of a {kind}: {error!r}"
            ) from None

    def verify(self) -> None:
        """Verify every file; raise CheckpointDamagedError naming the first damaged file."""
        for name, checksum in self._files.items():
            manifest.read_verified(self.path / name, *checksum)

    def pieces(self, name: str) -> list[tuple[str, dict[str, np.ndarray]]]:
        """Return (path, arrays) for a file, or for each of its parts in rank order.

        Raises:
            CheckpointDamagedError: a file is damaged.
        """
        ranks = range(self._parts.get(name, 0))
        names = [manifest.part_name(name, rank) for rank in ranks] or [name]
        return [(str(self.path / piece), self._arrays(piece)) for piece in names]

    def tensors(self, name: str) -> dict[str, np.ndarray]:
        """Return the arrays of one file, with its parts joined; see `pieces`.

        The arrays of a file without parts are read-only.
        """
        pieces = [arrays for _, arrays in self.pieces(name)]
        if len(pieces) == 1:
            return pieces[0]
        try:
            return {key: np.asarray(array) for key, array in tensor_file.join(pieces).items()}
        except (ValueError, TypeError) as error:
            raise CheckpointDamagedError(f"the parts of {name} in {self.path} do not fit together: {error}") from None

    def _arrays(self, name: str) -> dict[str, np.ndarray]:
        file = f"{name}{manifest.TENSOR_SUFFIX}"
        if file not in self._files:
            raise CheckpointDamagedError(f"{self.path / manifest.MANIFEST} does not list {file}")
        return tensor_file.parse(manifest.read_verified(self.path / file, *self._files[file]), str(self.path / file))

    def state(self, name: str) -> dict[str, Any] | None:
        """Return a state that `write_state` wrote, or None if the folder has none.

        Args:
            name: `FEATURES` for feature statistics, `ITEMS` for the argument of `PublishedItems`, or `CALIBRATION` for
                the argument of `CalibrationMap`. Without feature statistics, those of the graph still apply.
        """
        file = f"{name}.json"
        if file not in self._files:
            return None
        body = strict_json.loads(bytes(manifest.read_verified(self.path / file, *self._files[file])))
        return {"json": body, "arrays": self.tensors(name)}


def table_rows(tensors: Mapping[str, np.ndarray], dims: Mapping[str, int], file: str) -> dict[str, dict]:
    """Group the arrays of a file of rows by table and check their shapes and dtypes.

    Args:
        tensors: content of the file, a mapping from "<table>/<key>" to array.
        dims: mapping from table to the number of columns of its weights.
        file: name of the file, for messages.

    Returns:
        A mapping from table to its arrays by key.

    Raises:
        CheckpointDamagedError: the file does not contain rows of these tables.
        NonFiniteError: a value of a row is NaN or infinite.
    """
    rows: dict[str, dict[str, np.ndarray]] = {name: {} for name in dims}
    for name, tensor in tensors.items():
        table, _, key = name.rpartition("/")
        if table in rows:
            rows[table][key] = tensor
    for name, arrays in rows.items():
        count = len(arrays["ids"]) if getattr(arrays.get("ids"), "ndim", 0) else 0
        stored_dtype = getattr(arrays.get("weights"), "dtype", None)
        weights = np.int8 if "scale" in arrays else np.float16 if stored_dtype == np.float16 else np.float32
        expected = {"ids": (np.int64, (count,)), "removed": (np.int64, None), "weights": (weights, (count, dims[name]))}
        expected |= {"default": (np.float32, None)} | ({"scale": (np.float32, (count,))} if "scale" in arrays else {})
        for key, (dtype, shape) in expected.items():
            array = arrays.get(key)
            if shape is None and array is not None:  # any number of removed ids, at most one default row
                shape = (array.size,) if key == "removed" else (min(len(array), 1) if array.ndim else 0, dims[name])
            if array is None or array.dtype != dtype or array.shape != shape:
                problem = "is missing" if array is None else f"is {array.dtype} {list(array.shape)}"
                raise CheckpointDamagedError(f"{file} does not hold rows of table {name!r}: {key} {problem}")
        check_finite({key: arrays[key] for key in expected}, f"{file}: table {name!r}:")
    return rows


def known_versions(root: Path) -> list[int]:
    """Return the numbers of the versions in a folder, ascending."""
    return sorted(int(name[2:]) for name in os.listdir(root) if _NAMES[VERSION].fullmatch(name))


def newest_version_number(root: Path) -> int:
    """Return the highest version number that a folder has used, or 0.

    The numbers in ``current.json`` and ``pins.json`` count too, because the folder of a version may be missing. For
    example, a model restored from a mirror lacks versions that were damaged there.
    """
    numbers = known_versions(root)
    for pointer in (CURRENT, PINS):
        with contextlib.suppress(FileNotFoundError):  # the names in a damaged file may still be readable
            numbers += [int(digits) for digits in _VERSION_IN_POINTER.findall((root / pointer).read_bytes())]
    return max(numbers, default=0)


def is_published_folder(path: Path) -> bool:
    """Return whether `Publish` wrote the folder and every file in it."""
    kind = next((kind for kind, pattern in _NAMES.items() if pattern.fullmatch(path.name)), None)
    if kind is None or path.is_symlink():
        return False
    try:
        files = manifest.files_of(manifest.unseal(path / manifest.MANIFEST, kind))
        return not manifest.unlisted_files(path, files)
    except (CheckpointError, OSError, ValueError, TypeError, KeyError, AttributeError):
        return False
