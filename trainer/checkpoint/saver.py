"""Take and restore snapshots; `ModelCheckpoint` decides when."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .. import checkpoint
from ..distributed.dense_state import average_statistics, check_training_step, clear_on_followers, merge_on_main
from ..distributed.group import Group
from ..distributed.launched import is_restarted
from ..errors import CheckpointError, ConfigurationError, FolderInUseError
from ..state import Phase
from . import capture, catalog, durable
from .ckpt_files import load_ckpt
from .content import Content, Cursor, Owner
from .folder_lock import FolderLock, claim
from .manifest import MANIFEST
from .parts import Parts, WriterThread, open_parts, write_part
from .snapshot import Snapshot
from .snapshot_writer import BackgroundWriter

logger = logging.getLogger(__name__)

FOLDER = "checkpoints"


class Saver:
    """Writes and restores the snapshots of a run.

    Rank 0 writes them; if sparse tables are divided over processes, every rank writes its own rows. Links in paths are
    resolved at once, so later changes of links have no effect.
    """

    def __init__(self, group: Group, owner: Owner) -> None:
        self._group = group
        self._owner = owner
        self._writer = BackgroundWriter()
        self.hold_seconds = self._writer.hold_seconds  # how long each background snapshot blocked the step loop
        self._part_writer = WriterThread()
        self.newest: Path | None = None  # path of the snapshot that was written or restored last, or None
        self.config: str | None = None  # text stored as config.yaml in every snapshot, or None
        self.written: set[str] = set()  # names of the snapshots this process wrote, which are known to be intact
        self.durable_count = 0  # number of snapshots that are safely on disk, including replaced ones
        # Data positions of snapshots that may not be durable yet.
        self._uncommitted: deque[Mapping[str, Any] | None] = deque()
        self._positions: dict[Path, Mapping[str, Any] | None] = {}
        self._identities: dict[Path, str] = {}
        self._locks: dict[Path, FolderLock | None] = {}

    def claim(self, root: str | Path) -> Path:
        """Lock a folder of snapshots until the run ends; return its resolved path.

        Raises:
            ConfigurationError: the folder cannot be created or written.
            FolderInUseError: another run writes there.
        """
        path = durable.resolve_path(root)
        if path not in self._locks:
            self._locks[path] = None  # ranks other than 0 take no lock
            self._group.from_main(lambda: self._lock_folder(path))
        return path

    def _lock_folder(self, path: Path) -> None:
        self._locks[path] = claim(path, "checkpoint folder")
        catalog.recover(path, has_lock=True)

    def save(self, root: Path, *, background: bool = False) -> Path:
        """Write a snapshot to ``root/step_<global_step>`` and return that path.

        Raises:
            CheckpointError: the snapshot cannot be written; earlier snapshots are unchanged.
        """
        root = durable.resolve_path(root)
        content = self._owner.snapshot_content()
        with self._writer_lock(root, background, content.state.phase):
            return self._save(root, background, content)

    def _save(self, root: Path, background: bool, content: Content) -> Path:
        path = root / checkpoint.step_name(content.state.progress.global_step)
        if self._group.size > 1:
            self.wait()  # raise the error of a failed write before any rank enters the collectives below
            if content.optimizer is None:
                check_training_step(self._group, content.network)
            average_statistics(self._group, content.network, content.parts.get("averages"))
            merge_on_main(self._group, content.accumulation.gradient_sums, content.parts.values())
        position = None if content.cursor is None else content.cursor.shared_position()
        is_divided = content.tables is not None and content.tables.is_divided
        parts = open_parts(self._group, path, capture.TABLES_GROUP) if is_divided else None
        if not self._group.is_main:  # everything but table rows is the same on all ranks
            self._contribute(content, path, parts, background)
            self._uncommitted.append(position)  # also None, because rank 0 counts every snapshot
            self._report_path(path)
            return path
        try:
            self._write(path, content, position, parts, background)
        except BaseException:
            if parts is not None and parts.folder is not None:
                parts.folder.close()
            raise
        return path

    def _contribute(self, content: Content, path: Path, parts: Parts | None, background: bool) -> None:
        """Write this process's rows as a part of the snapshot, or send them to rank 0."""
        if content.tables is None:
            return
        content.tables.delta_policy.base_of(path)
        state = content.tables.state_dict(own_rows=parts is not None)
        if parts is not None:
            self._part_writer.run(write_part, parts, self._group.rank, state["arrays"])
            if not background:
                self._part_writer.wait()

    def _write(
        self, path: Path, content: Content, position: Mapping[str, Any] | None, parts: Parts | None, background: bool
    ) -> None:
        """Write a snapshot on rank 0, or start a background write."""
        root, step = path.parent, content.state.progress.global_step
        policy = content.tables.delta_policy if content.tables is not None else None
        base = None
        if policy is not None:
            self._wait()  # the base of a delta must be on the disk
            name = policy.base_of(path)
            base = None if name is None else (name, self._identities[root / name])
        groups, state = capture.take(content, parts)
        self._positions[path] = position
        identity = uuid.uuid4().hex
        write: Callable[..., Any] = self._writer.submit if background else checkpoint.write
        with self._full_tables_after_failure():
            if not background:
                self._wait()
            write(root, step, groups, state, config=self.config, base=base, identity=identity, parts=parts)
        self._identities = {path: identity}
        if policy is not None:
            policy.written(path)
        if not background:
            self._mark_durable(path)

    def _writer_lock(self, root: Path, background: bool, phase: Phase) -> contextlib.AbstractContextManager[Any]:
        """Lock `root` until the run ends, or outside a run until the snapshot is written."""
        taken: list[FolderLock] = []
        try:
            if phase is not Phase.IDLE:
                self.claim(root)
                lock = self._locks[root]
                if lock is not None:
                    lock.check()
                return contextlib.nullcontext()
            self._group.from_main(lambda: taken.append(claim(root, "checkpoint folder")))
        except FolderInUseError:
            raise
        except ConfigurationError as error:
            raise CheckpointError(str(error)) from error
        lock = taken[0] if taken else None  # ranks other than 0 take no lock
        if lock is not None and background:  # release it now: outside a run, `close` may never be called
            lock.release()
        return lock or contextlib.nullcontext()

    @contextlib.contextmanager
    def _full_tables_after_failure(self) -> Iterator[None]:
        """After a failed write, make the next snapshot store the tables in full."""
        try:
            yield
        except BaseException:
            tables = self._owner.snapshot_content().tables
            if tables is not None:
                tables.delta_policy.broken()
            raise

    def check(self) -> None:
        """Report background snapshots that are on disk; raise the error of a failed one.

        With several processes, only `wait` raises the error: an error on rank 0 alone would leave the other ranks
        waiting in a collective.
        """
        if self._writer.has_news and not (self._group.size > 1 and self._writer.failure):
            self._report()

    def _report(self) -> None:
        with self._full_tables_after_failure():
            durable = self._writer.check()
        for path in durable:
            self._mark_durable(path)

    def wait(self) -> None:
        """Wait for the background write in flight and report it; a collective call.

        Raises:
            CheckpointError: on all processes, if the write has failed.
        """
        self._part_writer.wait()
        self._group.from_main(self._wait)

    def _wait(self) -> None:
        with self._full_tables_after_failure():
            self._writer.wait()
        self._report()

    def close(self) -> None:
        """Wait for the background write in flight; free buffers and folder locks."""
        try:
            self._part_writer.wait()
            with self._full_tables_after_failure():
                self._writer.close()
            self._report()
        finally:
            locks, self._locks = self._locks, {}
            for lock in locks.values():
                if lock is not None:
                    lock.release()

    def _mark_durable(self, path: Path) -> None:
        self.written.add(path.name)
        self.durable_count += 1
        checkpoint.set_pointer(path.parent, "last", path.name)
        self._owner.commit(self._positions.pop(path, None))
        self._report_path(path)

    def _report_path(self, path: Path) -> None:
        self.newest = path
        self._owner.report_snapshot(path)

    def commit_durable(self, count: int) -> None:
        """Commit the positions of the first `count` snapshots, on ranks other than 0."""
        while self._uncommitted and self.durable_count < count:
            self.durable_count += 1
            self._owner.commit(self._uncommitted.popleft())

    def prune(self, root: Path, keep: Collection[str]) -> set[str]:
        """Remove the snapshots not in `keep`, except those needed to resume.

        Returns:
            The names of the snapshots that other ones build on; empty on ranks other than 0.
        """
        if not self._group.is_main:
            return set()
        root = durable.resolve_path(root)
        checkpoint.prune(root, keep, trust=self.written)
        return {entry.base for entry in checkpoint.available(root) if entry.base is not None}

    def load(
        self,
        path: str | Path,  # a snapshot, a folder of snapshots, a run folder, or a .ckpt file (weights only)
        *,
        strict: bool = True,  # refuse parameters that differ from the network's; otherwise load those that match
        weights_only: bool = False,  # load the network's parameters only
        averaged: bool = False,  # load averages of `EMA` or `SWA`, if any, instead (needs `weights_only`)
        cursor: Cursor | None = None,  # data position of the run to resume
    ) -> Snapshot | None:
        """Restore the newest intact snapshot, or the weights of a MindSpore .ckpt file.

        Raises:
            CheckpointError: there is no intact snapshot, or its content cannot be used; the state is unchanged.
            CheckpointMismatchError: the snapshot belongs to another network.
        """
        path = durable.resolve_path(path)
        content = self._owner.snapshot_content()
        if path.suffix == ".ckpt":
            weights = {capture.MODEL: load_ckpt(path)}
            capture.assign(capture.match_tensors(content, weights, strict=strict, weights_only=True))
            self._owner.warn_of_no_rows(path)
            return None
        snapshot = checkpoint.find(snapshots_of(path)) if cursor is None else self._find_together(path)
        groups = groups_of(snapshot)
        if averaged and weights_only:
            groups = capture.with_averages(groups, snapshot)
        if strict:
            self._owner.check_has_tables(capture.part_states(snapshot, capture.TABLES))
        tensors = capture.match_tensors(content, groups, strict=strict, weights_only=weights_only)
        if weights_only:
            states = capture.table_states(content, snapshot)
            if states:
                self._owner.load_tables(states)
            for name, part in content.parts.items():
                if part.of_model and (part_states := capture.part_states(snapshot, name)):
                    part.load_state_dict(part_states[-1])
            capture.assign(tensors)
        else:
            capture.restore_all(content, snapshot, tensors, self._owner.load_tables, cursor)
            clear_on_followers(self._group, content.accumulation.gradient_sums, content.parts.values())
            self.newest = snapshot.path
        if cursor is None:  # a resumed run has columns of its own
            content.state.load_columns(snapshot.state.get("columns"))
        restarted = cursor is not None and is_restarted() and self._group.is_main
        level, event = (logging.WARNING, "job restarted, resuming from") if restarted else (logging.INFO, "restored")
        logger.log(level, "%s %s (step %d)", event, snapshot.path, snapshot.step)
        return snapshot

    def _find_together(self, path: Path) -> Snapshot:
        """Return the snapshot that all processes resume from; a collective call."""
        snapshot: Snapshot | None = None
        failure: CheckpointError | None = None
        try:
            path = snapshots_of(path)
            snapshot = checkpoint.find(path)
        except CheckpointError as error:
            failure = error
        # Processes without a snapshot must agree why: with "auto", those whose folder is missing train from the
        # beginning, and those whose snapshots are damaged raise.
        own = ["", type(failure).__name__] if snapshot is None else [snapshot.name, snapshot.manifest.id]
        first, *others = self._group.gather_json(own)
        for rank, other in enumerate(others, 1):
            if other != first:
                names = [
                    f"{name} ({which[:8]})" if name else f"no snapshot ({which})" for name, which in (first, other)
                ]
                raise CheckpointError(
                    f"rank 0 would resume from {names[0]}, rank {rank} from {names[1]}; all processes resume from the "
                    f"same snapshot: give them a folder on a file system that they share. This one looked at {path}"
                    f"{'' if failure is None else f': {failure}'}"
                )
        if failure is not None:
            raise failure
        assert snapshot is not None
        return snapshot

    def resume(self, path: str | Path, cursor: Cursor, folders: Iterable[Path]) -> Snapshot | None:
        """Restore a run; return None if `path` is "auto" and `folders` hold no snapshot.

        Raises:
            CheckpointError: there is no intact snapshot at `path`.
        """
        return self._read_first(path, folders, lambda folder: self.load(folder, cursor=cursor))

    def part_to_resume(self, path: str | Path, name: str, folders: Iterable[Path]) -> dict[str, Any] | None:
        """Return the state of a part that `resume` would restore, or None.

        Raises:
            CheckpointError: there is no intact snapshot at `path`.
            CheckpointMismatchError: the snapshot belongs to another network, so `resume` would refuse it.
        """
        snapshot = self._find_first(path, folders)
        if snapshot is None:
            return None
        content = self._owner.snapshot_content()
        capture.match_tensors(content, groups_of(snapshot), strict=True, weights_only=True)
        states = capture.part_states(snapshot, name)
        return states[-1] if states else None

    def position_to_resume(self, path: str | Path, folders: Iterable[Path]) -> Any:
        """Return the state of the data position that `resume` would restore, or None.

        Raises:
            CheckpointError: there is no intact snapshot at `path`.
        """
        snapshot = self._find_first(path, folders)
        return None if snapshot is None else snapshot.state.get("loop", {}).get("position", {}).get("state")

    def _find_first(self, path: str | Path, folders: Iterable[Path]) -> Snapshot | None:
        return self._read_first(path, folders, lambda each: checkpoint.find(snapshots_of(durable.resolve_path(each))))

    def _read_first(
        self, path: str | Path, folders: Iterable[Path], read: Callable[[str | Path], Snapshot | None]
    ) -> Snapshot | None:
        """Read `path`, or for "auto" the one of `folders` with the latest snapshot."""
        if str(path) != "auto":
            return read(path)
        candidates = dict.fromkeys(map(durable.resolve_path, folders))
        if not candidates:
            raise ConfigurationError("resume='auto' needs a run folder or a ModelCheckpoint to search")
        reasons = []
        for folder in sorted(candidates, key=_last_write, reverse=True):
            try:
                return read(folder)
            except checkpoint.CheckpointNotFoundError as error:
                reasons.append(str(error))
        logger.warning("resume='auto': %s; starting from the beginning", ", ".join(reasons))
        return None

    def rollback(self) -> None:
        """Restore the model and optimizer of the newest snapshot, not the data position.

        Raises:
            CheckpointError: no snapshot was written or restored in this run.
        """
        if self.newest is None:
            raise CheckpointError("cannot roll back: this run has no snapshot yet; add ModelCheckpoint")
        self.wait()
        self._group.wait_for_all()  # no process reads before rank 0 has written
        snapshot = checkpoint.read(self.newest)
        content = self._owner.snapshot_content()
        tensors = capture.match_tensors(content, groups_of(snapshot), strict=True, weights_only=False)
        self._owner.check_has_tables(capture.part_states(snapshot, capture.TABLES))
        states = capture.table_states(content, snapshot)
        if states and content.tables is not None:
            content.tables.rewind(states)
        # Keep the number of accumulated micro-batches: it belongs to the position in the data, which does not change.
        accumulation = content.accumulation
        capture.assign((parameter, value) for parameter, value in tensors if parameter is not accumulation.count)
        accumulation.clear(keep_count=True)
        capture.restore_averages(content, snapshot)
        calibration: Any = content.parts.get("calibration")
        if calibration is not None and (saved := capture.part_states(snapshot, "calibration")):
            calibration.catch_up()  # rows that were scored and are not counted yet are those of the later weights
            calibration.load_state_dict(saved[-1])


def _last_write(folder: Path) -> tuple[float, int]:
    """Return the Unix time and step of a folder's latest snapshot; zeros if none."""
    with contextlib.suppress(CheckpointError, OSError):  # reading the folder raises it, on all processes together
        entries = [entry for entry in checkpoint.available(snapshots_of(folder)) if not entry.problem]
        if entries:
            return (entries[-1].path / MANIFEST).stat().st_mtime, entries[-1].step
    return 0.0, 0


def groups_of(snapshot: Snapshot) -> dict[str, Mapping[str, Any]]:
    """Return a snapshot's tensors: group -> name -> array."""
    return {group: snapshot.tensors(group) for group in snapshot.groups}


def snapshots_of(path: Path) -> Path:
    """Return the snapshot folder inside a run folder, or `path` itself."""
    with durable.reading(path / FOLDER):  # a missing permission raises CheckpointError
        return path / FOLDER if (path / FOLDER).is_dir() else path
