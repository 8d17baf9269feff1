"""`online_train`: metric windows, progressive validation and stream statistics."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from callbacks import History, SkipNonFinite

from .. import checks
from ..data.chunk import Chunk
from ..data.feed import Feed
from ..data.source import Source
from ..data.streaming.shared_stream import Agreed, JobHooks, SharedStream
from ..data.streaming.stream_source import StreamSource
from ..data.user_data import UserData
from ..data.waiting import Interrupted
from ..distributed.group import Group
from ..distributed.packing import gather_states
from ..errors import ConfigurationError
from ..features.stream_rows import WindowDrift
from ..graph.multi_task import MultiTaskLoss
from ..metrics.window import Window, WindowClock
from ..metrics.window_metric import Direction
from ..state import Phase, Stateful, StepOutputs, StopReason
from ..streams import Sharing
from . import declared_features
from .calibrating import check_online
from .call import call, check_idle, make_callbacks, snapshot_folders
from .cursor import Cursor
from .feeds import ALL_BATCHES, run_options, step_marks, training_feed
from .job_checks import check_stream
from .run import stop_hooks, train
from .scoring import Scoring
from .tally import LossMeter, mean_losses

if TYPE_CHECKING:
    from .trainer_base import TrainerBase

logger = logging.getLogger(__name__)

DEFAULT_WINDOW = Window(rows=10_000)
MAX_NON_FINITE = 20  # skipped updates in a row after which the run ends
_DRIFT = "@drift."  # prefix of the names of drift arrays


@dataclass(eq=False)
class OnlineMetrics(Stateful):
    """Scores each chunk with the forward pass that trains on it, and closes windows."""

    feed: Feed
    window: Window
    scoring: Scoring | None  # if None, windows have only the loss
    tasks: MultiTaskLoss | None  # windows include the mean loss of each task
    group: Group  # the processes that share the window
    drift: WindowDrift | None
    divided: bool  # whether each process reads its own rows

    def __post_init__(self) -> None:
        self._drift_divided = self.drift is not None and self.divided and self.group.size > 1
        self.clock = WindowClock(self.window)
        self.loss = LossMeter()
        self._newest_extras: list[Mapping[str, Any] | None] = []
        self._restored_event_time = float("nan")
        self._agreed: Agreed | None = None
        self._opened = time.monotonic()
        self._rows_at_open = 0

    def directions(self) -> dict[str, Direction]:
        """Return name -> whether higher is better (or None) for the values of a window."""
        losses = [] if self.tasks is None else [f"window_{task}_loss" for task in self.tasks.tasks]
        scored = {} if self.scoring is None else self.scoring.directions()
        stream_statistics = {"lag": False, "staleness": False, "rows_per_second": True, "queue_depth": None}
        if self.feed.source.late_rows() is not None:
            stream_statistics["late_rows"] = False
        stream_statistics |= dict.fromkeys(self._stream_counts())
        drift = {} if self.drift is None else dict.fromkeys(self.drift.value_names, False)
        return {**dict.fromkeys(("window_loss", *losses), False), **scored, **stream_statistics, **drift}

    def start(self, rows_seen: int) -> None:
        """Open the first window; `rows_seen` is the number of rows trained on so far."""
        self._opened = time.monotonic()
        self._rows_at_open = rows_seen
        if self.tasks is not None and self.loss.value() is None:
            self.tasks.read_losses()  # discard losses of an epoch that an earlier call did not finish
        # Several processes start a clock in seconds at the first step, when they agree on the time.
        if self.group.size == 1 or self.clock.unit != "seconds":
            self.clock.start(self._rows_at_open, self._opened)

    def after_step(self, chunk: Chunk, outputs: StepOutputs, rows_seen: int) -> dict[str, float] | None:
        """Add a trained chunk; return the results of the window if this closes it."""
        self.loss.add(outputs)
        self._newest_extras, self._agreed = chunk.extras, chunk.agreed
        if self.scoring is not None:
            self.scoring.add(chunk, outputs)
        event_time = self._event_time() if self.clock.unit == "event_time" else None
        if self.clock.closed(rows_seen, self._now(), event_time):
            return self._close_window(rows_seen)
        return None

    def _now(self) -> float:
        """Return the time in seconds for windows, the same on all processes."""
        return time.monotonic() if self._agreed is None else self._agreed.clock

    def _event_time(self) -> float:
        """Return the newest event time of the latest chunk as Unix time, or NaN."""
        if self._agreed is not None:
            if not math.isnan(self._agreed.event_time):
                self._restored_event_time = self._agreed.event_time
            return self._restored_event_time
        times = [extras["event_time"].max() for extras in self._newest_extras if extras and "event_time" in extras]
        return float(max(times)) if times else self._restored_event_time

    def stream_statistics(self, rows_seen: int) -> dict[str, float]:
        """Return lag, late rows, staleness (s), rows per second and queued chunks."""
        lag, late = self.feed.source.lag(), self.feed.source.late_rows()
        values = [
            float("nan") if lag is None else float(lag),
            time.time() - self._event_time(),
            (rows_seen - self._rows_at_open) / max(time.monotonic() - self._opened, 1e-9),
            float(self.feed.depth),
        ]
        if self.group.size > 1:
            values = self.group.broadcast(np.array(values)).tolist()
        stream_statistics = dict(zip(("lag", "staleness", "rows_per_second", "queue_depth"), values, strict=True))
        return stream_statistics | ({} if late is None else {"late_rows": float(late)}) | self._stream_counts()

    def _stream_counts(self) -> dict[str, float]:
        return {f"stream_{name}": float(count) for name, count in self.feed.source.stream_counts().items()}

    def _close_window(self, rows_seen: int) -> dict[str, float]:
        results = self._losses()
        if self.scoring is not None:
            results |= self.scoring.close_window(self.group)
        if self.drift is not None:
            if self._drift_divided:
                self.drift.join(gather_states(self.group, self.drift.state_dict()))
            results |= self.drift.close()
        results |= self.stream_statistics(rows_seen)
        self.loss.clear()
        self._opened, self._rows_at_open = time.monotonic(), rows_seen
        return results

    def finish(self, ended: bool, rows_seen: int) -> dict[str, float] | None:
        """Return the results of the open window at the end of the run, None if empty.

        The window is closed only if the stream `ended`; otherwise a resumed run continues it.
        """
        if self.loss.value() is None:
            return None
        if ended:
            return self._close_window(rows_seen)
        scored = {} if self.scoring is None else self.scoring.peek(self.group)
        return {**self._losses(keep=True), **scored, **self.stream_statistics(rows_seen)}

    def _losses(self, *, keep: bool = False) -> dict[str, Any]:
        loss, tasks = mean_losses(self.loss, self.tasks, keep=keep)
        # there is no loss if no row counts
        of_tasks = {f"window_{name}": value for name, value in tasks.items()}
        return of_tasks if loss is None else {"window_loss": loss, **of_tasks}

    def merge_on_main(self, group: Group) -> None:
        """Move the open windows of all processes to rank 0."""
        if self.scoring is not None:
            self.scoring.merge_on_main(group)
        if self.drift is not None and self._drift_divided:
            windows = gather_states(group, self.drift.state_dict())
            self.drift.join(windows if group.is_main else [])

    def clear_on_followers(self) -> None:
        """Clear the open window on the other ranks."""
        if self.scoring is not None:
            self.scoring.clear_on_followers()
        if self.drift is not None and self._drift_divided:
            self.drift.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"json": ..., "arrays": ...}``, the open window included."""
        empty: dict[str, Any] = {"json": None, "arrays": {}}
        metrics = empty if self.scoring is None else self.scoring.state_dict()
        drift = empty if self.drift is None else self.drift.state_dict()
        state = {
            "metrics": metrics["json"],
            "clock": self.clock.state_dict(self._now()),
            "loss": self.loss.state_dict(),
            "event_time": self._event_time(),
            "drift": drift["json"],
        }
        return {"json": state, "arrays": {**metrics["arrays"], **{_DRIFT + n: a for n, a in drift["arrays"].items()}}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        saved = state["json"]
        if self.scoring is not None and saved["metrics"] is not None:
            self.scoring.load_state_dict({"json": saved["metrics"], "arrays": state["arrays"]})
        self.clock.load_state_dict(saved["clock"], time.monotonic() if self.group.size == 1 else None)
        self.loss.load_state_dict(saved["loss"])
        if self.drift is not None and saved.get("drift") is not None:
            arrays = {name.removeprefix(_DRIFT): a for name, a in state["arrays"].items() if name.startswith(_DRIFT)}
            self.drift.load_state_dict({"json": saved["drift"], "arrays": arrays})
        self._newest_extras, self._restored_event_time = [], saved["event_time"]


def online_train(
    trainer: TrainerBase,
    stream: Any,
    callbacks: Any,
    steps_per_call: int,
    *,
    batch_size: int | None,
    window: Window | int | None,
    idle_timeout: float | None,
    flush_after: float,
    skip_non_finite: bool,
    resume: str | Path | None,
    **limits: Any,
) -> History:
    """Implement `Trainer.online_train`; `limits` are `max_steps` and `max_seconds`."""
    checks.whole("batch_size", batch_size, optional=True)
    checks.number("idle_timeout", idle_timeout, minimum=0, optional=True, what="seconds")
    checks.number("flush_after", flush_after, minimum=0, what="seconds")
    check_idle(trainer)
    trainer.state.first_epoch = 0
    callbacks = ALL_BATCHES.callbacks(callbacks)
    window = Window(rows=window) if isinstance(window, int) else window or DEFAULT_WINDOW
    if skip_non_finite and trainer.optimizer is not None:  # a whole training step has no guard
        callbacks = _with_guard(callbacks)
    tasks, group = trainer.tasks, trainer.group
    scoring = _make_scoring(trainer, window)
    resume = declared_features.restore(trainer, resume, callbacks)
    data = UserData(stream)
    raw_rows = data.stream()
    transform = declared_features.stream_transform(trainer.features, raw_rows, group.size, trainer.loss_fn)

    def resumed_state() -> Any:
        folders = snapshot_folders(trainer.run_dir, trainer.callbacks)
        return None if resume is None else trainer.saver.position_to_resume(resume, folders)

    rows = StreamSource(
        raw_rows,
        batch_size,
        **_column_roles(trainer, scoring),
        list_types=trainer.builder.list_types,
        transform=transform,
        flush_after=flush_after,
        idle_timeout=idle_timeout if group.size == 1 else None,
        restarts=data.restarts,
        resumed_state=resumed_state,
        max_seconds=limits["max_seconds"],
    )
    source: Source = rows
    if group.size > 1:
        check_stream(group.size, rows.stream)
        stop, saver = stop_hooks(trainer), trainer.saver
        hooks = JobHooks(stop.requested_stop, stop.stop, lambda: saver.durable_count, saver.commit_durable)
        source = SharedStream(rows, group, steps_per_call * trainer.accumulate, hooks, idle_timeout)

    def set_aside() -> str | None:
        return None if rows.stream.dead_letter is None else rows.stream.dead_letter.report()

    scored = scoring is not None and scoring.needs_predictions
    output = 0 if tasks is None else -1
    with call(trainer, Phase.ONLINE, callbacks) as signals:
        options = run_options(trainer.step_options, trainer.callbacks, keep_predictions=scored, output=output)
        check_online(trainer, window, options)
        drift = declared_features.window_drift(transform, trainer.callbacks)  # must precede reading the first rows
        marks = step_marks(trainer.callbacks).of_all(group)
        try:
            feed = training_feed(trainer, source, options, steps_per_call, marks=marks)
        except Interrupted:
            if rows.ended is not None:
                detail = f"seconds={limits['max_seconds']}" if rows.ended == "limit" else "the stream ended"
                trainer.state.agree_to_stop(StopReason(rows.ended, detail))
            raise
        divided = raw_rows.sharing is Sharing.PARTITIONED
        online = trainer.parts["online"] = OnlineMetrics(feed, window, scoring, tasks, group, drift, divided)
        if trainer.calibrator is not None and scoring is not None:
            trainer.calibrator.catch_up = scoring.score
        try:
            train(
                trainer,
                feed,
                options,
                Cursor(source, trainer.state.progress, filling=feed.options.filling),
                resume=resume,
                epochs=None,
                online=online,
                set_aside=set_aside,
                before_first_step=trainer.calibrator.follow_stream if trainer.calibrator is not None else lambda: None,
                **limits,
            )
        finally:
            del trainer.parts["online"]
            if trainer.calibrator is not None and scoring is not None:
                scoring.score()
                scoring.forget_open_rows()
                trainer.calibrator.catch_up = lambda: None
            if report := set_aside():
                logger.warning("%s: %s", type(rows.stream).__name__, report)
    signals.leave(complete=True)
    assert trainer.history is not None  # `call` set it
    return trainer.history


def _with_guard(callbacks: Any) -> Any:
    """Add a callback that handles non-finite updates, unless there is one already."""
    callback_list = make_callbacks(callbacks)[0]
    if any(callback.non_finite is not None for callback in callback_list):
        return callbacks
    return [*callback_list, SkipNonFinite(MAX_NON_FINITE, rollback=False)]


def _make_scoring(trainer: TrainerBase, window: Window) -> Scoring | None:
    """Return the `Scoring` of windows, or None if the label is not known."""
    if trainer.label_count:
        loss_fn, activations, processes = trainer.loss_fn, trainer.prediction_activations, trainer.group.size
        count, weights = trainer.label_count, trainer.row_weights
        return Scoring(window, trainer.metrics, loss_fn, count, activations, processes, weights, trainer.calibrator)
    if trainer.calibrator is not None:
        raise ConfigurationError("calibration reads the label, which is not known without a loss_fn that takes it")
    if trainer.metrics:
        logger.warning("windows count only the loss: the label is not known without a loss_fn that takes it")
    return None


def _column_roles(trainer: TrainerBase, scoring: Scoring | None) -> dict[str, Any]:
    """Return the arguments of a `StreamSource` that give each column its role."""
    features, tasks = trainer.features, trainer.tasks
    label = features.labels[0] if features is not None and len(features.labels) == 1 else None
    weight = None if features is None else features.weight
    return {
        "inputs": declared_features.arguments_of(features, trainer.network)[2],
        "labelled": trainer.label_count > 0,
        "label": label,
        "labels": () if tasks is None else tasks.label_names,
        "weight": weight or ("weight" if trainer.label_count > 1 and tasks is None else None),
        "extras": () if scoring is None else scoring.groups,
        "counted_rows": None if tasks is None else tasks.rows,
    }
