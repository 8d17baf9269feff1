"""Compiled loops over table rows; loops over several tables use several cores.

A random row of a large table costs a cache miss, so the cache lines of rows are prefetched several rows ahead. Import
this module only where a table is used: it imports Numba.

The loops mostly wait for memory, and the operators of the graph wait for the loops, so the other cores are idle.
Operating system threads therefore process a part of the rows each; they live for one call, run no Python and never take
the GIL. Numba's `prange`, whose OpenMP threads spin, took from half to three times as long on a busy machine, and
without libgomp it aborts the process when operators of a graph read two stacks at once.

A rule is a function for one row, `rule(row, value, columns, numbers)`: pointers to the packed row and to its value, the
columns of that value, and a pointer to the kernel's parameters. Numba recompiles a kernel when its own file changes,
not when a loop in another file does, so `RowKernel` asks cached ones for the `SOURCES` that they are made of. After a
change of only `half_floats` delete the `*.nbi` files of this module in `__pycache__`.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numba
import numpy as np

from ...native.compiled import compiled, inlined, kept, pointer_to, prefetch, prefetch_lines
from .half_floats import mixed, narrow, widen

AHEAD = 32  # rows prefetched ahead
ROW_BITS = 40  # a code holds the table in the upper bits and the row in the lower ones; -1 is no row
_ROW = (1 << ROW_BITS) - 1
_MIN_BYTES = 1 << 19  # least size of a part: starting a thread takes 0.1 to 0.2 ms
_BLOCK_LENGTH = 14
# Checksum of this module and half_floats.py: both are part of every row kernel's code.
SOURCES = zlib.crc32(b"".join(Path(__file__).with_name(name).read_bytes() for name in ("kernels.py", "half_floats.py")))

_i32, _i64, _f32 = numba.types.int32, numba.types.int64, numba.types.float32
_rows2 = _f32[:, ::1]
_floats, _int32s, _int64s = pointer_to(_f32), pointer_to(_i32), pointer_to(_i64)
_u64 = numba.types.uint64
_uint64s = pointer_to(_u64)
NO_KEYS = np.zeros(0, np.uint64)


@compiled(_i64(_rows2, _i32[::1], _rows2, _i64))
def gather(table, rows, out, halves):
    """Copy the first columns of rows of `table` (float32 [m, words]) into `out`.

    `out` is float32 [n, columns]. An index outside the table is clipped. The first `halves` columns of a row are kept
    as float16, two in a word.
    """
    count, columns = out.shape
    last, size = len(table) - 1, table.shape[1] * 4
    first = np.int64(table.ctypes.data)
    own, shift = min(columns, halves), halves - (halves + 1) // 2
    to = np.int64(out.ctypes.data)
    for i in range(-AHEAD, count):
        if i + AHEAD < count:
            prefetch_lines(first + min(max(rows[i + AHEAD], 0), last) * size, columns * 4)
        if i >= 0:
            row = min(max(rows[i], 0), last)
            if own:
                widen(first + row * size, _floats(to + i * columns * 4), own)
            for column in range(own, columns):
                out[i, column] = table[row, column - shift]
    return np.int64(count)


@compiled(_i64(_i64[:, ::1], _i32[::1], _i32[::1], _rows2))
def gather_of_tables(stores, table_of, rows, out):
    """Copy the first columns of several tables' rows into `out`, float32 [n, columns].

    `stores` holds the address of each table's rows and the columns of a row, int64 [tables, 2]; `table_of` the table of
    each element, int32 [elements], which repeat; `rows` the row of each position, int32 [n], within its table.
    """
    count, columns = out.shape
    elements = len(table_of)
    for i in range(-AHEAD, count):
        if i + AHEAD < count:
            store = stores[table_of[(i + AHEAD) % elements]]
            prefetch_lines(store[0] + np.int64(rows[i + AHEAD]) * store[1] * 4, columns * 4)
        if i >= 0:
            store = stores[table_of[i % elements]]
            row = _floats(store[0] + np.int64(rows[i]) * store[1] * 4)
            for column in range(columns):
                out[i, column] = row[column]
    return np.int64(count)


@compiled(_i64(_i32[::1], _i32[::1], _i32[::1], _i32[::1], _i32[::1]))
def number(values, slots, distinct, first, inverse):
    """Number distinct `values` (int32 [n], -1: none) in order of first occurrence.

    A sparse set (P. Briggs, L. Torczon, "An efficient representation for sparse sets", 1993): `slots` need not be
    initialized, and all values lie below its length. Writes the distinct values, the index of the first occurrence of
    each, and into `inverse` (int32 [n]) the numbers, counting from 1, 0 for none. Returns how many are distinct.
    """
    count = np.int64(0)
    memory = np.int64(slots.ctypes.data)
    for i in range(len(values)):
        if i + AHEAD < len(values):
            prefetch(memory + np.int64(values[i + AHEAD]) * 4)
        value = values[i]
        if value < 0:
            inverse[i] = 0
            continue
        slot = slots[value]
        if slot < 0 or slot >= count or distinct[slot] != value:
            slot = np.int32(count)
            slots[value] = slot
            distinct[count] = value
            first[count] = i
            count += 1
        inverse[i] = slot + 1
    return count


@compiled(_i64(_i64[::1], _i32[::1], _u64, _u64[::1]))
def draw_keys(ids, rows, seed, keys):
    """Write a stochastic rounding key per row: a hash of `seed` and the row's id.

    `ids` are those of all rows of a table, int64 [m]; `rows` int32 [n], `keys` uint64 [n].
    """
    memory = np.int64(ids.ctypes.data)
    for i in range(-AHEAD, len(rows)):
        if i + AHEAD < len(rows):
            prefetch(memory + np.int64(rows[i + AHEAD]) * 8)
        if i >= 0:
            keys[i] = mixed(np.uint64(ids[rows[i]]) ^ seed, 1)
    return np.int64(len(rows))


@compiled(_i64(_i32[::1], _rows2, _rows2))
def add_rows(indices, values, sums):
    """Add `values` [n, columns] to `sums` at `indices` (int32 [n]), sequentially."""
    count, columns = values.shape
    for i in range(count):
        row = indices[i]
        for column in range(columns):
            sums[row, column] += values[i, column]
    return np.int64(count)


@compiled(
    _i64(_i64[::1], _i64[::1], _i32[::1], _i64, _rows2, _i64, _f32[::1], _i64, _u64[::1], _i64, _rows2, _i64[:, ::1]),
    nogil=False,
)
def _describe(bases, codes, positions, width, values, touched, numbers, halves, keys, step, scratch, blocks):
    """Fill `blocks` (int64 [parts, length]) for `each_row`; return their address."""
    count, parts = len(positions), len(blocks)
    for part in range(parts):
        block = blocks[part]
        block[0], block[1] = part * count // parts, (part + 1) * count // parts
        block[2], block[3], block[4] = bases.ctypes.data, codes.ctypes.data, positions.ctypes.data
        block[5], block[6], block[7] = width, values.ctypes.data, values.shape[1]
        block[8], block[9] = touched, numbers.ctypes.data
        block[10], block[11] = halves, scratch.ctypes.data + part * scratch.shape[1] * 4
        block[12], block[13] = keys.ctypes.data if len(keys) else 0, step
    return np.int64(blocks.ctypes.data)


@inlined
def each_row(rule, otherwise, block):
    """Call `rule` for positions with a row, `otherwise(value, columns)` for others.

    Returns `SOURCES`. `block` is the address of int64 values: first position, position after the last, then the
    arguments of `RowKernel.run`.
    """
    block = _int64s(block)
    begin, end, width, columns, touched = block[0], block[1], block[5], block[7], block[8]
    bases, codes, positions, values = _int64s(block[2]), _int64s(block[3]), _int32s(block[4]), block[6]
    numbers = _floats(block[9])
    halves, scratch, keys, step = block[10], _floats(block[11]), block[12], block[13]
    weights = (halves + 1) // 2  # words that hold them
    for i in range(begin - AHEAD, end):
        if begin <= i + AHEAD < end:
            code = codes[positions[i + AHEAD]]
            if code >= 0:
                prefetch_lines(bases[code >> ROW_BITS] + (code & _ROW) * width * 4, touched * 4)
        if i >= begin:
            code = codes[positions[i]]
            value = _floats(values + i * columns * 4)
            if code >= 0:
                address = bases[code >> ROW_BITS] + (code & _ROW) * width * 4
                row, slots = _floats(address), _floats(address + weights * 4)
                if halves:
                    widen(address, scratch, halves)
                    for k in range(touched - weights):
                        scratch[halves + k] = slots[k]
                    row = scratch
                rule(row, value, columns, numbers)
                if keys:
                    narrow(scratch, address, halves, mixed(_uint64s(keys)[positions[i]], step))
                    for k in range(touched - weights):
                        slots[k] = scratch[halves + k]
            else:
                otherwise(value, columns)
    return np.int64(SOURCES)


@inlined
def _leave(value, columns):
    pass


@inlined
def update_rows(rule, block):
    """Apply a row optimizer's `rule` to every row; its value is the gradient."""
    return each_row(rule, _leave, block)


@inlined
def _clear(value, columns):
    for column in range(columns):
        value[column] = np.float32(0)


@inlined
def _copy(row, value, columns, numbers):
    for column in range(columns):
        value[column] = row[column]


_library = ctypes.CDLL(None)  # calls its functions without the GIL
_create_thread, _join_thread = _library.pthread_create, _library.pthread_join
_create_thread.argtypes, _join_thread.argtypes = [ctypes.c_void_p] * 4, [ctypes.c_void_p] * 2


class RowKernel:
    """A loop over rows, compiled on first use; threads may share it in parts.

    Its function calls `each_row` with its address argument and returns the result. It is defined in the module of its
    rule, and parts must be independent.
    """

    def __init__(self, function: Callable[[int], int]) -> None:
        self._function = function
        self._compiled: Any = None
        # Numba's setting: the cores available to the process, or NUMBA_NUM_THREADS.
        self._most: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]

    def ready(self) -> Callable[..., None]:
        """Return `run`, compiled."""
        if self._compiled is None:
            self._describe = _describe.ready()
            self._compiled = self._of_these_sources()
            self._call, self._address = self._compiled.ctypes, self._compiled.address
        return self.run

    def _of_these_sources(self) -> Any:
        nothing = np.zeros(_BLOCK_LENGTH, np.int64)
        result = kept(numba.cfunc, _i64(_i64), error_model="numpy")(self._function)
        if result.ctypes(nothing.ctypes.data) != SOURCES:  # an older release compiled it
            result = numba.cfunc(_i64(_i64), error_model="numpy")(self._function)
        return result

    def run(
        self,
        bases: np.ndarray,  # address of each table's rows, int64 [tables]
        codes: np.ndarray,  # the rows of a chunk, int64 [m]; see `ROW_BITS`
        positions: np.ndarray,  # indices into `codes`, int32 [n]
        width: int,  # words (of 4 bytes) of a row
        values: np.ndarray,  # the value of each position, float32 [n, columns]
        touched: int,  # words of a row that are read or written
        numbers: np.ndarray,  # parameters of the rule, float32
        halves: int = 0,  # weights that a row begins with as float16; the rule sees float32
        keys: np.ndarray = NO_KEYS,  # stochastic rounding key for each of `codes`, uint64 [m]; none: read only
        step: int = 0,  # number of the update, which it is drawn from, too
    ) -> None:
        """Run the kernel over all positions."""
        parts = min(self._most, len(positions) * touched * 4 // _MIN_BYTES) or 1
        blocks = np.empty((parts, _BLOCK_LENGTH), np.int64)
        scratch = np.empty((parts, width + halves), np.float32)  # a row as the rule sees it, for each part
        about = (bases, codes, positions, width, values, touched, numbers, halves, keys, step, scratch)
        first = self._describe(*about, blocks)
        if parts == 1:
            self._call(first)
        else:
            self._run_parts(range(first, first + blocks.nbytes, blocks.strides[0]))

    def _run_parts(self, addresses: Sequence[int]) -> None:
        """Run the kernel on the block at each of `addresses`; return when all are done."""
        threads = []
        try:
            for address in addresses[1:]:
                thread = ctypes.c_void_p()
                if _create_thread(ctypes.byref(thread), None, self._address, address):
                    self._call(address)  # no more threads available
                else:
                    threads.append(thread)
            self._call(addresses[0])
        finally:  # the threads use the caller's memory
            for thread in threads:
                _join_thread(thread, None)


@RowKernel
def read_rows(block):
    """Copy the first columns of tables' rows to the values; zeros without a row."""
    return each_row(_copy, _clear, block)
