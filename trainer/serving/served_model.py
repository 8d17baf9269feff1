"""`ServedModel`: predicts with a published model while it trains."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..checks import choice
from ..errors import CheckpointError, ConfigurationError, DataError
from ..features.feature import PREDICTION, SET_ASIDE
from ..features.feature_data import is_raw
from ..features.features import Features
from ..features.raw_rows import RawTable
from ..metrics.calibration_map import CalibrationMap
from ..metrics.predictions import named_classes
from ..mindspore_internals.execution import check_not_forked
from ..models.retrieval import halves
from .mirrored_versions import local_root
from .published import CURRENT, PINS, Current, locked
from .published_items import PublishedItems, Recommended
from .served_graph import HeldVersion, ServedGraph
from .version_records import VersionRecords
from .version_update import VersionUpdate

logger = logging.getLogger(__name__)

_LONGEST_PAUSE = 60.0


class ServedModel:
    """A published model that switches to the newest version between predictions.

    Every answer comes from a single version: a new version replaces all rows and weights between two calls. Files are
    verified against their checksums before use. A damaged version is reported in one warning and in `problem`. The
    last good version is then served until a version with all rows arrives (see `compact` of `Publish`).

    Args:
        root: folder that `Publish` writes to, or the URL of a mirror of it (see `Mirror`). Versions of a mirror are
            downloaded to a temporary folder, which `close` removes, and verified before they are served.
        version: "served" for the pinned version (see `Versions`), or the newest if none is pinned; "newest" to ignore
            pins; or a version number.
        follow: True applies new versions as they appear; False only on `refresh`.
        poll: seconds between checks for a new version; at least 1 for a mirror.

    Attributes:
        version: number of the version being served.
        step: number of optimizer steps that the version was trained for.
        delays: seconds from a version's newest event until the version was served completely, for the last 10,000
            versions. Measured from the publication if events carry no time.
        problem: why the newest version is not being served, or None.
        graph: network and tables, read-only. Their values belong to a single version only inside `held`.
        current: record of the version being served.
        items: items of the version being served, or None.
        calibration: calibration of the version being served, or None.

    Raises:
        CheckpointNotFoundError: nothing has been published there.
        CheckpointDamagedError: the published model is damaged; the message names the file and the damage.
        NonFiniteError: a parameter, a table row or a feature statistic is NaN or infinite.
    """

    def __init__(
        self, root: str | os.PathLike[str], *, version: int | str = "served", follow: bool = True, poll: float = 0.05
    ) -> None:
        if isinstance(version, bool) or not isinstance(version, int):
            choice("ServedModel(version=...)", version, ("served", "newest"))
        self.root, self._mirrored = local_root(root, version if isinstance(version, int) else None)
        self._target = version
        self._records = VersionRecords(self.root)
        self.version = 0
        self.step = 0
        self.delays: deque[float] = deque(maxlen=10_000)
        self._poll = poll if self._mirrored is None else max(poll, 1.0)
        self.problem: str | None = None
        self.graph: ServedGraph  # set by the first `refresh`, as is `current`
        self.current: Current
        self._has_version = False
        self.items: PublishedItems | None = None
        self.calibration: CalibrationMap | None = None
        self._pending_weights: Mapping[str, np.ndarray] | None = None  # set by `held` before the next prediction
        self._replaced_graph: ServedGraph | None = None  # replaced graph of the last prediction, freed by `held`
        self._run_lock = threading.Lock()  # held while a graph runs or the version is replaced
        self._update_lock = threading.Lock()  # held by `refresh`
        self._update_due = threading.Event()  # set while an update waits for `_run_lock`
        self._stop = threading.Event()
        self._pointer_state: tuple[int, ...] | None = None  # the pointer files' times and sizes at the last refresh
        self._thread: threading.Thread | None = None
        self._reported: str | None = None  # the latest problem that the log names
        self._pause, self._retry_at = 1.0, 0.0  # seconds to wait after a failure, and until when (`time.monotonic`)
        try:
            self.refresh()
        except BaseException:
            self.close()
            raise
        if follow:
            following = weakref.ref(self), self._stop, self._poll
            self._thread = threading.Thread(target=_follow, args=following, name="model-consumer", daemon=True)
            self._thread.start()

    def predict(
        self, batch: Any = None, *, output: str = "network", keep: bool = False, set_aside: bool = False, **columns: Any
    ) -> Any:
        """Return the predictions for a batch of any size.

        Args:
            batch: for a model trained with features, raw rows without labels: a mapping of columns, a list of
                mappings, one mapping, or a table of pandas, polars or Arrow. For any model, the network's input
                columns: a mapping from column names to arrays [n, ...], a table, a sequence of arrays, or a single
                array for a network with one column. Ids are raw integers or strings. A ragged column is given as n
                lists, without masks or offsets.
            output: "network" for the network's output. "probability" for the quantity that the loss compares with the
                label, of each task if there are several: the sigmoid of the logits for `BCEWithLogitsLoss`, their
                softmax for `CrossEntropyLoss`, or the result of `Trainer(prediction_activation=...)`; calibrated if the
                version has a calibration. "class" for the most likely class of `label_classes`.
            keep: for raw rows, also return the columns of `Features(keep=...)`.
            set_aside: for raw rows, skip rows that violate the features' declaration, as `Trainer.predict` does, and
                return the reasons.
            columns: the columns by name, instead of `batch`.

        Returns:
            A float32 array with n rows, or a tuple or dict of arrays: the network's output as `Trainer.predict` returns
            it (docs/serving.md says when the two agree to the last bit), or the quantity that `output` selects. For
            "class" the array contains class names. With `keep` or `set_aside`, a dict with the array as "prediction".
            For `keep` the dict also contains the kept columns. For `set_aside` it also contains "set_aside", a mapping
            from the index of each skipped row to the column and the reason.

        Raises:
            ConfigurationError: "probability" of a model whose loss does not say what its outputs mean; "class" of one
                without `Features(label_classes=...)`.
            DataError: a row violates the features' declaration (with `set_aside`: all rows do); columns are missing,
                differ in their number of rows, or have another shape than in training.
            ConfigurationError: this process was forked from one that has run graphs.
        """
        check_not_forked()
        choice("output", output, ("network", "probability", "class"))
        if batch is not None and columns:
            raise DataError("predict takes a batch, or columns as keywords, not both")
        batch = columns if batch is None else batch
        kept: Mapping[str, Any] = {}
        aside: dict[int, str] | None = {} if set_aside else None
        with self.held() as version:
            features = version.graph.features
            if features is not None and is_raw(batch):
                batch = features.transform(batch, keep=keep, aside=aside)
                kept = batch.kept
            elif keep or set_aside:
                option = "keep" if keep else "set_aside"
                raise ConfigurationError(f"predict({option}=True) needs raw rows and a model trained on features")
            outputs = version.run(batch)
        graph = version.graph
        if output == "probability" and graph.own_activations and version.calibration is None:
            raise ConfigurationError(
                f"output={output!r}: the prediction_activation of the model is a function, which is not published; "
                "take output='network' and apply it"
            )
        if output != "network" and not graph.tasks:
            probability = version.probability(outputs, batch)
            if probability is None:
                raise ConfigurationError(f"output={output!r}: the model's loss does not say what its outputs mean")
            outputs = (probability, *outputs[1:])
        if output == "class":
            if not graph.classes:
                raise ConfigurationError("output='class': the model was trained without Features(label_classes=...)")
            outputs = (named_classes(outputs[0], graph.classes)["prediction"], *outputs[1:])
        by_task = output == "probability" and graph.tasks
        predictions = version.task_predictions(outputs) if by_task else version.as_returned(outputs)
        if not keep and aside is None:
            return predictions
        return {PREDICTION: predictions, **({} if aside is None else {SET_ASIDE: aside}), **kept}

    def recommend(
        self,
        users: Any = None,
        k: int = 10,
        *,
        history: Sequence[Sequence[Any]] | None = None,
        without: Sequence[Sequence[Any]] | None = None,
        filter: Mapping[str, Any] | None = None,
    ) -> Recommended:
        """Return the best items of the served version for each user.

        Args:
            users: raw rows of the users, as for `predict`, without the items' columns.
            k: number of items per user.
            history: alternative to `users` for `sasrec` and `hstu`: for each user, the ids chosen before, newest last.
                These ids are excluded from the answer; a history passed as a column of `users` is not.
            without: for each user, ids to exclude from the answer, such as items already seen. Unknown ids are ignored.
            filter: mapping from columns of `Publish(item_filters=...)` to an accepted value or a list of accepted
                values. An item must match in every column. An item whose column holds a list matches if one element
                does.

        Returns:
            The version number and, for each user, item ids and scores (inner products), best first. A user gets fewer
            than `k` items if fewer are left after filtering.

        Raises:
            ConfigurationError: the version has no items, k is below 1, `without` does not have one list per user,
                both or neither of `users` and `history` are given, or the version's model reads no history.
            DataError: a row violates the features' declaration or has none of the users' columns; `filter` names an
                unknown column; or a value or an id has another type than the items'.
        """
        check_not_forked()
        with self.held() as version:
            items, features = version.items, version.graph.features
            if items is None or features is None:
                raise ConfigurationError(
                    f"version {self.version} has no items to recommend; set them by Publish(items=...)"
                )
            if (users is None) == (history is None):
                raise ConfigurationError("recommend takes users or history=..., one of the two")
            if history is not None:
                users, without = items.users_of_histories(history, without)
            rows = RawTable(users)
            items.check_user(rows.names())
            outputs = version.run(features.transform(rows))
        return Recommended(version.current.version, *items.nearest(halves(outputs[0])[0], k, without, filter))

    @contextlib.contextmanager
    def held(self) -> Iterator[HeldVersion]:
        """Keep the served version from being replaced, and other calls from running."""
        while self._update_due.is_set():  # locks are not fair, so let a waiting update go first
            time.sleep(1e-4)
        with self._run_lock:
            self._replaced_graph = None
            if self._pending_weights is not None:
                weights, self._pending_weights = self._pending_weights, None
                self.graph.set_weights(weights)
            yield HeldVersion(self.graph, self.current, self.items, self.calibration)

    @property
    def features(self) -> Features | None:
        """Features that the model was trained with, or None; read-only."""
        return self.graph.features

    # -- following -----------------------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Apply the newest version now; return whether the version changed.

        Raises:
            CheckpointNotFoundError: nothing has been published.
            CheckpointDamagedError: the newest version is damaged; the previous version is still served.
        """
        with self._update_lock:
            try:
                if self._mirrored is not None:
                    self._mirrored.pull()
                for is_last_try in (False, False, True):
                    self._pointer_state = self._read_pointer_state()
                    try:
                        target = self._records.target(self._target)
                        changed = not self._has_version or target != self.current
                        if changed:
                            with locked(self.root, target):
                                self._apply(target)
                        break
                    except CheckpointError:
                        # Retry if the pointers have changed: the version may have been removed while it was read.
                        if is_last_try or self._pointer_state == self._read_pointer_state():
                            raise
            except CheckpointError as error:
                self.problem = str(error)
                raise
            self.problem = None
            return changed

    def _read_pointer_state(self) -> tuple[int, ...]:
        marks: list[int] = []
        for name in (CURRENT, PINS):
            try:
                status = os.stat(self.root / name)
                marks += (status.st_mtime_ns, status.st_ino, status.st_size)
            except OSError:
                marks.append(0)
        return tuple(marks)

    def close(self) -> None:
        """Stop following new versions, and remove the copy of a mirror."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._mirrored is not None:
            self._mirrored.discard()

    def __enter__(self) -> ServedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _follow(self) -> None:
        """Apply the newest version if there may be one."""
        # A mirror must be asked every time. After a failure, unchanged files are read again only at `_retry_at`.
        can_skip = self._mirrored is None if self.problem is None else time.monotonic() < self._retry_at
        if can_skip and self._read_pointer_state() == self._pointer_state:
            return
        source = self._mirrored or self.root
        try:
            self.refresh()
            if self._reported is not None:
                logger.info("version %d of %s is served", self.version, source)
            self._reported, self._pause = None, 1.0
        except Exception as error:  # any error: predictions continue with the served version
            self.problem = str(error)
            self._pause, self._retry_at = min(2 * self._pause, _LONGEST_PAUSE), time.monotonic() + self._pause
            if self.problem != self._reported:
                logger.warning("version %d of %s is still served: %s", self.version, source, self.problem)
                self._reported = self.problem

    def _apply(self, target: Current) -> None:
        served, graph = (self.current, self.graph) if self._has_version else (None, None)
        update = VersionUpdate(self.root, served, graph, target)
        if update.has_own_graph:
            update.write_tables()  # predictions continue with the old graph meanwhile
        with self._predictions_blocked():
            if not update.has_own_graph:
                update.write_tables()
            else:
                # MindSpore frees a compiled graph only while no other graph runs, and it holds the GIL while it waits.
                # That deadlocks if another thread trains with operators written in Python. So the graph of the last
                # prediction is freed in `held`. A graph that has not predicted is not compiled and can be freed here.
                self._replaced_graph = self._replaced_graph or graph
            update.load_features()
            self.graph, self.current, self.items = update.graph, target, update.items
            self.calibration = update.calibration
            self._pending_weights = update.weights
            self.version, self.step, self._has_version = target.version, target.step, True
        if served is None or target.version > served.version:
            self.delays.append(time.time() - (target.time if target.event_time is None else target.event_time))

    @contextlib.contextmanager
    def _predictions_blocked(self) -> Iterator[None]:
        self._update_due.set()
        try:
            with self._run_lock:
                self._update_due.clear()
                yield
        finally:
            self._update_due.clear()


def _follow(reference: weakref.ref[ServedModel], stop: threading.Event, poll: float) -> None:
    """Apply new versions until `stop` is set or the model is gone."""
    while not stop.wait(poll) and (model := reference()) is not None:
        model._follow()
        del model  # a model that is no longer used must not be kept by the wait
