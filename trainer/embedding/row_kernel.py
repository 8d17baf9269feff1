"""Running a loop over table rows on several cores at once.

A random row of a large table is mostly waited for, and the operators of the graph wait for the loop, so the other cores
have nothing better to do. Threads of the operating system take a part of the rows each; they live for one call, know
nothing of Python and never ask for the interpreter's lock.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np

from .compiled import compiled, kept

# What a part must be worth: starting a thread takes 0.1 to 0.2 ms.
_LEAST_BYTES = 1 << 19

_i32, _i64, _f32 = numba.types.int32, numba.types.int64, numba.types.float32
_LENGTH = 10  # of a block


@compiled(_i64(_i64[::1], _i64[::1], _i32[::1], _i64, _f32[:, ::1], _i64, _f32[::1], _i64[:, ::1]), nogil=False)
def _describe(bases, codes, positions, width, values, touched, numbers, blocks):
    """Fill `blocks`, int64 [parts, length], with what `RowKernel.run` says; return the address of the first."""
    count, parts = len(positions), len(blocks)
    for part in range(parts):
        block = blocks[part]
        block[0], block[1] = part * count // parts, (part + 1) * count // parts
        block[2], block[3], block[4] = bases.ctypes.data, codes.ctypes.data, positions.ctypes.data
        block[5], block[6], block[7] = width, values.ctypes.data, values.shape[1]
        block[8], block[9] = touched, numbers.ctypes.data
    return np.int64(blocks.ctypes.data)


def _find_threads() -> tuple[Callable[..., int], Callable[..., int]] | None:
    """Return `pthread_create` and `pthread_join`, which release the interpreter's lock; None where there are none."""
    try:
        library = ctypes.CDLL(None)
        create, join = library.pthread_create, library.pthread_join
    except (OSError, TypeError, AttributeError):
        return None
    create.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    join.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    return create, join


_threads = _find_threads()


class RowKernel:
    """A loop over rows, compiled when it is first needed, that any number of threads may run parts of.

    Args:
        function: what to compile. It is handed the address (int64) of the int64 numbers that `run` lists and returns
            an int64 that nobody reads. Parts must not depend on each other.
    """

    def __init__(self, function: Callable[[int], int]) -> None:
        self._function = function
        self._compiled: Any = None
        # Numba's own setting: as many as the process may use, unless NUMBA_NUM_THREADS says otherwise
        self._most = 1 if _threads is None else numba.config.NUMBA_NUM_THREADS

    def ready(self) -> Callable[..., None]:
        """Return `run`, compiled."""
        if self._compiled is None:
            self._describe = _describe.ready()
            self._compiled = kept(numba.cfunc, _i64(_i64), error_model="numpy")(self._function)
            self._call, self._address = self._compiled.ctypes, self._compiled.address
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
        """Run it over all positions. The kernel is handed addresses of arrays.

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
        parts = min(self._most, len(positions) * touched * 4 // _LEAST_BYTES) or 1
        blocks = np.empty((parts, _LENGTH), np.int64)
        first = self._describe(bases, codes, positions, width, values, touched, numbers, blocks)
        if parts == 1:
            self._call(first)
        else:
            self._run_parts(range(first, first + parts * _LENGTH * 8, _LENGTH * 8))

    def _run_parts(self, addresses: Sequence[int]) -> None:
        """Run the kernel with the block at each of `addresses`, and return when all are done."""
        create, join = _threads
        threads = []
        try:
            for address in addresses[1:]:
                thread = ctypes.c_void_p()
                if create(ctypes.byref(thread), None, self._address, address):
                    self._call(address)  # no thread is to be had
                else:
                    threads.append(thread)
            self._call(addresses[0])
        finally:  # they use memory of the caller's
            for thread in threads:
                join(thread, None)
