"""Trains the networks of `benchmarks/torch_models.py` for `benchmarks/quality_models.py`, in the peers' environment.

    python -m benchmarks.quality_torch FOLDER SEED EPOCHS BATCH RATE

Each MODEL.npz of the folder holds the training and the test rows; outputs for the latter go to MODEL.npy, one row each.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks import torch_models


def outputs(model: str, arrays: dict[str, np.ndarray], seed: int, epochs: int, batch: int, rate: float) -> np.ndarray:
    """Train a network and return its outputs for the test rows, float32 [outputs, N], or [1, N, 2 * width]."""
    torch.manual_seed(seed)
    sizes = torch_models.Sizes(int(arrays["sizes"].sum()), len(arrays["sizes"]), arrays["train_numbers"].shape[1])
    network = torch_models.make(model, sizes)
    optimizers = torch_models.optimizers_of(network, rate)
    train, test = (inputs(arrays, side) for side in ("train", "test"))
    labels = torch.from_numpy(arrays["train_labels"])
    order = np.random.default_rng(seed)
    for _ in range(epochs):
        for rows in torch.from_numpy(order.permutation(labels.shape[1])).split(batch):
            loss = loss_of(model, network(*(column[rows] for column in train)), labels[:, rows])
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
    network.eval()
    with torch.no_grad():
        result = network(*test)
    return torch.stack(result if isinstance(result, tuple) else (result,)).numpy()


def inputs(arrays: dict[str, np.ndarray], side: str) -> list[torch.Tensor]:
    """Return numbers, rows of the table of all fields, and where there is one the history."""
    offsets = np.cumsum([0, *arrays["sizes"][:-1]])
    columns = [arrays[f"{side}_numbers"], arrays[f"{side}_ids"] + offsets]
    columns += [arrays[name] for name in (f"{side}_history",) if name in arrays]
    return list(map(torch.from_numpy, columns))


def loss_of(model: str, results: Any, labels: torch.Tensor) -> torch.Tensor:
    """Return the loss of a batch."""
    if model == "two_tower":
        return torch_models.in_batch_softmax(results, labels[0])
    results = results if isinstance(results, tuple) else (results,)
    pairs = zip(results, labels, strict=True)
    return torch.stack([binary_cross_entropy_with_logits(result, label) for result, label in pairs]).sum()


def main(folder: str, seed: str, epochs: str, batch: str, rate: str) -> None:
    """Train all models of the folder."""
    torch.set_num_threads(1)  # batches are small
    for path in sorted(Path(folder).glob("*.npz")):
        with np.load(path) as arrays:
            found = outputs(path.stem, dict(arrays), int(seed), int(epochs), int(batch), float(rate))
        np.save(path.with_suffix(".npy"), found)


if __name__ == "__main__":
    main(*sys.argv[1:])
