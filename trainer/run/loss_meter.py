"""Outputs of many calls, collected cheaply (`OutputBuffer`), and the mean training loss of them (`LossMeter`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mindspore
import numpy as np

from ..metrics import WeightedMean
from ..state import NUMPY_DTYPES, StepOutputs, host_copy

HELD_CALLS = 1024


class OutputBuffer:
    """One output of many calls of one program, read together.

    On CPU the bytes are copied at once, in a microsecond. Keeping the tensor would cost more, because the memory pool
    then allocates new memory for the next call. On a device a copy would wait for the call to end, so tensors are kept.
    """

    def __init__(self) -> None:
        self._at_once = mindspore.get_context("device_target") == "CPU"
        self._parts: list[Any] = []
        self._dtype: type[np.floating[Any]] | None = None
        self._size = 0

    def add(self, output: Any, entries: int) -> None:
        """Take in the first `entries` numbers of a program's output, in row-major order."""
        if not self._parts:
            self._dtype = NUMPY_DTYPES.get(str(output.dtype))
            self._size = np.dtype(self._dtype).itemsize
        if self._at_once and self._dtype is not None:
            self._parts.append(output.get_bytes()[: entries * self._size])
        else:
            self._parts.append((output, entries))

    def read(self) -> np.ndarray:
        """Return the numbers of all calls, shape [sum of entries], and forget them; the array may be read-only."""
        parts, self._parts = self._parts, []
        if not parts:
            return np.empty(0, np.float32)
        if isinstance(parts[0], bytes):
            return np.frombuffer(b"".join(parts), self._dtype)
        return np.concatenate([host_copy(output).reshape(-1)[:entries] for output, entries in parts])


class LossMeter:
    """Sample-weighted mean loss; losses are collected as they come and summed when the mean is read."""

    def __init__(self) -> None:
        self._mean = WeightedMean()
        self._losses = OutputBuffer()
        self._calls: list[tuple[int, int]] = []

    def add(self, outputs: StepOutputs) -> None:
        """Take the losses of one call; folds every `HELD_CALLS` calls so that memory stays bounded."""
        self._losses.add(outputs.losses_device, outputs.num_steps)
        self._calls.append((outputs.num_steps, outputs.num_samples))
        if len(self._calls) >= HELD_CALLS:
            self._fold()

    def _fold(self) -> None:
        if not self._calls:
            return
        steps, samples = np.array(self._calls).T
        self._calls = []
        self._mean.update(self._losses.read(), np.repeat(samples // steps, steps))

    def value(self) -> float | None:
        """Return the mean so far, or None without steps."""
        self._fold()
        return self._mean.eval() if self._mean.samples else None

    def clear(self) -> None:
        """Forget all losses."""
        self._mean.clear()
        self._losses, self._calls = OutputBuffer(), []

    def state_dict(self) -> dict[str, Any]:
        """Return the sums."""
        self._fold()
        return self._mean.state_dict()["json"]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.clear()
        self._mean.load_state_dict({"json": state, "arrays": {}})
