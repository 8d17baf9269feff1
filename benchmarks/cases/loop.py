"""(h) What the loops add to direct program calls, in wall and processor time, and what memory online training keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.clock import timed
from benchmarks.measure import OURS, Group, Ratio
from benchmarks.nets import dense_weights, mindspore_mlp

FEATURES, BATCH, RATE = 16, 32, 1e-3
PROGRAM, FIT, ONLINE, MEMORY = "program alone", "fit", "online_train", "memory"
EARLY = 1000
MEGABYTE = 1 << 20


def groups(quick: bool) -> list[Group]:
    """Return what this case measures."""
    options = {"steps": 200 if quick else 1000, "long": 5_000 if quick else 100_000}
    names = dict.fromkeys((PROGRAM, FIT, ONLINE), OURS)
    ratios = (Ratio(FIT, PROGRAM, plus=40), Ratio(ONLINE, PROGRAM, plus=40))
    overhead = Group("h", "loops over the program alone, batch 32", "loop", names, options, ratios)
    title = f"memory after {options['long']:,} online steps against {EARLY:,}"
    return [overhead, Group("h", title, "loop", {MEMORY: OURS}, options, unit="s")]


def make(name: str, options: dict[str, Any]) -> Any:
    """Return a contender."""
    return {PROGRAM: Program, FIT: Fit, ONLINE: Online, MEMORY: Memory}[name](**options)


class Base:
    """A trainer and rows in memory."""

    def __init__(self, steps: int, long: int) -> None:
        from mindspore import nn

        from trainer import Trainer

        rng = np.random.default_rng(5)
        self.steps, self.long = steps, long
        self.x = rng.standard_normal((steps * BATCH, FEATURES), dtype=np.float32)
        self.label = (self.x[:, 0] > 0).astype(np.float32)
        network = mindspore_mlp(dense_weights((FEATURES, 64, 32, 1)))
        self.trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), RATE))
        self.train()

    def window(self) -> dict[str, float]:
        """Train on every row once."""
        return timed(self.train, self.steps)

    def train(self) -> None:
        raise NotImplementedError


class Fit(Base):
    """`fit`, one step a call, no callbacks."""

    def train(self) -> None:
        self.trainer.fit((self.x, self.label), batch_size=BATCH, shuffle=False, sink_size=1, callbacks=[])


class Online(Base):
    """`online_train`, one step a call, with progressive validation."""

    def train(self, **options: Any) -> None:
        from trainer.streams import ReplayStream

        stream = ReplayStream({"x": self.x, "label": self.label}, repeat=None if options else 1)
        self.trainer.online_train(stream, **{"callbacks": [], "sink_size": 1, "batch_size": BATCH, **options})


class Program(Fit):
    """The program that `fit` calls, called directly."""

    def __init__(self, steps: int, long: int) -> None:
        super().__init__(steps, long)
        from trainer.graphcall import GraphCall
        from trainer.program import OneStep

        step = OneStep(self.trainer.builder.step)
        run = GraphCall(step.set_train(True))

        def train() -> None:
            from mindspore import Tensor

            convert = Tensor.from_numpy
            for start in range(0, len(self.label), BATCH):
                run(convert(self.x[start : start + BATCH]), convert(self.label[start : start + BATCH]))

        self.train = train
        train()


class Memory(Online):
    """Resident memory after 1,000 steps and at the end of a long run."""

    def window(self) -> dict[str, float]:
        """Train for long, in calls of 10 steps."""
        from callbacks import Callback

        seen: list[tuple[int, float]] = []

        class Watch(Callback):
            def on_train_begin(self, trainer):
                self.first = trainer.state.progress.global_step

            def on_train_step_end(self, trainer):
                done = trainer.state.progress.global_step - self.first
                if done in (EARLY, limit):
                    seen.append((done, resident()))

        limit = self.long
        took = timed(lambda: self.train(callbacks=[Watch()], sink_size=10, max_steps=limit), limit)
        (_, early), (_, late) = seen
        return {**took, "early_mb": early, "late_mb": late, "growth": late / early - 1}


def resident() -> float:
    """Return the resident memory of this process in MiB."""
    import gc

    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / MEGABYTE
