"""Compiled loops that look up, add and remove ids, and hash strings.

Reading a random cell of a large map costs a cache miss, so the loops prefetch cells several ids ahead. Import this
module only where a table is used: it imports Numba.
"""

from __future__ import annotations

import numpy as np
from numba import types as nt

from ...native.compiled import compiled, inlined, pointer_to, prefetch

_AHEAD = 32  # number of ids to prefetch ahead

_i32, _i64 = nt.int32, nt.int64
_int64s, _int32s, _uint16s = pointer_to(_i64), pointer_to(_i32), pointer_to(nt.uint16)


@inlined
def _mix(x):
    x = np.uint64(x) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


_map = (_i64[::1], _i32[::1], nt.uint16[::1], _i64)
_WAYS = 8  # cells per bucket, as `id_map.WAYS`
_ZERO_KEY_ID = -0x61C8864680B583EB  # as `id_map.ZERO_KEY_ID`


@inlined
def _bucket(mask, hashed, choice):
    return np.int64((_mix(hashed ^ np.uint64(choice)) if choice else hashed) & mask)


@inlined
def _cell(keys, full_counts, mask, choices, key, hashed):
    """Return the cell of `key` in a table of `id_map.Buckets`; -1 if it is unknown."""
    cell = np.int64(-1)
    for choice in range(choices):
        bucket = _bucket(mask, hashed, choice)
        # Compare all cells without a branch: a branch taken half the time costs more than the comparisons.
        for way in range(_WAYS):
            cell = bucket * _WAYS + way if keys[bucket * _WAYS + way] == key else cell
        if cell >= 0 or full_counts[bucket] == 0:
            break
    return cell


@inlined
def _prefetch_cell(keys, rows, mask, hashed):
    """Prefetch the first bucket of an id; `keys` and `rows` are addresses."""
    bucket = np.int64(hashed & mask)
    prefetch(keys + bucket * (_WAYS * 8))
    prefetch(rows + bucket * (_WAYS * 4))


@compiled(_i64(*_map, _i64[::1], _i32[::1]))
def find_ids(keys, rows, full_counts, choices, ids, out):
    """Write the row of each id (int64 [n]) into `out` (int32 [n]), -1 if unknown.

    `keys` and `rows` hold the keys and rows of all cells, as `id_map.Buckets` stores them. `full_counts` counts, for
    each bucket, the ids that found it full. An id can be in one of `choices` buckets.
    """
    mask = np.uint64(len(full_counts) - 1)
    key_memory, row_memory = np.int64(keys.ctypes.data), np.int64(rows.ctypes.data)
    key_of, full_count_of = _int64s(key_memory), _uint16s(np.int64(full_counts.ctypes.data))
    for i in range(-_AHEAD, len(ids)):
        if i + _AHEAD < len(ids):
            _prefetch_cell(key_memory, row_memory, mask, _mix(ids[i + _AHEAD]))
        if i >= 0:
            cell = _cell(key_of, full_count_of, mask, choices, ids[i] ^ _ZERO_KEY_ID, _mix(ids[i]))
            out[i] = rows[cell] if cell >= 0 else -1
    return np.int64(len(ids))


MAP_LENGTH = 5  # length of the list that `id_map.IdMap.kernel_arguments` returns


@compiled(_i64(_i64[:, ::1], _i32[::1], _i64, _i64[::1], _i32[::1]))
def find_rows(maps, table_of, choices, ids, out):
    """Write the rows of several tables' ids into `out`; 0 for unknown ids.

    `ids` is int64 [n], `out` int32 [n]. Id i belongs to table `table_of[i % elements]` (int32 [elements]). `maps` holds
    the result of `id_map.IdMap.kernel_arguments` for each table.
    """
    elements = len(table_of)
    for i in range(-_AHEAD, len(ids)):
        if i + _AHEAD < len(ids):
            table = maps[table_of[(i + _AHEAD) % elements]]
            _prefetch_cell(table[1], table[2], np.uint64(table[4]), _mix(ids[i + _AHEAD]))
        if i >= 0:
            table = maps[table_of[i % elements]]
            key, hashed, row = ids[i] ^ _ZERO_KEY_ID, _mix(ids[i]), np.int64(-1)
            if key == 0:
                row = table[0]
            else:
                keys, full_counts = _int64s(table[1]), _uint16s(table[3])
                cell = _cell(keys, full_counts, np.uint64(table[4]), choices, key, hashed)
                if cell >= 0:
                    row = np.int64(_int32s(table[2])[cell])
            out[i] = max(row, 0)
    return np.int64(len(ids))


@inlined
def _free_cell(keys, full_counts, mask, choices, hashed):
    """Return a free cell for an unknown id, or -1; count the id in each full bucket."""
    cell = np.int64(hashed & mask) * _WAYS + np.int64(hashed >> np.uint64(61))
    if keys[cell] != 0:
        cell = np.int64(-1)
        for choice in range(choices):
            bucket = _bucket(mask, hashed, choice)
            for way in range(_WAYS):
                if keys[bucket * _WAYS + way] == 0:
                    cell = bucket * _WAYS + way
                    break
            if cell >= 0:
                break
            full_counts[bucket] += np.uint16(1)
    return cell


@compiled(_i64(*_map, _i64[::1], _i64, _i32[::1], _i64[::1]))
def get_or_add_ids(keys, rows, full_counts, choices, ids, first, out, new):
    """Look up ids like `find_ids`; give unknown ones the rows from `first` on.

    New rows are assigned in the order of first occurrence. Stops at the first id that finds no free cell or is
    `ZERO_KEY_ID`; `out` is -1 from there on. Writes the indices of new ids into `new` (int64 [n]) and returns their
    number.
    """
    mask = np.uint64(len(full_counts) - 1)
    key_memory, row_memory = np.int64(keys.ctypes.data), np.int64(rows.ctypes.data)
    key_of, full_count_of = _int64s(key_memory), _uint16s(np.int64(full_counts.ctypes.data))
    count = np.int64(0)
    stopped = False
    for i in range(-_AHEAD, len(ids)):
        if i + _AHEAD < len(ids):
            _prefetch_cell(key_memory, row_memory, mask, _mix(ids[i + _AHEAD]))
        if i >= 0:
            key = ids[i] ^ _ZERO_KEY_ID
            stopped = stopped or key == 0
            cell = np.int64(-1)
            if not stopped:
                cell = _cell(key_of, full_count_of, mask, choices, key, _mix(ids[i]))
                if cell < 0:
                    cell = _free_cell(key_of, full_count_of, mask, choices, _mix(ids[i]))
                    stopped = cell < 0
                    if not stopped:
                        rows[cell] = np.int32(first + count)  # first the row, because other threads may read the cell
                        keys[cell] = key
                        new[count] = i
                        count += 1
            out[i] = rows[cell] if cell >= 0 else -1
    return count


@compiled(_i64(*_map, _i64[::1], _i32[::1], _i64[::1]))
def insert_ids(keys, rows, full_counts, choices, ids, new_rows, overflow):
    """Put unknown `ids` and their `new_rows` into free cells; see `find_ids`.

    Writes the indices of ids that find no free cell into `overflow` (int64 [n]) and returns their number.
    """
    mask = np.uint64(len(full_counts) - 1)
    key_memory, row_memory = np.int64(keys.ctypes.data), np.int64(rows.ctypes.data)
    key_of, full_count_of = _int64s(key_memory), _uint16s(np.int64(full_counts.ctypes.data))
    count = np.int64(0)
    for i in range(-_AHEAD, len(ids)):
        if i + _AHEAD < len(ids):
            _prefetch_cell(key_memory, row_memory, mask, _mix(ids[i + _AHEAD]))
        if i >= 0:
            cell = _free_cell(key_of, full_count_of, mask, choices, _mix(ids[i]))
            if cell >= 0:
                rows[cell] = new_rows[i]
                keys[cell] = ids[i] ^ _ZERO_KEY_ID
            else:
                overflow[count] = i
                count += 1
    return count


@compiled(_i64(*_map, _i64[::1]))
def remove_ids(keys, rows, full_counts, choices, ids):
    """Clear the cells of distinct `ids`; return how many were known. See `find_ids`."""
    mask = np.uint64(len(full_counts) - 1)
    key_memory, row_memory = np.int64(keys.ctypes.data), np.int64(rows.ctypes.data)
    key_of, full_count_of = _int64s(key_memory), _uint16s(np.int64(full_counts.ctypes.data))
    count = np.int64(0)
    for i in range(-_AHEAD, len(ids)):
        if i + _AHEAD < len(ids):
            _prefetch_cell(key_memory, row_memory, mask, _mix(ids[i + _AHEAD]))
        if i >= 0:
            hashed = _mix(ids[i])
            cell = _cell(key_of, full_count_of, mask, choices, ids[i] ^ _ZERO_KEY_ID, hashed)
            if cell >= 0:
                keys[cell] = 0
                count += 1
                choice = 0
                while _bucket(mask, hashed, choice) != cell // _WAYS:
                    full_counts[_bucket(mask, hashed, choice)] -= np.uint16(1)
                    choice += 1
    return count


@compiled(_i64(nt.uint32[:, ::1], nt.uint64[::1]))
def hash_codes(codes, out):
    """Write the hashes of strings (uint32 [n, width], zero-padded) into `out`.

    `out` is uint64 [n]; `hashing.hash_strings` returns the same bits as int64.
    """
    count, width = codes.shape
    for i in range(count):
        result = np.uint64(0x243F6A8885A308D3)
        for k in range(width):
            if codes[i, k] != 0:
                result = _mix(result ^ np.uint64(codes[i, k]))
        out[i] = result
    return np.int64(count)


@compiled(_i64(nt.uint8[:, ::1], nt.uint64[::1]))
def hash_bytes(codes, out):
    """Hash ASCII strings (uint8) like `hash_codes`; return -1.

    Stops at the first string that is not ASCII, and returns its index.
    """
    count, width = codes.shape
    for i in range(count):
        result = np.uint64(0x243F6A8885A308D3)
        for k in range(width):
            if codes[i, k] >= 128:
                return np.int64(i)
            if codes[i, k] != 0:
                result = _mix(result ^ np.uint64(codes[i, k]))
        out[i] = result
    return np.int64(-1)
