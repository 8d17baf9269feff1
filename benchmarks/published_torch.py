"""Trains SASRec in PyTorch on the rows of `benchmarks/published.py`, in the peers' environment.

    python -m benchmarks.published_torch ROWS.npz SEED EPOCHS

The network, the loss, the batches' size, the optimizers and the stop are those of `sasrec` there. Prints the metrics of
the test rows as JSON.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, BLOCKS, HEADS, DROPOUT, RATE, BATCH, EVERY, PATIENCE = 64, 2, 2, 0.4, 1e-3, 32, 2, 5


class Block(nn.Module):
    """Causal attention and a perceptron, each x + Dropout(g(LayerNorm(x)))."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.norm, self.second_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Map [N, L, WIDTH] to the same."""
        seen = self.norm(x)
        heads = [layer(seen).unflatten(2, (HEADS, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)]
        attended = functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
        x = x + functional.dropout(attended, DROPOUT, self.training)
        after = self.second(functional.relu(self.first(self.second_norm(x))))
        return x + functional.dropout(after, DROPOUT, self.training)


class SASRec(nn.Module):
    """Map histories int64 [N, L], 0 at padding behind them, to the state after each item, [N, L, WIDTH]."""

    def __init__(self, items: int, length: int) -> None:
        super().__init__()
        self.table = nn.Embedding(items + 1, WIDTH, sparse=True)
        self.positions = nn.Parameter(torch.randn(length, WIDTH) * 0.01)
        nn.init.normal_(self.table.weight, std=0.01)
        self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(BLOCKS))), nn.LayerNorm(WIDTH)

    def forward(self, history: Tensor) -> Tensor:
        """Return the states."""
        kept = history > 0
        count = kept.cumsum(1)
        x = self.table(history) + self.positions[(count[:, -1:] - count).clamp(max=len(self.positions) - 1)]
        return self.norm(self.blocks(functional.dropout(x, DROPOUT, self.training) * kept[..., None]))


def loss_of(network: SASRec, history: Tensor, following: Tensor) -> Tensor:
    """Return `InBatchSoftmax(1.0)` of all places, its columns of one item taken together."""
    states, item = network(history)[history > 0], following[history > 0]
    items, own, count = item.unique(return_inverse=True, return_counts=True)
    # c columns of an item, each less log(c / rows), are one without; the row's own item has one of its columns alone
    scores = states @ network.table(items).T
    scores = scores.scatter_add(1, own[:, None], -count[own, None].log())
    return functional.cross_entropy(scores, own)


def metrics(network: SASRec, history: Tensor, following: Tensor) -> dict[str, float]:
    """Return hit, recall, NDCG and MRR at 10 of the last places among all items."""
    network.eval()
    with torch.no_grad():
        rows, last = torch.arange(len(history)), (history > 0).sum(1) - 1
        scores = network(history)[rows, last] @ network.table.weight[1:].T
        own = scores[rows, following[rows, last] - 1]
    network.train()
    ranks = (scores >= own[:, None]).sum(1).numpy()
    found = ranks <= 10
    values = {"hit": found, "recall": found, "ndcg": found / np.log2(ranks + 1.0), "mrr": found / ranks}
    return {f"{name}@10": float(np.mean(value)) for name, value in values.items()}


def main(path: str, seed: int, epochs: int) -> None:
    """Train, stopped by ndcg@10 of the validation rows; print the metrics of the test rows."""
    torch.manual_seed(seed)
    order, best, waited = np.random.default_rng(seed), (-1.0, {}), 0
    arrays = {name: torch.from_numpy(values) for name, values in np.load(path).items()}
    history, following = arrays["train_history"], arrays["train_following"]
    network = SASRec(int(arrays["items"]), history.shape[1])
    dense = [parameter for name, parameter in network.named_parameters() if name != "table.weight"]
    optimizers = [torch.optim.SparseAdam([network.table.weight], RATE), torch.optim.Adam(dense, RATE)]
    for epoch in range(1, epochs + 1):
        for rows in torch.from_numpy(order.permutation(len(history))).split(BATCH):
            loss = loss_of(network, history[rows], following[rows])
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
        if epoch % EVERY:
            continue
        valid = metrics(network, arrays["valid_history"], arrays["valid_following"])["ndcg@10"]
        if valid > best[0]:
            best, waited = (valid, metrics(network, arrays["test_history"], arrays["test_following"])), 0
        elif (waited := waited + 1) >= PATIENCE:
            break
    print(json.dumps(best[1]))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
