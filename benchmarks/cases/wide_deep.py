"""(c) Wide & Deep, 39 fields x 16, MLP of three layers of 400: batches of 64 to 4,096, vocabularies of 10^4 and 5*10^6.

Ids are uniform, the hardest case: nearly all of a batch are distinct. Two kinds of update are compared with their like:
dense Adam touches every row in every step, lazy Adam (`SparseAdam` in PyTorch) the rows of the batch.
"""

from __future__ import annotations

import resource
from typing import Any

import numpy as np

from benchmarks.clock import timed
from benchmarks.measure import OURS, PEERS, Group, Ratio
from benchmarks.nets import dense_weights, mindspore_wide_deep, table_weights, torch_wide_deep, train_torch

FIELDS, DIM = 39, 16
HIDDEN = (400, 400, 400)
RATE = 1e-3
PER_CALL = 8
CHECKED = 50
FILLED_AT_ONCE = 1 << 19

DENSE, SPARSE, MODEL = "fit, dense table", "fit, sparse table", "Model.train"
HALVES = "fit, float16 rows, row-wise"
TORCH_DENSE, TORCH_SPARSE = "torch, Adam", "torch, SparseAdam"

SIZES = {64: 96, 1024: 32, 4096: 8}  # batch: steps of a window
MODEL_GOALS = {10_000: dict.fromkeys(SIZES, 0.8), 5_000_000: {64: 0.35, 1024: 0.25, 4096: 0.5}}
TORCH_GOALS = {10_000: {64: 0.5, 1024: 0.9}, 5_000_000: {64: 0.5, 1024: 0.6, 4096: 0.6}}


def groups(quick: bool) -> list[Group]:
    """Return what this case measures."""
    if quick:
        return [group(1024, 10_000, 8), group(64, 100_000, 8)]
    return [group(batch, rows, SIZES[batch]) for rows in (10_000, 5_000_000) for batch in SIZES]


def group(batch: int, rows: int, steps: int) -> Group:
    """Return the contenders at one size; tables of up to 10^4 rows are not worth being sparse."""
    ours, torch = (SPARSE, TORCH_SPARSE) if rows > 10_000 else (DENSE, TORCH_DENSE)
    names = {ours: OURS, MODEL: OURS, torch: PEERS}
    to_model, to_torch = (goals.get(rows, {}).get(batch) for goals in (MODEL_GOALS, TORCH_GOALS))
    ratios = (Ratio(ours, torch, to_torch), Ratio(ours, MODEL, to_model))
    if ours == SPARSE and batch > 64:
        names[HALVES] = OURS
        ratios += (Ratio(HALVES, SPARSE, 1.0), Ratio(HALVES, torch))
    # lazy and dense Adam compute different things
    same = ((SPARSE, TORCH_SPARSE),) if ours == SPARSE else ((DENSE, MODEL, TORCH_DENSE),)
    options = {"batch": batch, "rows": rows, "steps": steps}
    title = f"Wide & Deep, batch {batch:,}, {rows:,} ids"
    return Group("wide_deep", title, "wide_deep", names, options, ratios, same, windows=4 if rows > 10_000 else None)


def make(name: str, options: dict[str, Any]) -> Any:
    """Return a contender."""
    kinds = {DENSE: Dense, SPARSE: Sparse, HALVES: Halves, MODEL: Model, TORCH_DENSE: Torch, TORCH_SPARSE: TorchSparse}
    return kinds[name](**options)


class Base:
    """Ready batches of ids and labels, and first weights, the same for all."""

    def __init__(self, batch: int, rows: int, steps: int, exponent: float | None = None) -> None:
        self.rows, self.steps = rows, steps
        rng = np.random.default_rng(11)
        self.batches = []
        for _ in range(max(steps, CHECKED)):
            shape = (batch, FIELDS)
            ids = rng.integers(0, rows, shape) if exponent is None else rng.zipf(exponent, shape) % rows
            self.batches.append((ids.astype(self.id_type), (rng.random(batch) < 0.3).astype(np.float32)))
        self.deep = dense_weights((FIELDS * DIM, *HIDDEN, 1))
        self.build()

    id_type = np.int32

    def table(self) -> np.ndarray:
        """Return the first weights of the deep table; those of the wide one are zeros."""
        table = np.empty((self.rows, DIM), np.float32)
        for start in range(0, self.rows, FILLED_AT_ONCE):
            table[start : start + FILLED_AT_ONCE] = self.part_of_table(start)
        return table

    def part_of_table(self, start: int) -> np.ndarray:
        """Return `FILLED_AT_ONCE` rows of it."""
        return table_weights(min(FILLED_AT_ONCE, self.rows - start), DIM, 1 + start)

    def window(self) -> dict[str, float]:
        """Train on the first batches."""
        told = timed(lambda: self.train(self.batches[: self.steps]), self.steps)
        return {**told, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


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

        deep = nn.Embedding(self.rows, DIM, embedding_table=Tensor(self.table()))
        return deep, nn.Embedding(self.rows, 1, embedding_table="zeros")


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

        self.tables = [
            Embedding(dim, mode="sparse", name=name, **self.options()) for dim, name in ((DIM, "deep"), (1, "wide"))
        ]
        return self.tables[0], self.tables[1]

    def options(self) -> dict[str, Any]:
        """Return further arguments of the tables."""
        return {}

    def build(self) -> None:
        super().build()
        some = [(np.zeros_like(ids), label) for ids, label in self.batches[:PER_CALL]]
        before = {p.name: p.asnumpy().copy() for p in self.network.get_parameters()}
        self.train(some)  # makes the tables
        deep, wide = (cell.host_table() for cell in self.tables)
        for start in range(0, self.rows, FILLED_AT_ONCE):
            part = self.part_of_table(start)
            numbers = np.arange(start, start + len(part))
            deep.put(numbers, part)
            wide.put(numbers, np.zeros((len(part), 1), np.float32))
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


class Halves(Sparse):
    """`Sparse` with rows of float16 and one second moment for each row."""

    def options(self) -> dict[str, Any]:
        """Return further arguments of the tables."""
        from trainer.embedding import RowAdam

        return {"dtype": "float16", "optimizer": RowAdam(row_wise=True)}


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

        zeros = np.zeros((self.rows, 1), np.float32)
        self.network = torch_wide_deep(FIELDS, DIM, self.deep, self.table(), zeros, self.sparse)
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

        train_torch(
            self.optimizers,
            lambda ids, label: self.loss_fn(self.network(torch.from_numpy(ids)), torch.from_numpy(label)),
            batches,
            found,
        )


class TorchSparse(Torch):
    """The same with sparse gradients and SparseAdam for the tables."""

    sparse = True

    def make_optimizers(self, torch: Any) -> list[Any]:
        tables = [self.network.embedding.weight, self.network.wide.weight]
        adam = torch.optim.Adam(self.network.deep.parameters(), RATE)
        return [torch.optim.SparseAdam(tables, RATE), adam]
