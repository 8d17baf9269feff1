"""Hash ids: strings to integers, initial values of rows, owners of rows."""

from __future__ import annotations

import contextlib
import decimal
import hashlib
from dataclasses import dataclass

import numpy as np

from ...errors import DataError

# Constants of SplitMix64, see `mix64`.
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31, _S32, _S40 = (np.uint64(n) for n in (27, 30, 31, 32, 40))

INITIALIZERS = ("normal", "uniform", "zeros")


def mix64(x: np.ndarray) -> np.ndarray:
    """Return the SplitMix64 finalizer of `x`, a bijection of uint64.

    Each input bit flips half of the output bits on average.

    Source: G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.

    Args:
        x: uint64 or int64 array of any shape; not changed.
    """
    x = np.asarray(x).view(np.uint64) + _GAMMA
    x ^= x >> _S30
    x *= _M1
    x ^= x >> _S27
    x *= _M2
    x ^= x >> _S31
    return x


def stable_seed(*parts: object) -> int:
    """Return a 64-bit hash of the text of `parts`, the same on every machine."""
    text = "\x1f".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def hash_strings(values: np.ndarray) -> np.ndarray:
    """Return an int64 hash per string (dtype U, S or object), independent of padding.

    Bytes are read as UTF-8, so ``b"a"`` and ``"a"`` are the same id; other bytes are ids too. Among 10**7 different
    strings, the probability of any collision is about 3e-6.
    """
    if values.dtype.kind == "O":
        texts = [v.decode("utf-8", "surrogateescape") if isinstance(v, bytes) else str(v) for v in values.ravel()]
        values = np.asarray(texts).reshape(values.shape)
    from . import id_kernels

    result = np.empty(values.size, np.uint64)
    if values.dtype.kind == "S":
        codes = _characters(values, np.uint8)
        if id_kernels.hash_bytes.ready()(codes, result) < 0:
            return result.view(np.int64).reshape(values.shape)
        values = np.char.decode(values, "utf-8", "surrogateescape")
    id_kernels.hash_codes.ready()(_characters(values, np.uint32), result)
    return result.view(np.int64).reshape(values.shape)


def _characters(values: np.ndarray, dtype: type) -> np.ndarray:
    """Return the characters of strings, [n, width], zero-padded."""
    width = values.dtype.itemsize // np.dtype(dtype).itemsize
    if not width:
        return np.zeros((values.size, 0), dtype)
    values = values.reshape(-1)
    values = values if values.flags.carray else np.array(values)
    return values.view(dtype).reshape(values.size, width)


def to_ids(values: np.ndarray, name: str = "ids") -> np.ndarray:
    """Return `values` as int64 ids: integers as they are, strings hashed.

    Python objects (dtype object) are read one by one, so that an integer is the same id in an array of any dtype.

    Raises:
        DataError: `values` holds neither integers nor strings.
    """
    values = np.asarray(values)
    if values.dtype.kind in "iub":
        return values.astype(np.int64, copy=False)
    if values.dtype.kind in "US":
        return hash_strings(values)
    if values.dtype.kind == "O":
        return _ids_of_objects(values, name)
    raise DataError(f"{name} must hold integer or string ids; received dtype {values.dtype}{float_ids_hint(values)}")


_TEXTS = {str, bytes, np.str_, np.bytes_}


def _ids_of_objects(values: np.ndarray, name: str) -> np.ndarray:
    objects = values.ravel()
    types = set(map(type, objects))
    if types <= _TEXTS:
        return hash_strings(values)
    if types == {int}:
        with contextlib.suppress(OverflowError):  # below, integers from 2**63 on are ids modulo 2**64
            return values.astype(np.int64)
    numbers = [_number_of(value, name) for value in objects]
    is_number = np.array([number is not None for number in numbers], bool)
    ids = np.empty(len(objects), np.int64)
    ids[is_number] = np.array([number for number in numbers if number is not None], np.uint64).view(np.int64)
    if not is_number.all():
        ids[~is_number] = hash_strings(objects[~is_number])
    return ids.reshape(values.shape)


def _number_of(value: object, name: str) -> int | None:
    """Return an integer of 64 bits modulo 2**64; None for a value hashed as text."""
    if isinstance(value, decimal.Decimal) and value.is_finite() and value == value.to_integral_value():
        value = int(value)
    if value is None or isinstance(value, float | np.floating | decimal.Decimal):
        raise DataError(f"{name} must hold integer or string ids; received {value!r}")
    if not isinstance(value, int | np.integer | np.bool_):
        return None
    number = int(value)
    return number % (1 << 64) if -(1 << 63) <= number < 1 << 64 else None


def ids_of_rows(name: str, column: np.ndarray, index: int | None = None) -> np.ndarray:
    """Return the id of each row as an integer, int64 [n].

    Args:
        name: name of the column, for errors.
        column: integers or strings, [n] or [n, 1]; with `index`, [n, F].
        index: which of the F values to use.

    Raises:
        DataError: the column has several values per row, or values of another kind.
    """
    values = np.asarray(column) if index is None else np.asarray(column)[:, index]
    if values.dtype.kind not in "biuUSO" or values.ndim == 0 or values.size != len(values):
        raise DataError(f"column {name!r} needs an integer or text per row; it is {values.dtype} {list(values.shape)}")
    values = values.reshape(-1)
    return to_ids(values) if values.dtype.kind in "USO" else values.astype(np.int64)


def float_ids_hint(values: np.ndarray) -> str:
    """Return advice if NaN has turned the ids into floats; otherwise an empty string."""
    if values.dtype.kind != "f" or not np.isnan(values).any():
        return ""
    index = np.argwhere(np.isnan(values))[0]
    row = index[1] if values.ndim > 1 else index[0]  # several batches have the shape [batch, row, ...]
    return f", NaN in row {row} of the batch: give missing ids their own id, column.fillna(0).astype('int64')"


def hash_text(column: np.ndarray, name: str = "ids") -> np.ndarray:
    """Return `column` with strings hashed to int64 ids, which a tensor can hold."""
    return to_ids(column, name) if column.dtype.kind in "USO" else column


def uniform64(ids: np.ndarray, seed: int) -> np.ndarray:
    """Return a float64 in [0, 1) per id, a function of `seed` and the id."""
    return (mix64(mix64(ids) ^ np.uint64(seed)) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def initial_rows(
    ids: np.ndarray, dim: int, seed: int | np.ndarray, initializer: str = "normal", scale: float = 0.01
) -> np.ndarray:
    """Return the initial row of every id, [n, dim] float32, a function of (seed, id).

    Args:
        ids: int64 [n].
        dim: columns of a row.
        seed: 64-bit seed of the table, or one seed per id, uint64 [n].
        initializer: "normal" (standard deviation `scale`; Box-Muller), "uniform" (-scale to scale) or "zeros".
        scale: see `initializer`.
    """
    if initializer == "zeros":
        return np.zeros((len(ids), dim), np.float32)
    pairs = (dim + 1) // 2
    base = mix64(ids) ^ np.asarray(seed, np.uint64)
    counters = (np.arange(1, pairs + 1, dtype=np.uint64) * _GAMMA)[None, :]
    bits = mix64(base[:, None] + counters)
    # float32 represents 24 bits exactly; the half step keeps the logarithm's argument above zero.
    step = np.float32(2.0**-24)
    u1 = (bits >> _S40).astype(np.float32) * step + step / 2
    u2 = ((bits & np.uint64(0xFFFFFFFF)) >> np.uint64(8)).astype(np.float32) * step
    if initializer == "uniform":
        u1, u2 = (2 * u1 - 1) * np.float32(scale), (2 * u2 - 1) * np.float32(scale)
    else:
        radius = np.sqrt(np.float32(-2) * np.log(u1)) * np.float32(scale)
        angle = np.float32(2 * np.pi) * u2
        u1, u2 = radius * np.cos(angle), radius * np.sin(angle)
    return np.concatenate((u1, u2), axis=1)[:, :dim]


VIRTUAL_SHARDS = 1024
# Selects hash bits that `id_map.Buckets` does not use to choose a cell.
_SHIFT = np.uint64(40)


@dataclass(frozen=True)
class Shards:
    """Assigns the rows of every table to processes; `rank` is this one.

    The hash of an id selects one of 1,024 virtual shards; shard s belongs to process s % `size`. A process numbers its
    own rows from 1; the global number of row r of process p is (r - 1) * size + p + 1. Every process has a copy of row
    0, the default row. All copies are equal, because all processes train it identically.
    """

    rank: int = 0
    size: int = 1

    def owners(self, ids: np.ndarray) -> np.ndarray:
        """Return the process that owns each id's row: int64 [n] for int64 [n]."""
        shards = (mix64(ids) >> _SHIFT) & np.uint64(VIRTUAL_SHARDS - 1)
        return shards.view(np.int64) % self.size

    def owned(self, ids: np.ndarray) -> np.ndarray:
        """Return which of `ids` (int64 [n]) this process owns: bool [n]."""
        return self.owners(ids) == self.rank

    def capacity(self, total: int | None) -> int | None:
        """Return this process's share of a total capacity; the shares add up to it."""
        if total is None:
            return None
        count, extra = divmod(VIRTUAL_SHARDS, self.size)  # the first `extra` processes own count + 1 virtual shards
        first = self.rank * count + min(self.rank, extra)
        last = first + count + (self.rank < extra)
        return total * last // VIRTUAL_SHARDS - total * first // VIRTUAL_SHARDS

    def to_global(self, rows: np.ndarray) -> np.ndarray:
        """Convert this process's row numbers to global ones, int32 [n]; 0 stays 0."""
        return np.where(rows > 0, (rows - 1) * self.size + (self.rank + 1), 0).astype(np.int32)

    def owners_of_rows(self, rows: np.ndarray) -> np.ndarray:
        """Return the process that owns each row, given nonzero global numbers [n]."""
        return (rows - 1) % self.size

    def to_local(self, rows: np.ndarray) -> np.ndarray:
        """Convert global row numbers to the owner's, int32 [n]; 0 stays 0."""
        return ((rows + (self.size - 1)) // self.size).astype(np.int32)


UNSHARDED = Shards()
