"""`Run`: one call of `fit` or `online_train`. It is complete when created, and only the loop advances it."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Parameter, nn

from callbacks import Callback

from ..data.chunk import Chunk
from ..data.feed import Feed
from ..distributed.agreement import StopHooks, agree_to_stop
from ..distributed.dense_state import align
from ..errors import ConfigurationError, did_you_mean
from ..graph.dropout import repeatable
from ..graph.graph_call import TrainRunner
from ..graph.multi_task import MultiTaskLoss
from ..graph.program import StepOptions
from ..metrics.registry import directions
from ..metrics.window_metric import Direction
from ..mindspore_internals.cell_structure import parameters_of
from ..state import StepOutputs, StopReason
from . import loop
from .call import snapshot_folders
from .cursor import Cursor
from .feeds import steps_per_epoch
from .job_checks import check_settings
from .limits import Limits
from .lockstep import all_go_on, lockstep_chunks
from .owner import Owner

if TYPE_CHECKING:
    from .online import OnlineMetrics

logger = logging.getLogger(__name__)

LONG_WAIT = 1 / 3  # share of the time
LEAST_WAIT_SECONDS = 2.0


class Run:
    """The parts of one call of `fit` or `online_train`.

    Args:
        trainer: passed to the hooks; its state is what the loop writes.
        feed: chunks from a position on.
        options: what each step does.
        limits: when the run ends.
        cursor: position in the data, loss sums and cadence of validation.
        evaluate: runs a validation and returns its results, empty when a signal interrupted it; None without one.
        valid_sets: names of the validation sets; an empty name for the only one.
        online: windows and progressive validation of a stream, or None.

    Attributes:
        ended: whether it has been wound up, or has failed.
    """

    def __init__(
        self,
        trainer: Owner,
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
        self._warned_of_waiting = False

    def start_clocks(self) -> None:
        """Start what counts seconds."""
        self.limits.start()
        if self.online is not None:
            self.online.start(self.trainer.state.progress.samples_seen)

    def step(self, chunk: Chunk) -> StepOutputs:
        """Train on a chunk; the first of its shapes compiles the program."""
        runner = self._runners.get(chunk.stacked)
        if runner is None:
            runner = self._runners[chunk.stacked] = self._compile(chunk)
        return runner(chunk)

    def _compile(self, chunk: Chunk) -> TrainRunner:
        options, scoring = self.options, None if self.online is None else self.online.scoring
        if scoring is not None:
            if not self._runners:  # the first rows decide what windows count
                scoring.decide(chunk, self._sample(chunk), self.group)
                check_monitors(
                    self.callbacks, produced_metrics(self.trainer.metrics, self.trainer.tasks, (), self.online)
                )
            options = dataclasses.replace(options, keep_predictions=scoring.wanted)
        size = len(chunk.arrays[0]) if chunk.stacked else None
        return self.trainer.builder.train(options, size, chunk, self.feed.options.filling)

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

    def warn_of_waiting(self) -> None:
        """Warn once, with a hint, when more than a third of the time is spent waiting for data."""
        clock, source = self.feed.clock, self.feed.source
        if self._warned_of_waiting or clock.share <= LONG_WAIT or clock.waited < LEAST_WAIT_SECONDS:
            return
        hint = source.when_slow()
        if hint:
            self._warned_of_waiting = True
            logger.warning("%.0f %% of the time is spent waiting for data: %s", 100 * clock.share, hint)

    def at_epoch_start(self) -> bool:
        """Return whether an epoch begins here; streams have none."""
        return not self.feed.source.endless and self.trainer.state.progress.step_in_epoch == 0

    def end_epoch(self) -> None:
        """Count an epoch, and give its mean loss."""
        state = self.trainer.state
        self.warn_of_waiting()
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
        return due and not self.trainer.state.interrupt_requested

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

    def chunks(self) -> Generator[Chunk, None, None]:
        """Yield the chunks from the cursor's position to the end of the epoch; as many on every process."""
        position, left = self.cursor.position, self.limits.steps_left(self.trainer.state.progress)
        if self.group.size == 1:
            return self.feed.chunks(position, left, self.stopped)
        hooks = StopHooks(self.wish, self.trainer.state.agree_to_stop)
        # A source that is read on the thread of graphs cannot take part in agreements meanwhile, so the processes meet
        # before each one. If one source is read so, all are, so that they agree at the same times.
        read_mode = self.feed.source.read_mode
        inline = self.group.any(self.feed.source.thread_bound)
        meet = self.group.wait_for_all if inline else lambda: None
        meet()  # connects the processes before one of them is late
        if read_mode.separate:
            return lockstep_chunks(
                self.group, hooks, lambda wait: self.feed.chunks(position, left, wait, inline=inline), meet
            )
        if read_mode.agrees_while_reading:
            return self.feed.chunks(position, left, self.stopped)

        def gate(ready: bool | None) -> bool:
            if self.stopped():
                return False
            meet()
            return all_go_on(self.group, hooks, ready)

        return self.feed.chunks(position, left, lambda: not gate(None), gate, inline=inline)

    def agree(self) -> None:
        """Agree with the other processes, at the end of an epoch, whether to stop; within it each chunk does so."""
        state = self.trainer.state
        if self.group.size == 1 or state.stop_reason is not None or self.feed.source.read_mode.agrees_while_reading:
            return
        state.stop_reason = agree_to_stop(self.group, self.wish())

    def wish(self) -> StopReason | None:
        """Return why this process, of several, wants the run to end, or None."""
        late = self.limits.out_of_time()
        return self.trainer.state.stop_wish or (None if late is None else StopReason("limit", late))

    def commit_durable(self) -> None:
        """Commit the rows in durable snapshots to the source on every process, after the last one was written."""
        if self.group.size > 1 and self.feed.source.read_mode.agrees_while_reading:
            saver = self.trainer.saver
            saver.commit_durable(int(self.group.gather(np.array([saver.durable_count], np.int64))[0, 0]))


def train(
    trainer: Owner,
    feed: Feed,
    options: StepOptions,
    cursor: Cursor,
    *,
    resume: str | Path | None,
    epochs: int | None,
    max_steps: int | None,
    max_seconds: float | None,
    evaluate: Callable[[], dict[str, float]] | None = None,
    before_first_step: Callable[[], Any] = lambda: None,
    valid_sets: Sequence[str] = (),
    online: OnlineMetrics | None = None,
) -> None:
    """Restore a snapshot if asked, create the run and train; `feed` is closed afterwards.

    Args:
        trainer: whose call this is.
        feed, options, cursor, evaluate, online: see `Run`.
        before_first_step: called when everything is restored, to detect mistakes before the first step.
        valid_sets: names of the validation sets that `evaluate` reads; an empty name for the only one.
        resume: as `Trainer.fit` takes it.
        epochs: epochs from where the cursor counts, or None for a stream.
        max_steps: optimizer steps of this call, or None.
        max_seconds: wall time of this call, or None.
    """
    state = trainer.state
    seen: int | None = None
    try:
        loop.setup(trainer)
        produced = produced_metrics(trainer.metrics, trainer.tasks, valid_sets, online)
        check_monitors(trainer.callbacks, produced, produced_metrics(trainer.metrics, trainer.tasks, ("",), None))
        trainer.builder.train_step(options)  # the snapshot restores its parameters
        folders = snapshot_folders(trainer.run_dir, trainer.callbacks)
        snapshot = None if resume is None else trainer.saver.resume(resume, cursor, folders)
        if snapshot is not None:
            loop.restored(trainer, snapshot.path, resumed=True)
            if not repeatable(trainer.network):
                logger.warning(
                    "nn.Dropout draws other masks than before the interruption; exact_resume=True repeats them"
                )
        check_settings(trainer, feed.source, {"epochs": epochs, "max_steps": max_steps})
        align(trainer.group, trained_parameters(trainer.network, trainer.optimizer))
        before_first_step()
        if not cursor.position.micro_batches:
            trainer.builder.window.forget()  # left by a training that was stopped inside one
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
        report = feed.report()
        if report is not None:
            logger.info("%s; %d programs compiled so far", report, trainer.builder.programs)
    finally:
        feed.close()
        drained = state.stop_reason is not None and state.stop_reason.kind in ("stream_end", "idle")
        if seen is not None and not drained:  # after an exception too: rows read ahead are read again by the next call
            feed.go_back(cursor.position, state.progress.samples_seen - seen)


def trained_parameters(network: nn.Cell, optimizer: nn.Cell | None) -> list[Parameter]:
    """Return the parameters of network and optimizer, which all processes must begin with alike."""
    cells = [cell for cell in (network, optimizer) if cell is not None]
    return list({id(parameter): parameter for cell in cells for parameter in parameters_of(cell)}.values())


def produced_metrics(
    metrics: Mapping[str, Any], tasks: MultiTaskLoss | None, valid_sets: Sequence[str], online: OnlineMetrics | None
) -> dict[str, Direction]:
    """Return the metrics a run produces, by name: training losses, each validation set's, windows.

    The values say whether higher is better; None where the metric does not say.
    """
    losses = {} if tasks is None else dict.fromkeys((f"{task}_loss" for task in tasks.tasks), False)
    evaluated = {"loss": False, **losses, **directions(metrics)}
    produced: dict[str, Direction] = {"loss": False, **(losses if online is None else {})}
    for part in valid_sets:
        prefix = f"val_{part}_" if part else "val_"
        produced |= {prefix + name: higher for name, higher in evaluated.items()}
    return {**produced, **({} if online is None else online.directions())}


def check_monitors(
    callbacks: Iterable[Callback], produced: Mapping[str, Direction], validated: Container[str] = ()
) -> None:
    """Check that every metric a callback monitors is produced, and tell the callback which direction is better.

    Args:
        callbacks: those of the run.
        produced: the metrics of the run, see `produced_metrics`.
        validated: names of those that a validation set would add.

    Raises:
        ConfigurationError: one is not; the nearest name is given.
    """
    for callback in callbacks:
        monitor = callback.monitor
        if monitor is None:
            continue
        base = re.sub(r"_\d+$", "", monitor)  # the value of one label or class
        if monitor in produced or base in produced:
            callback.use_direction(produced.get(monitor, produced.get(base)))
            continue
        hint = did_you_mean(monitor, produced)
        if monitor in validated:
            hint = "; it comes from validation, and no valid_dataset was given"
        raise ConfigurationError(
            f"{type(callback).__name__}(monitor={monitor!r}): no metric of that name is produced; "
            f"available are {', '.join(produced)}{hint}"
        )
