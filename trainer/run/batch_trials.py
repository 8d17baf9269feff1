"""Trial trainings with batches of other sizes."""

from __future__ import annotations

import contextlib
import copy
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..checkpoint.capture import assign, generator_states, named_parameters, restore_generators
from ..data.feed import Feed
from ..data.position import Position
from ..errors import ConfigurationError
from ..graph.graph_call import TrainRunner
from ..graph.program import StepOptions

if TYPE_CHECKING:
    from .trainer_base import TrainerBase

WARM_UP = 3  # calls: the first compiles, the second checks the program
NOT_RESTORED = ("tables", "features")  # refused, and not changed by training


@dataclass(frozen=True)
class BatchSizeTrials:
    """Trains a few calls on the data of a run, from its beginning."""

    trainer: TrainerBase
    options: StepOptions
    batch_size: int | None  # rows of the run's batches; None if the data come in batches of their own
    feed_of: Callable[[int], Feed]  # of batches of a given number of rows

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Restore weights, optimizer, loss scale, generators and position at the end."""
        trainer = self.trainer
        if trainer.tables is not None:
            raise ConfigurationError("a search for a batch size puts back weights, not rows of sparse tables")
        if trainer.group.size > 1:
            raise ConfigurationError("a search for a batch size runs in one process; the group has several")
        if self.batch_size is None:
            raise ConfigurationError(
                "a search for a batch size needs data that the trainer cuts into batches: arrays or raw rows, with "
                "fit(batch_size=...); these come in batches of their own"
            )
        if trainer.builder.accumulation.is_open:
            raise ConfigurationError(
                "a search for a batch size cannot put back gradients that wait for their optimizer update; search "
                "before training, or after an epoch whose last update was complete"
            )
        groups = named_parameters(trainer.snapshot_content()).values()
        values = [(p, np.array(p.asnumpy())) for group in groups for p in group.values()]
        parts = {name: part for name, part in trainer.parts.items() if name not in NOT_RESTORED}
        states = {name: copy.deepcopy(part.state_dict()) for name, part in parts.items()}  # some are views
        generators, sink_mode = generator_states(), trainer.sink_mode
        try:
            yield
        finally:
            assign(values)
            for name, part in parts.items():
                part.load_state_dict(states[name])
            trainer.builder.accumulation.clear()
            restore_generators(generators)
            trainer.sink_mode = sink_mode

    def measure(self, rows: int, calls: int) -> float | None:
        """Return the median of rows per second with batches of `rows` rows.

        Waiting for data is included, compiling is not. None if the data have fewer rows.
        """
        feed = self.feed_of(rows)
        runners: dict[bool, TrainRunner] = {}
        seconds: list[float] = []
        with contextlib.closing(feed):
            for epoch in itertools.count():
                before = len(seconds)
                with contextlib.closing(feed.chunks(Position(epoch=epoch))) as chunks:
                    began = time.perf_counter()
                    for chunk in chunks:
                        if chunk.batch_rows != rows:  # the rest of an epoch
                            continue
                        if chunk.stacked not in runners:
                            runners[chunk.stacked] = self.trainer.builder.train(
                                self.options, chunk.batches_per_call, chunk, feed.options.filling
                            )
                        _ = runners[chunk.stacked](chunk).losses  # waits for the device
                        now = time.perf_counter()
                        seconds.append((now - began) / chunk.num_samples)
                        began = now
                        if len(seconds) == WARM_UP + calls:
                            return 1 / statistics.median(seconds[WARM_UP:])
                if len(seconds) == before:
                    break
        return None
