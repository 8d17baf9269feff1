"""Compiling the row kernels: once per installation where the result can be kept, else once per process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compiled(*signatures: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that compiles a function for `signatures` now, without the interpreter's lock in its body.

    The machine code is kept where Numba keeps it: beside the source, in the user's cache folder or in
    ``NUMBA_CACHE_DIR``. Where none can be written to, it lives as long as the process. NaN and infinities keep their
    meaning: no fast arithmetic.
    """

    def compile_now(function: Callable[..., Any]) -> Callable[..., Any]:
        options = {"nogil": True, "error_model": "numpy"}
        try:
            return numba.njit(list(signatures), cache=True, **options)(function)
        except (RuntimeError, OSError):  # no folder to keep the code in, or one that cannot be used
            return numba.njit(list(signatures), **options)(function)

    return compile_now


# Called by kernels, so they are compiled into them.
inlined = numba.njit(nogil=True, error_model="numpy", inline="always")
