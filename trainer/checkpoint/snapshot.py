"""One snapshot on disk: its manifest, its verification, its contents. Nothing here writes."""

from __future__ import annotations

import json
import mmap
import os
import re
import stat
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ..errors import CheckpointDamagedError, CheckpointError, did_you_mean
from . import durable, strict_json, tensor_file

MANIFEST = "manifest.json"
STATE = "state.json"
CONFIG = "config.yaml"
VERSIONS = "versions.json"
TENSOR_SUFFIX = ".safetensors"
RESERVED = (MANIFEST, STATE, CONFIG, VERSIONS)
FORMAT_VERSION = 1
STEP_NAME = re.compile(r"step_(\d{8,18})")
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}")

_MAX_MANIFEST = 1 << 26


@dataclass(frozen=True)
class Manifest:
    """What a snapshot consists of.

    Attributes:
        step: optimizer steps done when it was taken.
        sequence: position in the order of writing within its root; larger is newer, whatever the step.
        id: unique to this write, so that a base that was replaced is noticed.
        base: (name, id) of the snapshot this one builds on, or None.
        files: file name -> (bytes, CRC-32).
    """

    step: int
    sequence: int
    id: str
    base: tuple[str, str] | None
    files: Mapping[str, tuple[int, int]]

    def dump(self) -> bytes:
        """Return the content of manifest.json; it carries a checksum of itself."""
        body = {
            "format_version": FORMAT_VERSION,
            "step": self.step,
            "sequence": self.sequence,
            "id": self.id,
            "base": None if self.base is None else {"name": self.base[0], "id": self.base[1]},
            "files": {name: {"size": size, "crc32": f"{crc:08x}"} for name, (size, crc) in self.files.items()},
        }
        return json.dumps({"crc32": _body_sum(body), "snapshot": body}, indent=1).encode()

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """Read and check the manifest of a snapshot.

        Raises:
            CheckpointDamagedError: missing, cut, altered or not a manifest.
            CheckpointError: no permission, or written by a newer version of this package.
        """
        path = folder / MANIFEST
        content = durable.read_bytes(path, _MAX_MANIFEST)
        try:
            document = strict_json.parse(content)
            body = document["snapshot"]
            intact = document["crc32"] == _body_sum(body)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise CheckpointDamagedError(f"{path} is damaged: {error}") from None
        if not intact:
            raise CheckpointDamagedError(f"{path} is damaged: it does not match its own checksum")
        try:
            version = body["format_version"]
            if type(version) is not int or version < 1:
                raise ValueError(f"format_version is {version!r}")
            if version > FORMAT_VERSION:
                raise CheckpointError(
                    f"{folder} has format {version}; this package reads up to {FORMAT_VERSION}: update it"
                )
            return cls._checked(body)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointDamagedError(f"{path} is no manifest of a snapshot: {error!r}") from None

    @classmethod
    def _checked(cls, body: Any) -> Manifest:
        base = body["base"]
        if base is not None:
            base = (_named(STEP_NAME, base["name"]), _text(base["id"]))
        files = {
            _named(FILE_NAME, name): (_count(entry["size"]), int(_named(re.compile("[0-9a-f]{8}"), entry["crc32"]), 16))
            for name, entry in body["files"].items()
        }
        return cls(_count(body["step"]), _count(body["sequence"]), _text(body["id"]), base, MappingProxyType(files))


def _body_sum(body: Any) -> str:
    return f"{zlib.crc32(json.dumps(body, sort_keys=True, separators=(',', ':')).encode()):08x}"


def _named(pattern: re.Pattern[str], value: Any) -> str:
    # A name from a file never leaves its folder: the patterns admit no separator.
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(f"{value!r} is not accepted as a name")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no string")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**62:
        raise ValueError(f"{value!r} is no count")
    return value


class Snapshot:
    """A verified snapshot; obtained from `read` or `find`. Everything was checked before it exists.

    Attributes:
        path: its folder.
        name: the folder's name, for example "step_00001000".
        step: optimizer steps done when it was taken.
        sequence: position in the order of writing within its root; larger is newer.
        state: what was given to `write` as state, exactly (see `trainer.checkpoint.strict_json`).
        config: content of config.yaml, or None.
        versions: package name -> version at the time of writing.
        base: the verified snapshot this one builds on, or None.
        groups: names of the tensor groups, sorted.
    """

    def __init__(self, path: Path, manifest: Manifest, base: Snapshot | None) -> None:
        self.path = path
        self.name = snapshot_name(path)
        self.step = manifest.step
        self.sequence = manifest.sequence
        self.manifest = manifest
        self.base = base
        self._tensors: dict[str, dict[str, np.ndarray]] = {}
        for file in (STATE, VERSIONS):
            if file not in manifest.files:
                raise CheckpointDamagedError(f"{path / MANIFEST} does not list {file}")
        documents: dict[str, bytes] = {}
        for file in sorted(manifest.files):
            content = _verified(path / file, *manifest.files[file])
            if file.endswith(TENSOR_SUFFIX):
                self._tensors[file.removesuffix(TENSOR_SUFFIX)] = tensor_file.parse(content, str(path / file))
            elif file in RESERVED:
                documents[file] = bytes(content)
        self.state = _document(path / STATE, documents[STATE])
        self.versions = _document(path / VERSIONS, documents[VERSIONS])
        self.config = _utf8(path / CONFIG, documents[CONFIG]) if CONFIG in documents else None

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the tensor groups, sorted."""
        return tuple(self._tensors)

    def tensors(self, group: str) -> dict[str, np.ndarray]:
        """Return name -> array of one group.

        The arrays are read-only views of the mapped file: nothing is read before it is used. Copy what must outlive the
        file or be written to.

        Raises:
            CheckpointError: there is no such group.
        """
        if group not in self._tensors:
            hint = did_you_mean(group, self._tensors)
            raise CheckpointError(f"{self.path} has no tensor group {group!r}; it has {list(self._tensors)}{hint}")
        return dict(self._tensors[group])

    def file(self, name: str) -> Path:
        """Return the path of a file given to `write` as `files`.

        Raises:
            CheckpointError: there is no such file.
        """
        if name not in self.manifest.files:
            hint = did_you_mean(name, self.manifest.files)
            raise CheckpointError(f"{self.path} has no file {name!r}; it has {sorted(self.manifest.files)}{hint}")
        return self.path / name

    def chain(self) -> list[Snapshot]:
        """Return the snapshots to apply in order: the one that builds on nothing first, this one last."""
        snapshots = [self]
        while snapshots[-1].base is not None:
            snapshots.append(snapshots[-1].base)
        return snapshots[::-1]

    def verify(self) -> None:
        """Check every file, of the bases too, against its checksum once more.

        Raises:
            CheckpointDamagedError: naming the file and what is wrong with it.
        """
        for snapshot in self.chain():
            for file, (size, crc) in snapshot.manifest.files.items():
                _verified(snapshot.path / file, size, crc)

    def __repr__(self) -> str:
        return f"Snapshot({str(self.path)!r}, step={self.step}, groups={list(self._tensors)})"


def _document(path: Path, content: bytes) -> dict[str, Any]:
    try:
        value = strict_json.loads(content)
    except ValueError as error:
        raise CheckpointDamagedError(f"{path} is damaged: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointDamagedError(f"{path} is damaged: it holds no mapping")
    return value


def _utf8(path: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointDamagedError(f"{path} is damaged: {error}") from None


def snapshot_name(path: Path) -> str:
    """Return the name of the snapshot in the folder `path`, also while it stands aside for its replacement."""
    aside = durable.target_of(path)
    return aside[0] if aside else path.name


def locate(root: Path, name: str) -> Path:
    """Return the folder of the snapshot `name`; one moved aside by a writer that died meanwhile is found too."""
    path = root / name
    if not path.exists():
        for aside in sorted(root.glob(f".{name}.*.replaced")):
            return aside
    return path


def read(path: str | os.PathLike[str]) -> Snapshot:
    """Read and verify the snapshot in the folder `path`, and those it builds on.

    Every byte is compared with its checksum (about 0.2 s for 1 GB already in memory). Tensors stay in the mapped files.

    Raises:
        CheckpointDamagedError: naming the file and what is wrong: missing, cut, altered, no manifest, a base gone.
        CheckpointError: no permission, or written by a newer version of this package.
    """
    path = Path(path)
    if not path.is_dir():
        raise CheckpointDamagedError(f"{path} is {'no folder' if path.exists() else 'missing'}")
    links = [(path, Manifest.load(path))]
    while (base := links[-1][1].base) is not None:
        folder = locate(path.parent, base[0])
        try:
            manifest = Manifest.load(folder)
        except CheckpointError as error:
            raise CheckpointDamagedError(
                f"{links[-1][0]} builds on {base[0]}, which cannot be used: {error}"
            ) from error
        if manifest.id != base[1] or len(links) > 10_000:
            raise CheckpointDamagedError(f"{links[-1][0]} builds on a {base[0]} that was replaced since")
        links.append((folder, manifest))
    snapshot: Snapshot | None = None
    for folder, manifest in reversed(links):
        snapshot = Snapshot(folder, manifest, snapshot)
    assert snapshot is not None
    return snapshot


def problem(path: Path, manifest: Manifest) -> str | None:
    """Return what is wrong with a snapshot as far as names and sizes tell, or None."""
    for file, (size, _) in manifest.files.items():
        try:
            _check_size(path / file, size)
        except CheckpointError as error:
            return str(error)
    return None


def _check_size(path: Path, size: int) -> None:
    try:
        found = os.stat(path)
    except OSError as error:
        raise durable.read_error(path, error) from error
    if not stat.S_ISREG(found.st_mode):
        raise CheckpointDamagedError(f"{path} is not a regular file")
    if found.st_size != size:
        raise CheckpointDamagedError(f"{path} has {found.st_size:,} bytes; its manifest says {size:,}")


def _verified(path: Path, size: int, crc: int) -> mmap.mmap | bytes:
    """Return the mapped content of a file once its size and checksum are right."""
    _check_size(path, size)
    content: mmap.mmap | bytes = b""
    try:
        if size:
            with open(path, "rb") as file:
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise durable.read_error(path, error) from error
    except ValueError as error:  # the file became empty meanwhile
        raise CheckpointDamagedError(f"cannot read {path}: {error}") from error
    if len(content) != size or zlib.crc32(content) != crc:
        raise CheckpointDamagedError(f"{path} does not match its checksum: its content was altered")
    return content
