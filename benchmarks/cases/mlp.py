"""(a) A tiny MLP at batch 32: almost nothing to compute, so what is measured is what each framework adds."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks import losses
from benchmarks.clock import timed
from benchmarks.measure import OURS, PEERS, Group, Ratio
from benchmarks.nets import dense_weights, mindspore_mlp, mindspore_step, torch_mlp, train_torch

SIZES = (32, 64, 32, 1)
BATCH = 32
RATE = 1e-3
CHECKED = 50

RAW, SINGLE, DEFAULT, SUNK = "raw MindSpore loop", "fit", "fit, default callbacks", "fit, 32 steps per call"
PROGRAM, MODEL, TORCH = "program alone", "Model.train", "hand-written torch loop"
LIGHTNING, KERAS = "Lightning, defaults", "Keras on torch, defaults"


def groups(quick: bool) -> list[Group]:
    """Return what this case measures."""
    names = dict.fromkeys((RAW, PROGRAM, SINGLE, DEFAULT, SUNK, MODEL), OURS)
    names |= dict.fromkeys((TORCH, LIGHTNING, KERAS), PEERS)
    ratios = (
        Ratio(SINGLE, RAW, plus=20),
        Ratio(DEFAULT, RAW, plus=40),
        Ratio(SINGLE, PROGRAM, plus=40),
        Ratio(SUNK, RAW, 0.5),
        Ratio(SUNK, MODEL, 0.5),
        Ratio(SUNK, LIGHTNING, 0.3),
        Ratio(SINGLE, MODEL),
        Ratio(SUNK, TORCH),
        Ratio(SUNK, KERAS),
    )
    options = {"steps": 200 if quick else 1000}
    return [Group("mlp", "MLP 32-64-32-1, batch 32", "mlp", names, options, ratios, (tuple(names),))]


def data(steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (x [rows, 32], label [rows]) with something to learn."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal((steps * BATCH, SIZES[0]), dtype=np.float32)
    return x, (x[:, 0] * x[:, 1] + x[:, 2] > 0).astype(np.float32)


def make(name: str, options: dict[str, Any]) -> Any:
    """Return a contender."""
    return KINDS[name](name, options["steps"])


class Base:
    """Data and first weights, the same for all."""

    def __init__(self, name: str, steps: int) -> None:
        self.name, self.steps = name, steps
        self.x, self.label = data(steps)
        self.weights = dense_weights(SIZES)
        self.build()

    def batches(self, steps: int):
        """Yield ready batches."""
        for start in range(0, steps * BATCH, BATCH):
            yield self.x[start : start + BATCH], self.label[start : start + BATCH]

    def window(self) -> dict[str, float]:
        """Train an epoch."""
        return timed(self.epoch, self.steps)


class MindSporeParts(Base):
    """Network, loss and optimizer in MindSpore."""

    def build(self) -> None:
        from mindspore import nn

        self.network = mindspore_mlp(self.weights)
        self.loss_fn = nn.BCEWithLogitsLoss()
        self.optimizer = nn.Adam(self.network.trainable_params(), RATE)


class Raw(MindSporeParts):
    """`compile_and_run` of a hand-written step on tensors made without a copy."""

    def build(self) -> None:
        super().build()
        self.step = mindspore_step(self.network, self.loss_fn, self.optimizer)

    def losses(self) -> list[float]:
        from mindspore import Tensor

        run = self.step.compile_and_run
        return [float(run(Tensor.from_numpy(x), Tensor.from_numpy(y))) for x, y in self.batches(CHECKED)]

    def epoch(self) -> None:
        from mindspore import Tensor

        run, convert = self.step.compile_and_run, Tensor.from_numpy
        for x, label in self.batches(self.steps):
            run(convert(x), convert(label))


class Ours(MindSporeParts):
    """`Trainer.fit` on arrays."""

    def build(self) -> None:
        from trainer import Trainer

        super().build()
        self.trainer = Trainer(self.network, self.loss_fn, self.optimizer)
        self.options = {"sink_size": 32 if self.name == SUNK else 1, "callbacks": None if self.name == DEFAULT else []}

    def losses(self) -> list[float]:
        rows = CHECKED * BATCH
        first, options = (self.x[:rows], self.label[:rows]), {**self.options, "batch_size": BATCH, "shuffle": False}
        found = losses.of_trainer(lambda look: self.trainer.fit(first, **{**options, "callbacks": [look]}))
        self.epoch()  # compile whatever else an epoch needs
        return found

    def epoch(self) -> None:
        self.trainer.fit((self.x, self.label), batch_size=BATCH, shuffle=False, **self.options)


class Program(Ours):
    """The trainer's own compiled step, called on tensors that are there already."""

    def epoch(self) -> None:
        from mindspore import Tensor

        from trainer.graph.graph_call import GraphCall

        step = self.trainer.builder.step.set_train(True)
        run, convert, flag = GraphCall(step), Tensor.from_numpy, Tensor(False)
        for x, label in self.batches(self.steps):
            run(flag, convert(x), convert(label))

    def losses(self) -> list[float]:
        self.epoch, epoch = super().epoch, self.epoch
        found = super().losses()
        self.epoch = epoch
        return found


class Model(MindSporeParts):
    """`mindspore.Model.train`."""

    def build(self) -> None:
        import mindspore as ms

        ms.set_context(mode=ms.GRAPH_MODE)
        super().build()
        self.model = ms.train.Model(self.network, self.loss_fn, self.optimizer)
        self.dataset = self._dataset(self.steps)

    def _dataset(self, steps: int) -> Any:
        import mindspore.dataset as ds

        columns = (self.x[: steps * BATCH], self.label[: steps * BATCH])
        return ds.NumpySlicesDataset(columns, ["x", "label"], shuffle=False).batch(BATCH)

    def losses(self) -> list[float]:
        data = self._dataset(CHECKED)
        found = losses.of_model(lambda look: self.model.train(1, data, callbacks=[look], dataset_sink_mode=False))
        self.epoch()
        return found

    def epoch(self) -> None:
        self.model.train(1, self.dataset, dataset_sink_mode=False)


class Torch(Base):
    """The loop everybody writes."""

    def build(self) -> None:
        import torch

        self.network = torch_mlp(self.weights)
        self.loss_fn = torch.nn.BCEWithLogitsLoss()
        self.optimizer = torch.optim.Adam(self.network.parameters(), RATE)

    def _train(self, steps: int, found: list[float] | None = None) -> None:
        import torch

        x, label = torch.from_numpy(self.x), torch.from_numpy(self.label)
        starts = range(0, steps * BATCH, BATCH)
        batches = ((x[start : start + BATCH], label[start : start + BATCH]) for start in starts)
        train_torch([self.optimizer], lambda x, label: self.loss_fn(self.network(x), label), batches, found)

    def losses(self) -> list[float]:
        found: list[float] = []
        self._train(CHECKED, found)
        return found

    def epoch(self) -> None:
        self._train(self.steps)


class Lightning(Torch):
    """`lightning.Trainer` as it comes, with a DataLoader as it comes."""

    def build(self) -> None:
        import lightning
        import torch

        super().build()
        outer = self
        self.found: list[float] = []

        class Module(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.network = outer.network

            def training_step(self, batch, index):
                loss = outer.loss_fn(self.network(batch[0]), batch[1])
                if outer.checking:
                    outer.found.append(loss.item())
                return loss

            def configure_optimizers(self):
                return torch.optim.Adam(self.network.parameters(), RATE)

        self.module, self.checking = Module(), False

    def _fit(self, steps: int) -> None:
        import tempfile

        import lightning
        import torch

        rows = steps * BATCH
        columns = torch.utils.data.TensorDataset(torch.from_numpy(self.x[:rows]), torch.from_numpy(self.label[:rows]))
        loader = torch.utils.data.DataLoader(columns, batch_size=BATCH)
        with tempfile.TemporaryDirectory() as folder:
            trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", default_root_dir=folder)
            trainer.fit(self.module, loader)

    def losses(self) -> list[float]:
        self.checking = True
        self._fit(CHECKED)
        self.checking = False
        return self.found

    def epoch(self) -> None:
        self._fit(self.steps)


class Keras(Base):
    """`keras.Model.fit` on PyTorch, as it comes."""

    def build(self) -> None:
        import os

        os.environ["KERAS_BACKEND"] = "torch"
        import keras

        layers = [keras.layers.Input((SIZES[0],))]
        layers += [keras.layers.Dense(n, activation="relu" if n > 1 else None) for n in SIZES[1:]]
        self.network = keras.Sequential(layers)
        for layer, (weight, bias) in zip(self.network.layers, self.weights, strict=True):
            layer.set_weights([weight.T, bias])
        self.network.compile(keras.optimizers.Adam(RATE), keras.losses.BinaryCrossentropy(from_logits=True))

    def losses(self) -> list[float]:
        batches = self.batches(CHECKED)
        return [float(self.network.train_on_batch(x, y[:, None], return_dict=True)["loss"]) for x, y in batches]

    def epoch(self) -> None:
        self.network.fit(self.x, self.label[:, None], batch_size=BATCH, epochs=1, shuffle=False)


KINDS: dict[str, type[Base]] = {
    RAW: Raw,
    PROGRAM: Program,
    SINGLE: Ours,
    DEFAULT: Ours,
    SUNK: Ours,
    MODEL: Model,
    TORCH: Torch,
    LIGHTNING: Lightning,
    KERAS: Keras,
}
