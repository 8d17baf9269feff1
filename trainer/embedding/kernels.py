"""Loops over table rows in machine code: reading rows and updating them in place.

Random rows of a large table cost a cache miss each, so each row's cache lines are asked for some rows ahead
(`compiled.prefetch`). Import this module only where a table is used: it brings Numba along.
"""

from __future__ import annotations

import numpy as np
from numba import types as nt

from .compiled import compiled, inlined, pointer_to, prefetch
from .row_kernel import RowKernel

_AHEAD = 32
_LINE = 64  # bytes of a cache line

_f32, _i32, _i64 = nt.float32, nt.int32, nt.int64
_floats, _int32s, _int64s = pointer_to(_f32), pointer_to(_i32), pointer_to(_i64)
_rows2 = _f32[:, ::1]


@inlined
def _prefetch_row(address, size):
    """Ask for every cache line of the `size` bytes at `address`."""
    for offset in range(0, size, _LINE):
        prefetch(address + offset)
    prefetch(address + size - 1)


@compiled(_i64(_rows2, _i32[::1], _rows2))
def gather(table, rows, out):
    """Copy the first columns of `rows` of `table` (float32 [m, width]) into `out` (float32 [n, columns]).

    A row outside of the table reads its nearest one.
    """
    count, columns = out.shape
    last, size = len(table) - 1, table.shape[1] * 4
    first = np.int64(table.ctypes.data)
    for i in range(-_AHEAD, count):
        if i + _AHEAD < count:
            _prefetch_row(first + min(max(rows[i + _AHEAD], 0), last) * size, columns * 4)
        if i >= 0:
            row = min(max(rows[i], 0), last)
            for column in range(columns):
                out[i, column] = table[row, column]
    return np.int64(count)


@compiled(_i64(_i32[::1], _i32[::1], _i32[::1], _i32[::1], _i32[::1]))
def number(values, slots, distinct, first, inverse):
    """Number the distinct `values` (int32 [n], -1 for none) in the order of their first occurrence.

    A sparse set (P. Briggs, L. Torczon, "An efficient representation for sparse sets", 1993): what `slots` holds at
    first does not matter.

    Args:
        values: int32 [n], all below ``len(slots)``.
        slots: int32, working memory.
        distinct: int32 [>= number of distinct values], receives them.
        first: int32 [the same], receives the place of each one's first occurrence.
        inverse: int32 [n], receives the numbers, counting from 1; 0 for none.

    Returns:
        How many distinct values there are.
    """
    found = np.int64(0)
    memory = np.int64(slots.ctypes.data)
    for i in range(len(values)):
        if i + _AHEAD < len(values):
            prefetch(memory + np.int64(values[i + _AHEAD]) * 4)
        value = values[i]
        if value < 0:
            inverse[i] = 0
            continue
        slot = slots[value]
        if slot < 0 or slot >= found or distinct[slot] != value:
            slot = np.int32(found)
            slots[value] = slot
            distinct[found] = value
            first[found] = i
            found += 1
        inverse[i] = slot + 1
    return found


# Codes say which row of which of several tables: the table above, the row below. -1 is no row.
ROW_BITS = 40
_ROW = (1 << ROW_BITS) - 1


@compiled(_i64(_i32[::1], _rows2, _rows2))
def add_rows(places, values, sums):
    """Add `values` (float32 [n, columns]) to the rows of `sums` at `places` (int32 [n]), one after the other."""
    count, columns = values.shape
    for i in range(count):
        row = places[i]
        for column in range(columns):
            sums[row, column] += values[i, column]
    return np.int64(count)


@inlined
def _each(rule, otherwise, block):
    """Call `rule` with every row, what goes with it, the columns of that and the numbers; `otherwise` where is none.

    `block` is the address of what `RowKernel.run` lists.
    """
    block = _int64s(block)
    begin, end, width, columns, touched = block[0], block[1], block[5], block[7], block[8]
    bases, codes, positions, values = _int64s(block[2]), _int64s(block[3]), _int32s(block[4]), block[6]
    numbers = _floats(block[9])
    for i in range(begin - _AHEAD, end):
        if begin <= i + _AHEAD < end:
            code = codes[positions[i + _AHEAD]]
            if code >= 0:
                _prefetch_row(bases[code >> ROW_BITS] + (code & _ROW) * width * 4, touched * 4)
        if i >= begin:
            code = codes[positions[i]]
            value = _floats(values + i * columns * 4)
            if code >= 0:
                rule(_floats(bases[code >> ROW_BITS] + (code & _ROW) * width * 4), value, columns, numbers)
            else:
                otherwise(value, columns)
    return np.int64(end - begin)


@inlined
def _leave(value, columns):
    pass


@inlined
def _clear(value, columns):
    for column in range(columns):
        value[column] = np.float32(0)


@inlined
def _copy(row, value, columns, numbers):
    for column in range(columns):
        value[column] = row[column]


@inlined
def _sgd(row, gradient, dim, numbers):
    rate = numbers[0]
    for k in range(dim):
        row[k] = row[k] - rate * gradient[k]


@inlined
def _adagrad(row, gradient, dim, numbers):
    rate, one = numbers[0], np.float32(1)
    for k in range(dim):
        accumulated = row[dim + k] + gradient[k] * gradient[k]
        row[dim + k] = accumulated
        row[k] = row[k] - rate * gradient[k] * (one / np.sqrt(accumulated))


@inlined
def _adagrad_row_wise(row, gradient, dim, numbers):
    rate, squares = numbers[0], np.float32(0)
    for k in range(dim):
        squares += gradient[k] * gradient[k]
    accumulated = row[dim] + squares / np.float32(dim)
    row[dim] = accumulated
    root = np.float32(1) / np.sqrt(accumulated)
    for k in range(dim):
        row[k] = row[k] - rate * gradient[k] * root


@inlined
def _adam(row, gradient, dim, numbers):
    rate, one_less, two_less, eps = numbers[0], numbers[1], numbers[2], numbers[3]
    for k in range(dim):
        first = row[dim + k] + one_less * (gradient[k] - row[dim + k])
        second = row[2 * dim + k] + two_less * (gradient[k] * gradient[k] - row[2 * dim + k])
        row[dim + k] = first
        row[2 * dim + k] = second
        row[k] = row[k] - rate * first / (np.sqrt(second) + eps)


@inlined
def _ftrl(row, gradient, dim, numbers):
    rate, power, l1, l2_twice = numbers[0], numbers[1], numbers[2], numbers[3]
    for k in range(dim):
        old = row[dim + k]
        accumulated = old + gradient[k] * gradient[k]
        if power == np.float32(0.5):
            new_power, old_power = np.sqrt(accumulated), np.sqrt(old)
        else:
            new_power, old_power = accumulated**power, old**power
        linear = row[2 * dim + k] + gradient[k] - (new_power - old_power) / rate * row[k]
        row[dim + k] = accumulated
        row[2 * dim + k] = linear
        if linear > l1:
            row[k] = (l1 - linear) / (new_power / rate + l2_twice)
        elif linear < -l1:
            row[k] = (-l1 - linear) / (new_power / rate + l2_twice)
        else:
            row[k] = np.float32(0)


@RowKernel
def read_rows(block):
    """Copy the first columns of rows of several tables into `values`; zeros where there is none."""
    return _each(_copy, _clear, block)


@RowKernel
def update_sgd(block):
    """Apply `RowSGD` to every row in place; its gradient is in `values`, the learning rate the first of `numbers`."""
    return _each(_sgd, _leave, block)


@RowKernel
def update_adagrad(block):
    """Apply `RowAdagrad`; see `update_sgd`."""
    return _each(_adagrad, _leave, block)


@RowKernel
def update_adagrad_row_wise(block):
    """Apply `RowAdagrad` with one accumulator per row; see `update_sgd`."""
    return _each(_adagrad_row_wise, _leave, block)


@RowKernel
def update_adam(block):
    """Apply `RowAdam`; 1 - beta1, 1 - beta2 and eps follow the learning rate; see `update_sgd`."""
    return _each(_adam, _leave, block)


@RowKernel
def update_ftrl(block):
    """Apply `RowFTRL`; -lr_power, l1 and 2 * l2 follow the learning rate; see `update_sgd`."""
    return _each(_ftrl, _leave, block)
