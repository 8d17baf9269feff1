"""Setup and cleanup around a call such as `fit`: callbacks and signal handlers."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from callbacks import Callback, CallbackList, History, ProgressBar, adapt

from ..checkpoint.saver import FOLDER
from ..data.waiting import Interrupted
from ..errors import ConfigurationError
from ..metrics.registry import copies_of
from ..mindspore_internals.compilation import notebook_sources, redirect_graph_dumps
from ..mindspore_internals.execution import check_not_forked
from ..state import Phase
from ..storage.fetch import PUBLISHED
from . import loop
from .signals import StopOnSignal

if TYPE_CHECKING:
    from .trainer_base import TrainerBase

logger = logging.getLogger(__name__)

_TRAINING = (Phase.FIT, Phase.ONLINE)


@contextlib.contextmanager
def call(trainer: TrainerBase, phase: Phase, callbacks: Any) -> Iterator[StopOnSignal]:
    """Install `callbacks` and signal handlers for one call such as `fit`.

    During a training, a callback may evaluate or predict; this does not affect the training.

    Raises:
        ConfigurationError: the trainer is busy, or the process cannot run graphs.
    """
    nested = phase not in _TRAINING and trainer.state.phase in _TRAINING
    with only_thread(phase.value), trainer.group.inside(phase.value):
        yield from (_nested if nested else _call)(trainer, phase, callbacks)


_calls: list[tuple[threading.Thread, str]] = []  # active calls, all on the one thread that may run graphs
_calls_lock = threading.Lock()


@contextlib.contextmanager
def only_thread(verb: str) -> Iterator[None]:
    """Refuse calls such as `fit` from other threads while the context is open.

    Two threads cannot take turns: MindSpore holds the GIL while it waits for a graph, and the graph's Python operators
    need the GIL.
    """
    own = threading.current_thread()
    with _calls_lock:
        for thread, other in _calls:
            if thread is not own and thread.is_alive():
                raise ConfigurationError(
                    f"{verb}: called on thread {own.name!r} while thread {thread.name!r} is inside {other}; "
                    "MindSpore runs graphs on one thread at a time: call them in turn, or use a process for each"
                )
        entry = (own, verb)
        _calls.append(entry)
    try:
        yield
    finally:
        with _calls_lock:
            _calls.remove(entry)


def _call(trainer: TrainerBase, phase: Phase, callbacks: Any) -> Iterator[StopOnSignal]:
    state = trainer.state
    check_idle(trainer)
    check_not_forked()
    training_callbacks = trainer.callbacks, trainer.history
    trainer.callbacks, trainer.history = make_callbacks(callbacks, main=trainer.group.is_main)
    state.begin(phase)
    try:
        with (
            redirect_graph_dumps(),
            notebook_sources((trainer.network, trainer.loss_fn, trainer.optimizer, trainer.own_eval_network)),
            StopOnSignal(
                lambda name: trainer.stop(name, kind="signal"),
                lambda: _shut_down(trainer),
                alone=trainer.group.size == 1,
            ) as signals,
        ):
            yield signals
    except Interrupted:  # a signal came while waiting for the first data; `signals.leave` raises its exception
        pass
    except GeneratorExit:  # not a failure: the user closed the iterator of `predict(stream=True)`
        raise
    except BaseException as error:
        report(trainer, error)
        raise
    finally:
        loop.teardown(trainer)
        if phase not in _TRAINING:
            trainer.callbacks, trainer.history = training_callbacks
        state.phase, trainer.run = Phase.IDLE, None
        # An exception of the run is more important than one of `close`, so suppress the latter.
        with contextlib.suppress(Exception) if state.exception is not None else contextlib.nullcontext():
            trainer.saver.close()


def _shut_down(trainer: TrainerBase) -> None:
    """End the run on another thread while the main thread is stuck waiting for data."""
    if trainer.run is not None and not trainer.run.ended:
        trainer.callbacks = trainer.run.callbacks  # a nested evaluation may have replaced them
        loop.end(trainer.run)
    loop.teardown(trainer)
    trainer.saver.close()


def _nested(trainer: TrainerBase, phase: Phase, callbacks: Any) -> Iterator[StopOnSignal]:
    """Run an evaluation or prediction within a training; restore the training's state."""
    state = trainer.state
    kept = trainer.callbacks, trainer.history, trainer.metrics, state.phase, state.metrics, state.evaluation
    trainer.callbacks, trainer.history = make_callbacks(callbacks, main=trainer.group.is_main)
    state.phase = phase
    if phase is Phase.EVALUATE:  # a window or a validation may be adding rows to the metrics of the run
        trainer.metrics = copies_of(trainer.metrics)
    try:
        yield StopOnSignal(lambda name: None)  # the run's own handlers stay in place
    finally:
        loop.teardown(trainer)
        trainer.callbacks, trainer.history, trainer.metrics, state.phase, state.metrics, state.evaluation = kept


def check_idle(trainer: TrainerBase) -> None:
    """Check that no other run is active."""
    if trainer.state.phase is not Phase.IDLE:
        raise ConfigurationError(f"the trainer is busy with {trainer.state.phase.value}; one run at a time")


def make_callbacks(callbacks: Any, *, main: bool = True) -> tuple[CallbackList, History]:
    """Return the callbacks of a call as a `CallbackList`, and its `History`.

    None gives a progress bar; MindSpore's own callbacks are adapted. If this is not the `main` process, callbacks with
    `main_only` are left out.
    """
    callbacks = ProgressBar() if callbacks is None else callbacks
    items = callbacks if isinstance(callbacks, Iterable) else [callbacks]
    adapted = [callback if isinstance(callback, Callback) else adapt(callback) for callback in items]
    adapted = [callback for callback in adapted if main or not callback.main_only]
    histories = [callback for callback in adapted if isinstance(callback, History)]
    if not histories:
        histories = [History()]
        adapted += histories
    return CallbackList(adapted), histories[0]


def report(trainer: TrainerBase, error: BaseException) -> None:
    """Log an exception and call `on_exception`, once for each exception."""
    if trainer.state.exception is error or isinstance(error, Interrupted):
        return
    progress = trainer.state.progress
    position = f", data position {trainer.position}" if trainer.position else ""
    callback = getattr(error, "failed_callback", None)
    where = f" in {callback}.{getattr(error, 'failed_hook', '')}" if callback else ""
    text = f"the run ended by {type(error).__name__}{where} at epoch {progress.epoch}, step {progress.global_step}"
    logger.error("%s%s: %s", text, position, error)
    if hasattr(error, "add_note"):
        error.add_note(text + position)
    loop.report_failure(trainer, error)


def snapshot_folders(run_dir: Path | None, callbacks: Iterable[Callback]) -> list[Path]:
    """Return the folders that may hold snapshots: in the run folder and of callbacks."""
    folders = [] if run_dir is None else [run_dir / FOLDER]
    return folders + [Path(c.snapshot_root) for c in callbacks if c.snapshot_root is not None]


def published_folders(run_dir: Path | None, callbacks: Iterable[Callback]) -> list[Path]:
    """Return the folders that callbacks publish to."""
    inside = [] if run_dir is None else [run_dir / PUBLISHED for c in callbacks if c.published_in_run]
    return inside + [Path(c.published_root) for c in callbacks if c.published_root and not c.published_in_run]
