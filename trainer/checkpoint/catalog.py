"""List, find and prune the snapshots in a folder; read and set its pointers."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shutil
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import CheckpointDamagedError, CheckpointError, CheckpointNotFoundError, did_you_mean
from . import durable
from .manifest import MANIFEST, find_problem, unlisted_files
from .snapshot import STEP_NAME, Manifest, Snapshot, locate, read

POINTERS = ("last", "best")

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """A snapshot in a listing; its manifest, file names and file sizes were checked.

    Attributes:
        name: name of the folder `path`, for example "step_00001000".
        step: number of optimizer steps done when it was taken.
        path: the snapshot's folder.
        sequence: position in the order of writing; -1 if the manifest cannot be read.
        base: name of the snapshot it builds on, or None.
        problem: why it cannot be used, or None.
    """

    name: str
    step: int
    path: Path
    sequence: int
    base: str | None
    problem: str | None


def available(root: str | os.PathLike[str]) -> list[Entry]:
    """Return the snapshots of a root, oldest first, without reading their tensors.

    The order is the order of writing, not of steps, because a run may go back to an earlier step. Snapshots with an
    unreadable manifest come first. A missing folder gives an empty list.

    Raises:
        CheckpointError: the folder cannot be listed.
    """
    root = Path(root)
    try:
        names = sorted(os.listdir(root))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"cannot list {root}: {error.strerror}; give a folder this user may read") from error
    folders: dict[str, Path] = {}
    for name in names:  # hidden names sort first, so a visible snapshot overrides a replaced one of the same name
        temporary = durable.parse_temporary_name(root / name)
        target = temporary[0] if temporary and temporary[1] == "replaced" else name
        if STEP_NAME.fullmatch(target):
            folders[target] = root / name
    manifests: dict[str, Manifest] = {}
    problems: dict[str, str | None] = {}
    for name, folder in folders.items():
        try:
            manifests[name] = _manifest(folder)
            problems[name] = find_problem(folder, manifests[name].files)
        except CheckpointError as error:
            problems[name] = str(error)
    entries = []
    for name, folder in folders.items():
        manifest = manifests.get(name)
        base = manifest.base.name if manifest and manifest.base else None
        reason = problems[name] or _base_problem(folder, name, manifests, problems)
        sequence = manifest.sequence if manifest else -1
        entries.append(Entry(name, int(name.removeprefix("step_")), folder, sequence, base, reason))
    return sorted(entries, key=lambda entry: (entry.sequence, entry.step))


def _manifest(folder: Path) -> Manifest:
    """Return the manifest of a snapshot, cached until the file changes."""
    try:
        status = os.stat(folder / MANIFEST)
    except OSError:
        return Manifest.load(folder)  # raises an error with the reason
    return _load_manifest(str(folder), (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))


@functools.lru_cache(maxsize=4096)
def _load_manifest(folder: str, seen: tuple[int, ...]) -> Manifest:
    return Manifest.load(Path(folder))


def _base_problem(
    folder: Path, name: str, manifests: Mapping[str, Manifest], problems: Mapping[str, str | None]
) -> str | None:
    seen = {name}
    manifest = manifests[name]
    while manifest.base is not None:
        base = manifest.base
        if base.name in seen:
            return f"{folder} builds on itself"
        seen.add(base.name)
        if problems.get(base.name, "missing"):
            return f"{folder} builds on {base.name}, which cannot be used: {problems.get(base.name, 'it is missing')}"
        manifest = manifests[base.name]
        if not base.matches(manifest):
            return f"{folder} builds on a {base.name} that was replaced since"
    return None


def find(path: str | os.PathLike[str]) -> Snapshot:
    """Return the snapshot to resume from.

    Args:
        path: a snapshot, a pointer file (``root/best``), or a root. For a root, the intact snapshot that was written
            last is returned; a warning names each damaged snapshot that is skipped.

    Raises:
        CheckpointNotFoundError: the folder is missing, empty or without a finished snapshot.
        CheckpointDamagedError: the named snapshot, or every snapshot in the root, is damaged.
        CheckpointError: there is no permission to read a snapshot, or a newer version of this package wrote it. No
            older snapshot is tried then.
    """
    path = Path(path)
    with durable.reading(path):  # this user may not be allowed to read a parent folder
        if path.name in POINTERS and path.is_file():
            name = read_pointer(path.parent, path.name)
            if name is None:
                raise CheckpointDamagedError(f"the pointer {path} does not hold the name of a snapshot")
            path = locate(path.parent, name)
        if STEP_NAME.fullmatch(path.name) or (path / MANIFEST).exists():
            return _named_snapshot(path)
        for _ in range(3):  # a live writer may replace or prune a listed snapshot
            if (snapshot := _newest_intact(path)) is not None:
                return snapshot
    raise CheckpointError(f"the snapshots in {path} change faster than they can be read; is another run writing there?")


def _named_snapshot(path: Path) -> Snapshot:
    others = [entry.name for entry in available(path.parent) if not entry.problem and entry.name != path.name]
    folder = locate(path.parent, path.name)
    if not folder.exists():
        raise CheckpointNotFoundError(
            f"there is no snapshot {path}; {path.parent} has {others or 'none'}{did_you_mean(path.name, others)}"
        )
    try:
        return read(folder)
    except CheckpointDamagedError as error:
        hint = f"; next to it there are {others}" if others else ""
        raise CheckpointDamagedError(f"snapshot {path} is damaged: {error}{hint}") from error


def _newest_intact(root: Path) -> Snapshot | None:
    """Return the newest intact snapshot, or None if the folder changed meanwhile."""
    if not root.is_dir():
        raise CheckpointNotFoundError(f"there is no folder {root}" if not root.exists() else f"{root} is not a folder")
    entries = available(root)
    if not entries:
        unfinished = sum(durable.parse_temporary_name(root / name) is not None for name in os.listdir(root))
        detail = f", only {unfinished} unfinished ones" if unfinished else ""
        raise CheckpointNotFoundError(f"folder {root} holds no snapshot{detail}")
    failures = []
    unreadable = [entry for entry in entries if entry.sequence < 0]
    for entry in unreadable + [entry for entry in reversed(entries) if entry.sequence >= 0]:
        try:
            return read(entry.path)
        except CheckpointDamagedError as error:
            if not os.path.lexists(entry.path):
                return None
            # Log the text, not the exception: its traceback would keep the snapshot's content in memory for as long as
            # a log handler keeps the record.
            _logger.warning("snapshot %s is skipped: %s", entry.name, str(error))
            failures.append(f"{entry.name}: {error}")
    raise CheckpointDamagedError(f"no snapshot in {root} is sound: " + "; ".join(failures))


def prune(root: str | os.PathLike[str], keep: Collection[str], trust: Collection[str] = ()) -> list[str]:
    """Remove snapshots that are not in `keep`; return the names of the removed ones.

    These are never removed: the newest intact snapshot, the targets of ``last`` and ``best``, the bases of snapshots
    that stay, and folders that may not be snapshots (see `why_not_snapshot`). If no snapshot is intact, none is
    removed. Files that interrupted writers left are removed too.

    Args:
        root: folder of snapshots.
        keep: names of the snapshots to keep.
        trust: names of snapshots known to be intact, such as those that this process wrote. They are not verified.

    Raises:
        CheckpointError: the folder cannot be listed or changed, or a snapshot cannot be verified.
    """
    root = Path(root)
    entries = available(root)
    recover(root)
    newest = next((entry for entry in reversed(entries) if _is_intact(entry, trust)), None)
    if newest is None:
        return []
    kept = {newest.name, *keep, *(name for pointer in POINTERS if (name := read_pointer(root, pointer)))}
    bases = {entry.name: entry.base for entry in entries}
    for name in list(kept):
        base = bases.get(name)
        while base is not None and base not in kept:
            kept.add(base)
            base = bases.get(base)
    removed = []
    for entry in reversed(entries):  # newest first: a base is removed after the snapshots that build on it
        if entry.name in kept:
            continue
        try:
            if (doubt := why_not_snapshot(entry.path)) is not None:
                _logger.warning("%s is not removed: %s", entry.path, doubt)
                continue
            # Rename it first, so that a killed process leaves no partial snapshot under a valid name.
            aside = durable.temporary_name(root / entry.name, "removed")
            os.rename(entry.path, aside)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise CheckpointError(f"cannot remove snapshot {entry.path}: {error.strerror or error}") from error
        delete(aside)
        removed.append(entry.name)
    return removed


def _is_intact(entry: Entry, trust: Collection[str]) -> bool:
    if entry.name in trust and not entry.problem:
        return True
    try:
        read(entry.path)
    except CheckpointDamagedError as error:
        _logger.warning("snapshot %s is damaged: %s", entry.name, str(error))
        return False
    return True


def why_not_snapshot(path: Path) -> str | None:
    """Return why `path` may not be a snapshot, or None if it certainly is one.

    Raises:
        FileNotFoundError: `path` does not exist.
    """
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        return "it is not a folder, or it is a link to one"
    try:
        unlisted = unlisted_files(path, Manifest.load(path).files)
    except CheckpointError as error:
        return str(error)
    return f"it holds {', '.join(unlisted)}, which no snapshot has" if unlisted else None


def recover(root: Path, *, has_lock: bool = False) -> None:
    """Remove the temporary files of dead writers, and undo interrupted replacements.

    Errors are ignored. With `has_lock`, the caller holds the folder's lock (see `folder_lock`), so all other writers
    are dead.
    """
    for path in root.glob(".*"):
        temporary = durable.parse_temporary_name(path)
        if temporary is None:
            continue
        target, kind = temporary
        with contextlib.suppress(OSError):
            if kind != "removed" and not durable.is_stale(path, has_lock=has_lock):
                continue
            if kind == "replaced" and not os.path.lexists(root / target):
                os.rename(path, root / target)
            else:
                delete(path)


def delete(path: Path) -> None:
    """Remove a file, or a folder with its content; ignore errors in a folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def set_pointer(root: str | os.PathLike[str], pointer: str, name: str) -> None:
    """Point ``root/last`` or ``root/best`` at a snapshot, atomically.

    Raises:
        CheckpointError: the pointer is unknown, there is no such snapshot, or the folder cannot be written.
    """
    path = _pointer(root, pointer)
    if not STEP_NAME.fullmatch(name) or not locate(path.parent, name).is_dir():
        raise CheckpointError(f"{pointer!r} cannot point at {name!r}: there is no such snapshot in {path.parent}")
    with durable.writing("pointer", path):
        durable.replace_file(path, f"{name}\n".encode())


def read_pointer(root: str | os.PathLike[str], pointer: str) -> str | None:
    """Return the snapshot name in a pointer; None if it is missing or damaged.

    Raises:
        CheckpointError: the pointer is unknown.
    """
    try:
        name = durable.read_bytes(_pointer(root, pointer), 100).decode("ascii").strip()
    except (CheckpointDamagedError, UnicodeDecodeError):
        return None
    return name if STEP_NAME.fullmatch(name) else None


def _pointer(root: str | os.PathLike[str], pointer: str) -> Path:
    if pointer not in POINTERS:
        raise CheckpointError(f"pointer takes {POINTERS}; received {pointer!r}{did_you_mean(pointer, POINTERS)}")
    return Path(root) / pointer
