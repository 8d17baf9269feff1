"""Taking and restoring snapshots of a trainer: the one checkpoint writer. When and which is `ModelCheckpoint`'s."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import checkpoint
from ..distributed.dense_state import forget_open_windows, synchronize
from ..errors import CheckpointError, ConfigurationError, FolderInUseError
from ..state import Phase
from . import capture, catalog, durable
from .background import BackgroundWriter
from .ckpt_files import load_ckpt
from .folder_lock import FolderLock, claim

if TYPE_CHECKING:
    from ..run.cursor import Cursor
    from ..trainer import Trainer
    from .snapshot import Snapshot

logger = logging.getLogger(__name__)

FOLDER = "checkpoints"


class Saver:
    """Writes and reads the snapshots of one trainer. Every path that comes in is resolved here: links never show.

    Attributes:
        config: text stored as config.yaml in every snapshot, or None.
        written: names of the snapshots this process wrote, known to be sound.
        durable_count: how many that is, one that was replaced included.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._writer = BackgroundWriter()
        self.config: str | None = None
        self.written: set[str] = set()
        self.durable_count = 0
        self._of_others: deque[Mapping[str, Any]] = deque()
        self._positions: dict[Path, Mapping[str, Any]] = {}
        self._identities: dict[Path, str] = {}
        self._locks: dict[Path, FolderLock | None] = {}

    def claim(self, root: str | Path) -> Path:
        """Become the one writer of a folder of snapshots until the run ends; return its path, free of links.

        Raises:
            ConfigurationError: it cannot be made or written. FolderInUseError: another run writes there.
        """
        path = durable.resolved(root)
        if path not in self._locks:
            self._locks[path] = None  # on ranks that do not write
            self._trainer.group.from_main(lambda: self._take(path))
        return path

    def _take(self, path: Path) -> None:
        self._locks[path] = claim(path, "checkpoint folder")
        catalog.recover(path, alone=True)

    @property
    def hold_seconds(self) -> list[float]:
        """How long each background snapshot held the step loop."""
        return self._writer.hold_seconds

    def save(self, root: Path, *, background: bool = False) -> Path:
        """Write a snapshot of the trainer's present state to ``root/step_<global_step>`` and return that path.

        Raises:
            CheckpointError: it cannot be written; earlier snapshots stay as they are.
        """
        root = durable.resolved(root)
        with self._sole_writer(root, background):
            return self._save(root, background)

    def _save(self, root: Path, background: bool) -> Path:
        trainer = self._trainer
        step = trainer.state.progress.global_step
        path = root / checkpoint.step_name(step)
        if trainer.group.size > 1:  # all hear of a write that has failed, before they wait for each other
            self.wait()
        synchronize(trainer)
        if not trainer.group.is_main:  # rank 0 writes; all but the rows of tables is the same here
            if trainer.tables is not None:
                trainer.tables.give(path)
            if trainer.run is not None:
                self._of_others.append(trainer.run.cursor.of_all())
            trainer.report_snapshot(path)
            return path
        policy = trainer.tables.delta_policy if trainer.tables is not None else None
        base = None
        if policy is not None:
            self._wait()  # only what is on the disk can be built on
            name = policy.base_of(path)
            base = None if name is None else (name, self._identities[root / name])
        groups, state = capture.take(trainer)
        self._positions[path] = state.get("loop", {}).get("position")
        arguments = (root, step, groups, state)
        options = {"config": self.config, "base": base, "identity": uuid.uuid4().hex}
        with self._failing_breaks_the_chain():
            if background:
                self._writer.submit(*arguments, **options)
            else:
                self._wait()
                checkpoint.write(*arguments, **options)
        self._identities = {path: options["identity"]}
        if policy is not None:
            policy.written(path)
        if not background:
            self._became_durable(path)
        return path

    def _sole_writer(self, root: Path, background: bool) -> contextlib.AbstractContextManager[Any]:
        """Make sure that nobody else writes in `root`: for the rest of a run, or outside of one for this snapshot."""
        lock = None
        try:
            if self._trainer.state.phase is not Phase.IDLE:
                self.claim(root)
                lock = self._locks[root]
            if lock is not None:
                lock.check()
            if lock is not None or not self._trainer.group.is_main:
                return contextlib.nullcontext()
            lock = claim(root, "checkpoint folder")
        except FolderInUseError:
            raise
        except ConfigurationError as error:
            raise CheckpointError(str(error)) from error
        if background:  # nobody may come to give it back
            lock.release()
        return lock

    @contextlib.contextmanager
    def _failing_breaks_the_chain(self) -> Iterator[None]:
        """Let the next snapshot hold the tables in full when one it could build on was not written."""
        try:
            yield
        except BaseException:
            if self._trainer.tables is not None:
                self._trainer.tables.delta_policy.broken()
            raise

    def check(self) -> None:
        """Report background snapshots that became durable; raise what a background write raised.

        Of several processes rank 0 would raise alone and leave the others in a collective: it keeps that for `wait`.
        """
        if self._writer.has_news and not (self._trainer.group.size > 1 and self._writer.has_failed):
            self._report()

    def _report(self) -> None:
        with self._failing_breaks_the_chain():
            durable = self._writer.check()
        for path in durable:
            self._became_durable(path)

    def wait(self) -> None:
        """Wait for the background write in flight, if any, and report it; all processes call it together.

        Raises:
            CheckpointError: on all of them; the write has failed.
        """
        self._trainer.group.from_main(self._wait)

    def _wait(self) -> None:
        with self._failing_breaks_the_chain():
            self._writer.wait()
        self._report()

    def close(self) -> None:
        """Wait for the background write in flight; report it; give buffers and folders back."""
        try:
            with self._failing_breaks_the_chain():
                self._writer.close()
            self._report()
        finally:
            locks, self._locks = self._locks, {}
            for lock in locks.values():
                if lock is not None:
                    lock.release()

    def _became_durable(self, path: Path) -> None:
        trainer = self._trainer
        self.written.add(path.name)
        self.durable_count += 1
        checkpoint.set_pointer(path.parent, "last", path.name)
        trainer.commit(self._positions.pop(path, None))
        trainer.report_snapshot(path)

    def settle(self, count: int) -> None:
        """Tell the data source, where this process is not rank 0, that so many snapshots have become durable."""
        while self._of_others and self.durable_count < count:
            self.durable_count += 1
            self._trainer.commit(self._of_others.popleft())

    def prune(self, root: Path, keep: Collection[str]) -> None:
        """Remove the snapshots not in `keep`; what is needed to go on is never removed."""
        if not self._trainer.group.is_main:
            return
        checkpoint.prune(durable.resolved(root), keep, trust=self.written)

    def load(
        self, path: str | Path, *, strict: bool = True, weights_only: bool = False, cursor: Cursor | None = None
    ) -> Snapshot | None:
        """Restore the newest sound snapshot under `path`, or the weights of a MindSpore .ckpt file.

        Args:
            path: a snapshot, a folder of snapshots, a run folder, or a .ckpt file (weights only).
            strict: refuse a snapshot whose parameters differ from the trainer's; otherwise load what fits.
            weights_only: take the network's parameters and nothing else.
            cursor: place in the data of the training that goes on from the snapshot.

        Raises:
            CheckpointError: nothing sound to load, or its content makes no sense; the trainer is as it was then.
            CheckpointMismatchError: it belongs to another network.
        """
        trainer = self._trainer
        path = durable.resolved(path)
        if path.suffix == ".ckpt":
            weights = {capture.MODEL: load_ckpt(path)}
            capture.assign(capture.fitting_tensors(trainer, weights, strict=strict, weights_only=True))
            return None
        snapshot = checkpoint.find(snapshots_of(path))
        tensors = capture.fitting_tensors(trainer, groups_of(snapshot), strict=strict, weights_only=weights_only)
        if weights_only:
            states = capture.table_states(trainer, snapshot)
            if trainer.tables is not None:
                trainer.tables.load_states(states)
            capture.assign(tensors)
        else:
            capture.restore_all(trainer, snapshot, tensors, cursor)
            forget_open_windows(trainer)
        logger.info("restored %s (step %d)", snapshot.path, snapshot.step)
        return snapshot

    def resume(self, path: str | Path, cursor: Cursor) -> bool:
        """Restore a run; return False when `path` is "auto" and there is nothing to go on from.

        Raises:
            CheckpointError: `path` names something that holds no sound snapshot.
        """
        if str(path) != "auto":
            self.load(path, cursor=cursor)
            return True
        folders = [self._trainer.run_dir / FOLDER] if self._trainer.run_dir else []
        folders += [Path(c.snapshot_root) for c in self._trainer.callbacks if c.snapshot_root is not None]
        if not folders:
            raise ConfigurationError("resume='auto' needs a run folder or a ModelCheckpoint to look into")
        reasons = []
        for folder in dict.fromkeys(map(durable.resolved, folders)):
            try:
                self.load(folder, cursor=cursor)
                return True
            except checkpoint.CheckpointNotFoundError as error:
                reasons.append(str(error))
        logger.warning("resume='auto': %s; starting from the beginning", ", ".join(reasons))
        return False

    def rollback(self) -> None:
        """Put weights, optimizer and step state back to the newest snapshot; the data goes on where it is.

        Raises:
            CheckpointError: no snapshot was written or restored in this run.
        """
        if self._trainer.state.snapshot is None:
            raise CheckpointError("cannot roll back: this run has no snapshot yet; add ModelCheckpoint")
        self.wait()
        self._trainer.group.any(False)  # no process reads before rank 0 has written
        snapshot = checkpoint.read(self._trainer.state.snapshot)
        tensors = capture.fitting_tensors(self._trainer, groups_of(snapshot), strict=True, weights_only=False)
        states = capture.table_states(self._trainer, snapshot)
        if self._trainer.tables is not None:
            self._trainer.tables.rewind(states)
        # Of an accumulation window it is the data that says how far it is, and the data goes on.
        window = self._trainer.builder.window
        capture.assign((one, value) for one, value in tensors if one is not window.count)
        window.forget(keep_count=True)


def groups_of(snapshot: Snapshot) -> dict[str, dict[str, Any]]:
    """Return the tensors of a snapshot by group."""
    return {group: snapshot.tensors(group) for group in snapshot.groups}


def snapshots_of(path: Path) -> Path:
    """Return the folder of snapshots of a run folder, or `path` itself."""
    return path / FOLDER if (path / FOLDER).is_dir() else path
