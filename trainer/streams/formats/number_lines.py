"""Compiled parser of lines that differ only in their numbers: JSON lines, CSV.

It complements pyarrow because it is 2.4 to 7 times as fast (JSON lines with 16 numbers in a list: 1,160,000 rows/s on a
core; pyarrow 250,000, orjson and NumPy 144,000).

A number becomes the float64 nearest to it, as Python and pyarrow read it: its digits are multiplied by a 128-bit power
of ten, which determines the rounding unless the result is too close to the midpoint of two floats. The parser rejects
such a result, a line of another shape, more than 19 digits, and numbers too large for exact integers in a float64.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types as nt
from numba.extending import intrinsic

from ...native.compiled import compiled, inlined

_LOWEST, _HIGHEST = -60, 40  # powers of ten in the table
# All uint64: Numba promotes mixed integer widths to float64, and wraps negative indices of signed ones.
_4, _8, _16, _24, _32, _52, _53, _63, _64 = map(np.uint64, (4, 8, 16, 24, 32, 52, 53, 63, 64))
_100, _1E4, _1E8 = map(np.uint64, (100, 10**4, 10**8))
_UPPER, _LOWER, _SIXES, _THREES = (np.uint64(byte * 0x0101010101010101) for byte in (0xF0, 0x0F, 0x06, 0x33))
_BYTES, _PAIRS = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
_ZERO, _ONE, _NINE, _10, _11, _CHAR_0 = map(np.uint64, (0, 1, 9, 10, 11, ord("0")))
_MOST_DIGITS = np.uint64(19)  # digits that always fit into 64 bits
_LONGEST, _LONGEST_POWER = np.uint64(48), np.uint64(4)  # maximum characters before an exponent, and of an exponent
_LOW_32, _FRACTION, _LARGEST_INTEGER = (np.uint64((1 << bits) - 1) for bits in (32, 52, 63))
_REST, _HALF = np.uint64(0x7FF), np.uint64(0x400)  # the bits below a float's 53, and half a unit in the last place
_CARRIED = np.uint64(0x1FF)  # if all are set, the second word of a power of ten may carry into the higher bits
_NEAR = np.uint64(2**64 - 4)  # the product is low by at most four units of its second word
_MINUS, _POINT, _PLUS, _LITTLE_E, _BIG_E, _LINE_END = (np.uint64(ord(character)) for character in "-.+eE\n")


@inlined
def _product(a, b):
    """Return the high and the low word of the product of two words, all uint64."""
    low = (a & _LOW_32) * (b & _LOW_32)
    middle = (a >> _32) * (b & _LOW_32) + (low >> _32)
    other = (a & _LOW_32) * (b >> _32) + (middle & _LOW_32)
    return (a >> _32) * (b >> _32) + (middle >> _32) + (other >> _32), (other << _32) | (low & _LOW_32)


@inlined
def _float_bits(digits, power, tens):
    """Return the bits of the float64 nearest to digits * 10**power; 1 if undecided."""
    bits = _ONE
    if digits == _ZERO:
        bits = _ZERO
    elif _LOWEST <= power <= _HIGHEST:
        shift = 0
        for width in (32, 16, 8, 4, 2, 1):
            if digits >> (_64 - np.uint64(width)) == _ZERO:
                digits <<= np.uint64(width)
                shift += width
        ten = tens + np.uint64(power - _LOWEST) * _24
        high, middle = _product(digits, _word(ten))
        if high & _CARRIED == _CARRIED:
            more, _ = _product(digits, _word(ten + _8))
            middle += more
            if middle < more:
                high += _ONE
        less = _ONE - (high >> _63)  # branchless: a branch would be mispredicted for every other number
        high = (high << less) | (middle >> _63) * less
        middle <<= less
        rest = high & _REST
        near = (rest == _HALF - _ONE and middle >= _NEAR) or (rest == _HALF and middle == _ZERO)
        mantissa = (high >> _11) + (rest >> _10)
        over = mantissa >> _53
        mantissa >>= over
        # mantissa * 2**(biased - 1075) is the number; 1075 is the bias of a float64 and the width of its fraction
        biased = 1075 + 139 + np.int64(_word(ten + _16)) - shift - np.int64(less) + np.int64(over)
        if not near and biased <= 1075:
            bits = (np.uint64(biased) << _52) | (mantissa & _FRACTION)
    return bits


def _load(bits: int) -> Any:
    """Return a loader of a `bits`-bit integer from an address; both are uint64."""

    @intrinsic
    def load(typing, address):
        def generate(context, builder, signature, arguments):
            kind = ir.IntType(bits)
            word = builder.load(builder.inttoptr(arguments[0], kind.as_pointer()), align=1)
            return word if bits == 64 else builder.zext(word, ir.IntType(64))

        return nt.uint64(nt.uint64), generate

    return load


# By address, because Numba reference-counts array arguments even of inlined functions.
_byte, _word = _load(8), _load(64)


@inlined
def _digits(at, number):
    """Append the digits at address `at` to `number`; return (next address, number)."""
    while True:
        word = _word(at)
        if (word & _UPPER) | (((word + _SIXES) & _UPPER) >> _4) != _THREES:  # not all are digits
            break
        word &= _LOWER
        word = (word * _10 + (word >> _8)) & _BYTES  # pairs of digits, then groups of four
        word = (word * _100 + (word >> _16)) & _PAIRS
        number = number * _1E8 + (word & _LOW_32) * _1E4 + (word >> _32)
        at += _8
    while True:
        digit = _byte(at) - _CHAR_0
        if digit > _NINE:  # or below "0": unsigned
            break
        number = number * _10 + digit
        at += _ONE
    return at, number


@inlined
def _scan(begin):
    """Parse the number at `begin`; return (next address or 0, digits, power, kind).

    Addresses and digits are uint64. Bit flags of the kind: 2 for an integer, 1 for a minus sign.
    """
    kind = np.int64(_byte(begin) == _MINUS)
    begin += np.uint64(kind)
    at, number = _digits(begin, _ZERO)
    # leading zeros do not count as digits; at most one is allowed before the point
    count, power = at - begin, 0
    wrong = at == begin or (_byte(begin) == _CHAR_0 and count > _ONE)
    if _byte(at) == _POINT:
        point = at + _ONE
        at = point
        count *= np.uint64(number != _ZERO)
        at, number = _digits(at, number)
        count += at - point
        if count > _MOST_DIGITS and count == at - point:
            while _byte(at - count) == _CHAR_0:
                count -= _ONE
        power = np.int64(point) - np.int64(at)
        wrong = wrong or at == point
    else:
        kind += 2
    wrong = wrong or count > _MOST_DIGITS or at - begin > _LONGEST
    if _byte(at) == _LITTLE_E or _byte(at) == _BIG_E:
        kind &= 1
        at += _ONE
        down = _byte(at) == _MINUS
        if down or _byte(at) == _PLUS:
            at += _ONE
        first = at
        at, exponent = _digits(at, _ZERO)
        wrong = wrong or at == first or at - first > _LONGEST_POWER
        power += -np.int64(exponent) if down else np.int64(exponent)
    return (_ZERO if wrong else at), number, power, kind


_bytes = nt.Array(nt.uint8, 1, "C", readonly=True)


@compiled(nt.int64(_bytes, nt.uint64[:, ::1], nt.int64[::1], nt.bool_[::1], nt.uint64[:, ::1], nt.uint64[:, ::1]))
def read_lines(data, pieces, ends, integers, tens, out):
    """Parse lines of one shape into `out`; return their number, or -1 if rejected.

    Args:
        data: uint8 [bytes + 8]; the last eight are padding.
        pieces: uint64 [pieces, 3], the text before each number and after the last, without line end, in pieces of at
            most eight bytes, each with a mask and its length; see `_pieces`.
        ends: int64 [numbers + 1], index after the last piece of each text.
        integers: bool [numbers], whether a number becomes an int64; else a float64.
        tens: see `_tens`.
        out: uint64 [lines, numbers], receives the bit patterns of the numbers.
    """
    at, powers = np.uint64(data.ctypes.data), np.uint64(tens.ctypes.data)
    end, numbers, rows = at + np.uint64(len(data)) - _8, len(integers), len(out)
    for row in range(rows):
        piece = 0
        for number in range(numbers + 1):
            # no text or number contains a line end, so nothing is read beyond the last one
            while piece < ends[number]:
                if (_word(at) ^ pieces[piece, 0]) & pieces[piece, 1] != _ZERO:
                    return -1
                at += pieces[piece, 2]
                piece += 1
            if number < numbers:
                at, digits, power, kind = _scan(at)
                if at == _ZERO or (kind == 3 and digits == _ZERO):
                    return -1
                if integers[number]:
                    if kind < 2 or digits > _LARGEST_INTEGER:
                        return -1
                    bits = ~digits + _ONE if kind & 1 else digits
                else:
                    bits = _float_bits(digits, power, powers)
                    if bits == _ONE:
                        return -1
                    bits |= np.uint64(kind & 1) << _63
                out[row, number] = bits
        if _byte(at) != _LINE_END:
            return -1
        at += _ONE
    return rows if at == end else -1


def _pieces(texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Encode texts for `read_lines`: (uint64 [pieces, 3], ends int64 [texts])."""
    pieces, ends = [], []
    for text in texts:
        for start in range(0, len(text), 8):
            part = text[start : start + 8]
            pieces.append((int.from_bytes(part, "little"), (1 << 8 * len(part)) - 1, len(part)))
        ends.append(len(pieces))
    return np.array(pieces, np.uint64).reshape(-1, 3), np.array(ends, np.int64)


@functools.cache
def _tens() -> np.ndarray:
    """Return powers of ten, uint64 [powers, 3]: 128 bits, high word first; exponent."""
    words = []
    for power in range(_LOWEST, _HIGHEST + 1):
        if power < 0:
            exponent = -127 - (10**-power).bit_length()
            bits = (1 << -exponent) // 10**-power
        else:
            exponent = (10**power).bit_length() - 128
            bits = 10**power >> exponent if exponent > 0 else 10**power << -exponent
        words.append((bits >> 64, bits & (2**64 - 1), exponent & (2**64 - 1)))
    return np.array(words, np.uint64)


@dataclass(frozen=True, slots=True)
class LineShape:
    """The text shared by all lines, and the fields between.

    Attributes:
        indices: field -> the indices of its values among the numbers of a line: an array of its shape, or a slice.
    """

    literals: Sequence[bytes]
    indices: dict[str, Any]

    def read(self, data: bytes, integers: Sequence[str]) -> dict[str, np.ndarray] | None:
        """Parse lines' fields: float64, or int64 for `integers`; None if one is rejected."""
        whole = np.zeros(len(self.literals) - 1, np.bool_)
        for name in self.indices.keys() & set(integers):
            whole[self.indices[name]] = True
        text = np.frombuffer(data + bytes(8), np.uint8)
        out = np.empty((np.count_nonzero(text == ord("\n")), len(whole)), np.uint64)
        if read_lines.ready()(text, *_pieces(self.literals), whole, _tens(), out) != len(out):
            return None
        return {
            name: out.view(np.int64 if name in integers else np.float64)[:, index]
            for name, index in self.indices.items()
        }


_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?[0-9][-+.0-9eE]*')


def json_shape(line: bytes, shapes: dict[str, tuple[int, ...]]) -> LineShape | None:
    """Return the shape of a JSON object line; None unless present fields fit `shapes`."""
    counter = itertools.count()
    try:
        row = json.loads(line.decode("utf-8"), parse_int=lambda _: next(counter), parse_float=lambda _: next(counter))
    except (ValueError, RecursionError):
        return None
    spans = [token.span() for token in _TOKEN.finditer(line) if token[0][:1] != b'"']
    if type(row) is not dict or len(spans) != next(counter):
        return None
    indices: dict[str, Any] = {}
    for name in row.keys() & shapes.keys():
        own = np.array(row[name], object)
        if own.shape != shapes[name] or not all(type(index) is int for index in own.flat):
            return None
        own = own.astype(np.int64)
        neighbours = own.ndim == 1 and (np.diff(own) == 1).all()  # a slice avoids copying the values
        indices[name] = slice(int(own[0]), int(own[-1]) + 1) if neighbours else own
    begins, ends = [0, *(end for _, end in spans)], [*(begin for begin, _ in spans), len(line)]
    return LineShape([line[begin:end] for begin, end in zip(begins, ends, strict=True)], indices)


def csv_shape(
    line: bytes, names: Sequence[str], shapes: dict[str, tuple[int, ...]], between: bytes, within: bytes
) -> LineShape:
    """Return the shape of CSV lines like `line`, split `between` and `within` fields."""
    literals, indices = [b""], {}
    for name in names:
        count = shapes[name][0] if shapes.get(name) else 1
        first = len(literals) - 1
        indices[name] = slice(first, first + count) if shapes.get(name) else np.array(first)
        literals += [within] * (count - 1) + [between]
    literals[-1] = b"\r" if line.endswith(b"\r") else b""
    return LineShape(literals, {name: indices[name] for name in shapes})
