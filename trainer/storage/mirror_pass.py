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
_PART_NAMES = re.compile(rb"(?<![\w-])(?:step_\d{8,18}|v_\d{8,18}|graph-[0-9a-f]{12})(?![\w-])")
_SMALL_BYTES = 1 << 20  # limit in bytes: smaller files may be pointers, and the first pass always uploads them


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
    other_files: dict[str, tuple[Path, int, int]] = field(default_factory=dict)  # other files: path, size, mtime in ns


def scan(folders: Mapping[str, Path]) -> Scan:
    """Scan local folders; `folders` maps a prefix in the mirror to each folder.

    Pointers are read before parts are listed, so every part that they name is listed unless it was removed meanwhile.
    """
    result = Scan()
    for prefix, root in folders.items():
        for folder, subfolders, files in os.walk(root):
            subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
            visible = sorted(name for name in files if not name.startswith(".") and not name.endswith(".tmp"))
            path_in_mirror = PurePosixPath(prefix, Path(folder).relative_to(root).as_posix())
            base = "" if path_in_mirror == PurePosixPath() else f"{path_in_mirror}/"
            has_parts = any(map(PART_NAME.fullmatch, subfolders))
            _scan_folder(result, Path(folder), visible, base, has_parts)
            subfolders[:] = [name for name in subfolders if not PART_NAME.fullmatch(name)]
    return result


def _scan_folder(result: Scan, folder: Path, files: list[str], base: str, has_parts: bool) -> None:
    """Add a folder's files and parts; their paths in the mirror begin with `base`."""
    for name in files:
        path = folder / name
        with contextlib.suppress(FileNotFoundError):
            if not path.is_file():
                continue
            status = path.stat()
            if has_parts and status.st_size < _SMALL_BYTES:
                result.pointers[base + name] = path.read_bytes()
            else:
                result.other_files[base + name] = (path, status.st_size, status.st_mtime_ns)
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
    order = manifest.checked_count(body.get("sequence", 0)) if kind == "snapshot" else 0
    return Part(name, folder, content, files, (order, ("" if kind == "graph" else name)))


def read_manifest(content: bytes) -> tuple[str, dict]:
    """Return kind and body of a manifest; raise ValueError if it is not a manifest."""
    document = strict_json.parse(content)
    kinds = [key for key in document if key != "crc32"] if isinstance(document, dict) else []
    if len(kinds) != 1 or not isinstance(document[kinds[0]], dict):
        raise ValueError("it is not a manifest")
    return kinds[0], document[kinds[0]]


def part_names_in(pointer: bytes) -> set[str]:
    """Return the names of the parts that a pointer or manifest mentions."""
    return {name.decode() for name in _PART_NAMES.findall(pointer)}


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
        self._is_listed = False  # whether the store has been listed
        self._manifests: dict[str, bytes] = {}  # manifests of the parts that are complete in the store
        self._incomplete: set[str] = set()  # parts with files but no manifest in the store
        self._pointers: dict[str, bytes] = {}  # contents of the pointers in the store
        self._uploaded_files: dict[str, tuple[int, int]] = {}  # size and mtime of each plain file at its last upload
        self._last_listing: dict[str, Entry] = {}  # all files at the last listing

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
            if not self._is_listed:
                self._list()
            complete = self._upload(scanned, final)
            self._remove(scanned)
            return complete
        except OSError:
            self._is_listed = False  # the request may have succeeded although its response was lost, so list again
            raise

    def _list(self) -> None:
        files = self.target.files()
        self._last_listing = files
        parts = {name.rpartition("/")[0] for name in files if PART_NAME.fullmatch(Path(name).parent.name)}
        complete = {name for name in parts if f"{name}/{MANIFEST}" in files}
        self._incomplete = parts - complete
        self._manifests = {
            name: self._manifests.get(name) or self.target.read(f"{name}/{MANIFEST}") for name in sorted(complete)
        }
        roots = {name.rpartition("/")[0] for name in parts}
        pointers = [name for name in files if name.rpartition("/")[0] in roots]
        self._pointers = {name: self.target.read(name) for name in pointers if files[name].size < _SMALL_BYTES}
        self._is_listed = True

    # -- uploading -----------------------------------------------------------------------------------------------

    def _upload(self, scanned: Scan, final: bool) -> bool:
        missing = {name for name, part in scanned.parts.items() if self._manifests.get(name) != part.manifest}
        # First upload the parts that a pointer names: once they and the pointer are in the store, a run can resume.
        complete = True
        manifests = {name: part.manifest for name, part in scanned.parts.items()}
        for pointer, content in sorted(scanned.pointers.items(), key=lambda entry: -len(part_names_in(entry[1]))):
            names = _part_paths_in(pointer, content)
            needed = _with_bases(names, manifests) & scanned.parts.keys()
            parts = [scanned.parts[name] for name in needed & missing]
            with _kept(parts):
                complete &= self._upload_parts(parts)
            missing -= needed
            if self._pointers.get(pointer) == content:
                continue
            if all(name in self._manifests for name in names):
                self.target.write(pointer, content)
                self._pointers[pointer] = content
            else:
                complete = False  # a part was removed meanwhile, so the next pass will find a newer pointer
        complete &= self._upload_parts([scanned.parts[name] for name in missing])
        for name, (path, size, mtime_ns) in scanned.other_files.items():
            last = self._uploaded_files.get(name, (0, 0))[0]
            if final or not _SMALL_BYTES <= last < size < 1.1 * last:
                self._upload_file(name, path, size, mtime_ns)
        return complete

    def _upload_parts(self, parts: Iterable[Part]) -> bool:
        uploaded = [self._upload_part(part) for part in sorted(parts, key=lambda part: part.order)]
        return all(uploaded)

    def _upload_part(self, part: Part) -> bool:
        """Upload a part; return False if it was removed, replaced or damaged."""
        if part.name in self._manifests:  # the store has a different part with this name: readers must not mix the two
            self.target.delete(f"{part.name}/{MANIFEST}")
            del self._manifests[part.name]
        self._incomplete.add(part.name)
        for file, sums in part.files.items():
            try:
                sent = self.target.upload(part.folder / file, f"{part.name}/{file}")
            except FileNotFoundError:
                return False
            if sent != sums:
                if has_content(part.folder / MANIFEST, part.manifest):
                    logger.warning("%s is not mirrored: %s does not match its checksum", part.folder, file)
                return False
        self.target.write(f"{part.name}/{MANIFEST}", part.manifest)
        self._manifests[part.name] = part.manifest
        self._incomplete.discard(part.name)
        self.uploaded += 1
        self.lag -= 1
        return True

    def _upload_file(self, name: str, path: Path, size: int, mtime_ns: int) -> None:
        if self._uploaded_files.get(name) == (size, mtime_ns):
            return
        # After a restart, skip a large file if the store's file has the same size and is newer.
        before = self._last_listing.get(name) if name not in self._uploaded_files and size >= _SMALL_BYTES else None
        if before is None or before.size != size or before.mtime_ns <= mtime_ns:
            try:
                self.target.upload(path, name)
            except FileNotFoundError:
                return
        self._uploaded_files[name] = (size, mtime_ns)

    def remove_other_files(self) -> None:
        """Remove the uploaded plain files; raise OSError as `run` does."""
        for name in self._uploaded_files:
            self.target.delete(name)

    # -- removing ------------------------------------------------------------------------------------------------

    def _remove(self, scanned: Scan) -> None:
        """Remove parts that no longer exist locally, unless a pointer needs them."""
        roots = {name.rpartition("/")[0] for name in scanned.parts}
        needed = {name for pointer, content in self._pointers.items() for name in _part_paths_in(pointer, content)}
        # Follow the bases of snapshots only: the pointer of a version names everything that the version needs.
        snapshots = {name: content for name, content in self._manifests.items() if Path(name).name.startswith("step_")}
        kept = self._spared | scanned.parts.keys() | _with_bases(needed, snapshots)
        for name in sorted((self._manifests.keys() | self._incomplete) - kept, reverse=True):
            if name.rpartition("/")[0] not in roots:
                continue  # no part is left locally, so the folder was probably lost rather than pruned
            self.target.delete(f"{name}/{MANIFEST}")
            self.target.delete_folder(name)
            self._manifests.pop(name, None)
            self._incomplete.discard(name)


@contextlib.contextmanager
def _kept(parts: Iterable[Part]) -> Iterator[None]:
    """Keep `Publish` from removing versions, which may be faster than their upload."""
    with contextlib.ExitStack() as locks:
        for part in parts:
            with contextlib.suppress(OSError):  # removed meanwhile
                locks.callback(os.close, durable.lock_folder(part.folder, shared=True))
        yield


def _part_paths_in(name: str, content: bytes) -> set[str]:
    """Return the paths of the parts that `content` mentions, in the folder of `name`."""
    return {name[: name.rfind("/") + 1] + other for other in part_names_in(content)}


def _with_bases(names: Iterable[str], manifests: Mapping[str, bytes]) -> set[str]:
    """Return `names` and all parts that they build on according to `manifests`."""
    result: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in result:
            result.add(name)
            pending += _part_paths_in(name, manifests.get(name, b""))
    return result


def has_content(path: Path, content: bytes) -> bool:
    """Return whether a local file has the given content."""
    try:
        return durable.read_bytes(path) == content
    except CheckpointError:
        return False
