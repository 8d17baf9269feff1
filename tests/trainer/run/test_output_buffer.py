"""Outputs put aside call by call: the same numbers however they are kept, and untouched by later calls."""

from __future__ import annotations

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from trainer.run.tally import OutputBuffer


@pytest.fixture(params=["CPU", "Ascend"])
def kept(request, monkeypatch):
    """Let buffers keep outputs as they do on this kind of device: bytes on CPU, tensors elsewhere."""
    monkeypatch.setattr(mindspore, "get_context", lambda name: request.param)
    return request.param


def test_whole_outputs_and_the_first_numbers_of_stacked_ones_are_read_in_order(kept):
    buffer = OutputBuffer()
    stacked = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    buffer.add(Tensor(stacked), 8)
    buffer.add(Tensor(stacked + 100), 12)
    buffer.add(Tensor(np.float32(7)), 1)
    np.testing.assert_array_equal(buffer.read(), [*range(8), *range(100, 112), 7])
    assert buffer.read().shape == (0,)
    buffer.add(Tensor(stacked), 2)
    np.testing.assert_array_equal(buffer.read(), [0, 1])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32])
def test_numbers_keep_their_dtype(kept, dtype):
    buffer = OutputBuffer()
    for value in (1, 2):
        buffer.add(Tensor(np.full(3, value, dtype)), 2)
    numbers = buffer.read()
    assert numbers.dtype == dtype
    np.testing.assert_array_equal(numbers, [1, 1, 2, 2])


class Counting(nn.Cell):
    def __init__(self):
        super().__init__()
        self.count = Parameter(Tensor(0.0), name="count")

    def construct(self):
        return ops.assign_add(self.count, Tensor(1.0)) * 1.0


def test_what_was_put_aside_does_not_change_with_later_calls(kept):
    cell, buffer = Counting(), OutputBuffer()
    for _ in range(5):
        buffer.add(cell.compile_and_run(), 1)
    np.testing.assert_array_equal(buffer.read(), [1, 2, 3, 4, 5])


def test_outputs_of_another_dtype_follow_in_order(kept):
    buffer = OutputBuffer()
    for dtype in (np.float32, np.float32, np.float16, np.float32):
        buffer.add(Tensor(np.array([0.5, 2.0], dtype)), 2)
    np.testing.assert_array_equal(buffer.read(), [0.5, 2.0] * 4)
    assert buffer.read().shape == (0,)
