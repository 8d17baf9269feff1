"""What a program returned call after call, put aside in the cheapest way until somebody reads it."""

from __future__ import annotations

from typing import Any

import mindspore
import numpy as np

from ..state import NUMPY_DTYPES, host_copy


class OutputBuffer:
    """One output of many calls of one program, read together.

    On CPU its bytes are taken at once, which costs a microsecond: to keep the tensor costs more, because the memory
    pool then has to find other memory for the next call. On a device taking them would wait for the call to end, so
    there the tensors are kept.
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
