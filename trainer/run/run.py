"""One training: a `Run` is complete when it is made, and nobody but the loop changes anything in it afterwards."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from mindspore import Parameter

from ..data.chunk import Chunk
from ..data.feed import Feed
from ..distributed.agreement import StopHooks, agree_to_stop, everyones_chunks, go_on
from ..distributed.dense_state import align
from ..errors import ConfigurationError, did_you_mean
from ..graph.builder import TrainRunner
from ..graph.dropout import repeatable
from ..graph.program import StepOptions
from ..state import StepOutputs, StopReason
from . import loop
from .cursor import Cursor
from .feeds import steps_per_epoch
from .limits import Limits

if TYPE_CHECKING:
    from ..trainer import Trainer
    from .online import OnlineMetrics
    from .scoring import Scoring

logger = logging.getLogger(__name__)

LONG_WAIT = 1 / 3  # share of the time
LEAST_WAIT_SECONDS = 2.0


class Run:
    """What one call of `fit` or `online_train` is made of.

    Args:
        trainer: passed to the hooks; its state is what the loop writes.
        feed: chunks from a position on.
        options: what each step does.
        limits: when the run ends.
        cursor: place in the data, loss sums and cadence of validation.
        evaluate: runs a validation and returns its results, or None.
        valid_sets: names of the validation sets; an empty name for the only one.
        online: windows and progressive validation of a stream, or None.

    Attributes:
        ended: whether it has been wound up, or has failed.
    """

    def __init__(
        self,
        trainer: Trainer,
        feed: Feed,
        options: StepOptions,
        limits: Limits,
        cursor: Cursor,
        *,
        evaluate: Callable[[], dict[str, float]] | None = None,
        valid_sets: Sequence[str] = (),
        online: OnlineMetrics | None = None,
    ) -> None:
        self.trainer = trainer
        self.callbacks = trainer.callbacks
        self.group = trainer.group
        self.feed = feed
        self.options = options
        self.limits = limits
        self.cursor = cursor
        self.evaluate = evaluate
        self.valid_sets = tuple(valid_sets)
        self.online = online
        self.ended = False
        self._runners: dict[bool, TrainRunner] = {}
        self._told_of_waiting = False

    def start_clocks(self) -> None:
        """Start what counts seconds."""
        self.limits.start()
        if self.online is not None:
            self.online.start(self.trainer.state.progress.samples_seen)

    def step(self, chunk: Chunk) -> StepOutputs:
        """Train on a chunk; the first of its shapes compiles the program."""
        runner = self._runners.get(chunk.stacked)
        if runner is None:
            if self.online is not None and self.online.scoring is not None and not self._runners:
                self.options = self._decide(chunk, self.online.scoring)
            size = len(chunk.arrays[0]) if chunk.stacked else None
            runner = self._runners[chunk.stacked] = self.trainer.builder.train(
                self.options, size, chunk, self.feed.options.filling
            )
        return runner(chunk)

    def _decide(self, chunk: Chunk, scoring: Scoring) -> StepOptions:
        """Let the first rows say what windows count; return the options, without predictions where nothing does."""
        scoring.decide(chunk, self._sample(chunk), self.group)
        check_monitors(self.trainer, produced_names(self.trainer, (), self.online))
        return dataclasses.replace(self.options, keep_predictions=scoring.wanted)

    def _sample(self, chunk: Chunk) -> tuple[np.ndarray, ...] | None:
        outputs = self.trainer.builder.sample_outputs(chunk)
        if len(outputs) > 1 and self.options.output >= 0:
            outputs = outputs[self.options.output : self.options.output + 1]
        rows = chunk.batch_rows
        return outputs if all(output.shape[:1] == (rows,) for output in outputs) else None

    def advance(self, chunk: Chunk) -> None:
        """Count a chunk that was trained on."""
        progress = self.trainer.state.progress
        progress.global_step += chunk.num_steps
        progress.step_in_epoch += chunk.num_steps
        progress.samples_seen += chunk.all_samples
        self.cursor.position = chunk.position
        self.trainer.state.data_wait = self.feed.clock.share

    def begin_epoch(self) -> None:
        """Forget the losses and the waiting of the epoch before."""
        self.cursor.meter.clear()
        self.feed.clock.restart()

    def tell_of_waiting(self) -> None:
        """Say once what would help when more than a third of the time goes by waiting for data."""
        clock, source = self.feed.clock, self.feed.source
        if self._told_of_waiting or clock.share <= LONG_WAIT or clock.waited < LEAST_WAIT_SECONDS:
            return
        hint = source.when_slow()
        if hint:
            self._told_of_waiting = True
            logger.warning("%.0f %% of the time is spent waiting for data: %s", 100 * clock.share, hint)

    def at_epoch_start(self) -> bool:
        """Return whether an epoch begins here; streams have none."""
        return not self.feed.source.endless and self.trainer.state.progress.step_in_epoch == 0

    def end_epoch(self) -> None:
        """Count an epoch, and give its mean loss."""
        state = self.trainer.state
        self.tell_of_waiting()
        state.train_loss = self.cursor.meter.value()
        if self.trainer.tasks is not None:
            state.task_losses = self.trainer.tasks.read_losses()
            logger.info("epoch %d: %s", state.progress.epoch, self.trainer.tasks.describe(state.task_losses))
        state.total_steps = state.progress.step_in_epoch
        state.progress.epoch += 1
        state.progress.step_in_epoch = 0

    def validation_due(self, chunk: Chunk) -> bool:
        """Return whether to validate after `chunk`; asking moves the cadence on."""
        if self.evaluate is None:
            return False
        every = self.cursor.valid_every
        due = chunk.ends_epoch if every is None else every.due(self.trainer.state.progress)
        if every is not None and every.unit == "seconds":
            due = self.group.any(due)
        return due and not self.trainer.state.told_to_leave

    def validate(self) -> dict[str, float]:
        """Evaluate on the validation data; empty when a signal interrupted it."""
        assert self.evaluate is not None
        return self.evaluate()

    def stopped(self) -> bool:
        """Return whether the run is to end, by request or by a limit."""
        state = self.trainer.state
        if state.stop_reason is not None:
            return True
        reached = self.limits.reached(state.progress)
        if reached is None and self.limits.seconds is not None and self.group.size == 1:
            reached = self.limits.out_of_time()
        if reached is not None:
            state.stop_reason = StopReason("limit", reached)
        return reached is not None

    def chunks(self) -> Iterator[Chunk]:
        """Yield the chunks from the cursor's position to the end of the epoch; as many on every process."""
        position, left = self.cursor.position, self.limits.steps_left(self.trainer.state.progress)
        if self.group.size == 1:
            return self.feed.chunks(position, left, self.stopped)
        hooks = StopHooks(self.wish, self.trainer.state.agree_to_stop)
        # What the thread of graphs reads itself cannot ask the others anything meanwhile: they meet then. If one has to
        # read so, all do, for they have to ask at the same times.
        source = self.feed.source
        source.thread_bound = self.group.any(source.thread_bound)
        meet = self.group.wait_for_all if source.thread_bound else lambda: None
        meet()  # connects them, before one of them is late
        if source.separate:
            return everyones_chunks(self.group, hooks, lambda wait: self.feed.chunks(position, left, wait), meet)
        if source.in_step:  # it has agreements of its own
            return self.feed.chunks(position, left, self.stopped)

        def gate(ready: bool | None) -> bool:
            if self.stopped():
                return False
            meet()
            return go_on(self.group, hooks, ready)

        return self.feed.chunks(position, left, lambda: not gate(None), gate)

    def agree(self) -> None:
        """Settle with the other processes whether to stop at the end of an epoch; within it each chunk begins so."""
        state = self.trainer.state
        if self.group.size == 1 or state.stop_reason is not None or self.feed.source.in_step:
            return
        state.stop_reason = agree_to_stop(self.group, self.wish())

    def wish(self) -> StopReason | None:
        """Return why this process, of several, wants the run to end, or None."""
        late = self.limits.out_of_time()
        return self.trainer.state.stop_wish or (None if late is None else StopReason("limit", late))

    def settle(self) -> None:
        """Let every process tell its source which rows are in durable snapshots; after the last one was written."""
        if self.group.size > 1 and self.feed.source.in_step:
            saver = self.trainer.saver
            saver.settle(int(self.group.gather(np.array([saver.durable_count], np.int64))[0, 0]))


def train(
    trainer: Trainer,
    feed: Feed,
    options: StepOptions,
    cursor: Cursor,
    *,
    resume: str | Path | None,
    epochs: int | None,
    max_steps: int | None,
    max_seconds: float | None,
    evaluate: Callable[[], dict[str, float]] | None = None,
    valid_sets: Sequence[str] = (),
    online: OnlineMetrics | None = None,
) -> None:
    """Restore a snapshot if asked, make the run and let it go; `feed` is closed afterwards.

    Args:
        trainer: whose call this is.
        feed, options, cursor, evaluate, online: see `Run`.
        valid_sets: names of the validation sets that `evaluate` reads; an empty name for the only one.
        resume: as `Trainer.fit` takes it.
        epochs: epochs from where the cursor counts, or None for a stream.
        max_steps: optimizer steps of this call, or None.
        max_seconds: wall time of this call, or None.
    """
    state = trainer.state
    try:
        loop.setup(trainer)
        check_monitors(trainer, produced_names(trainer, valid_sets, online))
        trainer.builder.train_step(options)  # the snapshot restores its parameters
        if resume is not None and trainer.saver.resume(resume, cursor):
            loop.restored(trainer)
            if not repeatable(trainer.network):
                logger.warning(
                    "nn.Dropout draws other masks than before the interruption; exact_resume=True repeats them"
                )
        align(trainer.group, trained_parameters(trainer))
        if not cursor.position.get("fill"):
            trainer.builder.window.forget()  # what a training that was stopped inside one has left
        limits = Limits(
            epochs=None if epochs is None else cursor.base["epoch"] + epochs,
            steps=None if max_steps is None else cursor.base["step"] + max_steps,
            seconds=max_seconds,
        )
        run = Run(trainer, feed, options, limits, cursor, evaluate=evaluate, valid_sets=valid_sets, online=online)
        trainer.run, state.limits = run, limits
        state.total_steps = steps_per_epoch(feed.source, trainer.accumulate)
        if trainer.tasks is not None:
            logger.info("tasks: %s", trainer.tasks.describe())
        seen = state.progress.samples_seen
        with trainer.builder.training():
            loop.train(run)
        told = feed.report()
        if told is not None:
            logger.info("%s; %d programs compiled so far", told, trainer.builder.programs)
    finally:
        feed.close()
    if state.stop_reason is not None and state.stop_reason.kind not in ("stream_end", "idle"):
        feed.go_back(cursor.position, state.progress.samples_seen - seen)


def trained_parameters(trainer: Trainer) -> list[Parameter]:
    """Return what all processes must begin with alike: the network's parameters and the optimizer's."""
    found = [*trainer.network.get_parameters()]
    seen = {id(parameter) for parameter in found}
    if trainer.optimizer is not None:
        found += [parameter for parameter in trainer.optimizer.get_parameters() if id(parameter) not in seen]
    return found


def produced_names(trainer: Trainer, valid_sets: Sequence[str], online: OnlineMetrics | None) -> tuple[str, ...]:
    """Return the names of the metrics a run produces: training losses, each validation set's, windows."""
    losses = [] if trainer.tasks is None else [f"{task}_loss" for task in trainer.tasks.tasks]
    found = dict.fromkeys(["loss", *losses, *trainer.metrics])
    names = [f"val_{part}_{name}" if part else f"val_{name}" for part in valid_sets for name in found]
    of_training = () if online is not None else losses
    return ("loss", *of_training, *names, *(() if online is None else online.names()))


def check_monitors(trainer: Trainer, names: Sequence[str]) -> None:
    """Check that every metric a callback monitors is produced.

    Raises:
        ConfigurationError: one is not; the nearest name is given.
    """
    for callback in trainer.callbacks:
        monitor = callback.monitor
        if monitor is None or monitor in names:
            continue
        hint = did_you_mean(monitor, names)
        if monitor in produced_names(trainer, ("",), None):
            hint = "; it comes from validation, and no valid_dataset was given"
        raise ConfigurationError(
            f"{type(callback).__name__}(monitor={monitor!r}): no metric of that name is produced; "
            f"available are {', '.join(names)}{hint}"
        )
