"""One large table against FBGEMM's: 39 fields x 16 of 5*10^6 rows, MLP of three layers of 400, Adagrad, uniform ids."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks import fbgemm
from benchmarks.cases import many_tables, wide_deep
from benchmarks.measure import OURS, PEERS, Group, Ratio
from benchmarks.nets import dense_weights, mindspore_mlp, torch_mlp

FIELDS, DIM = wide_deep.FIELDS, wide_deep.DIM
ROWS = 5_000_000
STEPS = {1024: 32, 4096: 8}
GOAL = 0.7
FIT, FBGEMM = "fit, RowAdagrad", "FBGEMM, Adagrad"
HALVES, FBGEMM_HALVES = "fit, float16 rows, row-wise RowAdagrad", "FBGEMM, float16 rows, row-wise Adagrad"


def groups(quick: bool) -> list[Group]:
    """Return what this case measures."""
    found = []
    for batch in STEPS:
        options = {"batch": batch, "rows": 50_000 if quick else ROWS, "steps": 4 if quick else STEPS[batch]}
        title = f"39 x 16 of {options['rows']:,} rows, Adagrad, batch {batch:,}"
        ratios = (Ratio(FIT, FBGEMM, GOAL), Ratio(HALVES, FBGEMM_HALVES, GOAL), Ratio(HALVES, FIT, 1.0))
        names = {FIT: OURS, HALVES: OURS, FBGEMM: PEERS, FBGEMM_HALVES: PEERS}
        found.append(Group("adagrad", title, "adagrad", names, options, ratios, ((FIT, FBGEMM),)))
    return found


def make(name: str, options: dict[str, Any]) -> Any:
    """Return a contender."""
    return {FIT: Ours, HALVES: Halves, FBGEMM: Fbgemm, FBGEMM_HALVES: FbgemmHalves}[name](**options)


class Base(many_tables.Base):
    """Ready batches, the same for both. First vectors are zeros."""

    def __init__(self, batch: int, rows: int, steps: int) -> None:
        rng = np.random.default_rng(11)
        self.rows, self.steps, self.fields, self.widths = rows, steps, FIELDS, [DIM]
        shape = (batch, FIELDS)
        self.batches = [
            (rng.integers(0, rows, shape), (rng.random(batch) < 0.3).astype(np.float32))
            for _ in range(max(steps, wide_deep.CHECKED))
        ]
        self.deep = dense_weights((FIELDS * DIM, *wide_deep.HIDDEN, 1))
        self.build()


class Ours(Base, many_tables.One):
    """`Trainer.fit` with `RowAdagrad`, the table filled before."""

    def options(self) -> dict[str, Any]:
        """Return how the table begins and is trained."""
        from trainer.embedding import RowAdagrad

        return {"initializer": "zeros", "mode": "sparse", "optimizer": RowAdagrad(accum=fbgemm.ACCUMULATOR)}

    def network(self) -> Any:
        """Return the network."""
        from trainer.embedding import Embedding

        self.cell = Embedding(DIM, name="all", **self.options())
        return many_tables.together(self.cell, FIELDS, mindspore_mlp(self.deep))

    def build(self) -> None:
        super().build()
        table = self.cell.host_table(self.cell.row_optimizer)  # made once, with its slots
        for start in range(0, self.rows, wide_deep.FILLED_AT_ONCE):
            numbers = np.arange(start, min(self.rows, start + wide_deep.FILLED_AT_ONCE))
            table.put(numbers, np.zeros((len(numbers), DIM), np.float32))


class Halves(Ours):
    """The same with rows of float16 and one accumulator for each row."""

    def options(self) -> dict[str, Any]:
        """Return how the table begins and is trained."""
        from trainer.embedding import RowAdagrad

        optimizer = RowAdagrad(accum=fbgemm.ACCUMULATOR, row_wise=True)
        return {**super().options(), "dtype": "float16", "optimizer": optimizer}


class Fbgemm(Base, many_tables.Torch):
    """A hand-written loop around FBGEMM's one table, read for all fields at once."""

    halves = False

    def build(self) -> None:
        import torch

        self.tables = fbgemm.tables(self.rows, DIM, 1, wide_deep.RATE, self.halves)
        self.mlp = torch_mlp(self.deep)
        self.loss_fn = torch.nn.BCEWithLogitsLoss()
        self.optimizers = [torch.optim.Adam(self.mlp.parameters(), wide_deep.RATE)]

    def vectors(self, ids: np.ndarray) -> Any:
        import torch

        found = self.tables(torch.from_numpy(ids.reshape(-1)), torch.arange(ids.size + 1))
        return found.reshape(len(ids), -1)


class FbgemmHalves(Fbgemm):
    """The same with rows of float16 and one accumulator for each row."""

    halves = True
