"""The same networks, with the same first weights, in MindSpore and in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

Weights = list[tuple[np.ndarray, np.ndarray]]


def dense_weights(sizes: Sequence[int], seed: int = 0) -> Weights:
    """Return (weight [out, in], bias [out]) of dense layers, uniform within 1 / sqrt(in)."""
    rng = np.random.default_rng(seed)
    made = []
    for fan_in, fan_out in pairwise(sizes):
        bound = fan_in**-0.5
        weight = rng.uniform(-bound, bound, (fan_out, fan_in)).astype(np.float32)
        made.append((weight, rng.uniform(-bound, bound, fan_out).astype(np.float32)))
    return made


def table_weights(rows: int, dim: int, seed: int = 1) -> np.ndarray:
    """Return the first weights of an embedding table, float32 [rows, dim], standard deviation 0.01."""
    return np.random.default_rng(seed).standard_normal((rows, dim), dtype=np.float32) * np.float32(0.01)


def mindspore_mlp(weights: Weights) -> Any:
    """Return a MindSpore MLP with ReLU between its layers, [B, in] -> [B] for one output."""
    from mindspore import Tensor, nn

    class Mlp(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            layers: list[nn.Cell] = []
            for weight, bias in weights:
                outputs, inputs = weight.shape
                layers += [nn.Dense(inputs, outputs, weight_init=Tensor(weight), bias_init=Tensor(bias)), nn.ReLU()]
            self.layers = nn.SequentialCell(layers[:-1])

        def construct(self, x):
            return self.layers(x).reshape(-1)

    return Mlp()


def mindspore_table_mlp(embedding: Any, fields: int, dim: int, hidden: int) -> Any:
    """Return a perceptron [fields * dim, hidden, 1] over the vectors of `fields` ids a row."""
    from mindspore import nn

    mlp = mindspore_mlp(dense_weights((fields * dim, hidden, 1)))

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.deep = embedding, mlp

        def construct(self, ids):
            return self.deep(self.embedding(ids).reshape(-1, fields * dim))

    return Net()


def torch_mlp(weights: Weights) -> Any:
    """Return the same in PyTorch."""
    import torch
    from torch import nn

    layers: list[nn.Module] = []
    for weight, bias in weights:
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(weight))
            layer.bias.copy_(torch.from_numpy(bias))
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1], nn.Flatten(0))


def mindspore_wide_deep(fields: int, dim: int, deep: Weights, embedding: Any, wide: Any) -> Any:
    """Return Wide & Deep around two embedding cells, [B, fields] -> [B]."""
    from mindspore import nn

    mlp = mindspore_mlp(deep)

    class WideDeep(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.wide, self.deep = embedding, wide, mlp

        def construct(self, ids):
            deep = self.deep(self.embedding(ids).reshape(-1, fields * dim))
            return deep + self.wide(ids).reshape(-1, fields).sum(axis=1)

    return WideDeep()


def torch_wide_deep(fields: int, dim: int, deep: Weights, table: np.ndarray, wide: np.ndarray, sparse: bool) -> Any:
    """Return the same in PyTorch, over its own embeddings."""
    import torch
    from torch import nn

    class WideDeep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(len(table), dim, sparse=sparse, _weight=torch.from_numpy(table))
            self.wide = nn.Embedding(len(wide), 1, sparse=sparse, _weight=torch.from_numpy(wide))
            self.deep = torch_mlp(deep)

        def forward(self, ids):
            deep = self.deep(self.embedding(ids).reshape(-1, fields * dim))
            return deep + self.wide(ids).reshape(-1, fields).sum(dim=1)

    return WideDeep()


def mindspore_step(network: Any, loss_fn: Any, optimizer: Any) -> Any:
    """Return the training step a careful MindSpore user writes by hand: forward, backward, update, loss."""
    from mindspore import nn, ops

    class Step(nn.Cell):
        def __init__(self) -> None:
            super().__init__(auto_prefix=False)
            self.network, self.loss_fn, self.optimizer = network, loss_fn, optimizer
            self.gradient = ops.value_and_grad(self.forward, None, optimizer.parameters)

        def forward(self, x, label):
            return self.loss_fn(self.network(x), label)

        def construct(self, x, label):
            loss, gradients = self.gradient(x, label)
            self.optimizer(gradients)
            return loss

    return Step().set_train()


def train_torch(
    optimizers: list[Any], loss_of: Callable[..., Any], batches: Iterable[Any], found: list[float] | None = None
) -> None:
    """Take a step of a hand-written PyTorch loop for every batch; its losses are added to `found` where it is given."""
    for batch in batches:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = loss_of(*batch)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        if found is not None:
            found.append(loss.item())
