"""Everything around a run: its state, callbacks, signals and snapshots, and what must happen whatever happens."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindspore import amp, nn

from callbacks import Callback, CallbackList, History, ProgressBar, adapt

from .. import checkpoint
from ..checkpoint.saver import Saver
from ..errors import ConfigurationError, did_you_mean
from ..graph.builder import StepBuilder
from ..graph.learning_rate import get_learning_rate, set_learning_rate
from ..mindspore_internals.graph_dumps import redirect_graph_dumps
from ..state import Phase, State, StopReason
from .seed import restore as restore_generators
from .signals import StopOnSignal

if TYPE_CHECKING:
    from .loop import TrainLoop
    from .online import OnlineMetrics

logger = logging.getLogger(__name__)


class Session:
    """The part of a `Trainer` that callbacks see and that every verb shares.

    Attributes:
        state: progress, newest outputs and metrics, why the run ended.
        callbacks: callbacks of the run under way, or of the last training.
        history: `History` of the run under way, or of the last training.
        saver: takes and restores snapshots.
        parts: name -> object with `state_dict` and `load_state_dict` that goes into snapshots.
        sink_mode: what was used to train several steps a call, in words.
    """

    network: nn.Cell
    optimizer: nn.Cell | None
    metrics: dict[str, Any]
    builder: StepBuilder
    scaler: amp.LossScaler | None
    run_dir: Path | None

    def __init__(self) -> None:
        self.state = State()
        self.callbacks = CallbackList()
        self.history: History | None = None
        self.saver = Saver(self)
        self.parts: dict[str, Any] = {}
        self.sink_mode = "not decided yet"
        self._loop: TrainLoop | None = None
        self._online: OnlineMetrics | None = None
        self._limits_base: dict[str, int] = {}

    # -- control -------------------------------------------------------------------------------------------------------

    def stop(self, reason: str = "", kind: str = "user") -> None:
        """Ask the run to end after the step in flight; the first reason given stands."""
        if self.state.stop_reason is None:
            self.state.stop_reason = StopReason(kind, reason)

    @property
    def learning_rate(self) -> float | None:
        """Learning rate of the next update; settable where it is constant."""
        return get_learning_rate(self.optimizer)

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        set_learning_rate(self.optimizer, value)

    @property
    def loss_scale(self) -> float | None:
        """Present loss scale, copied from the device; None without a scaler that has one."""
        value = getattr(self.scaler, "scale_value", None)
        return None if value is None else float(value.asnumpy())

    def read_counters(self) -> dict[str, int]:
        """Return how many updates were "skipped", how many of them are "fatal", "consecutive" now and "longest_run".

        Fatal are all but overflows of scaled gradients with a finite loss. Copies four numbers to the host.
        """
        names, step = ("skipped", "fatal", "consecutive", "longest_run"), self.builder.step
        if not hasattr(step, "skipped"):
            return dict.fromkeys(names, 0)
        counters = {name: int(getattr(step, name).asnumpy()) for name in names}
        self.state.skipped_steps = counters["skipped"]
        return counters

    def read_bad_steps(self) -> list[int]:
        """Return the newest skipped steps, at most 16, as values of `global_step` after them; copies to the host."""
        step = self.builder.step
        if not hasattr(step, "bad_steps"):
            return []
        offset = self.state.progress.global_step - int(step.steps_done.asnumpy()) + 1
        return sorted(int(index) + offset for index in step.bad_steps.asnumpy() if index >= 0)

    @property
    def position(self) -> dict[str, Any] | None:
        """Place in the data right after the last row trained on; None outside a run."""
        return None if self._loop is None else dict(self._loop.position)

    @property
    def train_dataset(self) -> Any:
        """The `mindspore.dataset` pipeline that is trained on; None outside a run and for other data."""
        return None if self._loop is None else getattr(self._loop.feed.source, "dataset", None)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names a callback may monitor in the run under way."""
        evaluated = dict.fromkeys(["loss", *self.metrics])
        return ("loss", *(f"val_{name}" for name in evaluated), *self._window_names())

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def save(self, root: str | Path, background: bool = False) -> Path:
        """Write a snapshot to ``root/step_<global_step>``; see `trainer.checkpoint.saver.Saver.save`."""
        return self.saver.save(Path(root), background=background)

    def load(self, path: str | Path, strict: bool = True, weights_only: bool = False) -> None:
        """Restore a snapshot, or the weights of a .ckpt file; see `trainer.checkpoint.saver.Saver.load`."""
        self.saver.load(path, strict=strict, weights_only=weights_only)

    def rollback(self) -> None:
        """Put weights, optimizer and step state back to the newest snapshot of this run."""
        self.saver.rollback()

    def prune(self, root: str | Path, keep: Collection[str]) -> None:
        """Remove the snapshots of `root` that are not in `keep`."""
        self.saver.prune(Path(root), keep)

    def set_pointer(self, root: str | Path, pointer: str, name: str) -> None:
        """Make the pointer file "last" or "best" of `root` name a snapshot."""
        checkpoint.set_pointer(Path(root), pointer, name)

    def commit(self, position: Mapping[str, Any] | None) -> None:
        """Tell the data source that everything before `position` is in a durable snapshot."""
        if self._loop is not None and position:
            self._loop.feed.source.commit(position)

    def run_state(self) -> dict[str, Any]:
        """Return what a snapshot holds of the run under way besides parameters and counters."""
        return {} if self._loop is None else {"limits_base": self._limits_base, "loop": self._loop.state_dict()}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Put back what a snapshot holds besides the tensors."""
        self.state.progress.load_state_dict(state["progress"])
        self.state.metrics = dict(state["metrics"])
        self._limits_base = dict(state.get("limits_base", self._limits_base))
        restore_generators(state["random"])
        for key in self.callbacks.load_state_dict(state["callbacks"]):
            logger.warning("the snapshot holds the state of callback %s, which this run does not have", key)
        if self._loop is not None and "loop" in state:
            self._loop.load_state_dict(state["loop"])

    # -- around a run --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _session(self, phase: Phase, callbacks: Any) -> Iterator[StopOnSignal]:
        """Everything around a run that must happen whatever happens inside it."""
        if self._loop is not None and phase in (Phase.EVALUATE, Phase.PREDICT):
            yield from self._aside(phase, callbacks)
            return
        self._check_idle()
        state = self.state
        trained_with = self.callbacks, self.history
        self._use(callbacks)
        state.phase, state.stop_reason, state.exception = phase, None, None
        state.outputs = state.train_loss = state.window = state.drift = None
        try:
            with redirect_graph_dumps(), StopOnSignal(lambda name: self.stop(name, kind="signal")) as signals:
                yield signals
        except BaseException as error:
            state.exception = error
            self._report(error)
            self.callbacks.call_all("on_exception", self)
            raise
        finally:
            for error in self.callbacks.call_all("teardown", self):
                logger.error("teardown failed: %s", error)
            if phase in (Phase.EVALUATE, Phase.PREDICT):
                self.callbacks, self.history = trained_with
            state.phase, self._loop, self._online = Phase.IDLE, None, None
            self._close_saver()

    def _aside(self, phase: Phase, callbacks: Any) -> Iterator[StopOnSignal]:
        """Let a callback of the run under way evaluate or predict, and put back what the run goes on with."""
        state = self.state
        kept = self.callbacks, self.history, state.phase, state.metrics
        self._use(callbacks)
        state.phase = phase
        try:
            yield StopOnSignal(lambda name: None)  # the run's own handlers stay in place
        finally:
            for error in self.callbacks.call_all("teardown", self):
                logger.error("teardown failed: %s", error)
            self.callbacks, self.history, state.phase, state.metrics = kept

    def _check_idle(self) -> None:
        if self.state.phase is not Phase.IDLE:
            raise ConfigurationError(f"the trainer is busy with {self.state.phase.value}; one run at a time")

    def _close_saver(self) -> None:
        if self.state.exception is None:
            self.saver.close()
            return
        with contextlib.suppress(Exception):  # the exception under way matters more
            self.saver.close()

    def _report(self, error: BaseException) -> None:
        progress = self.state.progress
        place = f"epoch {progress.epoch}, step {progress.global_step}"
        if self._loop is not None and self._loop.position:
            place += f", data position {self._loop.position}"
        where = getattr(error, "failed_callback", None)
        where = f" in {where}.{error.failed_hook}" if where else ""
        text = f"the run ended by {type(error).__name__}{where} at {place}"
        logger.error("%s: %s", text, error)
        if hasattr(error, "add_note"):
            error.add_note(text)

    def _use(self, callbacks: Any) -> None:
        if callbacks is None:
            given: list[Any] = [ProgressBar()]
        elif isinstance(callbacks, Iterable):
            given = list(callbacks)
        else:
            given = [callbacks]
        adapted = [callback if isinstance(callback, Callback) else adapt(callback) for callback in given]
        self.history = next((callback for callback in adapted if isinstance(callback, History)), None)
        if self.history is None:
            self.history = History()
            adapted.append(self.history)
        self.callbacks = CallbackList(adapted)

    def _window_names(self) -> tuple[str, ...]:
        return () if self._online is None else self._online.names()

    def _check_monitors(self) -> None:
        has_validation = self._loop is not None and self._loop.validate is not None
        names = [name for name in self.metric_names if has_validation or not name.startswith("val_")]
        for callback in self.callbacks:
            monitor = callback.monitor
            if monitor is not None and monitor not in names:
                hint = did_you_mean(monitor, names)
                if monitor in self.metric_names:
                    hint = "; it comes from validation, and no valid_dataset was given"
                raise ConfigurationError(
                    f"{type(callback).__name__}(monitor={monitor!r}): no metric of that name is produced; "
                    f"available are {', '.join(names)}{hint}"
                )
