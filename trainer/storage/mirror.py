"""`Mirror`: copies a run folder to an object store while the run continues."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from callbacks import Callback

from ..checkpoint import durable
from ..checks import number
from ..errors import ConfigurationError
from ..masking import mask_text
from .location import Location
from .mirror_pass import MirrorPass

if TYPE_CHECKING:
    from callbacks.callback import Trainer

logger = logging.getLogger(__name__)

RECORD = "mirror.json"
_MAX_PAUSE = 60.0


class Mirror(Callback):
    """Copies a run's snapshots, versions and records to an object store, on a thread.

    Only data that is durable on the local disk is copied. The manifest of a snapshot or version is copied last, so the
    mirror never contains an incomplete one. Data that is removed locally is removed from the mirror too. If the store
    fails, training continues: the failure is logged once, and copying is retried with pauses that grow to a minute.
    Missing data is copied at the end of the run and when the run is started again. Folders of `ModelCheckpoint` and
    `Publish` outside the run folder are mirrored as ``checkpoints`` and ``published``. Hidden files are skipped. Only
    rank 0 mirrors.

    A mirror belongs to one run: the file ``mirror.json`` with the run's identity is in the run folder and in the
    mirror.

    Args:
        url: URL of the mirror, for example ``s3://bucket/run``; see `trainer.storage.location.Location`.
        every: seconds between checks of the local folders; a new durable snapshot is copied at once.
        wait: maximum seconds that the end of a run waits for missing copies.

    Attributes:
        problem: why the mirror is behind, or None.
        lag: number of snapshots and versions that the mirror lacked at the last check.
        uploaded: number of snapshots and versions uploaded.

    Raises:
        ConfigurationError: the URL cannot be used (scheme, bucket, credentials, a missing package); at `setup`, there
            is no run folder, or the mirror belongs to another run.
    """

    order = 200
    main_only = True
    leaves_files = True

    def __init__(self, url: str, every: float = 5.0, wait: float = 60.0) -> None:
        self._every = number("Mirror(every=...)", every, above=0, what="seconds")
        self._max_wait = number("Mirror(wait=...)", wait, minimum=0, what="seconds")
        self.location = Location(url)
        self.problem: str | None = None
        self._mirror_pass: MirrorPass | None = None
        self._thread: threading.Thread | None = None
        self._wake_event, self._stop_event = threading.Event(), threading.Event()
        self._pass_lock = threading.Lock()  # held during a pass
        self._created_mirror = False  # whether this run created the mirror

    @property
    def lag(self) -> int:
        """Number of snapshots and versions that the mirror lacked at the last check."""
        return 0 if self._mirror_pass is None else self._mirror_pass.lag

    @property
    def uploaded(self) -> int:
        """Number of uploaded snapshots and versions."""
        return 0 if self._mirror_pass is None else self._mirror_pass.uploaded

    def setup(self, trainer: Trainer) -> None:
        """Claim the mirror for this run and start the thread."""
        if trainer.run_dir is None:
            raise ConfigurationError("Mirror needs a run folder: give run_dir=... to the trainer")
        run_dir = durable.resolve_path(trainer.run_dir)
        run_dir.mkdir(parents=True, exist_ok=True)
        folders = {"": run_dir}
        for callback in trainer.callbacks:
            for name, root in (("checkpoints", callback.snapshot_root), ("published", callback.published_root)):
                if root is not None and not durable.resolve_path(root).is_relative_to(run_dir):
                    if name in folders:
                        raise ConfigurationError(
                            f"Mirror takes one folder of {name} outside the run folder; there are {folders[name]} and "
                            f"{root}: put them inside {run_dir}"
                        )
                    folders[name] = durable.resolve_path(root)
        self._created_mirror = not (run_dir / RECORD).is_file()
        record = claim_mirror(self.location, run_dir)
        self._mirror_pass = MirrorPass(folders, self.location, record.get("spared", ()))
        self._stop_event.clear()
        self._thread = threading.Thread(target=self._run_until_stopped, name="mirror", daemon=True)
        self._thread.start()

    def on_save_checkpoint(self, trainer: Trainer) -> None:
        """Wake the thread to copy the snapshot now."""
        self._wake_event.set()

    def teardown(self, trainer: Trainer) -> None:
        """Complete the mirror within about `wait` seconds, then stop the thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stop_event.set()
            self._wake_event.set()
            self.problem = None  # `catch_up` must retry even after an earlier failure
            self.catch_up()
            thread.join(timeout=self._max_wait)

    def catch_up(self) -> bool:
        """Copy missing data now; return whether the mirror is complete.

        Retries for `wait` seconds, or not at all if the previous pass failed.
        """
        if self._mirror_pass is None:
            return True
        deadline, pause = time.monotonic() + (self._max_wait if self.problem is None else 0.0), 0.5
        while True:
            if self._try_pass():
                return True
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                logger.error(
                    "%s lacks %d snapshots or versions (%s); the next start of this run uploads them",
                    self.location.url, self.lag, self.problem or "they were changing",
                )  # fmt: skip
                return False
            time.sleep(min(pause, remaining))
            pause = min(2 * pause, 10.0)

    def remove_new_mirror(self) -> None:
        """Empty a mirror that this run created, if the run failed before its first step."""
        if self._mirror_pass is not None and self._created_mirror:
            self._mirror_pass.remove_other_files()
            self.location.delete(RECORD)
            (self._mirror_pass.folders[""] / RECORD).unlink(missing_ok=True)
            self._mirror_pass = None

    def _run_until_stopped(self) -> None:
        pause = self._every
        while not self._stop_event.is_set():
            self._try_pass(final=False)
            pause = self._every if self.problem is None else min(2 * max(pause, 0.5), _MAX_PAUSE)
            self._wake_event.wait(pause)
            self._wake_event.clear()

    def _try_pass(self, *, final: bool = True) -> bool:
        """Do one pass; return whether the mirror is complete."""
        assert self._mirror_pass is not None  # set by `setup`
        with self._pass_lock:
            try:
                complete = self._mirror_pass.run(final=final)
            except Exception as error:  # training continues after any error
                problem = mask_text(str(error)) or repr(error)
                if self.problem is None:
                    logger.warning("the mirror is behind; copying will be retried: %s", problem)
                self.problem = problem
                return False
            if self.problem is not None:
                logger.info("the mirror %s has caught up", self.location.url)
            self.problem = None
            return complete


def claim_mirror(location: Location, run_dir: Path) -> dict[str, Any]:
    """Claim a new mirror for a run, or check that the run owns it; return its record."""
    path = run_dir / RECORD
    try:
        owner = parse_record(location.read(RECORD), location.display_url(RECORD))
    except FileNotFoundError:
        owner = None
    except OSError as error:
        raise ConfigurationError(f"the mirror cannot be used: {error}") from None
    own = parse_record(path.read_bytes(), path) if path.is_file() else None
    if owner is not None and (own is None or own["run"] != owner["run"]):
        raise ConfigurationError(
            f"{location.url} is the mirror of another run ({owner.get('folder')} on {owner.get('host')}, started "
            f"{owner.get('started')}); give this run another URL, or continue that one: --resume {location.url}"
        )
    record = own or {
        "run": uuid.uuid4().hex,
        "folder": str(run_dir),
        "host": socket.gethostname(),
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    content = (json.dumps(record, indent=1) + "\n").encode()
    try:
        if own is None:
            durable.replace_file(path, content)
        if owner is None:
            location.write(RECORD, content)
    except OSError as error:
        if own is None:
            path.unlink(missing_ok=True)
        raise ConfigurationError(f"the mirror cannot be used: {error}") from None
    return record


def parse_record(content: bytes, where: object) -> dict[str, Any]:
    """Parse the record of a mirror; raise ConfigurationError if it is invalid."""
    try:
        record = json.loads(content)
        if isinstance(record, dict) and isinstance(record.get("run"), str):
            return record
    except ValueError:
        pass
    raise ConfigurationError(f"{where} is not a record of a mirror; remove it if this program did not write it")
