"""Running a loop over table rows on several cores at once.

A random row of a large table is mostly waited for, and the operators of the graph wait for the loop, so the other cores
have nothing better to do. Threads of the operating system take a part of the rows each; they live for one call, know
nothing of Python and never ask for the interpreter's lock.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from .compiled import kept

# What a part must be worth: starting a thread takes 0.1 to 0.2 ms.
_LEAST_BYTES = 1 << 19

_signature = numba.types.int64(numba.types.int64)


def _threads_of_system() -> tuple[Callable[..., int], Callable[..., int]] | None:
    """Return `pthread_create` and `pthread_join`, which release the interpreter's lock; None where there are none."""
    try:
        library = ctypes.CDLL(None)
        create, join = library.pthread_create, library.pthread_join
    except (OSError, TypeError, AttributeError):
        return None
    create.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    join.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    return create, join


class RowKernel:
    """A loop over rows, compiled when it is first needed, that any number of threads may run parts of.

    Args:
        function: what to compile. It is handed the address (int64) of the int64 numbers that `run` lists and returns
            an int64 that nobody reads. Parts must not depend on each other.
    """

    def __init__(self, function: Callable[[int], int]) -> None:
        self._function = function
        self._compiled: Any = None
        self._system = _threads_of_system()

    def ready(self) -> Callable[..., None]:
        """Return `run`, compiled."""
        if self._compiled is None:
            self._compiled = kept(numba.cfunc, _signature, error_model="numpy")(self._function)
        return self.run

    def run(
        self,
        bases: np.ndarray,
        codes: np.ndarray,
        positions: np.ndarray,
        width: int,
        values: np.ndarray,
        touched: int,
        numbers: np.ndarray,
    ) -> None:
        """Run it over all positions. The kernel is handed addresses of arrays; they are contiguous.

        The numbers are, in this order: first row, row after the last, `bases`, `codes`, `positions`, `width`,
        `values`, columns of `values`, `touched`, `numbers`.

        Args:
            bases: address of each table's rows, int64 [tables].
            codes: rows of a chunk, int64 [m]; see `kernels.ROW_BITS`.
            positions: which of them, int32 [n].
            width: columns of a row.
            values: what goes with each position, float32 [n, columns].
            touched: how many columns of a row are read or written.
            numbers: what else the kernel needs, float32.
        """
        count = len(positions)
        parts = max(1, min(numba.config.NUMBA_NUM_THREADS, count * touched * 4 // _LEAST_BYTES, count))
        if self._system is None:
            parts = 1
        blocks = np.empty((parts, 10), np.int64)
        bounds = np.arange(parts + 1) * count // parts
        blocks[:, 0], blocks[:, 1] = bounds[:-1], bounds[1:]
        arrays = bases, codes, positions, values, numbers
        b, c, p, v, n = (array.ctypes.data for array in arrays)
        blocks[:, 2:] = b, c, p, width, v, values.shape[1], touched, n
        first = blocks.ctypes.data
        self._run_parts([first + part * blocks.strides[0] for part in range(parts)])

    def _run_parts(self, addresses: list[int]) -> None:
        """Run the kernel with the block of numbers at each of `addresses`, and return when all are done."""
        call, threads = self._compiled.ctypes, []
        try:
            for address in addresses[1:]:
                thread = ctypes.c_void_p()
                if self._system[0](ctypes.byref(thread), None, self._compiled.address, address):
                    call(address)  # no thread is to be had
                else:
                    threads.append(thread)
            call(addresses[0])
        finally:  # they use memory of the caller's
            for thread in threads:
                self._system[1](thread, None)
