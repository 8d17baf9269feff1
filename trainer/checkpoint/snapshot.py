"""Read and verify one snapshot on disk."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CheckpointDamagedError, CheckpointError, did_you_mean
from . import durable, manifest, strict_json, tensor_file
from .block_arrays import VerifiedFile
from .manifest import MANIFEST, TENSOR_SUFFIX, FileSums, part_name

STATE = "state.json"
CONFIG = "config.yaml"
VERSIONS = "versions.json"
RESERVED = (MANIFEST, STATE, CONFIG, VERSIONS)
KIND = "snapshot"
TABLES_GROUP = "part.tables"  # the rows of sparse tables
LARGE_FILE = 64 << 20  # table files with at least this many bytes are read in blocks
STEP_NAME = re.compile(r"step_(\d{8,18})")


@dataclass(frozen=True)
class Base:
    """Reference to the snapshot that another one builds on; old ones have no digest."""

    name: str
    id: str
    digest: str | None = None

    def matches(self, manifest: Manifest) -> bool:
        """Return whether a manifest belongs to the referenced snapshot, not a replacement."""
        return self.id == manifest.id and self.digest in (None, manifest.digest)


@dataclass(frozen=True)
class Manifest:
    """Manifest of a snapshot."""

    step: int  # optimizer steps done when it was taken
    sequence: int  # order of writing within its root; larger is newer, even if its step is lower
    id: str  # unique to this write, to detect a replaced base
    base: Base | None  # the snapshot this one builds on, or None
    files: FileSums  # file name -> (bytes, CRC-32)
    parts: Mapping[str, int]  # tensor group -> number of its files, for groups written by several processes
    digest: str  # SHA-256 of the manifest

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """Read and check the manifest of a snapshot; raises the errors of `manifest`."""
        path = folder / MANIFEST
        body: Any = manifest.unseal(path, KIND)
        try:
            base = body["base"]
            if base is not None:
                known = base.get("digest")
                base = Base(
                    manifest.checked_name(STEP_NAME, base["name"]),
                    manifest.checked_text(base["id"]),
                    None if known is None else manifest.checked_text(known),
                )
            files = manifest.files_of(body)
            return cls(
                manifest.checked_count(body["step"]),
                manifest.checked_count(body["sequence"]),
                manifest.checked_text(body["id"]),
                base,
                files,
                manifest.part_counts(body, files),
                manifest.digest(body),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointDamagedError(f"{path} is not a manifest of a snapshot: {error!r}") from None


class Snapshot:
    """A verified snapshot, from `read` or `find`.

    Attributes:
        path: the snapshot's folder.
        name: name of the snapshot, for example "step_00001000".
        step: number of optimizer steps done when it was taken.
        sequence: order of writing within its root; larger is newer.
        state: exactly the state that was given to `write` (see `trainer.checkpoint.strict_json`).
        config: content of config.yaml, or None.
        versions: package name -> version when written.
        base: the verified snapshot this one builds on, or None.
        groups: names of the tensor groups, sorted.
    """

    def __init__(self, path: Path, contents: Manifest, base: Snapshot | None) -> None:
        aside = durable.parse_temporary_name(path)
        self.path, self.name = path, aside[0] if aside else path.name  # the folder is hidden while it is being replaced
        self.step, self.sequence = contents.step, contents.sequence
        self.manifest, self.base = contents, base
        self._tensors: dict[str, dict[str, Any]] = {}
        for file in (STATE, VERSIONS):
            if file not in contents.files:
                raise CheckpointDamagedError(f"{path / MANIFEST} does not list {file}")
        documents: dict[str, bytes] = {}
        for file in sorted(contents.files):
            size, crc = contents.files[file]
            group = file.removesuffix(TENSOR_SUFFIX)
            if size >= LARGE_FILE and file.startswith(TABLES_GROUP) and group != file:
                self._tensors[group] = tensor_file.parse_file(VerifiedFile(path / file, size, crc))
                continue
            content = manifest.read_verified(path / file, size, crc)
            if group != file:
                self._tensors[group] = tensor_file.parse(content, str(path / file))
            elif file in RESERVED:
                documents[file] = bytes(content)
        for group, number in contents.parts.items():
            pieces = [self._tensors.pop(part_name(group, rank)) for rank in range(number)]
            try:
                self._tensors[group] = tensor_file.join(pieces)
            except (ValueError, TypeError) as error:
                raise CheckpointDamagedError(f"the parts of {group} in {path} do not fit together: {error}") from None
        self.state = _document(path / STATE, documents[STATE])
        self.versions = _document(path / VERSIONS, documents[VERSIONS])
        self.config = _decoded(path / CONFIG, documents[CONFIG], bytes.decode) if CONFIG in documents else None
        self.groups = tuple(sorted(self._tensors))

    def tensors(self, group: str) -> dict[str, Any]:
        """Return name -> array of one group, with parts joined in rank order.

        The arrays are read-only views of a verified copy in memory, so later changes of the files have no effect. An
        array in a large file of sparse tables is a `BlockArray`, whose bytes are verified again on every read.

        Raises:
            CheckpointError: there is no such group.
        """
        if group not in self._tensors:
            hint = did_you_mean(group, self._tensors)
            raise CheckpointError(f"{self.path} has no tensor group {group!r}; it has {list(self._tensors)}{hint}")
        return dict(self._tensors[group])

    def chain(self) -> list[Snapshot]:
        """Return the snapshots to apply in order, from the first base to this one."""
        snapshots = [self]
        while snapshots[-1].base is not None:
            snapshots.append(snapshots[-1].base)
        return snapshots[::-1]

    def __repr__(self) -> str:
        return f"Snapshot({str(self.path)!r}, step={self.step}, groups={list(self._tensors)})"


def _decoded(path: Path, content: bytes, decode: Callable[[bytes], Any]) -> Any:
    try:
        return decode(content)
    except ValueError as error:
        raise CheckpointDamagedError(f"{path} is damaged: {error}") from None


def _document(path: Path, content: bytes) -> dict[str, Any]:
    value = _decoded(path, content, strict_json.loads)
    if not isinstance(value, dict):
        raise CheckpointDamagedError(f"{path} is damaged: it is not a mapping")
    return value


def locate(root: Path, name: str) -> Path:
    """Return the folder of a snapshot, even if a writer died while replacing it."""
    path = root / name
    return path if path.exists() else min(root.glob(f".{name}.*.replaced"), default=path)


def read(path: str | os.PathLike[str]) -> Snapshot:
    """Read and verify the snapshot in folder `path`, and the snapshots it builds on.

    The checksum of every file is verified (about 0.5 s for 1 GB in the page cache). The files are copied to memory,
    except large files of sparse tables, which stay open.

    Raises:
        CheckpointDamagedError: a file or base is missing, truncated or altered; the message names it.
        CheckpointError: there is no permission, or a newer version of this package wrote the snapshot.
    """
    path = Path(path)
    if not path.is_dir():
        raise CheckpointDamagedError(f"{path} is {'no folder' if path.exists() else 'missing'}")
    links = [(path, Manifest.load(path))]
    while (base := links[-1][1].base) is not None:
        folder = locate(path.parent, base.name)
        try:
            loaded = Manifest.load(folder)
        except CheckpointError as error:
            raise CheckpointDamagedError(
                f"{links[-1][0]} builds on {base.name}, which cannot be used: {error}"
            ) from error
        if not base.matches(loaded) or len(links) > 10_000:
            raise CheckpointDamagedError(f"{links[-1][0]} builds on a {base.name} that was replaced since")
        links.append((folder, loaded))
    snapshot = Snapshot(*links.pop(), None)
    while links:
        snapshot = Snapshot(*links.pop(), snapshot)
    return snapshot
