"""`ServedModel`: predictions of a published model while it trains."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
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
from .mirrored_versions import root_of
from .published import CURRENT, PINS, Current, locked
from .published_items import PublishedItems, Recommended
from .served_graph import HeldVersion, ServedGraph
from .version_records import VersionRecords
from .version_update import VersionUpdate

logger = logging.getLogger(__name__)

_LONGEST_PAUSE = 60.0


class ServedModel:
    """A published model that follows the newest version between predictions.

    Every answer is of one version: a new version replaces the old between two calls, with all its rows and weights.
    Files are checked against their checksums before they are used. A damaged version is named in one warning and in
    `problem`, and the last good version is served until a later one holds all rows, as Publish's `compact` says.

    Args:
        root: folder that `Publish` writes to, or the URL of a mirror of it (see `Mirror`): versions are then fetched to
            a folder that is removed when the process ends, verified, and only then served.
        version: "served" for the version that is pinned (see `Versions`), where none is for the newest one; "newest"
            whatever is pinned; or a number.
        follow: apply new versions as they appear; False waits for `refresh`.
        poll: seconds between looks at ``current.json``; of a mirror at least one.

    Attributes:
        version: version being served.
        step: optimizer steps the version has seen.
        delays: for each of the newest 10,000 versions that followed an older one, seconds from its newest event (or its
            publication, when events carry no time) until it was served in full.
        problem: why the newest version is not the one being served, or None.
        graph: the network and its tables, not to be changed; those of one version only inside `held`.
        current: the record of the version being served.
        items: its items, or None.
        calibration: its calibration, or None.

    Raises:
        CheckpointNotFoundError: nothing has been published there.
        CheckpointDamagedError: it is damaged; the message names the file and what is wrong.
        NonFiniteError: a parameter, a row of a table or a statistic of features is NaN or infinite.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        version: int | str = "served",
        follow: bool = True,
        poll: float = 0.05,
    ) -> None:
        if isinstance(version, bool) or not isinstance(version, int):
            choice("ServedModel(version=...)", version, ("served", "newest"))
        self.root, self._mirrored = root_of(root)
        self._which = version
        self._records = VersionRecords(self.root)
        self.version = 0
        self.step = 0
        self.delays: deque[float] = deque(maxlen=10_000)
        self._poll = poll if self._mirrored is None else max(poll, 1.0)
        self.problem: str | None = None
        self.graph: ServedGraph = None
        self.current: Current = None
        self.items: PublishedItems | None = None
        self.calibration: CalibrationMap | None = None
        self._waiting: Mapping[str, np.ndarray] | None = None
        self._replaced: ServedGraph | None = None  # version of the last prediction
        self._run = threading.Lock()
        self._update = threading.Lock()
        self._update_due = threading.Event()
        self._stop = threading.Event()
        self._mark: tuple[int, ...] | None = None
        self.refresh()
        self._thread: threading.Thread | None = None
        if follow:
            self._thread = threading.Thread(target=self._follow, name="model-consumer", daemon=True)
            self._thread.start()

    def predict(
        self,
        batch: Any = None,
        *,
        output: str = "network",
        keep: bool = False,
        set_aside: bool = False,
        **columns: Any,
    ) -> Any:
        """Return the predictions for a batch of any size.

        Args:
            batch: where the Trainer had features, raw rows: a mapping of columns, a list of mappings, one mapping, or a
                table of pandas, polars or Arrow; labels are not needed. Else as follows.
                One array a column, [n, ...], as the network takes them, ids raw: integers or strings; of ragged
                columns n lists, without masks and the like. A mapping from column names, a sequence of arrays, or the
                array of an only column.
            output: "network" for its output itself; "probability" for what the loss compares with the label: sigmoid of
                the logits of `BCEWithLogitsLoss`, softmax of those of `CrossEntropyLoss`, or what
                `Trainer(prediction_activation=...)` names, calibrated where the version has a calibration; "class" for
                the most likely class of `label_classes`.
            keep: for raw rows, return a dict of "prediction" and the columns of `Features(keep=...)`.
            set_aside: for raw rows, leave out rows that violate the declaration, as `Trainer.predict` does, and return
                a dict with the "prediction" of the others and why the rest has none, under "set_aside".
            columns: the columns by name, instead of `batch`.

        Returns:
            float32 array with n rows, or a tuple of them: the network's output itself, as `Trainer.predict` gives it
            (docs/serving.md says where to the bit), unless `output` says otherwise; of "class" the names of classes.
            With `keep` or `set_aside` a dict: "prediction", for `set_aside` a mapping from the index of each row left
            out to its column and reason, the columns that are kept.

        Raises:
            ConfigurationError: "probability" of a model whose loss does not say what its outputs mean; "class" of one
                without `Features(label_classes=...)`.
            DataError: a row that the features' declaration forbids, with `set_aside` all of them; columns are missing,
                or differ in their number of rows, or have another shape than in training.
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
        if output != "network":
            probability = version.probability(outputs, batch)
            if probability is None:
                raise ConfigurationError(f"output={output!r}: the model's loss does not say what its outputs mean")
            outputs = (probability, *outputs[1:])
        if output == "class":
            if not version.graph.classes:
                raise ConfigurationError("output='class': the model was trained without Features(label_classes=...)")
            outputs = (named_classes(outputs[0], version.graph.classes)["prediction"], *outputs[1:])
        predictions = outputs if len(outputs) > 1 else outputs[0]
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
        """Return the best items of the served version for each user, of all its items.

        Args:
            users: raw rows of the users, as for `predict`; items' columns may be missing.
            k: items per user.
            history: in place of `users`, of `sasrec` and `hstu`: for each user the ids that were chosen before, the
                newest last, which are left out of the answer. In a column of `users` they are not left out.
            without: for each user, ids to leave out, such as those seen already; ids of no item are ignored.
            filter: column of `Publish(item_filters=...)` -> a value, or several, one of which an item has; a list has a
                value if one of its parts is it. All columns have to fit.

        Returns:
            The version, and of each user ids and scores, the inner products; fewer than `k` where fewer items are left.

        Raises:
            ConfigurationError: the version has no items, k is below 1, there is not one list in `without` per user,
                not one of `users` and `history`, or the version's model reads no history.
            DataError: a row that the features' declaration forbids, or with none of the users' columns; an unknown
                column in `filter`, or a value or an id of another kind than the items'.
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
                users, without = items.of_history(history, without)
            rows = RawTable(users)
            items.check_user(rows.names())
            outputs = version.run(features.transform(rows))
        return Recommended(version.current.version, *items.nearest(halves(outputs[0])[0], k, without, filter))

    @contextlib.contextmanager
    def held(self) -> Iterator[HeldVersion]:
        """Hold the served version: no other replaces it or runs a graph."""
        while self._update_due.is_set():  # locks are not fair: a version that waits goes first
            time.sleep(1e-4)
        with self._run:
            self._replaced = None
            if self._waiting is not None:
                weights, self._waiting = self._waiting, None
                self.graph.set_weights(weights)
            yield HeldVersion(self.graph, self.current, self.items, self.calibration)

    @property
    def features(self) -> Features | None:
        """The declared columns of raw rows, or None; not to be changed."""
        return self.graph.features

    # -- following -----------------------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Apply the newest version now; return whether there was a new one.

        Raises:
            CheckpointNotFoundError: nothing has been published.
            CheckpointDamagedError: it is damaged; the previous version stays served.
        """
        with self._update:
            try:
                if self._mirrored is not None:
                    self._mirrored.pull()
                for is_last_try in (False, False, True):
                    self._mark = self._look()
                    try:
                        now = self._records.target(self._which)
                        changed = now != self.current
                        if changed:
                            with locked(self.root, now):
                                self._apply(now)
                        break
                    except CheckpointError:
                        # a version may be removed between reading its name and its files: a newer one is there then
                        if is_last_try or self._mark == self._look():
                            raise
            except CheckpointError as error:
                self.problem = str(error)
                raise
            self.problem = None
            return changed

    def _look(self) -> tuple[int, ...]:
        marks: list[int] = []
        for name in (CURRENT, PINS):
            try:
                status = os.stat(self.root / name)
                marks += (status.st_mtime_ns, status.st_ino, status.st_size)
            except OSError:
                marks.append(0)
        return tuple(marks)

    def close(self) -> None:
        """Stop following."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> ServedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _follow(self) -> None:
        reported, pause, retry_at = None, 1.0, 0.0
        source = self._mirrored or self.root
        while not self._stop.wait(self._poll):
            waits = self._mirrored is None if self.problem is None else time.monotonic() < retry_at
            if waits and self._look() == self._mark:
                continue
            try:
                self.refresh()
                if reported is not None:
                    logger.info("version %d of %s is served", self.version, source)
                reported, pause = None, 1.0
            except Exception as error:  # any error: predictions continue with the served version
                self.problem = str(error)
                pause, retry_at = min(2 * pause, _LONGEST_PAUSE), time.monotonic() + pause
                if self.problem != reported:
                    logger.warning("version %d of %s is still served: %s", self.version, source, self.problem)
                    reported = self.problem

    def _apply(self, now: Current) -> None:
        served = self.current
        update = VersionUpdate(self.root, served, self.graph, now)
        if update.has_own_graph:
            update.write_tables()
        with self._before_predictions():
            if not update.has_own_graph:
                update.write_tables()
            else:
                # MindSpore frees a compiled graph only while no other runs, and holds the GIL while it waits for that:
                # a deadlock if another thread trains with operators in Python. So the graph of the last prediction is
                # freed in `held`. A later graph that has predicted nothing is not compiled and can be freed here.
                self._replaced = self._replaced or self.graph
            update.load_features()
            self.graph, self.current, self.items = update.graph, now, update.items
            self.calibration = update.calibration
            self._waiting = update.weights
            self.version, self.step = now.version, now.step
        if served is None or now.version > served.version:
            self.delays.append(time.time() - (now.time if now.event_time is None else now.event_time))

    @contextlib.contextmanager
    def _before_predictions(self) -> Iterator[None]:
        self._update_due.set()
        try:
            with self._run:
                self._update_due.clear()
                yield
        finally:
            self._update_due.clear()
