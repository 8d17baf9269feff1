"""Write snapshots to disk, in the calling thread or in the background.

A snapshot is a folder ``root/step_00001000/``:

    <group>.safetensors   one file for each tensor group, for example model and optimizer
    state.json            everything else, as JSON that round-trips exactly (see `trainer.checkpoint.strict_json`)
    config.yaml           the resolved configuration, if there is one
    versions.json         versions of Python, NumPy, MindSpore and this package
    manifest.json         sizes and CRC-32 checksums of all files, and its own checksum; written last

With several processes, each writes its rows of sparse tables to ``part.tables.<rank>.safetensors``; see `parts`.

A snapshot is written under a hidden name in the same root, synced to the disk, and only then renamed. A folder
``step_*`` is therefore complete unless it was damaged later. ``root/last`` and ``root/best`` are text files with the
name of a snapshot. The format contains no code (no pickle), and file names cannot point outside the folder.

CRC-32 detects damage, not forgery. It takes 0.17 s for 1 GB, and SHA-256 with hardware support 0.58 s. It is computed
during the write, without a second pass.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import platform
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..checks import installed, is_whole
from ..errors import CheckpointError
from . import durable, strict_json, tensor_file
from .catalog import Entry, available, delete, recover, why_not_snapshot
from .manifest import FILE_NAME, TENSOR_SUFFIX, FolderWriter
from .parts import Parts, WriterThread
from .snapshot import CONFIG, KIND, STATE, STEP_NAME, VERSIONS, Manifest
from .tensor_file import LazyArray

TensorGroups = Mapping[str, Mapping[str, np.ndarray]]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Contents:
    """Content of a snapshot to write; all but the tensors is already encoded."""

    step: int
    tensors: TensorGroups
    documents: Mapping[str, bytes]
    base: str | tuple[str, str] | None
    id: str | None = None
    parts: Parts | None = None


def step_name(step: int) -> str:
    """Return the name of the snapshot taken at a step, such as ``step_00001000``."""
    if not is_whole(step) or not 0 <= step < 10**18:
        raise CheckpointError(f"step takes a whole number >= 0; received {step!r}")
    return f"step_{int(step):08d}"


def prepare(
    step: int,
    tensors: TensorGroups,
    state: Mapping[str, Any],
    *,
    config: str | None = None,
    base: str | tuple[str, str] | None = None,
    identity: str | None = None,
    parts: Parts | None = None,
) -> Contents:
    """Check the content and encode everything but the tensors.

    Args:
        step: number of optimizer steps done.
        tensors: group -> name -> array; one safetensors file per group. The arrays must not change during the write.
        state: all other state (see `trainer.checkpoint.strict_json` for the accepted types).
        config: text for config.yaml.
        base: name of the earlier snapshot in the same root that this one builds on, or (name, id) to raise an error if
            that snapshot was replaced. `prune` keeps the base as long as this snapshot.
        identity: id of the snapshot, unique to this write; None generates one.
        parts: folder with the parts of the other processes; this process's part is in `tensors`.

    Raises:
        CheckpointError: a name is not a plain file name, or a value cannot be stored; the message names it.
    """
    name = step_name(step)
    for group in tensors:
        if not isinstance(group, str) or not FILE_NAME.fullmatch(group):
            raise CheckpointError(f"tensor group {group!r} is not a plain file name (letters, digits, '_', '-', '.')")
    base_name = base[0] if isinstance(base, tuple) else base
    if base_name == name:
        raise CheckpointError(f"{name} cannot build on itself")
    if base_name is not None and not STEP_NAME.fullmatch(base_name):
        raise CheckpointError(f"base takes the name of a snapshot, as in 'step_00001000'; received {base!r}")
    documents = {VERSIONS: strict_json.dumps(_versions()).encode()}
    try:
        documents[STATE] = strict_json.dumps(dict(state)).encode()
        if config is not None:
            documents[CONFIG] = config.encode()
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"state or config of {name} cannot be stored: {error}") from error
    return Contents(int(step), tensors, documents, base, identity, parts)


def write(
    root: str | os.PathLike[str], step: int, tensors: TensorGroups, state: Mapping[str, Any], **options: Any
) -> Path:
    """Write a snapshot and sync it to the disk; see `prepare` for the arguments.

    A snapshot of the same step is replaced atomically. After a failure, earlier snapshots are unchanged.

    Returns:
        The folder of the snapshot, ``root/step_00001000``; `root` is created if missing.

    Raises:
        CheckpointError: the disk is full, the folder is read-only, there is no permission, or a value cannot be stored;
            the message names the path, the system's error and what to do.
    """
    return store(root, prepare(step, tensors, state, **options))


def store(root: str | os.PathLike[str], contents: Contents) -> Path:
    """Write prepared contents; raise the errors of `write`."""
    root = Path(root)
    final = root / step_name(contents.step)
    folder = contents.parts.folder if contents.parts is not None else None
    with durable.writing("snapshot", final):
        if not root.is_dir():
            root.mkdir(parents=True, exist_ok=True)
            durable.sync_folder(root.parent)
        with folder or FolderWriter(final) as folder:
            recover(root)
            entries = available(root)
            body: dict[str, Any] = {
                "step": contents.step,
                "sequence": 1 + max((entry.sequence for entry in entries), default=0),
                "base": _base_of(contents, entries, root),
            }
            for name, content in contents.documents.items():  # small files first: on a full disk they fail sooner
                folder.write(name, [content])
            for group, tensors in contents.tensors.items():
                folder.write(group + TENSOR_SUFFIX, tensor_file.blocks(tensors))
            if contents.parts is not None:
                body |= contents.parts.collect()
            folder.seal(KIND, body, contents.id)
            _install(folder.path, final, entries)
    return final


def _base_of(contents: Contents, entries: list[Entry], root: Path) -> dict[str, Any] | None:
    if contents.base is None:
        return None
    name, identity = contents.base if isinstance(contents.base, tuple) else (contents.base, None)
    entry = next((entry for entry in entries if entry.name == name), None)
    reason = entry.problem if entry is not None else "there is no such snapshot"
    if entry is not None and reason is None:
        manifest = Manifest.load(entry.path)
        if identity in (None, manifest.id):
            return {"name": name, "id": manifest.id, "digest": manifest.digest}
        reason = "it was replaced by another writer"
    raise CheckpointError(f"{step_name(contents.step)} cannot build on {root / name}: {reason}")


def _install(aside: Path, final: Path, entries: list[Entry]) -> None:
    replaced = None
    if os.path.lexists(final):
        dependents = [entry.name for entry in entries if entry.base == final.name]
        if dependents:
            _logger.warning("%s is being replaced; %s built on it and can no longer be used", final, dependents)
        replaced = _move_away(final)
    try:
        os.rename(aside, final)
    except OSError:
        if replaced is not None:
            os.rename(replaced, final)
        raise
    durable.sync_folder(final.parent)
    if replaced is not None and durable.parse_temporary_name(replaced):
        delete(replaced)


def _move_away(final: Path) -> Path:
    """Move the file or folder at a snapshot's name aside; return its new path."""
    doubt = why_not_snapshot(final)
    if doubt is None:
        # A folder cannot replace a non-empty one by renaming. Until the second rename, `locate` and `available` find
        # the old snapshot under its new name, and `recover` moves it back if this process dies.
        moved = durable.temporary_name(final, "replaced")
    else:
        kept = (final.with_name(f"{final.name}.kept-{number}") for number in itertools.count(1))
        moved = next(path for path in kept if not os.path.lexists(path))
        _logger.warning("%s makes room for a snapshot and is kept as %s: %s", final, moved.name, doubt)
    os.rename(final, moved)
    return moved


@functools.cache
def _versions() -> dict[str, str | None]:
    packages = {name: installed(name) for name in ("mindspore", "numpy", "mindspore-trainer")}
    return {"python": platform.python_version(), "platform": platform.platform(), **packages}


class BackgroundWriter:
    """Writes snapshots in a background thread, one at a time.

    `submit` copies the tensors into buffers, which the next snapshot reuses and `close` frees. Copying 1 GB took 2.5 s
    into new buffers and 0.06 s into reused ones.

    If a write fails, the next call of a method raises CheckpointError, once. `submit` then starts no new write.
    """

    def __init__(self) -> None:
        self._thread = WriterThread()
        self.failure: BaseException | None = None  # error of the last write, until it is reported
        self._durable: deque[Path] = deque()  # filled by the writing thread, emptied by `check`
        self._buffers: dict[tuple[str, str], np.ndarray] = {}
        self.hold_seconds: deque[float] = deque(maxlen=1000)  # one per `submit`, including its wait for a write

    @property
    def has_news(self) -> bool:
        """Whether `check` has anything to report."""
        return bool(self._durable) or self.failure is not None

    def submit(
        self,
        root: str | os.PathLike[str],
        step: int,
        tensors: TensorGroups,
        state: Mapping[str, Any],
        **options: Any,
    ) -> None:
        """Wait for a write in flight, copy the content and start writing it.

        Takes the arguments of `trainer.checkpoint.write` and raises its errors for values that cannot be stored. After
        the call, the caller may change the tensors and the state.
        """
        started = time.perf_counter()
        self.wait()
        copied = self._copied(tensors)
        contents = prepare(step, copied, state, **options)
        self._thread.run(self._write, Path(root), contents)
        self.hold_seconds.append(time.perf_counter() - started)

    def check(self) -> list[Path]:
        """Return the snapshots finished since the last call, without waiting."""
        if self.failure is not None:
            failure, self.failure = self.failure, None
            if isinstance(failure, CheckpointError):
                raise failure
            raise CheckpointError(f"writing a snapshot in the background failed: {failure!r}") from failure
        return [self._durable.popleft() for _ in range(len(self._durable))]

    def wait(self) -> None:
        """Wait until no write is in flight."""
        self._thread.wait()
        if self.failure is not None:
            self.check()

    def close(self) -> None:
        """Wait for the write in flight and free the buffers; `submit` may follow."""
        try:
            self.wait()
        finally:
            self._buffers.clear()

    def _write(self, root: Path, contents: Contents) -> None:
        try:
            self._durable.append(store(root, contents))
        except BaseException as error:
            self.failure = error

    def _copied(self, tensors: TensorGroups) -> dict[str, dict[str, np.ndarray]]:
        copies: dict[str, dict[str, np.ndarray]] = {}
        buffers: dict[tuple[str, str], np.ndarray] = {}
        for group, arrays in tensors.items():
            copies[group] = dict(arrays)
            for name, value in arrays.items():
                if isinstance(value, LazyArray):  # it does not change; the writing thread computes it
                    continue
                array = np.asarray(value)
                buffer = self._buffers.get((group, name))
                if buffer is None or buffer.shape != array.shape or buffer.dtype != array.dtype:
                    buffer = np.empty(array.shape, array.dtype)
                np.copyto(buffer, array)
                buffers[group, name] = copies[group][name] = buffer
        self._buffers = buffers  # frees the buffers of arrays that no longer exist
        return copies
