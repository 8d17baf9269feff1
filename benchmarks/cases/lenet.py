"""(b) LeNet and a small ResNet on scikit-learn's handwritten digits of 8 x 8 pixels, also enlarged; batch 64."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks import losses, resnet
from benchmarks.cases.mlp import LIGHTNING, MODEL, RAW, TORCH
from benchmarks.clock import timed
from benchmarks.measure import OURS, PEERS, Group, Ratio
from benchmarks.nets import dense_weights, mindspore_step, train_torch

BATCH = 64
RATE = 1e-3
EPOCHS = 2
SUNK = "fit"
CHANNELS = (16, 32)
HIDDEN, CLASSES, SIDE = 64, 10, 8
LENET, RESNET = "lenet", "resnet"


def groups(quick: bool) -> list[Group]:
    """Return what this case measures."""
    names = dict.fromkeys((SUNK, RAW, MODEL), OURS) | dict.fromkeys((TORCH, LIGHTNING), PEERS)
    ratios = tuple(Ratio(SUNK, other) for other in (RAW, MODEL, TORCH, LIGHTNING))
    found = [_group("LeNet on digits, batch 64", LENET, SIDE, names, ratios, quick)]
    two = {SUNK: OURS, TORCH: PEERS}
    goal = (Ratio(SUNK, TORCH, 1.2),)
    found.append(_group("LeNet on 28 x 28 pixels, batch 64", LENET, 28, two, goal, quick))
    found.append(_group("ResNet-8 on 32 x 32 pixels, batch 64", RESNET, 32, two, goal, quick))
    return found


def _group(title: str, network: str, side: int, names: dict[str, str], ratios: tuple[Ratio, ...], quick: bool) -> Group:
    options = {"network": network, "side": side, "quick": quick}
    return Group("lenet", title, "lenet", names, options, ratios, (tuple(names),))


def data(side: int, batches: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (image float32 [N, 1, side, side], label int64 [N]), a whole number of batches; pixels are repeated."""
    from sklearn.datasets import load_digits

    bundle = load_digits()
    rows = np.random.default_rng(0).permutation(len(bundle.target))[: batches * BATCH]
    near = np.arange(side) * SIDE // side
    images = bundle.images[rows][:, near][:, :, near]
    return (images[:, None] / 16.0).astype(np.float32), bundle.target[rows]


def first_weights(side: int) -> tuple[list[np.ndarray], list[tuple[np.ndarray, np.ndarray]]]:
    """Return the convolutions [out, in, 3, 3] and the dense layers."""
    rng = np.random.default_rng(3)
    convolutions = []
    for inputs, outputs in ((1, CHANNELS[0]), CHANNELS):
        bound = (6 / (inputs * 9)) ** 0.5
        convolutions.append(rng.uniform(-bound, bound, (outputs, inputs, 3, 3)).astype(np.float32))
    return convolutions, dense_weights((CHANNELS[1] * (side // 4) ** 2, HIDDEN, CLASSES))


def mindspore_lenet(side: int) -> Any:
    """Return the network in MindSpore."""
    from mindspore import Tensor, nn

    convolutions, dense = first_weights(side)
    layers: list[nn.Cell] = []
    for weight in convolutions:
        outputs, inputs = weight.shape[:2]
        layers.append(nn.Conv2d(inputs, outputs, 3, pad_mode="same", has_bias=False, weight_init=Tensor(weight)))
        layers += [nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2, 2)]
    layers.append(nn.Flatten())
    for weight, bias in dense:
        outputs, inputs = weight.shape
        layers += [nn.Dense(inputs, outputs, weight_init=Tensor(weight), bias_init=Tensor(bias)), nn.ReLU()]
    return nn.SequentialCell(layers[:-1])


def torch_lenet(side: int) -> Any:
    """Return the network in PyTorch."""
    import torch
    from torch import nn

    convolutions, dense = first_weights(side)
    layers: list[nn.Module] = []
    with torch.no_grad():
        for weight in convolutions:
            layer = nn.Conv2d(weight.shape[1], weight.shape[0], 3, padding=1, bias=False)
            layer.weight.copy_(torch.from_numpy(weight))
            layers += [layer, nn.BatchNorm2d(weight.shape[0]), nn.ReLU(), nn.MaxPool2d(2)]
        layers.append(nn.Flatten())
        for weight, bias in dense:
            linear = nn.Linear(weight.shape[1], weight.shape[0])
            linear.weight.copy_(torch.from_numpy(weight))
            linear.bias.copy_(torch.from_numpy(bias))
            layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def make(name: str, options: dict[str, Any]) -> Any:
    """Return a contender."""
    kinds = {SUNK: Ours, RAW: Raw, MODEL: Model, TORCH: Torch, LIGHTNING: Lightning}
    return kinds[name](options["network"], options["side"])


class Base:
    """Data, and windows of whole epochs."""

    def __init__(self, network: str, side: int) -> None:
        self.kind, self.side = network, side
        self.image, self.label = data(side, 21 if network == LENET else 8)
        self.steps = len(self.label) // BATCH
        self.build()

    def batches(self):
        """Yield ready batches."""
        for start in range(0, len(self.label), BATCH):
            yield self.image[start : start + BATCH], self.label[start : start + BATCH]

    def window(self) -> dict[str, float]:
        """Train some epochs."""
        return timed(lambda: [self.epoch() for _ in range(EPOCHS)], EPOCHS * self.steps)


class MindSporeParts(Base):
    """Network, loss and optimizer in MindSpore."""

    def build(self) -> None:
        import mindspore as ms
        from mindspore import nn

        ms.set_context(mode=ms.GRAPH_MODE)
        self.label = self.label.astype(np.int32)
        self.network = (mindspore_lenet if self.kind == LENET else resnet.mindspore_resnet)(self.side)
        self.loss_fn = nn.CrossEntropyLoss()
        self.optimizer = nn.Adam(self.network.trainable_params(), RATE)


class Ours(MindSporeParts):
    """`Trainer.fit` on arrays, as it comes."""

    def build(self) -> None:
        from trainer import Trainer

        super().build()
        self.trainer = Trainer(self.network, self.loss_fn, self.optimizer)

    def losses(self) -> list[float]:
        options = {"batch_size": BATCH, "shuffle": False}
        data = self.image, self.label
        return losses.of_trainer(lambda look: self.trainer.fit(data, 1, callbacks=[look], **options))

    def epoch(self) -> None:
        self.trainer.fit((self.image, self.label), 1, callbacks=[], batch_size=BATCH, shuffle=False)


class Raw(MindSporeParts):
    """`compile_and_run` of a hand-written step."""

    def build(self) -> None:
        super().build()
        self.step = mindspore_step(self.network, self.loss_fn, self.optimizer)

    def losses(self) -> list[float]:
        from mindspore import Tensor

        run = self.step.compile_and_run
        return [float(run(Tensor.from_numpy(x), Tensor.from_numpy(y))) for x, y in self.batches()]

    def epoch(self) -> None:
        from mindspore import Tensor

        for image, label in self.batches():
            self.step.compile_and_run(Tensor.from_numpy(image), Tensor.from_numpy(label))


class Model(MindSporeParts):
    """`mindspore.Model.train`."""

    def build(self) -> None:
        import mindspore as ms
        import mindspore.dataset as ds

        super().build()
        self.model = ms.train.Model(self.network, self.loss_fn, self.optimizer)
        columns = (self.image, self.label)
        self.dataset = ds.NumpySlicesDataset(columns, ["image", "label"], shuffle=False).batch(BATCH)

    def losses(self) -> list[float]:
        return losses.of_model(
            lambda look: self.model.train(1, self.dataset, callbacks=[look], dataset_sink_mode=False)
        )

    def epoch(self) -> None:
        self.model.train(1, self.dataset, dataset_sink_mode=False)


class Torch(Base):
    """The loop everybody writes."""

    def build(self) -> None:
        import torch

        self.network = (torch_lenet if self.kind == LENET else resnet.torch_resnet)(self.side).train()
        self.loss_fn = torch.nn.CrossEntropyLoss()
        self.optimizer = torch.optim.Adam(self.network.parameters(), RATE)

    def losses(self) -> list[float]:
        found: list[float] = []
        self.epoch(found)
        return found

    def epoch(self, found: list[float] | None = None) -> None:
        import torch

        batches = (map(torch.from_numpy, batch) for batch in self.batches())
        train_torch([self.optimizer], lambda image, label: self.loss_fn(self.network(image), label), batches, found)


class Lightning(Torch):
    """`lightning.Trainer` with a DataLoader, as they come."""

    def build(self) -> None:
        import lightning
        import torch

        super().build()
        outer = self
        self.found: list[float] = []
        self.checking = False

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

        self.module = Module()

    def losses(self) -> list[float]:
        self.checking = True
        self.epoch()
        self.checking = False
        return self.found

    def epoch(self, found: list[float] | None = None) -> None:
        import tempfile

        import lightning
        import torch

        columns = torch.utils.data.TensorDataset(torch.from_numpy(self.image), torch.from_numpy(self.label))
        loader = torch.utils.data.DataLoader(columns, batch_size=BATCH)
        with tempfile.TemporaryDirectory() as folder:
            trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", default_root_dir=folder)
            trainer.fit(self.module, loader)
