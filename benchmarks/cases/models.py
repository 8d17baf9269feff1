"""(m) A step of every model of `trainer.models` beside the same network in PyTorch (`benchmarks/torch_models.py`).

26 categories of 10,000 ids each and 13 numbers, vectors of 16, batches of 1,024, sizes of layers as by default; DIN and
BST read a history of 20 items besides. Ready batches; tables are trained by rows, `SparseAdam` in PyTorch, all else by
Adam. The first weights differ, so losses are not compared; each interaction is tested against NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.clock import timed
from benchmarks.measure import OURS, PEERS, Group, Ratio

NAMES = (
    *("lr", "fm", "wide_deep", "deepfm", "dcn_v2", "autoint", "masknet", "dlrm"),
    *("din", "bst", "mmoe", "ple", "esmm", "two_tower"),
)
HISTORIES, TASKS = ("din", "bst"), ("mmoe", "ple", "esmm")
FIELDS, NUMBERS, IDS, LENGTH = 26, 13, 10_000, 20
BATCH, RATE, PER_CALL = 1024, 1e-3, 8
FIT, TORCH = "fit", "torch"


def groups(quick: bool) -> list[Group]:
    """Return a group for each model."""
    steps = 8 if quick else 32
    return [
        Group(
            "models",
            f"models, {name}",
            "models",
            {FIT: OURS, TORCH: PEERS},
            {"model": name, "steps": steps},
            (Ratio(FIT, TORCH, 1.0),),
            windows=2 if quick else 7,
        )
        for name in (("deepfm", "bst") if quick else NAMES)
    ]


def make(name: str, options: dict[str, Any]) -> Any:
    """Return a contender."""
    return {FIT: Fit, TORCH: Torch}[name](**options)


class Base:
    """Ready batches, the same for both."""

    def __init__(self, model: str, steps: int) -> None:
        self.model, self.steps = model, steps
        rng = np.random.default_rng(11)
        self.batches = [self.batch(rng) for _ in range(steps)]
        self.build()
        self.train(self.batches[:PER_CALL])

    def batch(self, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Return numbers, ids, perhaps a history, and labels; the first field's ids are those of the history."""
        columns = [rng.standard_normal((BATCH, NUMBERS), np.float32), rng.integers(1, IDS, (BATCH, FIELDS))]
        if self.model in HISTORIES:
            columns.append(rng.integers(1, IDS, (BATCH, LENGTH)))
        if self.model == "two_tower":
            return (*columns, columns[1][:, 0].copy())
        labels = (rng.random((2, BATCH)) < 0.3).astype(np.float32)
        return (*columns, *(labels if self.model in TASKS else labels[:1]))

    def window(self) -> dict[str, float]:
        """Train on all batches."""
        return timed(lambda: self.train(self.batches), self.steps)


class Fit(Base):
    """`Trainer.fit` with the package's model, eight steps per call."""

    def build(self) -> None:
        from mindspore import nn, set_seed

        from trainer import MultiTaskLoss, Trainer, models
        from trainer.features import Categorical, Features, ListFeature, Numeric

        set_seed(0)
        of_model = {"two_tower": {"item": ["c0"]}}.get(self.model, {})
        parts: list[Any] = [Numeric(f"n{i}") for i in range(NUMBERS)]
        parts += [Categorical(f"c{i}", dtype="int64") for i in range(FIELDS)]
        if self.model in HISTORIES:
            parts.append(ListFeature("history", dtype="int64", table="c0", pooling=None, max_length=LENGTH))
        features = Features(parts, label=["a", "b"] if self.model in TASKS else "a")
        network = getattr(models, models.MODELS[self.model])(features, **of_model)
        loss: Any = nn.BCEWithLogitsLoss()
        if self.model in TASKS:
            loss = MultiTaskLoss({"a": loss, "b": nn.BCEWithLogitsLoss()})
        elif self.model == "two_tower":
            loss = models.InBatchSoftmax()
        self.trainer = Trainer(network, loss, nn.Adam(network.trainable_params(), RATE))

    def train(self, batches: list[Any]) -> None:
        self.trainer.fit(lambda: batches, sink_size=PER_CALL)


class Torch(Base):
    """A loop by hand in PyTorch."""

    def build(self) -> None:
        import torch

        from benchmarks import torch_models

        torch.manual_seed(0)
        self.network = torch_models.make(self.model, torch_models.Sizes(FIELDS * IDS, FIELDS, NUMBERS))
        self.optimizers = torch_models.optimizers_of(self.network, RATE)
        self.offsets = torch.arange(FIELDS) * IDS

    def train(self, batches: list[Any]) -> None:
        for batch in batches:
            loss = self.loss(*batch)
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in self.optimizers:
                optimizer.step()
            loss.item()

    def loss(self, *columns: np.ndarray) -> Any:
        """Return the loss of a batch."""
        import torch

        from benchmarks import torch_models

        numbers, ids, *others = map(torch.from_numpy, columns)
        labels = others[1:] if self.model in HISTORIES else others
        outputs = self.network(numbers, ids + self.offsets, *others[: len(others) - len(labels)])
        if self.model == "two_tower":
            return torch_models.in_batch_softmax(outputs, labels[0])
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        bce = torch.nn.functional.binary_cross_entropy_with_logits
        return sum(bce(output, label) for output, label in zip(outputs, labels, strict=True))
