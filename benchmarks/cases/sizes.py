"""Numbers of rows that change: `predict` of every n, and a stream's own small batches, as few programs as possible."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.clock import timed
from benchmarks.measure import OURS, Group, Ratio
from benchmarks.nets import mindspore_table_mlp

FIELDS, DIM, HIDDEN, ROWS, MOST = 8, 16, 64, 100_000, 100
PREDICT, EVALUATE, SERVED, MICRO = "predict", "evaluate", "ServedModel", "online_train"
MICRO_BATCHES, FEWEST_ROWS, MAX_ROWS = 227, 20, 60
# two sizes as they are, 32 and 64 rows, one for windows; and distinct ids of another size
MAX_PROGRAMS = 8


def groups(quick: bool) -> list[Group]:
    """Return what this case measures."""
    options = {"quick": quick}
    names = dict.fromkeys((PREDICT, EVALUATE, SERVED), OURS)
    ratios = (Ratio(PREDICT, SERVED), Ratio(EVALUATE, SERVED))
    title = f"calls of 1 to {MOST} rows, each another number, 8 ids a row"
    micro = f"{MICRO_BATCHES} batches of {FEWEST_ROWS} to {MAX_ROWS} rows of a stream, compiling included"
    return [
        Group("sizes", title, "sizes", names, options, ratios, windows=3),
        Group("sizes", micro, "sizes", {MICRO: OURS}, options, unit="s", windows=2, programs={MICRO: MAX_PROGRAMS}),
    ]


def make(name: str, options: dict[str, Any]) -> Any:
    """Return a contender."""
    return MicroBatches(**options) if name == MICRO else Calls(name, **options)


class Base:
    """A network with a table."""

    def __init__(self, quick: bool) -> None:
        self.quick = quick
        self.rng = np.random.default_rng(7)
        self.build()

    def build(self) -> None:
        from mindspore import nn

        from trainer import Trainer
        from trainer.embedding import Embedding

        embedding = Embedding(DIM, mode="sparse", name="ids")
        network = mindspore_table_mlp(embedding, FIELDS, DIM, HIDDEN)
        network.rows_are_independent = True
        optimizer = nn.Adam(network.trainable_params(), 1e-3)
        self.trainer = Trainer(network, nn.BCEWithLogitsLoss(), optimizer, metrics={"auc"})

    def rows(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (ids, labels) of so many rows."""
        return self.rng.integers(0, ROWS, (count, FIELDS)), (self.rng.random(count) < 0.3).astype(np.float32)


class Calls(Base):
    """A call for every number of rows."""

    def __init__(self, verb: str, quick: bool) -> None:
        self.verb = verb
        super().__init__(quick)
        self.trainer.fit([self.rows(256)], callbacks=[])
        if verb == SERVED:
            from trainer.serving import Publish, ServedModel

            self.folder = tempfile.TemporaryDirectory()
            self.trainer.fit([self.rows(256)], callbacks=[Publish(Path(self.folder.name) / "model", every=1e9)])
            self.served = ServedModel(Path(self.folder.name) / "model", follow=False)

    def window(self) -> dict[str, float]:
        """Call once with every number of rows."""
        calls = [self.rows(n) for n in range(1, 11 if self.quick else MOST + 1)]
        found = timed(lambda: [self.call(*one) for one in calls], len(calls))
        return found | {"programs": float(self.trainer.builder.programs)}

    def call(self, ids: np.ndarray, label: np.ndarray) -> None:
        """Call once."""
        if self.verb == SERVED:
            self.served.predict(ids)
        elif self.verb == PREDICT:
            self.trainer.predict(ids)
        else:
            self.trainer.evaluate((ids, label), batch_size=len(ids))


class MicroBatches(Base):
    """A new trainer in every window."""

    def window(self) -> dict[str, float]:
        """Train on a stream of small batches."""
        sizes = self.rng.integers(FEWEST_ROWS, MAX_ROWS + 1, 20 if self.quick else MICRO_BATCHES)
        batches = [dict(zip(("ids", "label"), self.rows(int(n)), strict=True)) for n in sizes]
        began = time.perf_counter()
        self.build()
        self.trainer.online_train(iter(batches), callbacks=[])
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "steps": len(batches), "programs": float(self.trainer.builder.programs)}
