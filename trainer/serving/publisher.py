"""Publishes a model while it trains, as versions that servers follow.

`published` describes the files and their checksums. A server that has an earlier version applies the
changes it lacks.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from callbacks import Callback

from ..cadence import Every
from ..checkpoint import catalog, tensor_file
from ..checks import choice, whole
from ..data.batch_sizes import SERVED
from ..data.chunk import InputBatch
from ..errors import CheckpointError, ConfigurationError, FolderInUseError, NonFiniteError
from ..features.feature_files import write_state
from ..mindspore_internals.cell_structure import parameters_of
from ..storage.fetch import PUBLISHED
from .finite import check_finite, check_state
from .packed_rows import ROW_TYPES
from .publish_root import PublishRoot
from .published import CALIBRATION, FEATURES, FULL, ITEMS, ROWS, VERSION, WEIGHTS, Current, Part, publish_folder
from .published_graph import check_publishable, publish_network, trained_batch
from .published_items import ItemTable
from .version_parts import RowSource, VersionRows, shared_errors
from .version_records import version_name

if TYPE_CHECKING:
    from callbacks.callback import Trainer

logger = logging.getLogger(__name__)

States = dict[str, dict[str, Any]]  # kind of state, a name of its files -> what `write_state` takes
CONSUMER = "serving"
_LONGEST_PAUSE = 60.0


class Publish(Callback):
    """Publishes the model for servers, in the background, while it trains.

    The first version holds everything and exports the network, which holds training for the time of a compilation.
    Later ones hold the rows that changed. A version starts when it is due and the one before it is written. A version
    that cannot be written, or would hold a parameter, a row or a statistic of features that is NaN or infinite, leaves
    nothing behind: servers stay with the last good one, and the next one holds everything again. Training does not end
    for it unless `on_error` says so; after several failures in a row the pauses between tries grow to a minute. While
    it publishes, no other run may publish to the same folder. Of several processes rank 0 publishes, and each writes
    its own rows of tables.

    Args:
        root: folder that servers follow; None: ``published`` in the run folder. A folder outside it belongs to the
            first run that publishes there.
        every: an `Every`, or seconds.
        rows: "float32", or "int8" with one scale per row: a quarter of the size, errors up to 1/254 of a row's maximum.
            With "float32", the rows of a table of float16 are written as they are.
        batch: rows of the exported program, or of each of several: a server pads a call's rows to the smallest program
            with room for them. With less than 128, as in (1, 256), one row is answered sooner, but not always with the
            last bits of its answer among many: a processor's matrix products differ with the number of rows.
        compact: versions of changes after which all rows are written once more.
        keep: newest versions that servers can be sent back to (see `Versions`), with the full versions they build on;
            default: `compact`. Pinned and kept versions stay regardless of age.
        on_error: "warn" logs a version that cannot be written and continues; "raise" ends the run.
        items: of two towers, raw rows of the items, or the path of a table of them, which is read for every version:
            each version has the vectors of these items, for `ServedModel.recommend`. The training waits while they are
            computed. In one process.
        item_id: the column of `items` that is recommended.
        item_filters: columns of `items` that a recommendation may be limited by; those that no feature reads are text.
        index_above: number of items above which each version has an approximate index of them (extra [retrieval]); its
            recall is measured and logged. None: all items are compared. With a filter they always are.

    Attributes:
        problem: why the newest version could not be written, or None.
        refused: how often a version was not published because it held a value that is NaN or infinite.

    Raises:
        ConfigurationError: an argument cannot work, or (at `setup`, before the first step) the folder cannot be
            written, or belongs to another run.
        FolderInUseError: at `setup`, another run publishes there.
        CheckpointError: with `on_error="raise"`, a version cannot be written.
    """

    end_order = 110  # after a ModelCheckpoint, which may restore the weights to be published last
    leaves_files = True

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        every: Every | float = 1.0,
        rows: str = "float32",
        *,
        batch: int | Sequence[int] = SERVED,
        compact: int = 32,
        keep: int | None = None,
        on_error: str = "warn",
        items: Any = None,
        item_id: str | None = None,
        item_filters: Sequence[str] = (),
        index_above: int | None = None,
    ) -> None:
        if items is None and (item_id is not None or item_filters or index_above is not None):
            raise ConfigurationError(
                "Publish(item_id=..., item_filters=..., index_above=...) need items=..., the table of items"
            )
        self.items = None if items is None else ItemTable(items, item_id, item_filters, index_above)
        choice("Publish(rows=...)", rows, ROW_TYPES)
        for size in batch if isinstance(batch, list | tuple) and batch else [batch]:
            whole("Publish(batch=...)", size, also=", or several such numbers")
        whole("Publish(compact=...)", compact)
        choice("Publish(on_error=...)", on_error, ("warn", "raise"))
        self.published_in_run = root is None
        self.root: Path = None if root is None else Path(root)
        self.every = every if isinstance(every, Every) else Every(seconds=every)
        self.rows, self.batch, self.compact = rows, batch, compact
        self.keep = compact if keep is None else whole("Publish(keep=...)", keep)
        self._source = RowSource(rows)
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._folder: PublishRoot = None  # set on rank 0 by `setup`
        self._graph: Part | None = None
        self._consumer = CONSUMER  # name under which tables track changes
        self._chain: list[Part] = []
        self._full = ROWS
        self._version = 0
        self._tried = False
        self.on_error = on_error
        self.problem: str | None = None
        self.refused = 0
        self._failures, self._next_try = 0, 0.0
        self.hold_seconds: deque[float] = deque(maxlen=1000)  # how long recent versions blocked the training

    @property
    def published_root(self) -> Path | None:  # type: ignore[override]
        """The folder that servers follow."""
        return self.root

    def setup(self, trainer: Trainer) -> None:
        """Lock the folder, remove unfinished files, continue after its newest version."""
        if trainer.features is not None:
            check_publishable(trainer.features)
        if self.items is not None:
            if trainer.features is None or trainer.group.size > 1:
                raise ConfigurationError("Publish(items=...) needs Trainer(features=...) and one process")
            self.items.read(trainer.features)
        if self.published_in_run:
            if trainer.run_dir is None:
                raise ConfigurationError(
                    "Publish() needs a run folder: give Publish(root=...), or the trainer run_dir=..."
                )
            self.root = Path(trainer.run_dir) / PUBLISHED
        self._folder = None
        trainer.group.from_main(lambda: self._take_folder(trainer.network, trainer.run_dir))
        publishers = [callback for callback in trainer.callbacks if isinstance(callback, Publish)]
        number = publishers.index(self) if self in publishers else 0
        self._consumer = f"{CONSUMER}.{number}" if number else CONSUMER
        self._source.start()
        self._chain, self._graph, self._tried = [], None, False
        self.problem, self._failures, self._next_try = None, 0, 0.0

    def _take_folder(self, network: Any, run_dir: Path | None) -> None:
        size = sum(parameter.nbytes for parameter in parameters_of(network))
        owner = None if self.published_in_run else run_dir
        self._folder = PublishRoot(self.root, owner, keep=self.keep, size=size)
        self.root, self._version = self._folder.path, self._folder.newest

    def on_train_step_end(self, trainer: Trainer) -> None:
        """Publish at once, then when due; rank 0 decides for all processes."""
        if _takes_part(trainer) and _decide(trainer, lambda: self._is_due(trainer)):
            self._try(trainer, lambda: self.publish(trainer))

    def _is_due(self, trainer: Trainer) -> bool:
        if self._thread is not None and self._thread.is_alive():
            return False
        if self._failure is not None and self.on_error == "raise":
            return True
        if trainer.calibrator is not None and not trainer.calibrator.is_learned:
            return False
        due = (self.every.due(trainer.state.progress) or not self._tried) and time.monotonic() >= self._next_try
        self._tried = self._tried or due
        return due

    def on_train_end(self, trainer: Trainer) -> None:
        """Publish the final state and wait for it."""
        if trainer.state.outputs is None or not _takes_part(trainer):
            return
        for _ in range(2):  # no later version makes up for a failure of the last one
            written = self._try(trainer, lambda: self.publish(trainer))
            written &= self._try(trainer, lambda: self._finish(trainer))
            if _decide(trainer, partial(bool, written)):
                return

    def _try(self, trainer: Trainer, action: Callable[[], None]) -> bool:
        """Publish or wait; return whether that went well, or raise on all processes."""
        failure: Exception | None = None
        try:
            action()
            success = True
        except Exception as error:
            if isinstance(error, ConfigurationError) and not isinstance(error, FolderInUseError):
                raise
            self._note_failure(error)
            success = False
            failure = error if self.on_error == "raise" else None  # kept only if needed: its traceback holds the rows

        def raise_failure() -> None:
            if failure is not None:
                with shared_errors(self.root):
                    raise failure

        if self.on_error == "raise":
            _decide(trainer, raise_failure)
        return success

    def _note_failure(self, error: Exception) -> None:
        is_first = self._failures == 0 or not isinstance(error, NonFiniteError)
        self.refused += isinstance(error, NonFiniteError)
        self.problem = str(error) or repr(error)
        self._failures += 1
        if self._failures > 1:
            self._next_try = time.monotonic() + min(0.25 * 2**self._failures, _LONGEST_PAUSE)
        if is_first:  # warn once about a model that has become NaN
            logger.error("%s; the next version will hold everything", self.problem)

    def _finish(self, trainer: Trainer) -> None:
        """Wait for the version on all processes that take part."""
        try:
            self.wait()
        finally:
            if trainer.tables is not None:
                trainer.group.wait_for_all()  # rank 0 may wait longer than a collective does

    def teardown(self, trainer: Trainer) -> None:
        """Wait for the version being written and give the folder back."""
        self._source.wait()
        if self._thread is not None:
            self._thread.join()
        if self._folder is not None:
            self._folder.release()

    def wait(self) -> None:
        """Wait for the version being written; on ranks other than 0, for their part.

        CheckpointError: on rank 0, if it could not be written.
        """
        self._source.wait()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._chain = []
            if isinstance(failure, NonFiniteError):
                raise NonFiniteError(f"no version is published to {self.root}, whose last one stays: {failure}")
            raise CheckpointError(f"publishing to {self.root} failed: {failure!r}") from failure

    def publish(self, trainer: Trainer, seen: InputBatch | None = None, *, step: int | None = None) -> None:
        """Start writing the present state as a version, after the one before it.

        Of many processes that train tables all have to call it.

        Args:
            trainer: the Trainer.
            seen: a batch that shows the network's inputs; default: the batch that was trained last.
            step: optimizer steps the version has seen; default: those of the trainer, which are 0 where only weights
                were loaded.
        """
        started = time.perf_counter()
        calibration = trainer.fitted_calibration()
        begun = _decide(trainer, lambda: self._begin(trainer, seen) if trainer.group.is_main else None)
        if begun is None:
            return
        full, compact = begun
        states: States = {} if calibration is None else {CALIBRATION: calibration.state()}
        if self.items is not None and trainer.features is not None:
            with trainer.averaged_weights():
                states[ITEMS] = self.items.state(trainer, trainer.features, trainer.network)
        try:
            final = self.root / version_name(self._version + 1)
            rows = self._source.take(trainer, self._consumer, final, full=full, compact=compact)
            if trainer.group.is_main:
                self._start(trainer, rows, full or compact, step, states)
        except BaseException:
            self._chain = []  # the changes were taken from the tables: the next version has to hold everything
            raise
        self.hold_seconds.append(time.perf_counter() - started)

    def _start(self, trainer: Trainer, rows: VersionRows, restart: bool, step: int | None, states: States) -> None:
        """Copy the weights and start the writing thread."""
        with contextlib.ExitStack() as undo:
            undo.callback(rows.close)
            with trainer.averaged_weights():
                weights = {p.name: np.array(p.asnumpy()) for p in parameters_of(trainer.network)}
            self._version += 1
            extras_seen = [] if trainer.state.outputs is None else trainer.state.outputs.chunk.extras
            times = [extras["event_time"].max() for extras in extras_seen if extras and "event_time" in extras]
            event_time = float(max(times)) if times else None
            step = trainer.state.progress.global_step if step is None else step
            about = {"version": self._version, "step": step, "event_time": event_time}
            features = trainer.features
            if features is not None and features.learns_online:
                states = {**states, FEATURES: features.published_state()}
            work = partial(self._publish, about, weights, rows, restart, states)
            self._thread = threading.Thread(target=work, name="publisher")
            self._thread.start()
            undo.pop_all()

    def _begin(self, trainer: Trainer, seen: InputBatch | None) -> tuple[bool, bool]:
        """Wait for the previous version; return (new chain, all rows)."""
        try:
            self.wait()
        except CheckpointError as error:
            if self.on_error == "raise":
                raise
            self._note_failure(error)
        if self._graph is None:
            shown = trained_batch(trainer) if seen is None else seen
            with shared_errors(self.root):
                self._graph = publish_network(trainer, self.root, self.batch, shown)
        full = not self._chain
        return full, not full and len(self._chain) > self.compact

    # -- the writing thread --------------------------------------------------------------------------------------

    def _publish(self, about: dict, weights: dict, rows: VersionRows, restart: bool, states: States) -> None:
        try:
            self._folder.check()
            check_finite(weights, "the parameter")
            rows.compute()
            about |= {"time": time.time()}
            full = (FULL if FULL in rows.files else ROWS) if restart else self._full
            body = {**about, "graph": vars(self._graph), "restart": restart, "full": full}
            part = self._write(body, weights, rows, states)
            chain = [part] if restart else [*self._chain, part]
            now = Current(**about, graph=self._graph, chain=tuple(chain), full=full)
            try:
                now.write(self.root)
            except BaseException:
                catalog.delete(self.root / part.name)
                raise
            self._chain, self._full = chain, full
            self.problem, self._failures, self._next_try = None, 0, 0.0
            self._folder.sweep()
        except BaseException as error:
            self._failure = error
        finally:
            rows.close()

    def _write(self, about: Mapping[str, Any], weights: dict, rows: VersionRows, states: States) -> Part:
        name = version_name(about["version"])
        with rows.folder(self.root / name) as folder:
            folder.write(f"{WEIGHTS}.safetensors", tensor_file.blocks(weights))
            entries = rows.write(folder)
            for kind, state in states.items():
                check_state(state, f"of the {kind},")
                write_state(state, folder, kind)
            before = vars(self._chain[-1]) if self._chain else None
            return publish_folder(self.root, folder, VERSION, name, {**about, "before": before, **entries})


def _takes_part(trainer: Trainer) -> bool:
    return trainer.group.is_main or trainer.tables is not None


def _decide(trainer: Trainer, make: Callable[[], Any]) -> Any:
    """Return rank 0's decision, broadcast if every rank contributes rows."""
    return make() if trainer.tables is None else trainer.group.from_main(make)
