"""Compiling the row kernels: once per installation where the result can be kept, else once per process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


class Kernel:
    """A function compiled for fixed argument types when it is first needed.

    The machine code is kept where Numba keeps it: beside the source, in the user's cache folder or in
    ``NUMBA_CACHE_DIR``. Where none can be written to, it lives as long as the process. It runs without the
    interpreter's lock. NaN and infinities keep their meaning: no fast arithmetic.

    Args:
        function: what to compile.
        signature: Numba's type of it.
    """

    def __init__(self, function: Callable[..., Any], signature: Any) -> None:
        self._function = function
        self._signature = signature
        self._compiled: Callable[..., Any] | None = None

    def ready(self) -> Callable[..., Any]:
        """Return the compiled function."""
        if self._compiled is None:
            options = {"nogil": True, "error_model": "numpy"}
            try:
                self._compiled = numba.njit([self._signature], cache=True, **options)(self._function)
            except (RuntimeError, OSError):  # no folder to keep the code in, or one that cannot be used
                self._compiled = numba.njit([self._signature], **options)(self._function)
        return self._compiled


def compiled(signature: Any) -> Callable[[Callable[..., Any]], Kernel]:
    """Return a decorator that makes a function a `Kernel`."""
    return lambda function: Kernel(function, signature)


# Called by kernels, so they are compiled into them.
inlined = numba.njit(nogil=True, error_model="numpy", inline="always")
