"""Publishes a model while it trains, as versions that servers follow.

The module `published` describes the files and their checksums. A server that runs an earlier version applies the
changes published since then.
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

from ..cadence import Every, cadence
from ..checkpoint import catalog, tensor_file
from ..checkpoint.manifest import CALIBRATED_VERSION
from ..checks import choice, whole
from ..data.batch_sizes import SERVED
from ..data.chunk import InputBatch
from ..distributed.dense_state import mean_statistics
from ..distributed.group import SINGLE, Group
from ..errors import CheckpointError, ConfigurationError, FolderInUseError, NonFiniteError
from ..features.feature_files import write_state
from ..mindspore_internals.cell_structure import moving_statistics, parameters_of
from ..storage.fetch import PUBLISHED
from .finite import check_finite, check_state
from .packed_rows import ROW_TYPES
from .publish_root import PublishRoot
from .published import CALIBRATION, FEATURES, FULL, ITEMS, ROWS, VERSION, WEIGHTS, Current, FolderRef, publish_folder
from .published_graph import check_publishable, publish_network, trained_batch
from .published_items import ItemTable
from .version_parts import RowSource, VersionRows, shared_errors
from .version_records import version_name

if TYPE_CHECKING:
    from callbacks.callback import Trainer

logger = logging.getLogger(__name__)

States = dict[str, dict[str, Any]]  # base name of the state's files -> state for `write_state`
CONSUMER = "serving"
_LONGEST_PAUSE = 60.0


class Publish(Callback):
    """Publishes the model for servers, in the background, while it trains.

    The first version contains all rows. The network is exported for it, which pauses training for one compilation.
    Later versions contain only the rows that changed. A version starts when it is due and the previous version has
    been written.

    A version is not published if it cannot be written, or if a parameter, a table row or a feature statistic is NaN or
    infinite. Servers then keep the last good version, and the next version contains all rows again. Training continues
    unless `on_error` is "raise". After several failures in a row, the pause between attempts grows to one minute.

    Only one run at a time may publish to a folder. In a job of several processes rank 0 publishes, and each process
    writes its own table rows.

    Args:
        root: folder that servers follow; None for ``published`` in the run folder. A folder outside the run folder
            belongs to the first run that publishes there.
        every: an `Every`, or a number of seconds.
        rows: "float32", or "int8" with one scale per row: a quarter of the size, errors up to 1/254 of a row's maximum.
            With "float32", tables stored as float16 are written as float16.
        batch: batch size of the exported program, or several sizes for several programs. A server pads the rows of a
            call to the smallest program they fit in. A program for fewer than 128 rows, as in (1, 256), answers
            a single row faster. Its answer may differ in the last bits from the same row's answer in a larger batch,
            because matrix products round differently for different numbers of rows.
        compact: number of incremental versions after which a version contains all rows again.
        keep: number of versions before the newest to keep for rollback (see `Versions`), with the full versions they
            build on; default: `compact`. Pinned and kept versions are never removed.
        on_error: "warn" logs a version that cannot be written and continues; "raise" ends the run.
        items: items of a two-tower model, as raw rows or the path of a table that is read again for every version.
            Each version contains the vectors of these items, for `ServedModel.recommend`. Training pauses while the
            vectors are computed. Requires a single process.
        item_id: column of `items` with the ids to recommend.
        item_filters: columns of `items` that a request may filter by. Columns that no feature reads are text.
        index_above: number of items above which a version contains an approximate index (extra [retrieval]), whose
            recall is measured and logged. With None, and for requests with a filter, all items are compared.

    Attributes:
        problem: why the newest version could not be written, or None.
        refused: number of versions that were not published because of a NaN or infinite value.

    Raises:
        ConfigurationError: an argument is invalid, or (at `setup`, before the first step) the folder cannot be
            written, or belongs to another run.
        FolderInUseError: at `setup`, another run publishes there.
        CheckpointError: with `on_error="raise"`, a version cannot be written.
    """

    end_order = 110  # after ModelCheckpoint, which may restore the weights that the last version publishes
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
        self.root: Path | None = None if root is None else Path(root)
        self.every = cadence("Publish", every) if isinstance(every, Every) else Every(seconds=every)
        self.rows, self.batch, self.compact = rows, batch, compact
        self.keep = compact if keep is None else whole("Publish(keep=...)", keep)
        self._source = RowSource(rows)
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._folder: PublishRoot | None = None  # set on rank 0 by `setup`
        self._graph: FolderRef | None = None
        self._consumer = CONSUMER  # name under which tables track changes
        self._has_statistics = False  # whether each of several processes has moving statistics of its own
        self._chain: list[FolderRef] = []  # the newest full version and its successors; if empty, write all rows next
        self._full_file = ROWS  # file with all rows in the first version of the chain
        self._version = 0  # number of the newest version
        self._has_started = False  # whether this run has started a version
        self.on_error = on_error
        self.problem: str | None = None
        self.refused = 0
        self._failures, self._next_try = 0, 0.0  # failures in a row, earliest time of the next attempt
        self.hold_seconds: deque[float] = deque(maxlen=1000)  # how long each recent version blocked training

    @property
    def published_root(self) -> Path | None:  # type: ignore[override]
        """The folder that servers follow."""
        return self.root

    @property
    def _known_root(self) -> Path:
        assert self.root is not None  # `setup` has set it
        return self.root

    def setup(self, trainer: Trainer) -> None:
        """Lock the folder, remove unfinished files and find the newest version's number."""
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
        trainer.group.from_main(lambda: self._lock_folder(trainer.network, trainer.run_dir))
        # Each Publish of a run needs its own consumer name.
        publishers = [callback for callback in trainer.callbacks if isinstance(callback, Publish)]
        number = publishers.index(self) if self in publishers else 0
        self._consumer = f"{CONSUMER}.{number}" if number else CONSUMER
        self._has_statistics = trainer.group.size > 1 and bool(moving_statistics(trainer.network))
        self._source.start()
        self._chain, self._graph, self._has_started = [], None, False
        self.problem, self._failures, self._next_try = None, 0, 0.0

    def _lock_folder(self, network: Any, run_dir: Path | None) -> None:
        size = sum(parameter.nbytes for parameter in parameters_of(network))
        owner = None if self.published_in_run else run_dir
        self._folder = PublishRoot(self._known_root, owner, keep=self.keep, size=size)
        self.root, self._version = self._folder.path, self._folder.newest

    def on_train_step_end(self, trainer: Trainer) -> None:
        """Publish after the first step, then when due; rank 0 decides for all processes."""
        if self._participates(trainer) and self._decide(trainer, lambda: self._is_due(trainer)):
            self._attempt(trainer, lambda: self.publish(trainer))

    def _processes(self, trainer: Trainer) -> Group:
        """Return the processes that publish together, or this one alone."""
        return trainer.group if trainer.tables is not None or self._has_statistics else SINGLE

    def _participates(self, trainer: Trainer) -> bool:
        return trainer.group.is_main or self._processes(trainer).size > 1

    def _decide(self, trainer: Trainer, decide: Callable[[], Any]) -> Any:
        """Return rank 0's decision, broadcast to the processes that publish together."""
        return self._processes(trainer).from_main(decide)

    def _is_due(self, trainer: Trainer) -> bool:
        if self._thread is not None and self._thread.is_alive():
            return False
        if self._failure is not None and self.on_error == "raise":
            return True  # `publish` will raise the failure
        if trainer.calibrator is not None and not trainer.calibrator.is_learned:
            return False
        due = (self.every.due(trainer.state.progress) or not self._has_started) and time.monotonic() >= self._next_try
        self._has_started = self._has_started or due
        return due

    def on_train_end(self, trainer: Trainer) -> None:
        """Publish the final state and wait until it is written."""
        if trainer.state.outputs is None and self._folder is not None:
            self._folder.warn_if_behind(trainer.state.progress.global_step)
        if trainer.state.outputs is None or not self._participates(trainer):
            return
        for _ in range(2):  # retry once: no later version can replace a failed last one
            written = self._attempt(trainer, lambda: self.publish(trainer))
            written &= self._attempt(trainer, lambda: self._finish(trainer))
            if self._decide(trainer, partial(bool, written)):
                return

    def _attempt(self, trainer: Trainer, action: Callable[[], None]) -> bool:
        """Run `action`; return whether it succeeded, or raise on all processes."""
        failure: Exception | None = None
        try:
            action()
            success = True
        except Exception as error:
            if isinstance(error, ConfigurationError) and not isinstance(error, FolderInUseError):
                raise
            self._record_failure(error)
            success = False
            failure = error if self.on_error == "raise" else None  # kept only if needed: its traceback holds the rows

        def raise_failure() -> None:
            if failure is not None:
                with shared_errors(self._known_root):
                    raise failure

        if self.on_error == "raise":
            self._decide(trainer, raise_failure)  # a failure on rank 0 is raised on all processes
        return success

    def _record_failure(self, error: Exception) -> None:
        is_logged = self._failures == 0 or not isinstance(error, NonFiniteError)
        self.refused += isinstance(error, NonFiniteError)
        self.problem = str(error) or repr(error)
        self._failures += 1
        if self._failures > 1:
            self._next_try = time.monotonic() + min(0.25 * 2**self._failures, _LONGEST_PAUSE)
        if is_logged:  # consecutive versions with NaN are logged only once
            logger.error("%s; the next version will contain all rows", self.problem)

    def _finish(self, trainer: Trainer) -> None:
        """Wait for the version being written, on all processes that take part."""
        try:
            self.wait()
        finally:
            self._processes(trainer).wait_for_all()  # rank 0 may take longer than the timeout of a collective

    def teardown(self, trainer: Trainer) -> None:
        """Wait for the version being written and release the folder's lock."""
        try:
            self.wait()
        except CheckpointError as error:
            self._record_failure(error)  # of the version that was being written when the run failed
        finally:
            if self._folder is not None:
                self._folder.release()

    def wait(self) -> None:
        """Wait for the version being written; ranks other than 0 wait for their part.

        Raises:
            CheckpointError: the version could not be written (raised on rank 0).
        """
        self._source.wait()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._chain = []
            if isinstance(failure, NonFiniteError):
                raise NonFiniteError(
                    f"the version was not published to {self.root}, which keeps the previous one: {failure}"
                )
            raise CheckpointError(f"publishing to {self.root} failed: {failure!r}") from failure

    def publish(self, trainer: Trainer, seen: InputBatch | None = None, *, step: int | None = None) -> None:
        """Start writing the current state as a version, once the previous one is written.

        If several processes train tables, or a network with moving statistics, all of them must call this.

        Args:
            trainer: the Trainer.
            seen: a batch with the network's inputs, for the export; default: the last trained batch.
            step: number of optimizer steps to record in the version; default: the trainer's step, which is 0 if only
                weights were loaded.
        """
        started = time.perf_counter()
        calibration = trainer.fitted_calibration()
        selection = self._decide(
            trainer, lambda: self._prepare_version(trainer, seen) if trainer.group.is_main else None
        )
        if selection is None:  # rank 0 alone publishes
            return
        full, compact = selection
        states: States = {} if calibration is None else {CALIBRATION: calibration.state()}
        if self.items is not None and trainer.features is not None:
            with trainer.averaged_weights():
                states[ITEMS] = self.items.state(trainer, trainer.features, trainer.network)
        weights = self._weights(trainer)
        try:
            final = self._known_root / version_name(self._version + 1)
            rows = self._source.take(trainer, self._consumer, final, full=full, compact=compact)
            if trainer.group.is_main:
                self._start_writing(trainer, rows, weights, full or compact, step, states)
        except BaseException:
            self._chain = []  # the tables no longer track these changes, so the next version must contain all rows
            raise
        self.hold_seconds.append(time.perf_counter() - started)

    def _weights(self, trainer: Trainer) -> dict[str, np.ndarray]:
        """Return copies of the averages or weights, with the statistics of all processes."""
        with trainer.averaged_weights():
            means = mean_statistics(self._processes(trainer), trainer.network)
            own = parameters_of(trainer.network) if trainer.group.is_main else ()
            return {p.name: np.array(p.asnumpy()) for p in own} | means

    def _start_writing(
        self, trainer: Trainer, rows: VersionRows, weights: dict, restart: bool, step: int | None, states: States
    ) -> None:
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(rows.close)  # if the thread cannot be started
            self._version += 1
            steps = [] if trainer.state.outputs is None else trainer.state.outputs.chunk.extras
            times = [extras["event_time"].max() for extras in steps if extras and "event_time" in extras]
            event_time = float(max(times)) if times else None
            step = trainer.state.progress.global_step if step is None else step
            record = {"version": self._version, "step": step, "event_time": event_time}
            features = trainer.features
            if features is not None and features.learns_online:
                states = {**states, FEATURES: features.published_state()}
            work = partial(self._publish_version, record, weights, rows, restart, states)
            self._thread = threading.Thread(target=work, name="publisher")
            self._thread.start()
            cleanup.pop_all()

    def _prepare_version(self, trainer: Trainer, seen: InputBatch | None) -> tuple[bool, bool]:
        """Wait for the previous version; return `full` and `compact` for `RowSource.take`."""
        try:
            self.wait()
        except CheckpointError as error:
            if self.on_error == "raise":
                raise
            self._record_failure(error)
        needed = [] if self._graph is None else [self._graph, *self._chain]
        if not all((self._known_root / folder.name).is_dir() for folder in needed):
            logger.warning(
                "folders that versions build on are gone from %s: the next version has everything", self.root
            )
            self._graph, self._chain = None, []
        if self._graph is None:
            inputs = trained_batch(trainer) if seen is None else seen
            with shared_errors(self._known_root):
                self._graph = publish_network(trainer, self._known_root, self.batch, inputs)
        full = not self._chain
        return full, not full and len(self._chain) > self.compact

    # -- the writing thread --------------------------------------------------------------------------------------

    def _publish_version(self, record: dict, weights: dict, rows: VersionRows, restart: bool, states: States) -> None:
        try:
            assert self._folder is not None  # both are set before the thread starts
            assert self._graph is not None
            self._folder.check()
            check_finite(weights, "the parameter")
            rows.compute()
            record |= {"time": time.time()}
            full = (FULL if FULL in rows.files else ROWS) if restart else self._full_file
            body = {**record, "graph": vars(self._graph), "restart": restart, "full": full}
            reference = self._write_folder(body, weights, rows, states)
            chain = [reference] if restart else [*self._chain, reference]
            current = Current(**record, graph=self._graph, chain=tuple(chain), full=full)
            try:
                current.write(self._known_root)
            except BaseException:
                catalog.delete(self._known_root / reference.name)
                raise
            self._chain, self._full_file = chain, full
            self.problem, self._failures, self._next_try = None, 0, 0.0
            self._folder.sweep()
        except BaseException as error:
            self._failure = error
        finally:
            rows.close()

    def _write_folder(self, record: Mapping[str, Any], weights: dict, rows: VersionRows, states: States) -> FolderRef:
        name = version_name(record["version"])
        root = self._known_root
        with rows.folder(root / name) as folder:
            folder.write(f"{WEIGHTS}.safetensors", tensor_file.blocks(weights))
            entries = rows.write(folder)
            for kind, state in states.items():
                check_state(state, f"the {kind}:")
                write_state(state, folder, kind)
            if CALIBRATION in states:
                entries["format_version"] = CALIBRATED_VERSION
            before = vars(self._chain[-1]) if self._chain else None
            return publish_folder(root, folder, VERSION, name, {**record, "before": before, **entries})
