"""The callback contract, and the list that calls callbacks in their fixed order.

Every hook has one signature, ``hook(self, trainer)``. A callback reads ``trainer.state`` and may call
``trainer.stop(reason)``. The loop, with every hook in its place:

    setup
    on_load_checkpoint                         when a snapshot has been restored
    on_train_begin
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

import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.trainer import Trainer

logger = logging.getLogger(__name__)

HOOKS: tuple[str, ...] = (
    "setup",
    "on_train_begin",
    "on_train_epoch_begin",
    "on_train_step_begin",
    "on_train_step_end",
    "on_window_end",
    "on_drift",
    "on_eval_begin",
    "on_eval_step_begin",
    "on_eval_step_end",
    "on_eval_end",
    "on_train_epoch_end",
    "on_checkpoint",
    "on_train_end",
    "on_predict_begin",
    "on_predict_step_end",
    "on_predict_end",
    "on_save_checkpoint",
    "on_load_checkpoint",
    "on_exception",
    "teardown",
)


class Callback:
    """Base of all callbacks: override the hooks you need, the others cost nothing.

    Attributes:
        order: position among callbacks, low first; callbacks of equal order run as given.
        monitor: name of the metric this callback reads, or None; checked before training starts.
        non_finite: what the training step does about a loss or gradient that is not finite: "skip" leaves the update
            out, "terminate" all later ones too; None: this callback asks for neither.
        main_only: whether it runs on rank 0 alone of several processes: for what shows or writes what all know.
        reports_only: whether the run can do without it: an OSError of a hook (a full disk, a closed pipe) is logged
            once and training goes on. `setup` may still refuse the run.
        snapshot_root: folder of this callback's snapshots, where a resumed run looks for the newest; None for none.
    """

    order: int = 0
    monitor: str | None = None
    non_finite: str | None = None
    main_only: bool = False
    reports_only: bool = False
    snapshot_root: Path | None = None

    def use_direction(self, higher_is_better: bool | None) -> None:
        """Before training, where there is a `monitor`: what its metric declares; None where it declares nothing."""

    def setup(self, trainer: Trainer) -> None:
        """First of all, before the first compile and before a snapshot is restored."""

    def on_train_begin(self, trainer: Trainer) -> None:
        """Once, before the first step."""

    def on_train_epoch_begin(self, trainer: Trainer) -> None:
        """Before the first step of an epoch; not called when a run resumes in the middle of one."""

    def on_train_step_begin(self, trainer: Trainer) -> None:
        """Before each call of the training program (a chunk of 1 to `sink_size` steps)."""

    def on_train_step_end(self, trainer: Trainer) -> None:
        """After each call of the training program; `trainer.state.outputs` holds its device results."""

    def on_window_end(self, trainer: Trainer) -> None:
        """After an online metric window has closed; `trainer.state.window` holds its metrics."""

    def on_drift(self, trainer: Trainer) -> None:
        """After a drift detector has fired; `trainer.state.drift` tells which and where."""

    def on_eval_begin(self, trainer: Trainer) -> None:
        """Before an evaluation, called for by validation or by `evaluate`."""

    def on_eval_step_begin(self, trainer: Trainer) -> None:
        """Before each evaluation batch."""

    def on_eval_step_end(self, trainer: Trainer) -> None:
        """After each evaluation batch."""

    def on_eval_end(self, trainer: Trainer) -> None:
        """After an evaluation; `trainer.state.metrics` holds the results."""

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        """After the last step of an epoch and its validation."""

    def on_checkpoint(self, trainer: Trainer) -> None:
        """After each chunk, its validation and its epoch end: the moment to save."""

    def on_train_end(self, trainer: Trainer) -> None:
        """Once, after the last step of a run that ended without an exception."""

    def on_predict_begin(self, trainer: Trainer) -> None:
        """Before `predict`."""

    def on_predict_step_end(self, trainer: Trainer) -> None:
        """After each batch of `predict`."""

    def on_predict_end(self, trainer: Trainer) -> None:
        """After `predict`."""

    def on_save_checkpoint(self, trainer: Trainer) -> None:
        """After a snapshot has become durable; `trainer.state.snapshot` is its path."""

    def on_load_checkpoint(self, trainer: Trainer) -> None:
        """After a snapshot has been restored."""

    def on_exception(self, trainer: Trainer) -> None:
        """When an exception leaves the loop; `trainer.state.exception` is it."""

    def teardown(self, trainer: Trainer) -> None:
        """Last of all, whatever happened."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, as JSON-serialisable values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""


class CallbackList:
    """Callbacks in their fixed order; overridden hooks are found once, so an empty hook costs nothing."""

    def __init__(self, callbacks: Iterable[Callback] = ()) -> None:
        self._callbacks = sorted(callbacks, key=lambda callback: callback.order)
        self._hooks = {hook: self._overriding(hook) for hook in HOOKS}
        self._warned: set[int] = set()

    def _overriding(self, hook: str) -> list[Any]:
        base = getattr(Callback, hook)
        return [
            getattr(callback, hook)
            for callback in self._callbacks
            if getattr(type(callback), hook, base) is not base or hook in vars(callback)
        ]

    def bound(self, hook: str) -> list[Any]:
        """Return the bound methods that override `hook`, in calling order."""
        return self._hooks[hook]

    def call(self, hook: str, trainer: object) -> None:
        """Call `hook` of every callback that overrides it.

        An exception keeps its type; the callback, the hook and the training position are added to it as
        ``failed_callback``, ``failed_hook`` (strings) for the error report. One that `reports_only` ends nothing.
        """
        for method in self._hooks[hook]:
            try:
                method(trainer)
            except BaseException as error:
                if not self._is_of_a_report(error, method, hook):
                    _name_the_place(error, method, hook)
                    raise

    def _is_of_a_report(self, error: BaseException, method: Any, hook: str) -> bool:
        """Return whether the run goes on without what a callback failed to report; warn of it once."""
        callback = getattr(method, "__self__", None)
        if hook == "setup" or not isinstance(error, OSError) or not getattr(callback, "reports_only", False):
            return False
        if id(callback) not in self._warned:
            self._warned.add(id(callback))
            logger.warning("%s cannot report (%s); training goes on", type(callback).__name__, error)
        return True

    def call_all(self, hook: str, trainer: object) -> list[Exception]:
        """Call `hook` of every callback even when some raise; return what they raised."""
        raised: list[Exception] = []
        for method in self._hooks[hook]:
            try:
                method(trainer)
            except Exception as error:
                if not self._is_of_a_report(error, method, hook):
                    _name_the_place(error, method, hook)
                    raised.append(error)
        return raised

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every callback that has one, keyed by class name and place among its kind."""
        states = ((key, callback.state_dict()) for key, callback in self._keyed())
        return {key: state for key, state in states if state}

    def load_state_dict(self, state: Mapping[str, Any]) -> list[str]:
        """Restore callbacks by key; return the keys of `state` that no callback answers to."""
        known = dict(self._keyed())
        for key, value in state.items():
            if key in known:
                known[key].load_state_dict(value)
        return [key for key in state if key not in known]

    def _keyed(self) -> Iterator[tuple[str, Callback]]:
        seen: dict[str, int] = {}
        for callback in self._callbacks:
            name = type(callback).__name__
            place = seen[name] = seen.get(name, -1) + 1
            yield f"{name}:{place}", callback

    def __iter__(self) -> Iterator[Callback]:
        return iter(self._callbacks)

    def __len__(self) -> int:
        return len(self._callbacks)


def _name_the_place(error: BaseException, method: Any, hook: str) -> None:
    if not hasattr(error, "failed_callback"):
        try:
            error.failed_callback = type(method.__self__).__name__  # type: ignore[attr-defined]
            error.failed_hook = hook  # type: ignore[attr-defined]
        except AttributeError:  # an exception with __slots__; it still propagates as it is
            pass
