"""(c) Wide & Deep, 39 fields x 16, MLP of three layers of 400: batches of 64 to 4,096, vocabularies of 10^4 to 5*10^6.

Ids are uniform, the hardest case: nearly all of a batch are distinct. Two kinds of update are compared with their like:
dense Adam touches every row in every step, lazy Adam (`SparseAdam` in PyTorch) the rows of the batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.clock import timed
from benchmarks.measure import OURS, PEERS, Group, Ratio
from benchmarks.nets import dense_weights, mindspore_wide_deep, table_weights, torch_wide_deep

FIELDS, DIM = 39, 16
HIDDEN = (400, 400, 400)
RATE = 1e-3
PER_CALL = 8
CHECKED = 50
FILLED_AT_ONCE = 1 << 19

DENSE, SPARSE, MODEL = "fit, dense table", "fit, sparse table", "Model.train"
TORCH_DENSE, TORCH_SPARSE = "torch, Adam", "torch, SparseAdam"

MODEL_GOALS = {10_000: 0.8, 5_000_000: 0.35}
TORCH_GOALS = {10_000: 0.9, 5_000_000: 0.7}


def groups(quick: bool) -> list[Group]:
    """Return what this case measures."""
    if quick:
        return [group(1024, 10_000, 8), group(64, 100_000, 8)]
    steps = {64: 96, 1024: 32, 4096: 8}
    return [group(batch, rows, steps[batch]) for rows in (10_000, 1_000_000, 5_000_000) for batch in steps]


def group(batch: int, rows: int, steps: int) -> Group:
    """Return the contenders at one size; tables of up to 10^4 rows are not worth being sparse."""
    large = rows > 10_000
    names = {DENSE: OURS, **({SPARSE: OURS} if large else {}), MODEL: OURS, TORCH_DENSE: PEERS}
    names |= {TORCH_SPARSE: PEERS} if large else {}
    best = SPARSE if rows >= 1_000_000 else DENSE
    goals = batch == 1024
    ratios = [
        Ratio(best, MODEL, MODEL_GOALS.get(rows)),
        Ratio(best, TORCH_DENSE, TORCH_GOALS.get(rows) if goals else None),
    ]
    if large:
        ratios[1] = Ratio(best, TORCH_DENSE)
        ratios.append(Ratio(best, TORCH_SPARSE, TORCH_GOALS.get(rows) if goals else None))
    same = [(DENSE, MODEL, TORCH_DENSE), *([(SPARSE, TORCH_SPARSE)] if large else [])]
    title = f"Wide & Deep, batch {batch:,}, {rows:,} ids"
    options = {"batch": batch, "rows": rows, "steps": steps}
    return Group("wide_deep", title, "wide_deep", names, options, tuple(ratios), tuple(same))


def make(name: str, options: dict[str, Any]) -> Any:
    """Return a contender."""
    kinds = {DENSE: Dense, SPARSE: Sparse, MODEL: Model, TORCH_DENSE: Torch, TORCH_SPARSE: TorchSparse}
    return kinds[name](**options)


class Base:
    """Ready batches of ids and labels, and first weights, the same for all."""

    def __init__(self, batch: int, rows: int, steps: int) -> None:
        self.rows, self.steps = rows, steps
        rng = np.random.default_rng(11)
        self.batches = []
        for _ in range(max(steps, CHECKED)):
            ids = rng.integers(0, rows, (batch, FIELDS)).astype(self.id_type)
            self.batches.append((ids, (rng.random(batch) < 0.3).astype(np.float32)))
        self.deep = dense_weights((FIELDS * DIM, *HIDDEN, 1))
        self.table, self.wide = table_weights(rows, DIM), np.zeros((rows, 1), np.float32)
        self.build()
        self.table = self.wide = None

    id_type = np.int32

    def window(self) -> dict[str, float]:
        """Train on the first batches."""
        return timed(lambda: self.train(self.batches[: self.steps]), self.steps)


class MindSporeParts(Base):
    """Network, loss and optimizer in MindSpore."""

    def build(self) -> None:
        import mindspore as ms
        from mindspore import nn

        ms.set_context(mode=ms.GRAPH_MODE)
        self.network = mindspore_wide_deep(FIELDS, DIM, self.deep, *self.cells())
        self.loss_fn = nn.BCEWithLogitsLoss()
        self.optimizer = nn.Adam(self.network.trainable_params(), RATE)

    def cells(self) -> tuple[Any, Any]:
        """Return the deep and the wide embedding."""
        from mindspore import Tensor, nn

        deep = nn.Embedding(self.rows, DIM, embedding_table=Tensor(self.table))
        return deep, nn.Embedding(self.rows, 1, embedding_table=Tensor(self.wide))


class Dense(MindSporeParts):
    """`Trainer.fit` with `nn.Embedding`."""

    def build(self) -> None:
        from trainer import Trainer

        super().build()
        self.trainer = Trainer(self.network, self.loss_fn, self.optimizer)

    def losses(self) -> list[float]:
        from callbacks import Callback

        found: list[float] = []

        class Losses(Callback):
            def on_train_step_end(self, trainer):
                found.extend(map(float, trainer.state.outputs.losses))

        self.train(self.batches[:CHECKED], [Losses()])
        return found

    def train(self, batches: list[Any], callbacks: Any = ()) -> None:
        self.trainer.fit(lambda: batches, callbacks=list(callbacks), sink_size=PER_CALL)


class Sparse(Dense):
    """`Trainer.fit` with `trainer.embedding.Embedding`: the cost is that of the distinct ids of a batch."""

    id_type = np.int64

    def cells(self) -> tuple[Any, Any]:
        from trainer.embedding import Embedding

        self.tables = [Embedding(DIM, mode="sparse", name="deep"), Embedding(1, mode="sparse", name="wide")]
        return self.tables[0], self.tables[1]

    def build(self) -> None:
        super().build()
        some = [(np.zeros_like(ids), label) for ids, label in self.batches[:PER_CALL]]
        before = {p.name: p.asnumpy().copy() for p in self.network.get_parameters()}
        self.train(some)  # makes the tables
        for cell, weights in zip(self.tables, (self.table, self.wide), strict=True):
            for start in range(0, self.rows, FILLED_AT_ONCE):
                part = weights[start : start + FILLED_AT_ONCE]
                cell.host_table().put(np.arange(start, start + len(part)), part)
        self._begin_again(before)

    def _begin_again(self, before: dict[str, np.ndarray]) -> None:
        from mindspore import Tensor, ops

        for parameter in self.network.get_parameters():
            ops.assign(parameter, Tensor(before[parameter.name]))
        for parameter in self.optimizer.get_parameters():
            if parameter.name not in before:
                first = 1.0 if parameter.name in ("beta1_power", "beta2_power") else 0
                if parameter.name != "learning_rate":
                    ops.assign(parameter, Tensor(np.full(parameter.shape, first), parameter.dtype))


class Model(MindSporeParts):
    """`mindspore.Model.train` on a generator of ready batches, the fastest input it takes."""

    def build(self) -> None:
        import mindspore as ms

        super().build()
        self.model = ms.train.Model(self.network, self.loss_fn, self.optimizer)
        self.datasets: dict[int, Any] = {}

    def losses(self) -> list[float]:
        import mindspore as ms

        found: list[float] = []

        class Losses(ms.train.Callback):
            def on_train_step_end(self, run_context):
                found.append(float(run_context.original_args().net_outputs.asnumpy()))

        self.train(self.batches[:CHECKED], [Losses()])
        return found

    def train(self, batches: list[Any], callbacks: Any = ()) -> None:
        import mindspore.dataset as ds

        if len(batches) not in self.datasets:
            self.datasets[len(batches)] = ds.GeneratorDataset(batches, ["ids", "label"], shuffle=False)
        self.model.train(1, self.datasets[len(batches)], callbacks=list(callbacks), dataset_sink_mode=False)


class Torch(Base):
    """A hand-written loop, one Adam over everything."""

    id_type = np.int64
    sparse = False

    def build(self) -> None:
        import torch

        self.network = torch_wide_deep(FIELDS, DIM, self.deep, self.table, self.wide, self.sparse)
        self.loss_fn = torch.nn.BCEWithLogitsLoss()
        self.optimizers = self.make_optimizers(torch)

    def make_optimizers(self, torch: Any) -> list[Any]:
        """Return what updates the weights."""
        return [torch.optim.Adam(self.network.parameters(), RATE)]

    def losses(self) -> list[float]:
        found: list[float] = []
        self.train(self.batches[:CHECKED], found)
        return found

    def train(self, batches: list[Any], found: list[float] | None = None) -> None:
        import torch

        for ids, label in batches:
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            loss = self.loss_fn(self.network(torch.from_numpy(ids)), torch.from_numpy(label))
            loss.backward()
            for optimizer in self.optimizers:
                optimizer.step()
            if found is not None:
                found.append(loss.item())


class TorchSparse(Torch):
    """The same with sparse gradients and SparseAdam for the tables."""

    sparse = True

    def make_optimizers(self, torch: Any) -> list[Any]:
        tables = [self.network.embedding.weight, self.network.wide.weight]
        adam = torch.optim.Adam(self.network.deep.parameters(), RATE)
        return [torch.optim.SparseAdam(tables, RATE), adam]
