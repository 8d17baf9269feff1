"""Store weights as float16: widen them to read, round them at random to write.

A weight between two neighbouring float16 values is rounded to one of them at random, with the probabilities that keep
its mean exact. Small updates, which rounding to nearest would drop, therefore still add up. Source: S. Gupta et al.,
"Deep learning with limited numerical precision", ICML 2015, section 3. The random bits are a hash of the table's seed,
the id, the number of the update and the column. A replay therefore rounds in the same way, whatever else is in the
batch.

The conversions use integer arithmetic. They do not depend on the processor's rounding mode or its treatment of
subnormal numbers, and the compiler can vectorize loops over them.
"""

from __future__ import annotations

import numba
import numpy as np

from ...native.compiled import bits_of, float_of, inlined, pointer_to

_LARGEST_VALUE = 65504.0  # largest finite float16; larger weights and infinities are clipped to it
# Not inlined, because the compiler might not vectorize them within a large loop.
_not_inlined = numba.njit(nogil=True, error_model="numpy")
_uint16s = pointer_to(numba.types.uint16)
_SIGN, _MAGNITUDE = np.uint32(0x8000), np.uint32(0x7FFF)
_BIAS = np.uint32((127 - 15) << 23)
_INFINITE = np.uint32(0x7C00)  # float16 patterns from here on are not finite
_LARGEST, _NAN = np.uint32(0x7BFF), np.uint32(0x7E00)
_SMALLEST_NORMAL, _SUBNORMALS = np.uint32(0x0400), np.float32(0x0400)
_STEP, _STEPS = np.float32(2.0**-24), np.float32(2.0**24)  # distance between subnormal float16 numbers, its inverse
_SHIFT, _DISCARDED = np.uint32(13), np.uint32(32 - 13)  # a float16 has 13 fraction bits fewer than a float32


def rounded(values: np.ndarray) -> np.ndarray:
    """Return float32 `values` as the nearest finite float16; NaN stays NaN."""
    return np.clip(values, -_LARGEST_VALUE, _LARGEST_VALUE).astype(np.float16)


@_not_inlined
def widen(address, to, count):
    """Convert `count` float16 numbers at `address` to float32 at the pointer `to`."""
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
def _rounded_half(value, random_bits):
    """Round a float32 to float16 using 32 random bits; return the float16's bits."""
    bits = bits_of(value)
    magnitude = np.uint32(bits & np.uint32(0x7FFFFFFF))
    # A float16 keeps the upper bits of a float32. Adding random bits to the lower ones produces a carry, which rounds
    # up, with the right probability.
    half = np.uint32(np.uint32(magnitude + np.uint32(random_bits >> _DISCARDED) - _BIAS) >> _SHIFT)
    steps = min(float_of(magnitude) * _STEPS, _SUBNORMALS)
    whole = np.int32(steps)
    up = np.float32(np.int32(random_bits >> np.uint32(8))) * _STEP < steps - np.float32(whole)
    if steps < _SUBNORMALS:
        half = np.uint32(whole + np.int32(up))
    half = np.uint32(min(half, _LARGEST))
    if magnitude > np.uint32(0x7F800000):
        half = _NAN
    return np.uint32(half | np.uint32(np.uint32(bits >> np.uint32(16)) & _SIGN))


@_not_inlined
def narrow(values, address, count, key):
    """Round `count` float32 numbers at the pointer `values` to float16 at `address`.

    The random bits come from `key`, a random uint64: its halves are the first term and the difference of an arithmetic
    progression modulo 2^32, whose terms are the random bits of the columns. Any two terms are independent in their
    upper bits.
    """
    halves = _uint16s(address)
    first, difference = np.uint32(key), np.uint32(key >> np.uint64(32))
    for k in range(count):
        halves[k] = np.uint16(_rounded_half(values[k], np.uint32(first + np.uint32(k) * difference)))


@inlined
def rounding_key(key, step):
    """Derive the rounding key (uint64) of update number `step` from the row's key."""
    x = np.uint64(key) + np.uint64(step) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
