"""Buckets: the few sizes that batches, lists and distinct rows are padded to.

Each size in a graph requires a program of its own.
"""

from __future__ import annotations


def bucket(count: int, per_octave: int = 1, *, least: int = 1, coarse: int = 0) -> int:
    """Return `count` rounded up to a bucket.

    Buckets are the powers of two, and above `coarse` also the sizes that divide the way from each to the next one into
    `per_octave` equal parts. All are multiples of `least`.

    Args:
        count: what has to fit, >= 0.
        per_octave: a power of two.
        least: the smallest bucket, a power of two.
        coarse: count up to which only powers of two are buckets.
    """
    octave = 1 << max(0, (count - 1).bit_length() - 1)
    step = max(least, octave // (per_octave if count > coarse else 1))
    return -(-max(1, count) // step) * step
