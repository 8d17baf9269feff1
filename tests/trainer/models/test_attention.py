"""Attention of every number of heads is that of NumPy."""

import numpy as np
import pytest
from mindspore import Tensor

from trainer.models.attention import Attention

RNG = np.random.default_rng(3)
LENGTH, WIDTH = 5, 12


def expected(arrays, heads, scale, mask):
    """Return softmax(scale * Q K^T) V of each head, side by side; `mask` is bool [N, L, L], True where attended."""
    outputs = []
    for query, key, value in zip(*(np.split(array, heads, axis=2) for array in arrays), strict=True):
        scores = np.where(mask, scale * query @ key.swapaxes(1, 2), -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        outputs.append(weights / weights.sum(-1, keepdims=True) @ value)
    return np.concatenate(outputs, 2)


@pytest.mark.parametrize("kind", ["plain", "masked", "causal"])
@pytest.mark.parametrize("heads", [1, 2, 3])
def test_values_of_every_number_of_heads(heads, kind):
    arrays = [RNG.standard_normal((3, LENGTH, WIDTH)).astype(np.float32) for _ in range(3)]
    kept = np.arange(LENGTH) < np.array([[1], [3], [LENGTH]])
    cell = Attention(heads, 0.4, masked=kind == "masked", causal=kind == "causal")
    mask = {
        "plain": np.ones((3, LENGTH, LENGTH), bool),
        "masked": np.broadcast_to(kept[:, None], (3, LENGTH, LENGTH)),
        "causal": np.broadcast_to(np.tri(LENGTH, dtype=bool), (3, LENGTH, LENGTH)),
    }[kind]
    inputs = [*arrays, kept] if kind == "masked" else arrays
    output = cell.compile_and_run(*map(Tensor, inputs)).asnumpy()
    np.testing.assert_allclose(output, expected(arrays, heads, 0.4, mask), rtol=1e-4, atol=1e-5)
