"""What surrounds the call of a verb: its callbacks, its signals, and what must happen whatever happens inside it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ..data.waiting import Interrupted
from ..errors import ConfigurationError
from ..hooks import Callback, CallbackList, History, ProgressBar, adapt
from ..mindspore_internals.graph_dumps import redirect_graph_dumps
from ..mindspore_internals.notebook_sources import written_sources
from ..state import Phase
from . import loop
from .signals import StopOnSignal

if TYPE_CHECKING:
    from ..trainer import Trainer

logger = logging.getLogger(__name__)

_TRAINING = (Phase.FIT, Phase.ONLINE)


@contextlib.contextmanager
def call(trainer: Trainer, phase: Phase, callbacks: Any) -> Iterator[StopOnSignal]:
    """Put `callbacks` and signal handlers in place for a while, and wind up whatever happens.

    A callback of a training under way may evaluate or predict; the training then goes on undisturbed.

    Raises:
        ConfigurationError: the trainer is busy with something else.
    """
    state = trainer.state
    if phase not in _TRAINING and state.phase in _TRAINING:
        yield from _nested(trainer, phase, callbacks)
        return
    check_idle(trainer)
    trained_with = trainer.callbacks, trainer.history
    trainer.callbacks, trainer.history = make_callbacks(callbacks, main=trainer.group.is_main)
    state.begin(phase)
    try:
        with (
            redirect_graph_dumps(),
            written_sources((trainer.network, trainer.loss_fn, trainer.optimizer, trainer.eval_network)),
            StopOnSignal(
                lambda name: trainer.stop(name, kind="signal"),
                lambda: _wind_up(trainer),
                alone=trainer.group.size == 1,
            ) as signals,
        ):
            yield signals
    except Interrupted:  # while waiting for the first data; `signals.leave` says the rest
        pass
    except BaseException as error:
        _report(trainer, error)
        loop.failed(trainer, error)
        raise
    finally:
        loop.teardown(trainer)
        if phase not in _TRAINING:
            trainer.callbacks, trainer.history = trained_with
        state.phase, trainer.run = Phase.IDLE, None
        # with an exception under way, that matters more than what closing may raise
        with contextlib.suppress(Exception) if state.exception is not None else contextlib.nullcontext():
            trainer.saver.close()


def _wind_up(trainer: Trainer) -> None:
    if trainer.run is not None and not trainer.run.ended:
        trainer.callbacks = trainer.run.callbacks  # an evaluation in the middle has its own
        loop.end(trainer.run)
    loop.teardown(trainer)
    trainer.saver.close()


def _nested(trainer: Trainer, phase: Phase, callbacks: Any) -> Iterator[StopOnSignal]:
    state = trainer.state
    kept = trainer.callbacks, trainer.history, state.phase, state.metrics
    trainer.callbacks, trainer.history = make_callbacks(callbacks, main=trainer.group.is_main)
    state.phase = phase
    try:
        yield StopOnSignal(lambda name: None)  # the run's own handlers stay in place
    finally:
        loop.teardown(trainer)
        trainer.callbacks, trainer.history, state.phase, state.metrics = kept


def check_idle(trainer: Trainer) -> None:
    """Check that nothing is under way.

    Raises:
        ConfigurationError: something is.
    """
    if trainer.state.phase is not Phase.IDLE:
        raise ConfigurationError(f"the trainer is busy with {trainer.state.phase.value}; one run at a time")


def make_callbacks(callbacks: Any, *, main: bool = True) -> tuple[CallbackList, History]:
    """Return the list of what a user gave (None: a progress bar), MindSpore's own adapted, and its `History`.

    Where the process is not the `main` one of several, callbacks for that one alone are left out.
    """
    if callbacks is None:
        given: list[Any] = [ProgressBar()]
    elif isinstance(callbacks, Iterable):
        given = list(callbacks)
    else:
        given = [callbacks]
    adapted = [callback if isinstance(callback, Callback) else adapt(callback) for callback in given]
    adapted = [callback for callback in adapted if main or not callback.main_only]
    history = next((callback for callback in adapted if isinstance(callback, History)), None)
    if history is None:
        history = History()
        adapted.append(history)
    return CallbackList(adapted), history


def _report(trainer: Trainer, error: BaseException) -> None:
    progress = trainer.state.progress
    place = f"epoch {progress.epoch}, step {progress.global_step}"
    if trainer.position:
        place += f", data position {trainer.position}"
    where = getattr(error, "failed_callback", None)
    where = f" in {where}.{error.failed_hook}" if where else ""
    text = f"the run ended by {type(error).__name__}{where} at {place}"
    logger.error("%s: %s", text, error)
    if hasattr(error, "add_note"):
        error.add_note(text)
