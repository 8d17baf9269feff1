"""The callback contract, and the list that calls callbacks in their fixed order.

Every hook has one signature, ``hook(self, trainer)``. `hook_trainer.Trainer` lists what a callback may read and do;
your annotation may be that class or `trainer.Trainer`. A callback reads ``trainer.state`` and may call
``trainer.stop(reason)``. The loop, with every hook in its place:

    setup
    on_load_checkpoint                         when a snapshot has been restored
    on_train_begin
    validation and on_checkpoint               if fit(valid_on_start=True) starts afresh
    while not done:
        on_train_epoch_begin
        for chunk in feed:
            on_train_step_begin
            ... 1 to sink_size optimizer steps in one call ...
            on_window_end                      when an online metric window has closed
                on_drift                       when a drift detector fires in it
            on_train_step_end
            validation, when due:
                on_eval_begin
                (on_eval_step_begin, on_eval_step_end) per batch
                on_eval_end
            on_train_epoch_end                 after the last chunk of an epoch; streams have no epochs
            on_checkpoint                      last of all: counters, metrics and position agree here
                on_save_checkpoint             when the snapshot has become durable; later where it is written aside
    on_train_end
    on_exception                               when an exception leaves the loop
    teardown                                   always

`predict` calls on_predict_begin, on_predict_step_end after each batch, and on_predict_end.

Order within a hook: user callbacks as given, then callbacks with a higher `order` (early stopping 50,
checkpoints 100).
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
    """Base of all callbacks: override the hooks you need; the others cost nothing.

    Attributes:
        order: position among callbacks, low first; callbacks of equal order run as given.
        end_order: position in `on_train_end`, if it is another one.
        monitor: name of the metric this callback reads, or None; checked before training starts.
        drift_features: names of declared features whose drift every online window measures, as "drift_<name>".
        non_finite: how the training step handles a non-finite loss or gradient: "skip" skips the update, "terminate"
            all later ones too; None: no request.
        main_only: whether it runs only on rank 0: for callbacks that show or write what all ranks know.
        reports_only: whether the run can continue without it: if a hook raises one of `report_errors`, it is logged
            once and training continues. `setup` may still refuse the run.
        report_errors: exceptions that mean a failed report: OSError (a full disk, a closed pipe), or those of a
            server's client.
        weight_average: rule of the weight averages that the training program keeps, as arguments of
            `trainer.graph.averaging.AverageRule`, or None.
        leaves_files: whether it writes lasting files (snapshots, logs): a `fast_dev_run` leaves it out.
        snapshot_root: folder of this callback's snapshots, where a resumed run looks for the latest one, or None.
        published_root: folder of the versions that this callback publishes, or None.
        published_in_run: whether that is ``published`` in the run folder, known from the start of a call.
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
        """Receive the monitored metric's direction before training; None: undeclared."""

    def without_monitor(self) -> Callback | None:
        """Return a replacement for runs that do not measure the metric, or None.

        An experiment's `online_train` has no validation, so `trainer online` drops monitors of its metrics.
        """
        return None

    def setup(self, trainer: Any) -> None:
        """First of all, before the first compile and before a snapshot is restored."""

    def on_train_begin(self, trainer: Any) -> None:
        """Once, before the first step."""

    def on_train_epoch_begin(self, trainer: Any) -> None:
        """Before an epoch's first step; not after a resume within the epoch."""

    def on_train_step_begin(self, trainer: Any) -> None:
        """Before each call of the training program (a chunk of 1 to `sink_size` steps)."""

    def on_train_step_end(self, trainer: Any) -> None:
        """After each training call; `trainer.state.outputs` holds its results."""

    def on_window_end(self, trainer: Any) -> None:
        """After an online window has closed; `trainer.state.window` has its metrics."""

    def on_drift(self, trainer: Any) -> None:
        """After a drift detector has fired; `trainer.state.drift` tells which and where."""

    def on_eval_begin(self, trainer: Any) -> None:
        """Before an evaluation: a validation or a call of `evaluate`."""

    def on_eval_step_begin(self, trainer: Any) -> None:
        """Before each evaluation batch."""

    def on_eval_step_end(self, trainer: Any) -> None:
        """After each evaluation batch."""

    def on_eval_end(self, trainer: Any) -> None:
        """After an evaluation; `trainer.state.metrics` holds the results."""

    def on_train_epoch_end(self, trainer: Any) -> None:
        """After the last step of an epoch and its validation."""

    def on_checkpoint(self, trainer: Any) -> None:
        """After each chunk, its validation and its epoch end: the moment to save."""

    def on_train_end(self, trainer: Any) -> None:
        """Once, after the last step of a run that ended without an exception."""

    def on_predict_begin(self, trainer: Any) -> None:
        """Before `predict`."""

    def on_predict_step_end(self, trainer: Any) -> None:
        """After each batch of `predict`."""

    def on_predict_end(self, trainer: Any) -> None:
        """After `predict`."""

    def on_save_checkpoint(self, trainer: Any) -> None:
        """After a snapshot has become durable; `trainer.state.snapshot` is its path."""

    def on_load_checkpoint(self, trainer: Any) -> None:
        """After a snapshot has been restored."""

    def on_exception(self, trainer: Any) -> None:
        """When an exception leaves the loop; see `trainer.state.exception`."""

    def teardown(self, trainer: Any) -> None:
        """Called last, also after an error."""

    def logged_values(self) -> dict[str, float]:
        """Return numbers, by name, that the run's loggers add to each of their points."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, as JSON-serialisable values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""


class _Timed:
    """A bound hook that reports how long each of its calls takes."""

    def __init__(self, observer: Callable[[str, float, float], None], callback: Callback, hook: str) -> None:
        self.__self__ = callback  # set, because bound methods have it
        self._method, self._observer = getattr(callback, hook), observer
        self._name = f"{type(callback).__name__}.{hook}"

    def __call__(self, trainer: Any) -> None:
        began = time.perf_counter()
        try:
            self._method(trainer)
        finally:
            self._observer(self._name, began, time.perf_counter())


_UNUSED_HOOKS = {
    name: value for name, value in vars(Callback).items() if name.startswith("on_") or name in ("setup", "teardown")
}
HOOKS: tuple[str, ...] = tuple(_UNUSED_HOOKS)


class CallbackList:
    """Callbacks in their fixed order, with hooks looked up once: an empty one is free."""

    def __init__(self, callbacks: Iterable[Callback] = ()) -> None:
        self._callbacks = sorted(callbacks, key=lambda callback: callback.order)
        self.observe(None)
        self._warned: set[int] = set()

    def observe(self, observer: Callable[[str, float, float], None] | None) -> None:
        """Report each hook's times to `observer`; None stops it.

        It is called with "<callback>.<hook>" and two readings of `time.perf_counter()`.
        """
        bind = getattr if observer is None else functools.partial(_Timed, observer)
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

        An exception keeps its type; the names of callback and hook are added to it as ``failed_callback`` and
        ``failed_hook`` (strings) for the error report. An error of a callback that `reports_only` does not end the run.
        """
        for method in self._hooks[hook]:
            try:
                method(trainer)
            except BaseException as error:
                if not self._is_of_a_report(error, method, hook):
                    _annotate_error(error, method, hook)
                    raise

    def _is_of_a_report(self, error: BaseException, method: Any, hook: str) -> bool:
        """Return whether the error only affects a report; warn once."""
        callback = getattr(method, "__self__", None)
        reports_only = hook != "setup" and getattr(callback, "reports_only", False)
        if not reports_only or not isinstance(error, callback.report_errors):
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
                if not self._is_of_a_report(error, method, hook):
                    _annotate_error(error, method, hook)
                    raised.append(error)
        return raised

    def state_dict(self) -> dict[str, Any]:
        """Return the callbacks' states, keyed by class name and index in that class."""
        states = ((key, callback.state_dict()) for key, callback in self._keyed())
        return {key: state for key, state in states if state}

    def load_state_dict(self, state: Mapping[str, Any]) -> list[str]:
        """Restore callbacks by key; return the keys of `state` that match no callback."""
        known = dict(self._keyed())
        for key, value in state.items():
            if key in known:
                known[key].load_state_dict(value)
        return [key for key in state if key not in known]

    def _keyed(self) -> Iterator[tuple[str, Callback]]:
        seen: dict[str, int] = {}
        for callback in self._callbacks:
            name = type(callback).__name__
            index = seen[name] = seen.get(name, -1) + 1
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
