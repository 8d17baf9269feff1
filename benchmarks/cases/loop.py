"""(h) What the loops add to direct calls of the program, and what memory online training keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.clock import timed
from benchmarks.measure import OURS, Group
from benchmarks.nets import dense_weights, mindspore_mlp

FEATURES, BATCH, RATE = 16, 32, 1e-3
FIT, ONLINE, MEMORY = "fit", "online_train", "memory"
ALLOWED_US = 40
EARLY = 1000
MEGABYTE = 1 << 20


def groups(quick: bool) -> list[Group]:
    """Return what this case measures."""
    options = {"steps": 200 if quick else 2000, "rounds": 1 if quick else 4, "long": 5_000 if quick else 100_000}
    overhead = Group(
        "loop",
        "added to direct calls of the program, batch 32",
        "loop",
        dict.fromkeys((FIT, ONLINE), OURS),
        options,
        most=dict.fromkeys((FIT, ONLINE), ALLOWED_US),
    )
    title = f"memory after {options['long']:,} online steps against {EARLY:,}"
    return [overhead, Group("loop", title, "loop", {MEMORY: OURS}, options, unit="s", windows=1)]


def make(name: str, options: dict[str, Any]) -> Any:
    """Return a contender."""
    return {FIT: Fit, ONLINE: Online, MEMORY: Memory}[name](**options)


class Base:
    """A trainer, rows in memory, and the training program to be called without the trainer."""

    def __init__(self, steps: int, rounds: int, long: int) -> None:
        from mindspore import nn

        from trainer import Trainer
        from trainer.graph.graph_call import GraphCall

        rng = np.random.default_rng(5)
        self.steps, self.rounds, self.long = steps, rounds, long
        self.x = rng.standard_normal((steps * BATCH, FEATURES), dtype=np.float32)
        self.label = (self.x[:, 0] > 0).astype(np.float32)
        network = mindspore_mlp(dense_weights((FEATURES, 64, 32, 1)))
        self.trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), RATE))
        self.train()
        # The very program of the run: MindSpore settles anew how to dispatch each one it compiles.
        (step,) = self.trainer.builder._single.values()
        self.program = GraphCall(step)
        self.call()

    def window(self) -> dict[str, float]:
        """Return what training takes besides calling the program, in turns within one process.

        From one process to the next the same program differs by more than a loop takes.
        """
        alone = loop = 0.0
        for number in range(self.rounds):
            for work in (self.call, self.train)[:: 1 if number % 2 == 0 else -1]:
                took = timed(work, self.steps)["seconds"]
                if work == self.train:
                    loop += took
                else:
                    alone += took
        steps = self.steps * self.rounds
        return {"seconds": loop - alone, "steps": steps, "program_us": alone / steps * 1e6}

    def call(self) -> None:
        """Call the program on every row once."""
        from mindspore import Tensor

        run, convert = self.program, Tensor.from_numpy
        with self.trainer.builder.training():
            for start in range(0, len(self.label), BATCH):
                run(convert(self.x[start : start + BATCH]), convert(self.label[start : start + BATCH]))

    def train(self) -> None:
        raise NotImplementedError


class Fit(Base):
    """`fit`, one step per call, no callbacks."""

    def train(self) -> None:
        self.trainer.fit((self.x, self.label), batch_size=BATCH, shuffle=False, sink_size=1, callbacks=[])


class Online(Base):
    """`online_train`, one step per call, with progressive validation."""

    def train(self, **options: Any) -> None:
        from trainer.streams import ReplayStream

        stream = ReplayStream({"x": self.x, "label": self.label}, repeat=None if options else 1)
        self.trainer.online_train(stream, **{"callbacks": [], "sink_size": 1, "batch_size": BATCH, **options})


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
