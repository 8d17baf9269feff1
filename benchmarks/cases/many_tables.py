"""A table for each of 26 features, width 8, Zipf(1.3) ids, a small MLP, batch 1024: the usual recommender.

As 26 `Embedding` cells, as one `EmbeddingGroup`, as one `Embedding` on all columns; in PyTorch with 26 sparse tables.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.clock import timed
from benchmarks.measure import OURS, PEERS, Group, Ratio
from benchmarks.nets import dense_weights, mindspore_mlp, torch_mlp

FIELDS, DIM, BATCH, HIDDEN, ROWS = 26, 8, 1024, 64, 1_000_000
CHECKED = 50
CELLS, GROUP, ONE, TORCH = "fit, 26 cells", "fit, EmbeddingGroup", "fit, one Embedding", "torch, SparseAdam"


def groups(quick: bool) -> list[Group]:
    """Return what this case measures."""
    names = {CELLS: OURS, GROUP: OURS, ONE: OURS, TORCH: PEERS}
    ratios = (Ratio(CELLS, TORCH, 0.6), Ratio(GROUP, TORCH, 0.3), Ratio(GROUP, ONE))
    options = {"steps": 16 if quick else 200}
    return [Group("many_tables", "26 tables of width 8, batch 1,024", "many_tables", names, options, ratios)]


def make(name: str, options: dict[str, Any]) -> Any:
    """Return a contender."""
    return {CELLS: Cells, GROUP: Grouped, ONE: One, TORCH: Torch}[name](**options)


class Base:
    """Ready batches, the same for all."""

    def __init__(self, steps: int) -> None:
        rng = np.random.default_rng(5)
        self.steps = steps
        self.batches = [
            (rng.zipf(1.3, (BATCH, FIELDS)) % ROWS, (rng.random(BATCH) < 0.3).astype(np.float32)) for _ in range(steps)
        ]
        self.deep = dense_weights((FIELDS * DIM, HIDDEN, 1))
        self.build()

    def window(self) -> dict[str, float]:
        """Train on all batches."""
        return timed(self.train, self.steps, **self.more())

    def more(self) -> dict[str, float]:
        """Return what else there is to tell."""
        return {}


class Cells(Base):
    """`Trainer.fit`, an `Embedding` for each column."""

    def build(self) -> None:
        from mindspore import nn

        from trainer import Trainer

        network = self.network()
        self.trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 1e-3))

    def network(self) -> Any:
        """Return the network."""
        from mindspore import nn, ops

        from trainer.embedding import Embedding

        mlp = mindspore_mlp(self.deep)

        class Net(nn.Cell):
            def __init__(self) -> None:
                super().__init__()
                self.embeddings = nn.CellList([Embedding(DIM, name=f"field{i}") for i in range(FIELDS)])
                self.deep = mlp

            def construct(self, ids):
                vectors = ()
                for i in range(FIELDS):
                    vectors += (self.embeddings[i](ids[:, i]),)
                return self.deep(ops.concat(vectors, 1))

        return Net()

    def train(self) -> None:
        self.trainer.fit(lambda: self.batches, callbacks=[])

    def more(self) -> dict[str, float]:
        """Return the number of programs compiled so far."""
        return {"programs": float(self.trainer.builder.programs)}


class Grouped(Cells):
    """`Trainer.fit`, an `EmbeddingGroup`."""

    def network(self) -> Any:
        """Return the network."""
        from trainer.embedding import EmbeddingGroup

        return _around(EmbeddingGroup(DIM, [f"field{i}" for i in range(FIELDS)]), mindspore_mlp(self.deep))


class One(Cells):
    """`Trainer.fit`, one `Embedding` on all columns: ids of different columns share rows."""

    def network(self) -> Any:
        """Return the network."""
        from trainer.embedding import Embedding

        return _around(Embedding(DIM, name="all"), mindspore_mlp(self.deep))


def _around(embedding: Any, mlp: Any) -> Any:
    from mindspore import nn

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.deep = embedding, mlp

        def construct(self, ids):
            return self.deep(self.embedding(ids).reshape(-1, FIELDS * DIM))

    return Net()


class Torch(Base):
    """A hand-written loop, 26 sparse tables with SparseAdam."""

    def build(self) -> None:
        import torch

        self.tables = torch.nn.ModuleList([torch.nn.Embedding(ROWS, DIM, sparse=True) for _ in range(FIELDS)])
        self.mlp = torch_mlp(self.deep)
        self.loss_fn = torch.nn.BCEWithLogitsLoss()
        self.optimizers = [
            torch.optim.SparseAdam(list(self.tables.parameters()), 1e-3),
            torch.optim.Adam(self.mlp.parameters(), 1e-3),
        ]

    def train(self) -> None:
        import torch

        for ids, label in self.batches:
            ids = torch.from_numpy(ids)
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            vectors = torch.cat([table(ids[:, i]) for i, table in enumerate(self.tables)], 1)
            self.loss_fn(self.mlp(vectors), torch.from_numpy(label)).backward()
            for optimizer in self.optimizers:
                optimizer.step()
