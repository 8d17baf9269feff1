"""A table for each feature, Zipf(1.3) ids, a small MLP, batch 1,024: the usual recommender.

As `Embedding` cells, as one `EmbeddingGroup`, as one `Embedding` on all columns; in PyTorch with sparse tables, in
`mindspore.Model` with `nn.Embedding`, and with FBGEMM's tables, which train with Adagrad. Strings are hashed by every
side; PyTorch's loop does so with NumPy, eight characters as one number.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks import fbgemm
from benchmarks.clock import timed
from benchmarks.measure import OURS, PEERS, Group, Ratio
from benchmarks.nets import dense_weights, mindspore_mlp, torch_mlp, train_torch

BATCH, HIDDEN, ROWS, RATE = 1024, 64, 1_000_000, 1e-3
MODEL_ROWS, MODEL_STEPS = 100_000, 8  # dense Adam passes over every row of every table in every step
CHECKED = 50
CELLS, GROUP, ONE, TORCH = "fit, cells", "fit, EmbeddingGroup", "fit, one Embedding", "torch, SparseAdam"
MODEL, FBGEMM, FIRST = "Model.train, 100,000 rows a table", "FBGEMM, Adagrad", "fit, cells, first 200 steps"
CELLS_ADAGRAD, GROUP_ADAGRAD = "fit, cells, RowAdagrad", "fit, EmbeddingGroup, RowAdagrad"


def groups(quick: bool) -> list[Group]:
    """Return what this case measures."""
    steps = 16 if quick else 96

    def group(title: str, names: dict[str, str], ratios: tuple[Ratio, ...], **more: Any) -> Group:
        goals = {name: more.pop(name) for name in ("unit", "most", "programs", "windows", "same") if name in more}
        goals.setdefault("windows", 4)
        options = {"steps": steps, "fields": 26, "widths": [8], "strings": False, **more}
        return Group("many_tables", title, "many_tables", names, options, ratios, **goals)

    both = {CELLS: OURS, TORCH: PEERS}
    two = {CELLS: 2}
    names = {CELLS: OURS, GROUP: OURS, ONE: OURS, MODEL: OURS, TORCH: PEERS}
    ratios = (Ratio(CELLS, GROUP, 1.15), Ratio(CELLS, TORCH, 0.4), Ratio(GROUP, TORCH, 0.4))
    ratios += (Ratio(CELLS, MODEL), Ratio(GROUP, ONE))
    engines = {CELLS_ADAGRAD: OURS, GROUP_ADAGRAD: OURS, FBGEMM: PEERS}
    to_fbgemm = (Ratio(GROUP_ADAGRAD, FBGEMM, 0.7), Ratio(CELLS_ADAGRAD, FBGEMM, 0.7))
    fast = (Ratio(CELLS, TORCH, 0.4),)
    return [
        group("26 tables of width 8, batch 1,024", names, ratios, programs=two, same=((CELLS, GROUP, TORCH),)),
        group("26 tables of width 8, Adagrad", engines, to_fbgemm, same=((CELLS_ADAGRAD, GROUP_ADAGRAD, FBGEMM),)),
        group("26 tables of widths 8 and 1", both, fast, programs=two, widths=[8, 1]),
        group("26 tables of widths 8 and 1, strings", both, fast, programs=two, widths=[8, 1], strings=True),
        group("200 tables of width 8", both, fast, programs=two, fields=200, steps=steps // 4),
        group(
            "26 tables of width 8, compiling included",
            {FIRST: OURS},
            (),
            unit="s",
            most={FIRST: 3},
            programs={FIRST: 2},
            windows=1 if quick else 3,
            steps=steps if quick else 200,
        ),
    ]


def make(name: str, options: dict[str, Any]) -> Any:
    """Return a contender."""
    kinds = {GROUP: Grouped, ONE: One, TORCH: Torch, MODEL: Model, FBGEMM: Fbgemm, FIRST: First}
    kinds |= {CELLS: Cells, CELLS_ADAGRAD: CellsAdagrad, GROUP_ADAGRAD: GroupAdagrad}
    return kinds[name](**options)


class Base:
    """Ready batches, the same for all. First vectors are zeros, so that all sides compute the same."""

    rows = ROWS
    warm = False

    def __init__(self, steps: int, fields: int, widths: list[int], strings: bool) -> None:
        rng = np.random.default_rng(5)
        self.steps, self.fields, self.widths = steps, fields, widths
        self.batches = []
        for _ in range(max(steps, CHECKED)):
            ids = rng.zipf(1.3, (BATCH, fields)) % self.rows
            ids = np.char.mod("%08x", ids) if strings else ids
            self.batches.append((ids, (rng.random(BATCH) < 0.3).astype(np.float32)))
        self.deep = dense_weights((fields * sum(widths), HIDDEN, 1))
        self.build()

    def window(self) -> dict[str, float]:
        """Train on all batches; once before, so that everything is compiled."""
        batches = self.batches[: self.steps]
        if not self.warm:
            self.train(batches)
            self.warm = True
        return timed(lambda: self.train(batches), len(batches), **self.more())

    def more(self) -> dict[str, float]:
        """Return what else there is to tell."""
        return {}


class Cells(Base):
    """`Trainer.fit`, an `Embedding` for each column and width."""

    def build(self) -> None:
        from mindspore import nn

        from trainer import Trainer

        network = self.network()
        optimizer = nn.Adam(network.trainable_params(), RATE)
        self.trainer = Trainer(network, nn.BCEWithLogitsLoss(), optimizer)

    def options(self) -> dict[str, Any]:
        """Return how tables begin and are trained."""
        return {"initializer": "zeros"}

    def network(self) -> Any:
        """Return the network."""
        from trainer.embedding import Embedding

        many, widths = range(self.fields), self.widths
        cells = [Embedding(d, name=f"field{i}x{d}", **self.options()) for i in many for d in widths]
        return apart(cells, self.fields, mindspore_mlp(self.deep))

    def losses(self) -> list[float]:
        """Return the losses of the first steps."""
        from callbacks import Callback

        found: list[float] = []

        class Losses(Callback):
            def on_train_step_end(self, trainer):
                found.extend(map(float, trainer.state.outputs.losses))

        self.train(self.batches[:CHECKED], [Losses()])
        return found

    def train(self, batches: list[Any], callbacks: Any = ()) -> None:
        self.trainer.fit(lambda: batches, callbacks=list(callbacks))

    def more(self) -> dict[str, float]:
        """Return the number of programs compiled so far."""
        return {"programs": float(self.trainer.builder.programs)}


class Grouped(Cells):
    """`Trainer.fit`, an `EmbeddingGroup`."""

    def network(self) -> Any:
        """Return the network."""
        from trainer.embedding import EmbeddingGroup

        names = [f"field{i}" for i in range(self.fields)]
        return together(EmbeddingGroup(*self.widths, names, **self.options()), self.fields, mindspore_mlp(self.deep))


class One(Cells):
    """`Trainer.fit`, one `Embedding` on all columns: ids of different columns share rows."""

    def network(self) -> Any:
        """Return the network."""
        from trainer.embedding import Embedding

        cell = Embedding(*self.widths, name="all", **self.options())
        return together(cell, self.fields, mindspore_mlp(self.deep))


class CellsAdagrad(Cells):
    """`Cells` trained with `RowAdagrad`."""

    def options(self) -> dict[str, Any]:
        """Return how tables begin and are trained."""
        from trainer.embedding import RowAdagrad

        return {"initializer": "zeros", "optimizer": RowAdagrad(accum=fbgemm.ACCUMULATOR)}


class GroupAdagrad(CellsAdagrad, Grouped):
    """`Grouped` trained with `RowAdagrad`."""


class First(Cells):
    """A new trainer in every window: what the first steps take, everything compiled."""

    def window(self) -> dict[str, float]:
        """Begin anew and train on all batches."""
        began = time.perf_counter()
        self.build()
        self.train(self.batches[: self.steps])
        return {"seconds": time.perf_counter() - began, "steps": self.steps, **self.more()}


def apart(cells: list[Any], fields: int, mlp: Any) -> Any:
    """Return a network in which every column is read by cells of its own."""
    from mindspore import nn, ops

    each = len(cells) // fields

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.embeddings, self.deep = nn.CellList(cells), mlp

        def construct(self, ids):
            # vectors of one width are stacked: MindSpore's gradient of `concat` is a slow slice for each of its parts
            joined = ()
            for w in range(each):
                vectors = ()
                for i in range(fields):
                    vectors += (self.embeddings[i * each + w](ids[:, i]),)
                joined += (ops.stack(vectors, 1).reshape(ids.shape[0], -1),)
            return self.deep(ops.concat(joined, 1) if each > 1 else joined[0])

    return Net()


def together(embedding: Any, fields: int, mlp: Any) -> Any:
    """Return a network that reads all columns at once."""
    from mindspore import nn

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.deep = embedding, mlp

        def construct(self, ids):
            return self.deep(self.embedding(ids).reshape(ids.shape[0], -1))

    return Net()


class Model(Base):
    """`mindspore.Model.train` with `nn.Embedding` cells and one dense Adam; smaller tables and few steps per window."""

    rows = MODEL_ROWS

    def build(self) -> None:
        import mindspore as ms
        import mindspore.dataset as ds
        from mindspore import nn

        ms.set_context(mode=ms.GRAPH_MODE)
        cells = [nn.Embedding(self.rows, d, embedding_table="zeros") for _ in range(self.fields) for d in self.widths]
        network = apart(cells, self.fields, mindspore_mlp(self.deep))
        optimizer = nn.Adam(network.trainable_params(), RATE)
        self.model = ms.train.Model(network, nn.BCEWithLogitsLoss(), optimizer)
        self.batches = [(ids.astype(np.int32), label) for ids, label in self.batches[:MODEL_STEPS]]
        self.dataset = ds.GeneratorDataset(self.batches, ["ids", "label"], shuffle=False)
        self.train(self.batches)

    def train(self, batches: list[Any]) -> None:
        self.model.train(1, self.dataset, dataset_sink_mode=False)


class Torch(Base):
    """A hand-written loop, sparse tables with SparseAdam."""

    def build(self) -> None:
        import torch

        zeros = [torch.zeros(self.rows, d) for _ in range(self.fields) for d in self.widths]
        self.tables = torch.nn.ModuleList([torch.nn.Embedding(*z.shape, sparse=True, _weight=z) for z in zeros])
        self.mlp = torch_mlp(self.deep)
        self.loss_fn = torch.nn.BCEWithLogitsLoss()
        self.optimizers = [
            torch.optim.SparseAdam(list(self.tables.parameters()), RATE),
            torch.optim.Adam(self.mlp.parameters(), RATE),
        ]

    def losses(self) -> list[float]:
        """Return the losses of the first steps."""
        found: list[float] = []
        self.train(self.batches[:CHECKED], found)
        return found

    def vectors(self, ids: np.ndarray) -> Any:
        """Return what the perceptron reads, [batch, all widths]."""
        import torch

        numbers, each = torch.from_numpy(hashed(ids, self.rows)), len(self.widths)
        vectors = [table(numbers[:, i // each]) for i, table in enumerate(self.tables)]
        return torch.cat([vector for w in range(each) for vector in vectors[w::each]], 1)

    def train(self, batches: list[Any], found: list[float] | None = None) -> None:
        import torch

        train_torch(
            self.optimizers,
            lambda ids, label: self.loss_fn(self.mlp(self.vectors(ids)), torch.from_numpy(label)),
            batches,
            found,
        )


class Fbgemm(Torch):
    """A hand-written loop around FBGEMM's tables, which train themselves."""

    def build(self) -> None:
        import torch

        self.tables = fbgemm.tables(self.rows, *self.widths, self.fields, RATE)
        self.mlp = torch_mlp(self.deep)
        self.loss_fn = torch.nn.BCEWithLogitsLoss()
        self.optimizers = [torch.optim.Adam(self.mlp.parameters(), RATE)]
        self.offsets = torch.arange(BATCH * self.fields + 1)

    def vectors(self, ids: np.ndarray) -> Any:
        import torch

        return self.tables(torch.from_numpy(np.ascontiguousarray(ids.T).reshape(-1)), self.offsets)


def hashed(ids: np.ndarray, rows: int) -> np.ndarray:
    """Return numbers below `rows` for ids, int64 of their shape; strings and bytes of eight characters are mixed."""
    if ids.dtype.kind not in "US":
        return ids
    mixed = np.ascontiguousarray(ids.astype("S8")).view(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return ((mixed ^ (mixed >> np.uint64(31))) % np.uint64(rows)).view(np.int64)
