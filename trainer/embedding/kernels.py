"""Loops over table rows in machine code: reading rows, updating them in place, finding ids.

Random rows of a large table cost a cache miss each. The kernels work in blocks: all cache lines of a block are touched
first, so that the misses overlap, then the block is computed. Import this module only where a table is used: it brings
Numba along.
"""

from __future__ import annotations

import numpy as np
from numba import types as nt

from .compiled import compiled

_BLOCK = 64
_LINE = 16  # float32 of a cache line

_f32, _i32, _i64 = nt.float32, nt.int32, nt.int64
_rows2 = _f32[:, ::1]


@compiled(_f32(_rows2, _i32[::1], _rows2))
def gather(table, rows, out):
    """Copy the first columns of `rows` of `table` (float32 [m, width]) into `out` (float32 [n, columns]).

    A row outside of the table reads its nearest one.
    Returns a number without meaning: it keeps the touching of cache lines from being removed as useless.
    """
    count, columns = out.shape
    last = len(table) - 1
    touched = np.float32(0)
    for start in range(0, count, _BLOCK):
        stop = min(start + _BLOCK, count)
        for i in range(start, stop):
            row = min(max(rows[i], 0), last)
            for column in range(0, columns, _LINE):
                touched += table[row, column]
        for i in range(start, stop):
            row = min(max(rows[i], 0), last)
            for column in range(columns):
                out[i, column] = table[row, column]
    return touched
