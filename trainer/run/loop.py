"""The training loop, evaluation and prediction; all hooks are called from here.

One loop serves finite data and streams, which differ only in the limits of the run and in whether the feed ends epochs.
It also serves calls of one step and of several steps, which differ only in `num_steps` of the chunk.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.chunk import Chunk
from ..data.feed import Feed
from ..data.position import Position
from ..data.waiting import Interrupted
from ..distributed.packing import lockstep_outputs
from ..errors import DataError
from ..metrics import numbers
from ..state import EvaluationState, StepOutputs
from .tally import Tally

if TYPE_CHECKING:
    from .run import Run
    from .trainer_base import TrainerBase

logger = logging.getLogger(__name__)


def train(run: Run) -> None:
    """Train until a limit is reached or a stop is requested."""
    trainer, call = run.trainer, run.callbacks.call
    try:
        call("on_train_begin", trainer)
        run.start_clocks()
        with contextlib.suppress(Interrupted):  # raised while waiting for data; the stop reason is already set
            if run.valid_on_start or run.cursor.validation_pending:
                _validate(run)
                call("on_checkpoint", trainer)
            while not run.stopped():
                if run.at_epoch_start():
                    run.begin_epoch()
                    call("on_train_epoch_begin", trainer)
                if not _train_epoch(run) and not run.stopped():
                    trainer.stop("the stream ended", kind=run.feed.source.ended or "stream_end")
        end(run)
    finally:
        run.ended = True


def end(run: Run) -> None:
    """End a training: close the window, call the hooks, wait for snapshots."""
    run.ended = True
    trainer, state, call = run.trainer, run.trainer.state, run.callbacks.call
    if run.online is not None:
        ended = state.stop_reason is not None and state.stop_reason.kind in ("stream_end", "idle")
        window = run.online.finish(ended, state.progress.samples_seen)
        if window is not None:
            state.window = window
            if ended:
                call("on_window_end", trainer)
    if not run.options.guard:
        warn_of_loss(
            trainer, run.cursor.meter.value() if run.online is None else (state.window or {}).get("window_loss")
        )
    trainer.sum_table_counters()
    logger.info("training ended (%s)", state.stop_reason)
    call("on_train_end", trainer)
    trainer.saver.wait()
    run.commit_durable()


def _train_epoch(run: Run) -> bool:
    """Train the rest of the epoch; return whether more data may follow."""
    trainer, state, call = run.trainer, run.trainer.state, run.callbacks.call
    has_step_begin_hook = run.callbacks.bound("on_train_step_begin")
    source = run.feed.source
    chunks = run.chunks()
    trained = False
    try:
        for chunk in chunks:
            trained = True
            if has_step_begin_hook:
                state.chunk = chunk
                call("on_train_step_begin", trainer)
                state.chunk = None
            state.outputs = outputs = run.step(chunk)
            _after_step(run, chunk, outputs)
            if chunk.ends_epoch:
                run.agree()
                return True
            if run.stopped():
                return True
    finally:
        chunks.close()
    if not trained and not source.endless and not run.stopped():
        done = run.cursor.position.batch
        more = (
            f" after the first {done}, where the resumed run continues; give it the limit that it had" if done else ""
        )
        raise DataError(f"epoch {state.progress.epoch}: the dataset delivered no batches{more}")
    return not source.endless


def _after_step(run: Run, chunk: Chunk, outputs: StepOutputs) -> None:
    trainer, state, call = run.trainer, run.trainer.state, run.callbacks.call
    run.advance(chunk)
    trainer.saver.check()
    if run.online is None:
        run.cursor.meter.add(outputs)
    else:
        window = run.online.after_step(chunk, outputs, state.progress.samples_seen)
        if window is not None:
            state.window = window
            trainer.sum_table_counters()
            if not run.options.guard:
                warn_of_loss(trainer, window.get("window_loss"))
            call("on_window_end", trainer)
            run.note_waits()
            run.freezing.warn(state.progress.global_step)
            run.feed.clock.restart()
    call("on_train_step_end", trainer)
    if chunk.ends_epoch:
        run.end_epoch()
        trainer.sum_table_counters()
        if not run.options.guard:
            warn_of_loss(trainer, state.train_loss)
    if run.validation_due(chunk):
        _validate(run)
    if chunk.ends_epoch:
        call("on_train_epoch_end", trainer)
    call("on_checkpoint", trainer)


def _validate(run: Run) -> None:
    results = {} if run.evaluate is None else run.evaluate()
    run.cursor.validation_pending = run.evaluate is not None and not results  # a signal came
    if results:
        run.trainer.state.metrics = {f"val_{name}": value for name, value in numbers(results).items()}
        run.callbacks.call("on_eval_end", run.trainer)


def evaluate(
    trainer: TrainerBase, feed: Feed, cell: Any, tally: Tally, *, interruptible: bool = True
) -> dict[str, float]:
    """Run one evaluation and return its metrics; "loss" is the mean over samples.

    Returns an empty dict after a stop signal. If not `interruptible`, the evaluation continues after a stop signal, but
    raises Interrupted if it has to wait for data.
    """
    call = trainer.callbacks.call
    trainer.state.evaluation = evaluation = EvaluationState(feed.source.dataset, feed.size)
    call("on_eval_begin", trainer)
    interrupted = False

    def leave() -> bool:
        nonlocal interrupted
        interrupted = interruptible and trainer.state.own_interrupt_requested
        return interrupted

    def local_outputs() -> Iterator[tuple[Any, int]]:
        for chunk in feed.chunks(Position(), should_stop=leave if trainer.group.size > 1 else _stop_check(trainer)):
            if leave():
                return
            evaluation.chunk = chunk
            call("on_eval_step_begin", trainer)
            outputs = trainer.builder.inference.run(cell, chunk)
            shown = outputs if isinstance(outputs, tuple) else (outputs,)
            evaluation.outputs = shown[:-1] if tally.has_denominators else shown
            yield (outputs, tally.columns_of(chunk)), chunk.num_samples
            call("on_eval_step_end", trainer)

    try:
        for (outputs, columns), rows in lockstep_outputs(trainer.group, local_outputs(), feed.join_exchange):
            tally.add(outputs if isinstance(outputs, tuple) else (outputs,), rows, columns)
    except Interrupted:
        interrupted = True
        if not interruptible:
            raise
    if trainer.group.any(interrupted):
        return {}
    if evaluation.chunk is None:
        raise DataError("evaluation: the dataset delivered no batches")
    results = tally.results()
    evaluation.values = tally.own_values
    if tally.counts_no_row:
        _warn_of_non_finite(
            trainer, "the loss is unknown: every row has the weight 0, or a label that the loss ignores"
        )
    warn_of_loss(trainer, results.get("loss"))
    return results


def report_evaluation(trainer: TrainerBase, results: dict[str, float]) -> None:
    """Publish the results of `Trainer.evaluate`."""
    trainer.state.metrics = numbers(results)
    trainer.callbacks.call("on_eval_end", trainer)


def predict(
    trainer: TrainerBase,
    feed: Feed,
    cell: Any,
    convert: Callable[[Any, Any], Any] | None = None,
    *,
    own: bool = False,
    joined: bool = False,
    interruptible: bool = True,
) -> Iterator[Any]:
    """Yield the output for each batch as host arrays, or what `convert` returns.

    If `interruptible`, a stop signal ends the prediction. With `own`, only this process's batches are yielded. `joined`
    says whether the caller joins the batches, which outputs without rows are not made for.
    """
    call = trainer.callbacks.call
    call("on_predict_begin", trainer)
    padded_size = feed.options.padded_size
    newest: deque[Any] = deque(maxlen=1)

    def local_outputs() -> Iterator[tuple[Any, int]]:
        for chunk in feed.chunks(Position(), should_stop=_stop_check(trainer) if interruptible else lambda: False):
            if interruptible and trainer.state.interrupt_requested:
                return
            newest.append(chunk)
            yield trainer.builder.inference.run(cell, chunk), chunk.num_samples
            call("on_predict_step_end", trainer)

    with contextlib.suppress(Interrupted):
        batches = lockstep_outputs(trainer.group, local_outputs(), feed.join_exchange, share=not own)
        for number, (outputs, rows) in enumerate(batches):
            predictions = _to_host(outputs, rows, None if padded_size is None else padded_size(rows))
            if joined and number == 1:
                _warn_of_joined(predictions, rows)
            for part in iterate_arrays(predictions):
                if part.dtype.kind == "f" and not np.isfinite(part).all():
                    _warn_of_non_finite(trainer, "predictions are NaN or infinite: check the inputs and the weights")
            yield predictions if convert is None else convert(predictions, newest[-1])
    call("on_predict_end", trainer)


def _warn_of_joined(outputs: Any, rows: int) -> None:
    for part in iterate_arrays(outputs):
        if rows and (not part.ndim or len(part) % rows):  # several values of each row are joined rightly
            logger.warning(
                "predict: an output of shape %s has no row for each of the %d rows of a batch; those of all batches "
                "are joined. Take it from one batch, or each from predict(..., stream=True)",
                list(part.shape),
                rows,
            )


def warn_of_loss(trainer: TrainerBase, loss: float | None) -> None:
    """Warn once per call that a mean loss is not finite, with advice."""
    if loss is not None and not math.isfinite(loss):
        _warn_of_non_finite(
            trainer,
            f"the loss is {loss}: a label or input is NaN or infinite, or the training diverges. The weights may be "
            "corrupted; SkipNonFinite() skips such updates, TerminateOnNaN() ends the run at the first one",
        )


def _warn_of_non_finite(trainer: TrainerBase, text: str) -> None:
    if not trainer.state.warned_of_non_finite:
        trainer.state.warned_of_non_finite = True
        logger.warning("step %d: %s", trainer.state.progress.global_step, text)


def _stop_check(trainer: TrainerBase) -> Callable[[], bool]:
    """Return a `should_stop` for feeds that raises Interrupted after a signal.

    With several processes it returns True instead, since the others still wait for this process to gather outputs.
    """

    def leave() -> bool:
        if trainer.state.interrupt_requested and trainer.group.size == 1:
            raise Interrupted
        return trainer.state.interrupt_requested

    return leave


def iterate_arrays(outputs: Any) -> Iterator[np.ndarray]:
    """Yield the arrays of a network's outputs: an array, or tuples and dicts of them."""
    if isinstance(outputs, tuple | dict):
        for part in outputs.values() if isinstance(outputs, dict) else outputs:
            yield from iterate_arrays(part)
    else:
        yield outputs


def _to_host(outputs: Any, rows: int, size: int | None) -> Any:
    """Copy outputs to the host; cut those of `size` rows, padded, to `rows`."""
    if isinstance(outputs, tuple | list):
        return tuple(_to_host(output, rows, size) for output in outputs)
    if isinstance(outputs, dict):
        return {name: _to_host(output, rows, size) for name, output in outputs.items()}
    if outputs is None:
        raise DataError("predict: the network returns None; it may return tensors, and tuples, lists or dicts of them")
    array = outputs.asnumpy() if hasattr(outputs, "asnumpy") else np.asarray(outputs)
    return np.array(array[:rows] if array.shape[:1] == (size,) else array)


# -- around the loop ---------------------------------------------------------------------------------------------------


def setup(trainer: TrainerBase) -> None:
    """Call every `setup`, before compiling and restoring."""
    trainer.callbacks.call("setup", trainer)


def report_restored(trainer: TrainerBase, path: Path, *, resumed: bool = False) -> None:
    """Record the restored snapshot; call `on_load_checkpoint` if `resumed`."""
    trainer.state.snapshot = path
    if resumed:
        trainer.callbacks.call("on_load_checkpoint", trainer)


def report_saved(trainer: TrainerBase, path: Path) -> None:
    """Set `state.snapshot` to a durable snapshot's path and call `on_save_checkpoint`."""
    trainer.state.snapshot = path
    trainer.callbacks.call("on_save_checkpoint", trainer)


def report_drift(trainer: TrainerBase, drift: dict[str, Any]) -> None:
    """Set `state.drift` to a drift detector's report and call `on_drift`."""
    trainer.state.drift = drift
    trainer.callbacks.call("on_drift", trainer)


def report_failure(trainer: TrainerBase, error: BaseException) -> None:
    """Record the exception and call every `on_exception`; log failures."""
    trainer.state.exception = error
    _call_all("on_exception", trainer)


def teardown(trainer: TrainerBase) -> None:
    """Call every `teardown`; log failures."""
    _call_all("teardown", trainer)


def _call_all(hook: str, trainer: TrainerBase) -> None:
    for error in trainer.callbacks.call_all(hook, trainer):
        name = getattr(error, "failed_callback", "a callback")
        logger.error("%s.%s failed: %s: %s", name, hook, type(error).__name__, error)
