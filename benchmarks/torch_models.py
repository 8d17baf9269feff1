"""The networks of `trainer.models` in PyTorch, over one table for all fields, as a user would write them by hand.

Each takes numbers float32 [N, M], ids int64 [N, F] (rows of the table) and, of DIN and BST, a history int64 [N, L],
whose candidate is the first id. `make` returns a module by the name that `trainer.models.MODELS` has.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

DIM, TASKS = 16, 2


class Sizes(NamedTuple):
    """Rows of the table of all fields, number of fields and of numbers."""

    rows: int
    fields: int = 26
    numbers: int = 13


def hidden_layer(inputs: int, outputs: int) -> nn.Linear:
    """Return a dense layer with the first weights of `trainer.models`."""
    layer = nn.Linear(inputs, outputs)
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return layer


def mlp(inputs: int, hidden: tuple[int, ...], outputs: int | None = 1, activation: Any = nn.ReLU) -> nn.Sequential:
    """Return dense layers with an activation behind each, and a last one without."""
    layers: list[nn.Module] = []
    for pair in pairwise((inputs, *hidden)):
        layers += [hidden_layer(*pair), activation()]
    return nn.Sequential(*layers, *([] if outputs is None else [nn.Linear(hidden[-1], outputs)]))


class Base(nn.Module):
    """The table of vectors, and fields and numbers side by side."""

    def __init__(self, sizes: Sizes, dim: int = DIM) -> None:
        super().__init__()
        self.table = nn.Embedding(sizes.rows, dim, sparse=True)
        nn.init.normal_(self.table.weight, std=0.01)
        self.width = sizes.fields * DIM + sizes.numbers

    def flat(self, numbers: Tensor, fields: Tensor) -> Tensor:
        """Return fields and numbers side by side."""
        return torch.cat((fields.flatten(1), numbers), 1)


class Linear(Base):
    """Logistic regression."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes, 1)
        self.numbers = nn.Linear(sizes.numbers, 1)
        nn.init.zeros_(self.table.weight)
        nn.init.zeros_(self.numbers.weight)

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        return self.table(ids).sum((1, 2)) + self.numbers(numbers).flatten()


def pairs(fields: Tensor) -> Tensor:
    """Return the sum of the products of all pairs."""
    return 0.5 * (fields.sum(1).square() - fields.square().sum(1)).sum(1)


class FM(Base):
    """Factorization machine."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.linear = Linear(sizes)

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        return self.linear(numbers, ids) + pairs(self.table(ids))


class DeepFM(Base):
    """DeepFM, or Wide & Deep without the pairs."""

    def __init__(self, sizes: Sizes, hidden: tuple[int, ...] = (400, 400), has_pairs: bool = True) -> None:
        super().__init__(sizes)
        self.linear, self.deep, self.has_pairs = Linear(sizes), mlp(self.width, hidden), has_pairs

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        fields = self.table(ids)
        logits = self.linear(numbers, ids) + self.deep(self.flat(numbers, fields)).flatten()
        return logits + pairs(fields) if self.has_pairs else logits


class DCNv2(Base):
    """DCN-V2, stacked."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.crosses = nn.ModuleList(nn.Linear(self.width, self.width) for _ in range(3))
        self.deep = mlp(self.width, (400, 400))

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        x = first = self.flat(numbers, self.table(ids))
        for cross in self.crosses:
            x = first * cross(x) + x
        return self.deep(x).flatten()


class AutoInt(Base):
    """AutoInt+."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.rounds = nn.ModuleList(
            nn.ModuleList(nn.Linear(width, 32, bias=False) for _ in range(4)) for width in (DIM, 32)
        )
        self.logit, self.deep = nn.Linear(sizes.fields * 32, 1), mlp(self.width, (400, 400))

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        x = fields = self.table(ids)
        for query, key, value, residual in self.rounds:
            q, k, v = (part(x).unflatten(2, (2, 16)).transpose(1, 2) for part in (query, key, value))
            attended = (torch.softmax(q @ k.transpose(2, 3), -1) @ v).transpose(1, 2).flatten(2)
            x = torch.relu(attended + residual(x))
        return (self.logit(x.flatten(1)) + self.deep(self.flat(numbers, fields))).flatten()


class MaskNet(Base):
    """MaskNet, parallel."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        width = self.width
        self.norm = nn.LayerNorm(DIM)
        self.masks = nn.ModuleList(mlp(width, (width,), width) for _ in range(3))
        self.dense = nn.ModuleList(nn.Linear(width, 64, bias=False) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(64) for _ in range(3))
        self.top = mlp(192, (400, 400))

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        fields = self.table(ids)
        v, x = self.flat(numbers, fields), self.flat(numbers, self.norm(fields))
        blocks = zip(self.masks, self.dense, self.norms, strict=True)
        return self.top(torch.cat([torch.relu(norm(dense(mask(v) * x))) for mask, dense, norm in blocks], 1)).flatten()


class DLRM(Base):
    """DLRM."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.bottom = mlp(sizes.numbers, (128, 64, DIM), None)
        self.register_buffer("pairs", torch.tril_indices(sizes.fields + 1, sizes.fields + 1, -1))
        self.top = mlp(DIM + self.pairs.shape[1], (256, 128))

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        dense = self.bottom(numbers)
        vectors = torch.cat((dense[:, None], self.table(ids)), 1)
        products = (vectors @ vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat((dense, products), 1)).flatten()


class Dice(nn.Module):
    """Dice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.alpha = nn.BatchNorm1d(width, eps=1e-8, affine=False), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.alpha + torch.sigmoid(self.norm(x)) * (1 - self.alpha))


class DIN(Base):
    """DIN with Dice."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.unit = self._dice(4 * DIM, (64, 32))
        self.top = self._dice(self.width + DIM, (200, 80))

    @staticmethod
    def _dice(inputs: int, hidden: tuple[int, int]) -> nn.Sequential:
        layers = [part for a, b in pairwise((inputs, *hidden)) for part in (hidden_layer(a, b), Dice(b))]
        return nn.Sequential(*layers, nn.Linear(hidden[-1], 1))

    def forward(self, numbers: Tensor, ids: Tensor, history: Tensor) -> Tensor:
        fields, items = self.table(ids), self.table(history)
        candidate = fields[:, :1].expand_as(items)
        together = torch.cat((items, candidate, items - candidate, items * candidate), 2)
        weights = self.unit(together.flatten(0, 1)).view(len(ids), 1, -1)
        return self.top(torch.cat((self.flat(numbers, fields), (weights @ items)[:, 0]), 1)).flatten()


class BST(Base):
    """BST."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.positions = nn.Parameter(0.01 * torch.randn(64, DIM))
        self.parts = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2))
        self.inner = mlp(DIM, (4 * DIM,), DIM, nn.LeakyReLU)
        self.top = mlp(self.width + 2 * DIM, (256, 128), 1, nn.LeakyReLU)

    def forward(self, numbers: Tensor, ids: Tensor, history: Tensor) -> Tensor:
        fields = self.table(ids)
        x = torch.cat((self.table(history), fields[:, :1]), 1) + self.positions[: history.shape[1] + 1].flip(0)
        q, k, v = (part(x).unflatten(2, (2, DIM // 2)).transpose(1, 2) for part in list(self.parts)[:3])
        attended = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.norms[0](x + self.parts[3](attended))
        x = self.norms[1](x + self.inner(x))
        return self.top(torch.cat((self.flat(numbers, fields), x[:, :-1].mean(1), x[:, -1]), 1)).flatten()


class MMoE(Base):
    """MMoE with two tasks."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.experts = nn.ModuleList(mlp(self.width, (256, 64), None) for _ in range(8))
        self.gates = nn.ModuleList(nn.Linear(self.width, 8, bias=False) for _ in range(TASKS))
        self.towers = nn.ModuleList(mlp(64, (32,)) for _ in range(TASKS))

    def forward(self, numbers: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
        x = self.flat(numbers, self.table(ids))
        experts = torch.stack([expert(x) for expert in self.experts], 1)
        parts = zip(self.gates, self.towers, strict=True)
        return tuple(tower(mixed(experts, gate(x))).flatten() for gate, tower in parts)


def mixed(experts: Tensor, weights: Tensor) -> Tensor:
    """Return the experts' mixture."""
    return (torch.softmax(weights, -1)[:, None] @ experts)[:, 0]


class PLE(Base):
    """PLE with two tasks and two layers."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        sizes, groups = (self.width, 64), TASKS + 1
        self.experts = nn.ModuleList(
            nn.ModuleList(mlp(size, (128, 64), None) for _ in range(2 * groups)) for size in sizes
        )
        self.gates = nn.ModuleList(
            nn.ModuleList(nn.Linear(size, 4 if task < TASKS else 2 * groups, bias=False) for task in range(groups))
            for size in sizes
        )
        self.towers = nn.ModuleList(mlp(64, (32,)) for _ in range(TASKS))

    def forward(self, numbers: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
        inputs = [self.flat(numbers, self.table(ids))] * (TASKS + 1)
        for experts, gates in zip(self.experts, self.gates, strict=True):
            out = [expert(inputs[index // 2]) for index, expert in enumerate(experts)]
            seen = [[*out[2 * task : 2 * task + 2], *out[-2:]] for task in range(TASKS)] + [out]
            inputs = [mixed(torch.stack(seen[i], 1), gates[i](inputs[i])) for i in range(TASKS + 1)]
        return tuple(tower(x).flatten() for tower, x in zip(self.towers, inputs, strict=False))


class ESMM(Base):
    """ESMM."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.click, self.conversion = mlp(self.width, (256, 64)), mlp(self.width, (256, 64))

    def forward(self, numbers: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
        x = self.flat(numbers, self.table(ids))
        a, b = self.click(x).flatten(), self.conversion(x).flatten()
        return a, -torch.logsumexp(torch.stack((-a, -b, -a - b), 1), 1)


class TwoTower(Base):
    """Two towers: the item is the first id, all else the user."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.user, self.item = mlp(self.width - DIM, (128, 64), 32), mlp(DIM, (128, 64), 32)

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        fields = self.table(ids)
        user, item = self.user(self.flat(numbers, fields[:, 1:])), self.item(fields[:, 0])
        return torch.cat((functional.normalize(user, dim=1), functional.normalize(item, dim=1)), 1)


def in_batch_softmax(vectors: Tensor, item: Tensor, temperature: float = 0.05) -> Tensor:
    """Return the loss of `trainer.models.InBatchSoftmax`."""
    width = vectors.shape[1] // 2
    same = (item[:, None] == item[None]).float()
    logits = vectors[:, :width] @ vectors[:, width:].T / temperature - torch.log(same.mean(0))
    logits = logits - 1e9 * (same - torch.eye(len(item)))
    return functional.cross_entropy(logits, torch.arange(len(item)))


KINDS: dict[str, Any] = {
    "lr": Linear,
    "fm": FM,
    "wide_deep": lambda sizes: DeepFM(sizes, (256, 128), False),
    "deepfm": DeepFM,
    "dcn_v2": DCNv2,
    "autoint": AutoInt,
    "masknet": MaskNet,
    "dlrm": DLRM,
    "din": DIN,
    "bst": BST,
    "mmoe": MMoE,
    "ple": PLE,
    "esmm": ESMM,
    "two_tower": TwoTower,
}


def make(name: str, sizes: Sizes) -> nn.Module:
    """Return a network by name."""
    return KINDS[name](sizes)


def optimizers_of(network: nn.Module, rate: float) -> list[torch.optim.Optimizer]:
    """Return Adam for the tables' rows of a batch, and for all else."""
    tables = [module.weight for module in network.modules() if isinstance(module, nn.Embedding)]
    known = {id(table) for table in tables}
    dense = [parameter for parameter in network.parameters() if id(parameter) not in known]
    optimizers: list[torch.optim.Optimizer] = [torch.optim.SparseAdam(tables, rate)]
    return [*optimizers, torch.optim.Adam(dense, rate)] if dense else optimizers
