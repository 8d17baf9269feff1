"""THE loop: one for finite data and streams, one step a call or many; and the evaluation loop.

Finite and endless runs differ in their limits and in whether the feed ends epochs; calls of one step and of many differ
in the chunk's `num_steps`. The loop knows neither.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.feed import Chunk, Feed
from ..errors import DataError
from ..graph.builder import TrainRunner
from ..metrics import WeightedMean, read_metrics, update_metrics
from ..state import StopReason
from .limits import Every, Limits
from .loss_meter import LossMeter

if TYPE_CHECKING:
    from ..trainer import Trainer
    from .online import OnlineMetrics

logger = logging.getLogger(__name__)


class TrainLoop:
    """One run of training.

    Args:
        trainer: passed to the hooks; its state is what the loop writes.
        feed: chunks from a position on.
        build_runner: given the first chunk, returns the function that trains chunks.
        limits: when the run ends.
        validate: called when validation is due, or None.
        valid_every: cadence of validation, or None for every epoch end.
        online: windows and progressive validation of a stream, or None.
    """

    def __init__(
        self,
        trainer: Trainer,
        feed: Feed,
        build_runner: Callable[[Chunk], TrainRunner],
        limits: Limits,
        *,
        validate: Callable[[], None] | None = None,
        valid_every: Every | None = None,
        online: OnlineMetrics | None = None,
    ) -> None:
        self.trainer = trainer
        self.feed = feed
        self.build_runner = build_runner
        self._runner: TrainRunner | None = None
        self.limits = limits
        self.validate = validate
        self.valid_every = valid_every
        self.online = online
        self.meter = LossMeter()
        self.position: dict[str, Any] = {}
        if valid_every is not None:
            valid_every.start(trainer.state.progress)

    def state_dict(self) -> dict[str, Any]:
        """Return position, what a position means, cadence and loss sums."""
        return {
            "position": self.feed.source.resolve(dict(self.position)),
            "source": self.feed.source.describe(),
            "meter": self.meter.state_dict(),
            "valid_every": None if self.valid_every is None else self.valid_every.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; a position in other data is replaced by the start of its epoch."""
        self.position = dict(state["position"])
        self.meter.load_state_dict(state["meter"])
        if self.valid_every is not None and state["valid_every"] is not None:
            self.valid_every.load_state_dict(state["valid_every"])
        now, then = self.feed.source.describe(), state["source"]
        changed = [f"{key} {then.get(key)!r} -> {now[key]!r}" for key in now if then.get(key) != now[key]]
        if changed:
            batch = self.position.get("batch", 0)
            self.position = {"epoch": self.position.get("epoch", 0), "batch": 0}
            self.trainer.state.progress.step_in_epoch = 0
            logger.warning(
                "the dataset is not the one of the snapshot (%s): its epoch starts again, %d batches are repeated",
                ", ".join(changed),
                batch,
            )

    def run(self) -> None:
        """Train until a limit is reached or somebody asks to stop; `state.stop_reason` says which."""
        state = self.trainer.state
        self.limits.start()
        if self.online is not None:
            self.online.start()
        while not self._stopped():
            if self._at_epoch_start():
                self.meter.clear()
                self.trainer.callbacks.call("on_train_epoch_begin", self.trainer)
            if not self._run_epoch() and not self._stopped():
                ended = getattr(self.feed.source, "ended", None) or "stream_end"
                state.stop_reason = StopReason(ended, "the stream gave no more rows")
        if self.online is not None:
            self.online.finish(state.stop_reason.kind in ("stream_end", "idle"))

    def _at_epoch_start(self) -> bool:
        return not self.feed.source.endless and self.trainer.state.progress.step_in_epoch == 0

    def _run_epoch(self) -> bool:
        """Train the rest of the epoch; return whether the source may have more after it."""
        trainer, state = self.trainer, self.trainer.state
        call, begins = trainer.callbacks.call, trainer.callbacks.bound("on_train_step_begin")
        chunks = self.feed.chunks(self.position, self.limits.steps_left(state.progress), self._stopped)
        trained = False
        try:
            for chunk in chunks:
                trained = True
                if self._runner is None:
                    self._runner = self.build_runner(chunk)
                if begins:
                    call("on_train_step_begin", trainer)
                state.outputs = self._runner(chunk)
                self._after_step(chunk)
                if chunk.ends_epoch or self._stopped():
                    return True
        finally:
            chunks.close()
        if not trained and not self.feed.source.endless:
            raise DataError(f"epoch {state.progress.epoch}: the dataset delivered no batches")
        return not self.feed.source.endless

    def _after_step(self, chunk: Chunk) -> None:
        trainer, state = self.trainer, self.trainer.state
        call = trainer.callbacks.call
        progress = state.progress
        progress.global_step += chunk.num_steps
        progress.step_in_epoch += chunk.num_steps
        progress.samples_seen += chunk.num_samples
        self.position = chunk.position
        trainer.saver.check()
        if self.online is None:
            self.meter.add(state.outputs)
        else:
            self.online.after_step(chunk)
        call("on_train_step_end", trainer)
        if chunk.ends_epoch:
            state.train_loss = self.meter.value()
            state.total_steps = progress.step_in_epoch
            progress.epoch += 1
            progress.step_in_epoch = 0
        if self.validate is not None and self._validation_due(chunk) and not self._told_to_leave():
            self.validate()
        if chunk.ends_epoch:
            call("on_train_epoch_end", trainer)
        call("on_checkpoint", trainer)

    def _validation_due(self, chunk: Chunk) -> bool:
        if self.valid_every is None:
            return chunk.ends_epoch
        return self.valid_every.due(self.trainer.state.progress)

    def _told_to_leave(self) -> bool:
        reason = self.trainer.state.stop_reason
        return reason is not None and reason.kind == "signal"

    def _stopped(self) -> bool:
        state = self.trainer.state
        if state.stop_reason is not None:
            return True
        reached = self.limits.reached(state.progress)
        if reached is not None:
            state.stop_reason = StopReason("limit", reached)
        return reached is not None


def evaluate(
    trainer: Trainer,
    feed: Feed,
    cell: Any,
    metrics: Mapping[str, Any],
    eval_indexes: tuple[int, ...] | None,
    *,
    interruptible: bool = True,
) -> dict[str, float]:
    """Run one evaluation and return its metrics; "loss" is the mean over samples.

    Returns an empty dict when a signal asked to leave in the middle, unless it is not `interruptible`.
    """
    call = trainer.callbacks.call
    loss = WeightedMean()
    for metric in metrics.values():
        metric.clear()
    call("on_eval_begin", trainer)
    chunk = None
    for chunk in feed.chunks({}):
        reason = trainer.state.stop_reason
        if interruptible and reason is not None and reason.kind == "signal":
            return {}
        call("on_eval_step_begin", trainer)
        outputs = trainer.builder.infer(cell, chunk)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        if eval_indexes is not None and eval_indexes[0] >= 0:
            loss.update(float(outputs[eval_indexes[0]].asnumpy().mean()), chunk.num_samples)
        update_metrics(metrics, outputs, eval_indexes, chunk.num_samples)
        call("on_eval_step_end", trainer)
    if chunk is None:
        raise DataError("evaluation: the dataset delivered no batches")
    results = read_metrics(metrics)
    if loss.samples and "loss" not in results:
        results = {"loss": loss.eval(), **results}
    return results


def predictions(trainer: Trainer, feed: Feed, cell: Any) -> Iterator[Any]:
    """Yield the host copy of the network's output for each batch, until a signal asks to leave."""
    call = trainer.callbacks.call
    for chunk in feed.chunks({}):
        reason = trainer.state.stop_reason
        if reason is not None and reason.kind == "signal":
            return
        yield _host(trainer.builder.infer(cell, chunk))
        call("on_predict_step_end", trainer)


def _host(outputs: Any) -> Any:
    if isinstance(outputs, tuple):
        return tuple(_host(output) for output in outputs)
    return np.array(outputs.asnumpy())
