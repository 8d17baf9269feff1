"""Compiled loops that read and update table rows.

Reading a random row of a large table costs a cache miss, so the loops prefetch rows several iterations ahead. Import
this module only where a table is used: it imports Numba.

`RowKernel` uses several cores, which would otherwise be idle: the loops mostly wait for memory, and the graph's other
operators wait for the loops. It starts operating system threads that each process a part of the rows. A thread lives
for one call, runs no Python code and never takes the GIL. Numba's `prange` was rejected: its OpenMP threads spin, it
took between half and three times as long on a busy machine, and without libgomp it aborts the process when two
operators of a graph read rows at the same time.

A rule is a function that handles one row, `rule(row, value, columns, hyperparameters)`. Its arguments are a pointer to
the packed row, a pointer to a value such as the row's gradient, the number of columns of the value, and a pointer to
the hyperparameters of the rule.

Numba recompiles a cached kernel when the kernel's own file changes, but not when a function from another file does.
`RowKernel` therefore checks that a cached kernel was compiled from the current `SOURCES`. The other kernels of this
file have no such check: after a change to `half_floats.py` alone, delete the `*.nbi` files of this module in
`__pycache__`.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numba
import numpy as np

from ...native.compiled import cached, compiled, inlined, pointer_to, prefetch, prefetch_lines
from .half_floats import narrow, rounding_key, widen

AHEAD = 32  # number of rows to prefetch ahead
ROW_BITS = 40  # a row code holds the table's index in the upper bits and the row in the lower 40; -1 means no row
_ROW = (1 << ROW_BITS) - 1
_MIN_BYTES = 1 << 19  # smallest part worth its own thread, because starting one takes 0.1 to 0.2 ms
_BLOCK_LENGTH = 14  # number of arguments that `_write_blocks` writes for each part
# Checksum of this module and half_floats.py, which are compiled into every row kernel.
SOURCES = zlib.crc32(b"".join(Path(__file__).with_name(name).read_bytes() for name in ("kernels.py", "half_floats.py")))

_i32, _i64, _f32 = numba.types.int32, numba.types.int64, numba.types.float32
_rows2 = _f32[:, ::1]
_floats, _int32s, _int64s = pointer_to(_f32), pointer_to(_i32), pointer_to(_i64)
_u64 = numba.types.uint64
_uint64s = pointer_to(_u64)
NO_KEYS = np.zeros(0, np.uint64)


@compiled(_i64(_rows2, _i32[::1], _rows2, _i64))
def gather(table, rows, out, halves):
    """Copy the first columns of the given `rows` of `table` into `out`.

    `table` is float32 [m, words], `rows` int32 [n] and `out` float32 [n, columns]. Row indices outside the table are
    clipped. The first `halves` columns of a table row are stored as float16, two per word.
    """
    count, columns = out.shape
    last, size = len(table) - 1, table.shape[1] * 4
    first = np.int64(table.ctypes.data)
    num_halves, shift = min(columns, halves), halves - (halves + 1) // 2
    to = np.int64(out.ctypes.data)
    for i in range(-AHEAD, count):
        if i + AHEAD < count:
            prefetch_lines(first + min(max(rows[i + AHEAD], 0), last) * size, columns * 4)
        if i >= 0:
            row = min(max(rows[i], 0), last)
            if num_halves:
                widen(first + row * size, _floats(to + i * columns * 4), num_halves)
            for column in range(num_halves, columns):
                out[i, column] = table[row, column - shift]
    return np.int64(count)


@compiled(_i64(_i64[:, ::1], _i32[::1], _i32[::1], _rows2))
def gather_of_tables(stores, table_of, rows, out):
    """Copy the first columns of several tables' rows into `out`, float32 [n, columns].

    `stores` (int64 [tables, 2]) holds the address of each table's rows and their number of columns. Output i is row
    `rows[i]` (int32 [n]) of table `table_of[i % elements]` (int32 [elements]).
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
def number_distinct(values, slots, distinct, first, inverse):
    """Number the distinct `values` in the order of their first occurrence.

    `values` are int32 [n], below the length of `slots`; -1 means no value. Writes the distinct values into `distinct`,
    the index of its first occurrence into `first`, and the number of every value into `inverse` (int32 [n]).
    Numbers count from 1; 0 means no value. Returns how many values are distinct.

    `slots` is a sparse set, which need not be initialized. Source: P. Briggs, L. Torczon, "An efficient representation
    for sparse sets", 1993.
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
    """Write the stochastic rounding key of each row: a hash of `seed` and its id.

    `ids` (int64 [m]) holds the id of every row of the table; `rows` is int32 [n], `keys` uint64 [n].
    """
    memory = np.int64(ids.ctypes.data)
    for i in range(-AHEAD, len(rows)):
        if i + AHEAD < len(rows):
            prefetch(memory + np.int64(rows[i + AHEAD]) * 8)
        if i >= 0:
            keys[i] = rounding_key(np.uint64(ids[rows[i]]) ^ seed, 1)
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
def _write_blocks(
    addresses, codes, positions, width, values, used_words, hyperparameters, halves, keys, step, scratch, blocks
):
    """Write a block of `each_row` arguments for each part; return the first's address."""
    count, parts = len(positions), len(blocks)
    for part in range(parts):
        block = blocks[part]
        block[0], block[1] = part * count // parts, (part + 1) * count // parts
        block[2], block[3], block[4] = addresses.ctypes.data, codes.ctypes.data, positions.ctypes.data
        block[5], block[6], block[7] = width, values.ctypes.data, values.shape[1]
        block[8], block[9] = used_words, hyperparameters.ctypes.data
        block[10], block[11] = halves, scratch.ctypes.data + part * scratch.shape[1] * 4
        block[12], block[13] = keys.ctypes.data if len(keys) else 0, step
    return np.int64(blocks.ctypes.data)


@inlined
def each_row(rule, fallback, block):
    """Call `rule` at positions with a row, and `fallback(value, columns)` elsewhere.

    `block` is the address of int64 values from `_write_blocks`: the first position, the position after the last, and
    the arguments of `RowKernel.run`. Returns `SOURCES`.
    """
    block = _int64s(block)
    begin, end, width, columns, used_words = block[0], block[1], block[5], block[7], block[8]
    addresses, codes, positions, values = _int64s(block[2]), _int64s(block[3]), _int32s(block[4]), block[6]
    hyperparameters = _floats(block[9])
    halves, scratch, keys, step = block[10], _floats(block[11]), block[12], block[13]
    weights = (halves + 1) // 2  # words that hold the float16 weights
    for i in range(begin - AHEAD, end):
        if begin <= i + AHEAD < end:
            code = codes[positions[i + AHEAD]]
            if code >= 0:
                prefetch_lines(addresses[code >> ROW_BITS] + (code & _ROW) * width * 4, used_words * 4)
        if i >= begin:
            code = codes[positions[i]]
            value = _floats(values + i * columns * 4)
            if code >= 0:
                address = addresses[code >> ROW_BITS] + (code & _ROW) * width * 4
                row, slots = _floats(address), _floats(address + weights * 4)
                if halves:
                    widen(address, scratch, halves)
                    for k in range(used_words - weights):
                        scratch[halves + k] = slots[k]
                    row = scratch
                rule(row, value, columns, hyperparameters)
                if keys:
                    narrow(scratch, address, halves, rounding_key(_uint64s(keys)[positions[i]], step))
                    for k in range(used_words - weights):
                        slots[k] = scratch[halves + k]
            else:
                fallback(value, columns)
    return np.int64(SOURCES)


@inlined
def _ignore(value, columns):
    pass


@inlined
def update_rows(rule, block):
    """Apply a row optimizer's `rule` to every row; its value is the gradient."""
    return each_row(rule, _ignore, block)


@inlined
def _clear(value, columns):
    for column in range(columns):
        value[column] = np.float32(0)


@inlined
def _copy(row, value, columns, hyperparameters):
    for column in range(columns):
        value[column] = row[column]


_library = ctypes.CDLL(None)  # ctypes releases the GIL during a call
_create_thread, _join_thread = _library.pthread_create, _library.pthread_join
_create_thread.argtypes, _join_thread.argtypes = [ctypes.c_void_p] * 4, [ctypes.c_void_p] * 2


class RowKernel:
    """A loop over rows, compiled on first use and divided among threads.

    The decorated function receives the address of a block, passes it to `each_row` and returns the result. Define it in
    the module of its rule, so that Numba recompiles it when the rule changes. Two positions must not change the same
    row, because threads work at the same time.
    """

    def __init__(self, function: Callable[[int], int]) -> None:
        self._function = function
        self._compiled: Any = None
        # The cores available to the process, or NUMBA_NUM_THREADS if it is set.
        self._max_threads: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]

    def ready(self) -> Callable[..., None]:
        """Compile the loop if necessary and return `run`."""
        if self._compiled is None:
            self._write_blocks = _write_blocks.ready()
            self._compiled = self._load_or_compile()
            self._call, self._address = self._compiled.ctypes, self._compiled.address
        return self.run

    def _load_or_compile(self) -> Any:
        empty_block = np.zeros(_BLOCK_LENGTH, np.int64)
        result = cached(numba.cfunc, _i64(_i64), error_model="numpy")(self._function)
        if result.ctypes(empty_block.ctypes.data) != SOURCES:  # the cached code is from another release
            result = numba.cfunc(_i64(_i64), error_model="numpy")(self._function)
        return result

    def run(
        self,
        addresses: np.ndarray,  # address of each table's rows, int64 [tables]
        codes: np.ndarray,  # row codes of a chunk, int64 [m]; see `ROW_BITS`
        positions: np.ndarray,  # indices into `codes`, int32 [n]
        width: int,  # 4-byte words per row
        values: np.ndarray,  # the value of each position, float32 [n, columns]
        used_words: int,  # words of a row that are read or written
        hyperparameters: np.ndarray,  # of the rule, float32
        halves: int = 0,  # number of float16 weights at the start of a row; the rule sees float32
        keys: np.ndarray = NO_KEYS,  # stochastic rounding key of each code, uint64 [m]; needed to write float16 weights
        step: int = 0,  # number of the update, which also seeds the random rounding
    ) -> None:
        """Run the kernel over all positions."""
        parts = min(self._max_threads, len(positions) * used_words * 4 // _MIN_BYTES) or 1
        blocks = np.empty((parts, _BLOCK_LENGTH), np.int64)
        scratch = np.empty((parts, width + halves), np.float32)  # one float32 row for each part
        rows, options = (addresses, codes, positions, width, values, used_words), (hyperparameters, halves, keys, step)
        first = self._write_blocks(*rows, *options, scratch, blocks)
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
                    self._call(address)  # the system has no more threads
                else:
                    threads.append(thread)
            self._call(addresses[0])
        finally:  # wait even after an error, because the threads use the caller's memory
            for thread in threads:
                _join_thread(thread, None)


@RowKernel
def read_rows(block):
    """Copy the first columns of each row to its value; write zeros if it has no row."""
    return each_row(_copy, _clear, block)
