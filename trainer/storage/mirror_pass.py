"""One pass of a mirror: upload new local files, remove deleted ones.

A *part* is a folder with a manifest: a snapshot, a published version or a published graph. The files of a part are
uploaded before its manifest and removed after it, so a part with a manifest in the store is complete. A *pointer*
(``last``, ``best``, ``current.json``, ``pins.json``) is a file next to parts that names some of them. It is uploaded
once all parts that it names are in the store. Each file is written atomically. Readers, and the next pass after a
crash, therefore never see half-written data.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from ..checkpoint import durable, manifest, strict_json
from ..checkpoint.manifest import MANIFEST, FileSums
from ..errors import CheckpointError
from .location import Entry, Location

logger = logging.getLogger(__name__)

PART_NAME = re.compile(r"step_\d{8,18}|v_\d{8,18}|graph-[0-9a-f]{12}")
_IN_POINTER = re.compile(rb"(?<![\w-])(?:step_\d{8,18}|v_\d{8,18}|graph-[0-9a-f]{12})(?![\w-])")
_SMALL = 1 << 20  # limit in bytes: smaller files may be pointers, and the first pass always uploads them


@dataclass(frozen=True)
class Part:
    """A local folder with a manifest; sorting by `order` puts bases first."""

    name: str
    folder: Path
    manifest: bytes
    files: FileSums
    order: tuple[int, str]


@dataclass
class Scan:
    """The contents of the local folders, by path in the mirror."""

    parts: dict[str, Part] = field(default_factory=dict)
    pointers: dict[str, bytes] = field(default_factory=dict)  # contents of the files
    plain: dict[str, tuple[Path, int, int]] = field(default_factory=dict)  # other files: path, size, mtime in ns


def scan(folders: Mapping[str, Path]) -> Scan:
    """Scan local folders; `folders` maps a prefix in the mirror to each folder.

    Pointers are read before parts are listed, so every part that they name is listed unless it was removed meanwhile.
    """
    result = Scan()
    for prefix, folder in folders.items():
        for path, names in _walk(folder):
            base = PurePosixPath(prefix, path.relative_to(folder).as_posix())
            _scan_folder(result, path, names, "" if base == PurePosixPath() else f"{base}/")
    return result


def _walk(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield each folder that is not a part, with the visible names in it."""
    for at, inner, files in os.walk(folder):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        names = [*inner, *sorted(name for name in files if not name.startswith(".") and not name.endswith(".tmp"))]
        yield Path(at), names
        inner[:] = [name for name in inner if not PART_NAME.fullmatch(name)]


def _scan_folder(result: Scan, folder: Path, names: list[str], base: str) -> None:
    has_parts = any(PART_NAME.fullmatch(name) for name in names)
    for name in names:
        path = folder / name
        try:
            if not path.is_file():
                continue
            status = path.stat()
            if has_parts and status.st_size < _SMALL:
                result.pointers[base + name] = path.read_bytes()
            else:
                result.plain[base + name] = (path, status.st_size, status.st_mtime_ns)
        except FileNotFoundError:
            continue
    listed: list[str] = []
    with contextlib.suppress(FileNotFoundError):
        listed = sorted(os.listdir(folder)) if has_parts else []
    for name in filter(PART_NAME.fullmatch, listed):
        part = _part(base + name, folder / name)
        if part is not None:
            result.parts[part.name] = part


def _part(name: str, folder: Path) -> Part | None:
    try:
        content = (folder / MANIFEST).read_bytes()
        kind, body = read_manifest(content)
        files = manifest.files_of(body)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None  # removed meanwhile, incomplete or damaged, so it is not mirrored
    order = manifest.count(body.get("sequence", 0)) if kind == "snapshot" else 0
    return Part(name, folder, content, files, (order, ("" if kind == "graph" else name)))


def read_manifest(content: bytes) -> tuple[str, dict]:
    """Return kind and body of a manifest; raise ValueError if it is not a manifest."""
    document = strict_json.parse(content)
    kinds = [key for key in document if key != "crc32"] if isinstance(document, dict) else []
    if len(kinds) != 1 or not isinstance(document[kinds[0]], dict):
        raise ValueError("it is not a manifest")
    return kinds[0], document[kinds[0]]


def named_in(pointer: bytes) -> set[str]:
    """Return the names of the parts that a pointer or manifest mentions."""
    return {name.decode() for name in _IN_POINTER.findall(pointer)}


class MirrorPass:
    """Makes a store match the local folders.

    Caches the list of the store's contents, so that a pass without changes sends no request.

    Args:
        folders: mapping from a prefix in the mirror to a local folder.
        target: the mirror.
        spared: paths in the mirror that are never removed.
    """

    def __init__(self, folders: Mapping[str, Path], target: Location, spared: Iterable[str] = ()) -> None:
        self.folders, self.target, self._spared = dict(folders), target, set(spared)
        self.uploaded = self.lag = 0  # numbers of parts
        self._known = False  # whether the store has been listed
        self._manifests: dict[str, bytes] = {}  # manifests of the parts that are complete in the store
        self._strays: set[str] = set()  # parts with files but no manifest in the store
        self._pointers: dict[str, bytes] = {}  # contents of the pointers in the store
        self._plain: dict[str, tuple[int, int]] = {}  # size and mtime of each plain file at its last upload
        self._before: dict[str, Entry] = {}  # all files at the last listing

    def run(self, *, final: bool = True) -> bool:
        """Do one pass; return whether the mirror has everything that was scanned.

        Args:
            final: whether to upload a large file even if it has grown by less than a tenth since its last upload. An
                object can only be replaced as a whole, so frequent uploads of a growing file are expensive.

        Raises:
            OSError: the store failed or cannot be reached; the next pass lists its contents again.
        """
        scanned = scan(self.folders)
        self.lag = sum(self._manifests.get(name) != part.manifest for name, part in scanned.parts.items())
        try:
            if not self._known:
                self._list()
            complete = self._upload(scanned, final)
            self._remove(scanned)
            return complete
        except OSError:
            self._known = False  # the request may have succeeded although its response was lost, so list again
            raise

    def _list(self) -> None:
        files = self.target.files()
        self._before = files
        parts = {name.rpartition("/")[0] for name in files if PART_NAME.fullmatch(Path(name).parent.name)}
        whole = {name for name in parts if f"{name}/{MANIFEST}" in files}
        self._strays = parts - whole
        self._manifests = {
            name: self._manifests.get(name) or self.target.read(f"{name}/{MANIFEST}") for name in sorted(whole)
        }
        roots = {name.rpartition("/")[0] for name in parts}
        pointers = [name for name in files if name.rpartition("/")[0] in roots]
        self._pointers = {name: self.target.read(name) for name in pointers if files[name].size < _SMALL}
        self._known = True

    # -- uploading -----------------------------------------------------------------------------------------------

    def _upload(self, scanned: Scan, final: bool) -> bool:
        missing = {name for name, part in scanned.parts.items() if self._manifests.get(name) != part.manifest}
        # Upload parts that a pointer names first: with the pointer, a run can already resume from them.
        complete = True
        manifests = {name: part.manifest for name, part in scanned.parts.items()}
        for pointer, content in sorted(scanned.pointers.items(), key=lambda entry: -len(named_in(entry[1]))):
            names = _named_beside(pointer, content)
            needed = _with_bases(names, manifests) & scanned.parts.keys()
            complete &= self._upload_parts([scanned.parts[name] for name in needed & missing])
            missing -= needed
            if self._pointers.get(pointer) == content:
                continue
            if all(name in self._manifests for name in names):
                self.target.write(pointer, content)
                self._pointers[pointer] = content
            else:
                complete = False  # a part was removed meanwhile, so the next pass will find a newer pointer
        complete &= self._upload_parts([scanned.parts[name] for name in missing])
        for name, (path, size, mtime_ns) in scanned.plain.items():
            last = self._plain.get(name, (0, 0))[0]
            if final or not _SMALL <= last < size < 1.1 * last:
                self._upload_plain(name, path, size, mtime_ns)
        return complete

    def _upload_parts(self, parts: Iterable[Part]) -> bool:
        uploaded = [self._upload_part(part) for part in sorted(parts, key=lambda part: part.order)]
        return all(uploaded)

    def _upload_part(self, part: Part) -> bool:
        """Upload a part; return False if it was removed, replaced or damaged."""
        if part.name in self._manifests:  # the store has a different part with this name: readers must not mix the two
            self.target.delete(f"{part.name}/{MANIFEST}")
            del self._manifests[part.name]
        self._strays.add(part.name)
        for file, sums in part.files.items():
            try:
                sent = self.target.upload(part.folder / file, f"{part.name}/{file}")
            except FileNotFoundError:
                return False
            if sent != sums:
                if holds(part.folder / MANIFEST, part.manifest):
                    logger.warning("%s is not mirrored: %s does not match its checksum", part.folder, file)
                return False
        self.target.write(f"{part.name}/{MANIFEST}", part.manifest)
        self._manifests[part.name] = part.manifest
        self._strays.discard(part.name)
        self.uploaded += 1
        self.lag -= 1
        return True

    def _upload_plain(self, name: str, path: Path, size: int, mtime_ns: int) -> None:
        if self._plain.get(name) == (size, mtime_ns):
            return
        # After a restart, skip a large file if the store's file has the same size and is newer.
        before = self._before.get(name) if name not in self._plain and size >= _SMALL else None
        if before is None or before.size != size or before.mtime_ns <= mtime_ns:
            try:
                self.target.upload(path, name)
            except FileNotFoundError:
                return
        self._plain[name] = (size, mtime_ns)

    def remove_started(self) -> None:
        """Remove the uploaded plain files; raise OSError as `run` does."""
        for name in self._plain:
            self.target.delete(name)

    # -- removing ------------------------------------------------------------------------------------------------

    def _remove(self, scanned: Scan) -> None:
        """Remove parts that no longer exist locally, unless a pointer needs them."""
        roots = {name.rpartition("/")[0] for name in scanned.parts}
        named = {name for pointer, content in self._pointers.items() for name in _named_beside(pointer, content)}
        # Follow the bases of snapshots only: the pointer of a version names everything that the version needs.
        snapshots = {name: own for name, own in self._manifests.items() if Path(name).name.startswith("step_")}
        kept = self._spared | scanned.parts.keys() | _with_bases(named, snapshots)
        for name in sorted((self._manifests.keys() | self._strays) - kept, reverse=True):
            if name.rpartition("/")[0] not in roots:
                continue  # no part is left locally, so the folder was probably lost rather than pruned
            self.target.delete(f"{name}/{MANIFEST}")
            self.target.delete_folder(name)
            self._manifests.pop(name, None)
            self._strays.discard(name)


def _named_beside(name: str, content: bytes) -> set[str]:
    """Return the paths of the parts that `content` mentions, in the folder of `name`."""
    return {name[: name.rfind("/") + 1] + other for other in named_in(content)}


def _with_bases(names: Iterable[str], manifests: Mapping[str, bytes]) -> set[str]:
    """Return `names` and all parts that they build on according to `manifests`."""
    closed: set[str] = set()
    open_names = list(names)
    while open_names:
        name = open_names.pop()
        if name not in closed:
            closed.add(name)
            open_names += _named_beside(name, manifests.get(name, b""))
    return closed


def holds(path: Path, content: bytes) -> bool:
    """Return whether a local file has the given content."""
    try:
        return durable.read_bytes(path) == content
    except CheckpointError:
        return False
