"""`Run`: the data, options and limits of one call of `fit` or `online_train`."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import nn

from callbacks.callback import runs_own_code

from ..checks import whole
from ..data.chunk import Chunk
from ..data.feed import Feed
from ..data.waiting import Observer
from ..distributed.agreement import StopHooks, agree_to_continue, agree_to_stop
from ..distributed.dense_state import broadcast_parameters, check_training_step
from ..graph.dropout import repeatable
from ..graph.graph_call import TrainRunner
from ..graph.network_checks import FreezingCheck, warn_of_frozen, warn_of_nesterov
from ..graph.program import StepOptions
from ..mindspore_internals.cell_structure import parameters_of
from ..mindspore_internals.operator_times import OperatorProfile
from ..state import StepOutputs, StopReason
from . import loop
from .call import report, snapshot_folders
from .cursor import Cursor
from .feeds import steps_per_epoch
from .job_checks import check_settings, warn_of_own_statistics
from .limits import Limits
from .monitors import check_monitors, produced_metrics
from .tally import mean_losses

if TYPE_CHECKING:
    from .online import OnlineMetrics
    from .trainer_base import TrainerBase

logger = logging.getLogger(__name__)

LONG_WAIT = 1 / 3  # share of the wall time
MIN_WAIT_SECONDS = 2.0


@dataclass(eq=False)
class Run:
    """One call of `fit` or `online_train`; only the loop advances it."""

    trainer: TrainerBase  # passed to the hooks; the loop updates its state
    feed: Feed
    options: StepOptions
    limits: Limits
    cursor: Cursor
    _: KW_ONLY
    evaluate: Callable[[], dict[str, float]] | None = None  # returns {} after a stop signal; None without validation
    valid_sets: Sequence[str] = ()  # names of the validation sets; a single set has the empty name
    valid_on_start: bool = False  # whether to validate before the first step
    online: OnlineMetrics | None = None
    set_aside: Callable[[], str | None] = lambda: None  # returns how many raw rows were set aside so far, and why

    def __post_init__(self) -> None:
        self.callbacks = self.trainer.callbacks
        self.group = self.trainer.group
        self.ended = False  # True once the run has finished or failed
        self._warned_of_waiting = self._warned_of_rank = self._warned_of_memory = False
        self._own_code = any(map(runs_own_code, self.callbacks))
        self.freezing = FreezingCheck(self.trainer.network if self._own_code else None)
        self._observer: Observer | None = None
        self._runners: dict[bool, TrainRunner] = {}

    def start_clocks(self) -> None:
        """Start the clocks of limits and windows."""
        self.limits.start()
        if self.online is not None:
            self.online.start(self.trainer.state.progress.samples_seen)

    def step(self, chunk: Chunk) -> StepOutputs:
        """Train on a chunk; compile the program on first use."""
        # Only a program with a loop, or with a branch, keeps using the memory that parameters had.
        keeps_memory = self._own_code and (chunk.stacked or self.trainer.accumulate > 1)
        if keeps_memory and self._runners and self.trainer.builder.has_other_memory:
            self._renew_programs()
        outputs = self._train(chunk)
        if keeps_memory:
            self.trainer.builder.note_memory()
        return outputs

    def _renew_programs(self) -> None:
        """Let programs be compiled anew, because a callback replaced parameters."""
        self.trainer.builder.train_step(self.options)
        self._runners.clear()
        if not self._warned_of_memory:
            self._warned_of_memory = True
            logger.warning(
                "step %d: a callback replaced parameters, as Parameter.set_data and load_param_into_net do, so the "
                "program is compiled anew; mindspore.ops.assign(parameter, value) changes the values alone",
                self.trainer.state.progress.global_step,
            )

    def _train(self, chunk: Chunk) -> StepOutputs:
        runner = self._runners.get(chunk.stacked)
        if runner is None:
            unchecked = self.trainer.optimizer is None and not self._runners
            runner = self._runners[chunk.stacked] = self._compile(chunk)
            if unchecked:
                outputs = runner(chunk)
                check_training_step(self.group, self.trainer.network)
                return outputs
        if self._observer is None:
            return runner(chunk)
        began = time.perf_counter()
        outputs = runner(chunk)
        self._observer("program", began, time.perf_counter())
        return outputs

    def observe(self, observer: Observer | None) -> None:
        """Time each part of the work with `observer` from now on; None stops timing.

        The parts are "waiting for data", "reading", "preparing", "program" and "<callback>.<hook>". If there is a
        reading thread, "reading" and "preparing" run on it.
        """
        self._observer = self.feed.observer = observer
        self.callbacks.observe(observer)

    @property
    def seconds_preparing(self) -> dict[str, float]:
        """Seconds spent on data: "reading", "preparing", "preparing ahead".

        Data is prepared on the training thread, or ahead on the reading thread.
        """
        times = self.feed.times
        return {"reading": times.read, "preparing": times.prepared, "preparing ahead": times.prepared_ahead}

    def profile_operators(self) -> OperatorProfile | None:
        """Start timing every operator; return None if MindSpore cannot do it now."""
        return OperatorProfile.begin()

    def _compile(self, chunk: Chunk) -> TrainRunner:
        options, scoring = self.options, None if self.online is None else self.online.scoring
        if scoring is not None:
            if not self._runners:  # the first rows decide which metrics the windows have
                if scoring.needs_predictions:
                    scoring.decide(chunk, self._sample(chunk), self.group)
                check_monitors(
                    self.callbacks, produced_metrics(self.trainer.metrics, self.trainer.tasks, (), self.online)
                )
            options = dataclasses.replace(options, keep_predictions=scoring.needs_predictions)
        return self.trainer.builder.train(options, chunk.batches_per_call, chunk, self.feed.options.filling)

    def _sample(self, chunk: Chunk) -> tuple[np.ndarray, ...] | None:
        """Return predictions for the first batch; None if they are not one per row."""
        outputs, chosen = self.trainer.builder.inference.sample_outputs(chunk), self.options.output
        if len(outputs) > 1 and chosen >= 0:
            outputs = outputs[chosen : chosen + 1]
        return outputs if all(output.shape[:1] == (chunk.batch_rows,) for output in outputs) else None

    def advance(self, chunk: Chunk) -> None:
        """Count a chunk that was trained on."""
        progress = self.trainer.state.progress
        progress.global_step += chunk.num_steps
        progress.step_in_epoch += chunk.num_steps
        progress.samples_seen += chunk.all_samples
        self.cursor.position = chunk.position
        if not chunk.position.micro_batches:
            self.cursor.updated, self.cursor.rows_updated = chunk.position, progress.samples_seen
        self.feed.source.trained_to(chunk.position)
        self.trainer.state.data_wait = self.feed.clock.share

    def begin_epoch(self) -> None:
        """Clear the losses and waiting times of the previous epoch."""
        self.trainer.state.train_loss = None
        self.cursor.meter.clear()
        if self.trainer.tasks is not None:
            self.trainer.tasks.read_losses()  # discard losses of an epoch that an earlier call did not finish
        self.feed.clock.restart()

    def note_waits(self) -> None:
        """Record each process's share of time spent waiting for data; warn once if high.

        This is a collective call. Rank 0 warns if one process waits much more than the others.
        """
        clock, source = self.feed.clock, self.feed.source
        # Waiting for a stream is normal while it has no unread rows.
        keeps_waiting = not source.in_memory and (not source.endless or source.lag())
        if keeps_waiting and not self._warned_of_waiting and _is_long(clock.share, clock.waited):
            self._warned_of_waiting = True
            logger.warning("%.0f %% of the time is spent waiting for %s", 100 * clock.share, type(source).__name__)
        if self.group.size == 1:
            return
        shares, waited = self.group.gather(np.array([clock.share, clock.waited])).T
        slowest = int(np.argmax(shares))
        others = np.delete(shares, slowest).max()
        uneven = shares[slowest] - others > LONG_WAIT
        if uneven and _is_long(shares[slowest], waited[slowest]) and not self._warned_of_rank:
            self._warned_of_rank = True
            if self.group.is_main:
                logger.warning(
                    "rank %d spends %.0f %% of its time waiting for data, the others at most %.0f %%: every step waits "
                    "for that process; look at its share of the data, its disk and its processor",
                    slowest,
                    100 * shares[slowest],
                    100 * others,
                )
        self.trainer.state.data_waits = tuple(shares.tolist())

    def at_epoch_start(self) -> bool:
        """Return whether an epoch begins here; always False for streams."""
        return not self.feed.source.endless and self.trainer.state.progress.step_in_epoch == 0

    def end_epoch(self) -> None:
        """Count an epoch and compute its mean loss."""
        state, tasks = self.trainer.state, self.trainer.tasks
        self.note_waits()
        self.freezing.warn(state.progress.global_step)
        state.train_loss, state.task_losses = mean_losses(self.cursor.meter, tasks)
        if tasks is not None:
            logger.info("epoch %d: %s", state.progress.epoch, tasks.describe(state.task_losses))
        state.steps_per_epoch = state.progress.step_in_epoch
        state.progress.epoch += 1
        state.progress.step_in_epoch = 0

    def validation_due(self, chunk: Chunk) -> bool:
        """Return whether to validate after `chunk`; each call advances the cadence."""
        if self.evaluate is None:
            return False
        every = self.cursor.valid_every
        due = chunk.ends_epoch if every is None else every.due(self.trainer.state.progress)
        if every is not None and every.unit == "seconds":
            due = self.group.any(due)
        self.cursor.validation_pending = due  # until it is done: a signal or an error may prevent it
        return due and not self.trainer.state.interrupt_requested

    def stopped(self) -> bool:
        """Return whether the run should end, by request or by a limit."""
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
        """Yield the remaining chunks of the epoch; every process gets the same number."""
        progress = self.trainer.state.progress
        position, left, step = self.cursor.position, self.limits.steps_left(progress), progress.global_step
        if self.group.size == 1 or self.feed.source.agrees:
            return self.feed.chunks(position, left, self.stopped, step=step)
        hooks = StopHooks(self.requested_stop, self.trainer.state.agree_to_stop)
        # A thread-bound source is read on the training thread, which cannot join an agreement while it waits for data.
        # So the processes synchronize before each agreement. If one source is thread-bound, all processes read on the
        # training thread, so that they agree at the same points.
        inline = self.group.any(self.feed.source.thread_bound)
        synchronize = self.group.wait_for_all if inline else lambda: None
        synchronize()  # connect the processes before one of them waits for data

        def gate(ready: bool | None) -> bool:
            if self.stopped():
                return False
            synchronize()
            return agree_to_continue(self.group, hooks, ready)

        return self.feed.chunks(position, left, lambda: not gate(None), gate, step=step, inline=inline)

    def agree(self) -> None:
        """Decide with the other processes at the end of an epoch whether to stop.

        Within an epoch, they decide before each chunk.
        """
        state = self.trainer.state
        if self.group.size > 1 and state.stop_reason is None:
            state.stop_reason = agree_to_stop(self.group, self.requested_stop())

    def requested_stop(self) -> StopReason | None:
        """Return why this process wants to stop, or None; for jobs of several processes."""
        late = self.limits.out_of_time()
        return self.trainer.state.requested_stop or (None if late is None else StopReason("limit", late))

    def commit_durable(self) -> None:
        """Commit to the source the rows that durable snapshots cover, on every process."""
        if self.group.size > 1 and self.feed.source.endless:
            saver = self.trainer.saver
            saver.commit_durable(int(self.group.gather(np.array([saver.durable_count], np.int64))[0, 0]))


def train(
    trainer: TrainerBase,
    feed: Feed,
    options: StepOptions,
    cursor: Cursor,
    *,
    resume: str | Path | None,
    epochs: int | None,
    max_steps: int | None = None,
    max_seconds: float | None = None,
    before_first_step: Callable[[], Any] = lambda: None,
    valid_sets: Sequence[str] = (),
    valid_on_start: bool = False,
    online: OnlineMetrics | None = None,
    **fields: Any,
) -> None:
    """Restore a snapshot if `resume` is given, create the run, train and close `feed`.

    `before_first_step` is called after restoring, to detect mistakes early. `epochs` is None for a stream. `fields` are
    further fields of the `Run`.
    """
    state = trainer.state
    seen: int | None = None
    try:
        whole("max_steps", max_steps, 0, optional=True)
        loop.setup(trainer)
        produced = produced_metrics(trainer.metrics, trainer.tasks, valid_sets, online)
        check_monitors(trainer.callbacks, produced, produced_metrics(trainer.metrics, trainer.tasks, ("",), None))
        trainer.builder.train_step(options)  # must precede restoring, which also restores the step's parameters
        trainer.parts.pop("averages", None)
        loaded, trainer.loaded_averages = trainer.loaded_averages, None
        if trainer.builder.average is not None:
            trainer.parts["averages"] = trainer.builder.average
            if loaded is not None and trainer.builder.average.continues(loaded):
                trainer.builder.average.load_state_dict(loaded)
        folders = snapshot_folders(trainer.run_dir, trainer.callbacks)
        snapshot = None if resume is None else trainer.saver.resume(resume, cursor, folders)
        if snapshot is not None:
            # An accumulation that has become smaller ends with the next micro-batch.
            open_batches = min(cursor.position.micro_batches, trainer.accumulate - 1)
            cursor.position = dataclasses.replace(cursor.position, micro_batches=open_batches)
            loop.report_restored(trainer, snapshot.path, resumed=True)
            if not repeatable(trainer.network):
                logger.warning(
                    "nn.Dropout draws different masks than an uninterrupted run; exact_resume=True draws the same masks"
                )
        progress = {"steps done": state.progress.global_step}
        check_settings(trainer, feed.source, {"epochs": epochs, "max_steps": max_steps, **progress})
        trainer.group.connect()  # required before the first graph that sums over processes
        warn_of_own_statistics(trainer.network, trainer.group)
        warn_of_frozen(trainer.network, trainer.optimizer)
        warn_of_nesterov(trainer.optimizer)
        cells = [cell for cell in (trainer.network, trainer.loss_fn, trainer.optimizer) if isinstance(cell, nn.Cell)]
        trained = {id(parameter): parameter for cell in cells for parameter in parameters_of(cell)}  # no duplicates
        broadcast_parameters(trainer.group, list(trained.values()))
        if options.halt:
            trainer.builder.forget_fatal_steps()
        if trainer.builder.average is not None and not int(trainer.builder.average.updates.asnumpy()):
            trainer.builder.average.restart()  # the weights may have been loaded since the averages were created
        before_first_step()
        if not cursor.position.micro_batches:
            trainer.builder.accumulation.clear()  # discard the sums of a training that stopped between two updates
        limits = Limits(
            epochs=None if epochs is None else cursor.base["epoch"] + epochs,
            steps=None if max_steps is None else cursor.base["step"] + max_steps,
            seconds=max_seconds,
        )
        fields |= {"valid_sets": valid_sets, "valid_on_start": valid_on_start and snapshot is None}
        run = Run(trainer, feed, options, limits, cursor, online=online, **fields)
        trainer.run, state.limits = run, limits
        feed.source.last_epoch = limits.epochs
        state.steps_per_epoch = steps_per_epoch(feed.size, trainer.accumulate)
        if trainer.tasks is not None:
            logger.info("tasks: %s", trainer.tasks.describe())
        seen = cursor.rows_updated = state.progress.samples_seen
        cursor.updated = cursor.position
        with trainer.builder.training():
            try:
                loop.train(run)
            except BaseException as error:
                report(trainer, error)  # now, because a snapshot of `on_exception` needs the open update and window
                raise
    finally:
        feed.close()
        drained = state.stop_reason is not None and state.stop_reason.kind in ("stream_end", "idle")
        if seen is not None:
            state.progress.samples_seen = cursor.rows_updated  # the gradients of an incomplete update are dropped
        if not drained:  # the next call reads again the rows that were read ahead or are in no update
            feed.go_back(cursor.updated, cursor.rows_updated - (seen or 0))


def _is_long(share: float, waited: float) -> bool:
    return share > LONG_WAIT and waited >= MIN_WAIT_SECONDS


def stop_hooks(trainer: TrainerBase) -> StopHooks:
    """Return the hooks that let the processes agree when to stop `trainer`."""

    def requested_stop() -> StopReason | None:  # the first call, during the wait for data, may precede the run
        return trainer.state.requested_stop if trainer.run is None else trainer.run.requested_stop()

    return StopHooks(requested_stop, trainer.state.agree_to_stop)
