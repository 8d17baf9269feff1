"""`Frozen`: an array computed when it is first read, so that writing a snapshot copies less."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np


class Frozen:
    """An array as it is at one moment, computed at the first read, on any thread.

    Attributes:
        dtype: type of its elements.
    """

    def __init__(self, make: Callable[[], np.ndarray], dtype: Any) -> None:
        self._make: Callable[[], np.ndarray] | None = make
        self._array: np.ndarray | None = None
        self._lock = threading.Lock()
        self.dtype = np.dtype(dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape; computes the array."""
        return np.asarray(self).shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        with self._lock:
            if self._array is None:
                self._array, self._make = self._make(), None
        return self._array if dtype is None else self._array.astype(dtype, copy=False)
