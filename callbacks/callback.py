"""`Callback`, the base class with all hooks, and `CallbackList`, which calls them.

All hooks have the signature ``hook(self, trainer)``. `hook_trainer.Trainer` lists what callbacks may read and do; the
argument can be annotated with that class or with `trainer.Trainer`. A callback reads ``trainer.state`` and may call
``trainer.stop(reason)``. The training loop calls the hooks in this order:

    setup
    on_load_checkpoint                         after a snapshot is restored
    on_train_begin
    validation and on_checkpoint               with fit(valid_on_start=True), unless the run is resumed
    while not done:
        on_train_epoch_begin
        for chunk in feed:
            on_train_step_begin
            ... 1 to sink_size optimizer steps in one call ...
            on_window_end                      when an online metric window closes
                on_drift                       when a drift detector fires on this window
            on_train_step_end
            validation, when due:
                on_eval_begin
                (on_eval_step_begin, on_eval_step_end) per batch
                on_eval_end
            on_train_epoch_end                 after the last chunk of an epoch; streams have no epochs
            on_checkpoint                      counters, metrics and position are consistent here
                on_save_checkpoint             when the snapshot is durable; later if it is written in the background
    on_train_end
    on_exception                               when an exception leaves the loop
    teardown                                   always

`predict` calls on_predict_begin, on_predict_step_end after each batch, and on_predict_end.

Within a hook, callbacks run by ascending `order` (early stopping 50, checkpoints 100), and callbacks of equal order as
given.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .hook_trainer import Trainer as Trainer

logger = logging.getLogger(__name__)


class Callback:
    """Base of all callbacks; override the hooks you need.

    Hooks that are not overridden are never called.

    Attributes:
        order: position among callbacks, low first; callbacks of equal order run as given.
        end_order: position in `on_train_end`; None for the same as `order`.
        monitor: name of the metric this callback reads, or None; checked before training starts.
        drift_features: names of declared features whose drift is measured in every online window, as "drift_<name>".
        non_finite: how the training step handles a non-finite loss or gradient: "skip" skips the update, "terminate"
            skips it and all later ones; None makes no request.
        main_only: whether the callback runs only on rank 0, because it shows or writes values that all ranks have.
        reports_only: whether the run can continue without this callback. If so, a hook that raises one of
            `report_errors` is logged once and training continues. Errors in `setup` still end the run.
        report_errors: exceptions that mean a failed report: OSError (a full disk, a closed pipe), or the exceptions of
            a server's client library.
        weight_average: how the training program averages the weights, as arguments of
            `trainer.graph.averaging.AverageRule`, or None.
        leaves_files: whether the callback writes permanent files (snapshots, logs); a `fast_dev_run` omits it.
        snapshot_root: folder of this callback's snapshots, where a resumed run looks for the latest one, or None.
        published_root: folder of the versions that this callback publishes, or None.
        published_in_run: whether the callback publishes to ``published`` in the run folder; read before `setup`.
    """

    order: int = 0
    end_order: int | None = None
    monitor: str | None = None
    drift_features: tuple[str, ...] = ()
    non_finite: str | None = None
    main_only: bool = False
    reports_only: bool = False
    report_errors: tuple[type[Exception], ...] = (OSError,)
    weight_average: Mapping[str, Any] | None = None
    leaves_files: bool = False
    snapshot_root: Path | None = None
    published_root: Path | None = None
    published_in_run: bool = False

    def use_direction(self, higher_is_better: bool | None) -> None:
        """Receive the monitored metric's direction before training; None if undeclared."""

    def without_monitor(self) -> Callback | None:
        """Return a callback that replaces this one without its metric, or None to omit it.

        The command `trainer online` calls this for callbacks that monitor the loss of epochs or a validation metric,
        because a run on a stream has no epochs and no validation.
        """
        return None

    def setup(self, trainer: Any) -> None:
        """Called first, before any compilation and before a snapshot is restored."""

    def on_train_begin(self, trainer: Any) -> None:
        """Called once, before the first step."""

    def on_train_epoch_begin(self, trainer: Any) -> None:
        """Called before an epoch's first step, but not after a resume within the epoch."""

    def on_train_step_begin(self, trainer: Any) -> None:
        """Called before each training call (a chunk of 1 to `sink_size` steps)."""

    def on_train_step_end(self, trainer: Any) -> None:
        """Called after each training call; `trainer.state.outputs` has its results."""

    def on_window_end(self, trainer: Any) -> None:
        """Called after an online window closes; `trainer.state.window` has its metrics."""

    def on_drift(self, trainer: Any) -> None:
        """Called after a drift detector fires; `trainer.state.drift` is its report."""

    def on_eval_begin(self, trainer: Any) -> None:
        """Called before a validation or `evaluate`."""

    def on_eval_step_begin(self, trainer: Any) -> None:
        """Called before each evaluation batch."""

    def on_eval_step_end(self, trainer: Any) -> None:
        """Called after each evaluation batch."""

    def on_eval_end(self, trainer: Any) -> None:
        """Called after an evaluation; `trainer.state.metrics` has the results."""

    def on_train_epoch_end(self, trainer: Any) -> None:
        """Called after the last step of an epoch and its validation."""

    def on_checkpoint(self, trainer: Any) -> None:
        """Called after each chunk, its validation and its epoch end; save snapshots here."""

    def on_train_end(self, trainer: Any) -> None:
        """Called once, after the last step of a run that ended without an exception."""

    def on_predict_begin(self, trainer: Any) -> None:
        """Called before `predict`."""

    def on_predict_step_end(self, trainer: Any) -> None:
        """Called after each batch of `predict`."""

    def on_predict_end(self, trainer: Any) -> None:
        """Called after `predict`."""

    def on_save_checkpoint(self, trainer: Any) -> None:
        """Called when a snapshot is durable; `trainer.state.snapshot` is its path."""

    def on_load_checkpoint(self, trainer: Any) -> None:
        """Called after a snapshot is restored."""

    def on_exception(self, trainer: Any) -> None:
        """Called when an exception leaves the loop; see `trainer.state.exception`."""

    def teardown(self, trainer: Any) -> None:
        """Called last, also after an error."""

    def logged_values(self) -> dict[str, float]:
        """Return numbers by name, which the run's loggers add to each of their points."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs, as JSON-serialisable values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""


_OF_USERS = ("callbacks.lambda_callback", "callbacks.mindspore_adapter")


def runs_own_code(callback: Callback) -> bool:
    """Return whether hooks of a callback are code of the user."""
    module = type(callback).__module__
    return module in _OF_USERS or not module.startswith(("callbacks.", "trainer."))


class _TimedHook:
    """A bound hook that reports the duration of each call."""

    def __init__(self, observer: Callable[[str, float, float], None], callback: Callback, hook: str) -> None:
        self.__self__ = callback  # read by `CallbackList`, as from a bound method
        self._method, self._observer = getattr(callback, hook), observer
        self._name = f"{type(callback).__name__}.{hook}"

    def __call__(self, trainer: Any) -> None:
        started = time.perf_counter()
        try:
            self._method(trainer)
        finally:
            self._observer(self._name, started, time.perf_counter())


_UNUSED_HOOKS = {
    name: value for name, value in vars(Callback).items() if name.startswith("on_") or name in ("setup", "teardown")
}
HOOKS: tuple[str, ...] = tuple(_UNUSED_HOOKS)


class CallbackList:
    """Callbacks by `order`; looks up once which hooks each of them overrides."""

    def __init__(self, callbacks: Iterable[Callback] = ()) -> None:
        self._callbacks = sorted(callbacks, key=lambda callback: callback.order)
        self.observe(None)
        self._warned: set[int] = set()

    def observe(self, observer: Callable[[str, float, float], None] | None) -> None:
        """Report the time of each hook call to `observer`; None stops the reports.

        `observer` receives "<callback>.<hook>" and the start and end by `time.perf_counter()`.
        """
        bind = getattr if observer is None else functools.partial(_TimedHook, observer)
        self._hooks: dict[str, list[Any]] = {
            hook: [
                bind(callback, hook)
                for callback in (self._callbacks if hook != "on_train_end" else sorted(self._callbacks, key=_end_order))
                if getattr(type(callback), hook, base) is not base or hook in vars(callback)
            ]
            for hook, base in _UNUSED_HOOKS.items()
        }

    def bound(self, hook: str) -> list[Any]:
        """Return the bound methods that override `hook`, in calling order."""
        return self._hooks[hook]

    def call(self, hook: str, trainer: object) -> None:
        """Call `hook` of every callback that overrides it.

        If a hook raises, the names of callback and hook are set on the exception as ``failed_callback`` and
        ``failed_hook`` for the error report. A failed report of a callback with `reports_only` does not end the run.
        """
        for method in self._hooks[hook]:
            try:
                method(trainer)
            except BaseException as error:
                if not self._is_report_failure(error, method, hook):
                    _annotate_error(error, method, hook)
                    raise

    def _is_report_failure(self, error: BaseException, method: Any, hook: str) -> bool:
        """Return whether the error only affects a report; warn once per callback."""
        callback = getattr(method, "__self__", None)
        if hook == "setup" or not isinstance(callback, Callback) or not callback.reports_only:
            return False
        if not isinstance(error, callback.report_errors):
            return False
        if id(callback) not in self._warned:
            self._warned.add(id(callback))
            logger.warning("%s cannot report (%s); training continues", type(callback).__name__, error)
        return True

    def call_all(self, hook: str, trainer: object) -> list[Exception]:
        """Call `hook` of every callback even if some raise; return the exceptions."""
        raised: list[Exception] = []
        for method in self._hooks[hook]:
            try:
                method(trainer)
            except Exception as error:
                if not self._is_report_failure(error, method, hook):
                    _annotate_error(error, method, hook)
                    raised.append(error)
        return raised

    def state_dict(self) -> dict[str, Any]:
        """Return the callbacks' states by "<class name>:<index among that class>"."""
        states = ((key, callback.state_dict()) for key, callback in self._by_key())
        return {key: state for key, state in states if state}

    def load_state_dict(self, state: Mapping[str, Any]) -> list[str]:
        """Restore callbacks by key; return the keys of `state` that match no callback."""
        known = dict(self._by_key())
        for key, value in state.items():
            if key in known:
                known[key].load_state_dict(value)
        return [key for key in state if key not in known]

    def _by_key(self) -> Iterator[tuple[str, Callback]]:
        last_index: dict[str, int] = {}
        for callback in self._callbacks:
            name = type(callback).__name__
            index = last_index[name] = last_index.get(name, -1) + 1
            yield f"{name}:{index}", callback

    def __iter__(self) -> Iterator[Callback]:
        return iter(self._callbacks)

    def __len__(self) -> int:
        return len(self._callbacks)


def _end_order(callback: Callback) -> int:
    return callback.order if callback.end_order is None else callback.end_order


def _annotate_error(error: BaseException, method: Any, hook: str) -> None:
    if not hasattr(error, "failed_callback"):
        with contextlib.suppress(AttributeError):  # an exception with __slots__ propagates unchanged
            error.failed_callback = type(method.__self__).__name__  # type: ignore[attr-defined]
            error.failed_hook = hook  # type: ignore[attr-defined]
