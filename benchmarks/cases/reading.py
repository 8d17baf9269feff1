"""Evaluation, prediction and serving of a batch of 256 x 8 ids, tables of 10^4 to 10^7 rows: flat from 10^5 on, never
slower than training the same batches."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.clock import timed
from benchmarks.measure import OURS, Group, Ratio
from benchmarks.nets import mindspore_table_mlp

FIELDS, DIM, BATCH, HIDDEN = 8, 16, 256, 64
VERBS = ("evaluate", "predict", "ServedModel")
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
FILLED_AT_ONCE = 1 << 18


def groups(quick: bool) -> list[Group]:
    """Return what this case measures: a group for each verb, a contender for each size, and training beside them."""
    made = []
    for verb in VERBS:
        sizes = SIZES[:2] if quick else SIZES
        names = {size: f"{verb}, {size:,} rows" for size in sizes}
        fit = f"fit, {sizes[-1]:,} rows"
        ratios = [Ratio(names[size], names[100_000], 1.1) for size in sizes if size > 100_000]
        ratios.append(Ratio(names[sizes[-1]], fit, 1.0))
        contenders = dict.fromkeys((*names.values(), fit), OURS)
        options = {"batches": 8 if quick else 64}
        made.append(Group("reading", f"{verb}, 256 x 8 ids", "reading", contenders, options, tuple(ratios), windows=9))
    return made


def make(name: str, options: dict[str, Any]) -> Any:
    """Return a contender."""
    verb, rows = name.split(", ", 1)
    return Reading(verb, int(rows.split()[0].replace(",", "")), **options)


class Reading:
    """A trained network with a table of so many rows."""

    def __init__(self, verb: str, rows: int, batches: int) -> None:
        from mindspore import nn

        from trainer import Trainer
        from trainer.embedding import Embedding

        self.verb = verb
        rng = np.random.default_rng(3)
        ids = [rng.integers(0, rows, (BATCH, FIELDS)) for _ in range(batches)]
        self.batches = [(one, (rng.random(BATCH) < 0.3).astype(np.float32)) for one in ids]
        embedding = Embedding(DIM, mode="sparse", name="ids")
        network = mindspore_table_mlp(embedding, FIELDS, DIM, HIDDEN)
        self.trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 1e-3))
        self.train(self.batches[:1])
        values = rng.standard_normal((min(rows, FILLED_AT_ONCE), DIM), dtype=np.float32)
        for start in range(0, rows, FILLED_AT_ONCE):
            numbers = np.arange(start, min(rows, start + FILLED_AT_ONCE))
            embedding.host_table().put(numbers, values[: len(numbers)])
        if verb == "ServedModel":
            self.serve()
        self.window()

    def serve(self) -> None:
        """Publish and load the model."""
        from trainer.serving import Publish, ServedModel

        self.folder = tempfile.TemporaryDirectory()
        self.train(self.batches[:1], [Publish(Path(self.folder.name) / "model", every=1e9)])
        self.served = ServedModel(Path(self.folder.name) / "model", follow=False)

    def train(self, batches: list[Any], callbacks: Any = ()) -> None:
        """Train on some batches."""
        self.trainer.fit(lambda: batches, callbacks=list(callbacks), sink_size=1)

    def window(self) -> dict[str, float]:
        """Apply the verb to all batches."""
        return timed(self.work, len(self.batches))

    def work(self) -> None:
        """Apply the verb to all batches."""
        if self.verb == "evaluate":
            self.trainer.evaluate(lambda: self.batches)
        elif self.verb == "predict":
            self.trainer.predict(lambda: [(ids,) for ids, _ in self.batches])
        elif self.verb == "fit":
            self.train(self.batches)
        else:
            for ids, _ in self.batches:
                self.served.predict(ids)
