"""Weights kept as float16: read as float32, written with stochastic rounding.

A weight between two neighbouring float16 values becomes one of them, each with the probability that makes the mean
exact: updates smaller than half the distance, which rounding to nearest would drop, still add up. Source: S. Gupta et
al., "Deep learning with limited numerical precision", ICML 2015, section 3. What is drawn is a hash of the table's
seed, the id, the update's number and the column: a replay draws the same, regardless of the rest of the batch.

The conversions are integer arithmetic: neither the processor's rounding mode nor its treatment of subnormal numbers
changes them, and loops over them become vector instructions.
"""

from __future__ import annotations

import numba
import numpy as np

from ...native.compiled import bits_of, float_of, inlined, pointer_to

_LARGEST_VALUE = 65504.0  # the largest finite float16; weights beyond it, infinities included, become it
# Optimized separately: a caller's loop may be too large for vector instructions.
_separate = numba.njit(nogil=True, error_model="numpy")
_uint16s = pointer_to(numba.types.uint16)
_SIGN, _MAGNITUDE = np.uint32(0x8000), np.uint32(0x7FFF)
_BIAS = np.uint32((127 - 15) << 23)
_INFINITE = np.uint32(0x7C00)  # float16 patterns from here on are not finite
_LARGEST, _NAN = np.uint32(0x7BFF), np.uint32(0x7E00)
_SMALLEST_NORMAL, _SUBNORMALS = np.uint32(0x0400), np.float32(0x0400)
_STEP, _STEPS = np.float32(2.0**-24), np.float32(2.0**24)  # the distance of subnormal float16 numbers
_SHIFT, _KEPT = np.uint32(13), np.uint32(32 - 13)  # a float16 lacks 13 bits of a float32


def rounded(values: np.ndarray) -> np.ndarray:
    """Return float32 `values` as the nearest finite float16; NaN stays NaN."""
    return np.clip(values, -_LARGEST_VALUE, _LARGEST_VALUE).astype(np.float16)


@_separate
def widen(address, to, count):
    """Write `count` float16 numbers at `address` as float32 to the pointer `to`."""
    halves = _uint16s(address)
    for k in range(count):
        half = np.uint32(halves[k])
        magnitude = np.uint32(half & _MAGNITUDE)
        bits = np.uint32((magnitude << _SHIFT) + _BIAS)
        value = float_of(bits)
        if magnitude < _SMALLEST_NORMAL:
            value = np.float32(np.int32(magnitude)) * _STEP
        if magnitude >= _INFINITE:
            value = float_of(np.uint32(bits + _BIAS))
        to[k] = float_of(np.uint32(bits_of(value) | np.uint32((half & _SIGN) << np.uint32(16))))


@inlined
def _rounded_half(value, drawn):
    """Return the float16 that 32 random bits choose for a float32, as uint32."""
    bits = bits_of(value)
    magnitude = np.uint32(bits & np.uint32(0x7FFFFFFF))
    # a float16 is the upper bits of a float32: what is added to the lower ones carries with their probability
    half = np.uint32(np.uint32(magnitude + np.uint32(drawn >> _KEPT) - _BIAS) >> _SHIFT)
    steps = min(float_of(magnitude) * _STEPS, _SUBNORMALS)
    whole = np.int32(steps)
    up = np.float32(np.int32(drawn >> np.uint32(8))) * _STEP < steps - np.float32(whole)
    if steps < _SUBNORMALS:
        half = np.uint32(whole + np.int32(up))
    half = np.uint32(min(half, _LARGEST))
    if magnitude > np.uint32(0x7F800000):
        half = _NAN
    return np.uint32(half | np.uint32(np.uint32(bits >> np.uint32(16)) & _SIGN))


@_separate
def narrow(values, address, count, key):
    """Write `count` float32 numbers of the pointer `values` as float16 to `address`.

    What rounds them is drawn from `key` (uint64), whose bits are random: the columns' draws are an arithmetic
    progression modulo 2^32 whose first term and difference are its halves, of which any two are independent.
    """
    halves = _uint16s(address)
    first, difference = np.uint32(key), np.uint32(key >> np.uint64(32))
    for k in range(count):
        halves[k] = np.uint16(_rounded_half(values[k], np.uint32(first + np.uint32(k) * difference)))


@inlined
def mixed(key, step):
    """Return the key of a row's update, uint64, from the row's key and the number."""
    x = np.uint64(key) + np.uint64(step) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
