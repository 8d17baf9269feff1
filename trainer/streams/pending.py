"""What a join holds: the two sides not yet merged, and the rows that wait for their label.

The latter are kept so that any moment of the join that a checkpoint may ask for can be written down exactly.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np

from ..errors import ConfigurationError, DataError
from .base import Batch, Position, Stream, advance
from .ragged_column import Ragged

_ALIVE = -1
_READ_ROWS = 4096


@dataclass(eq=False, slots=True)
class Outcome:
    """An outcome held for impressions to come, with the rounds in which it arrived and was let go."""

    key: Any
    time: float
    arrived: int
    met: bool
    left: int | None = None


class Side:
    """One of the two streams: rows read and not yet merged, and how far its event time has come."""

    def __init__(self, stream: Stream, name: str, key: str) -> None:
        self.stream, self.name, self.key = stream, name, key
        self.position: Position = {}
        self.reset(float("-inf"))

    def reset(self, reached: float) -> None:
        """Forget the rows that wait; event time has come to `reached`."""
        self.head: Batch | None = None
        self.reached = reached
        self.idle_since: float | None = None
        self.clock = np.empty(0)

    def poll(self, timeout: float) -> bool:
        """Read rows if none wait; return whether some do."""
        if self.head is None:
            batch = self.stream.poll(_READ_ROWS, timeout)
            if batch is None:
                return False
            for what, there in (("event time", batch.event_time is not None), (self.key, self.key in batch.columns)):
                if not there:
                    raise DataError(f"the {self.name} of a join need {what!r}; received columns {list(batch.columns)}")
            self.head = batch
            # The running maximum makes a stream's own order the merged order, whatever its event times do.
            self.clock = np.maximum.accumulate(np.maximum(batch.event_time, self.reached))
            self.idle_since = None
        return True

    def bound(self, idle_timeout: float | None) -> float:
        """Return the event time that all rows to come have reached, infinity when none are to be waited for."""
        if self.head is not None:
            return float(self.clock[-1])
        if self.stream.exhausted:
            return float("inf")
        now = monotonic()
        if self.idle_since is None:
            self.idle_since = now
        idle = idle_timeout is not None and now - self.idle_since >= idle_timeout
        return float("inf") if idle else self.reached

    def take(self, rows: int) -> tuple[Batch | None, np.ndarray]:
        """Return the first `rows` waiting rows and their clock."""
        if not rows or self.head is None:
            return None, np.empty(0)
        taken, rest = self.head.split(rows)
        clock, self.clock = self.clock[:rows], self.clock[rows:]
        self.head = rest if rest.rows else None
        self.reached = float(clock[-1])
        self.position = advance(self.position, taken)
        return taken, clock


class _Chunk:
    """Impressions that arrived together; `first` is the number of the first of them."""

    def __init__(self, first: int, arrived: int, columns: dict[str, np.ndarray], times: np.ndarray) -> None:
        self.first = first
        self.arrived = arrived
        self.columns = columns
        self.times = times
        self.left = np.full(len(times), _ALIVE, dtype=np.int64)
        self.place = np.full(len(times), -1, dtype=np.int64)
        self.positive = np.zeros(len(times), dtype=bool)


class PendingRows:
    """Numbered impressions, each with the round in which it arrived and the one in which it left.

    Rows that have left stay until `forget`, because the position of a checkpoint lies some rounds behind.
    """

    def __init__(self) -> None:
        self._chunks: list[_Chunk] = []
        self.count = 0

    def add(self, arrived: int, columns: dict[str, np.ndarray], times: np.ndarray) -> int:
        """Add impressions; return the number of the first."""
        first = self.count
        self._chunks.append(_Chunk(first, arrived, columns, times))
        self.count += len(times)
        return first

    def _locate(self, numbers: np.ndarray) -> np.ndarray:
        return np.searchsorted([chunk.first for chunk in self._chunks], numbers, side="right") - 1

    def gather(self, numbers: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return the columns and times of rows, in the order of `numbers`."""
        where = self._locate(numbers)
        order = np.argsort(where, kind="stable")
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        held = [(self._chunks[c], numbers[where == c] - self._chunks[c].first) for c in np.unique(where)]
        columns = {
            name: np.concatenate([chunk.columns[name][rows] for chunk, rows in held])[back]
            for name in held[0][0].columns
        }
        return columns, np.concatenate([chunk.times[rows] for chunk, rows in held])[back]

    def leave(self, numbers: np.ndarray, left: int, places: np.ndarray, positive: np.ndarray) -> None:
        """Note that rows leave in round `left`, at `places` of its output (-1: not in it)."""
        where = self._locate(numbers)
        for c in np.unique(where):
            chosen = where == c
            chunk = self._chunks[c]
            rows = numbers[chosen] - chunk.first
            chunk.left[rows], chunk.place[rows], chunk.positive[rows] = left, places[chosen], positive[chosen]

    def waiting_after(self, done: int) -> np.ndarray:
        """Return the numbers of the rows that had arrived by the end of round `done` and left later or not at all."""
        parts = [
            chunk.first + np.flatnonzero((chunk.left == _ALIVE) | (chunk.left > done))
            for chunk in self._chunks
            if chunk.arrived <= done
        ]
        return np.concatenate([np.empty(0, np.int64), *parts])

    def output_of(self, left: int, place: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of round `left`'s output from `place` on, in order, and which of them are positive."""
        numbers, places, positive = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, bool)]
        for chunk in self._chunks:
            rows = np.flatnonzero((chunk.left == left) & (chunk.place >= place))
            numbers.append(chunk.first + rows)
            places.append(chunk.place[rows])
            positive.append(chunk.positive[rows])
        order = np.argsort(np.concatenate(places), kind="stable")
        return np.concatenate(numbers)[order], np.concatenate(positive)[order]

    def forget(self, before: int) -> None:
        """Drop the impressions that arrived together and have all left before round `before`."""
        self._chunks = [chunk for chunk in self._chunks if not ((chunk.left != _ALIVE) & (chunk.left < before)).all()]

    @property
    def rows(self) -> int:
        """Rows held in memory."""
        return sum(len(chunk.times) for chunk in self._chunks)


def pack(array: Any) -> list[Any]:
    """Return an array as JSON: dtype, shape, and its compressed bytes as text; of lists, their values and offsets."""
    if isinstance(array, Ragged):
        array = array[:]
        return [pack(array.values), pack(array.offsets), array.options]
    array = np.ascontiguousarray(array)
    return [array.dtype.str, list(array.shape), base64.b64encode(zlib.compress(array.tobytes(), 1)).decode("ascii")]


def unpack(packed: list[Any]) -> Any:
    """Return what `pack` was given.

    Raises:
        ValueError: it is not what `pack` returned.
    """
    dtype, shape, text = packed
    if isinstance(dtype, list):
        try:
            return Ragged(unpack(dtype), unpack(shape), **text)
        except (TypeError, ConfigurationError) as error:
            raise ValueError(f"damaged lists: {error}") from error
    try:
        data = zlib.decompress(base64.b64decode(text))
    except zlib.error as error:
        raise ValueError(f"damaged array: {error}") from error
    return np.frombuffer(bytearray(data), np.dtype(dtype)).reshape(shape)


def keep_share(keys: np.ndarray, seed: int) -> np.ndarray:
    """Return a number in [0, 1) for each key, the same wherever and whenever it is asked for.

    Integers go through the finaliser of SplitMix64 (Steele, Lea and Flood, 2014), text through CRC-32 first.
    """
    if keys.dtype.kind in "iub":
        mixed = keys.astype(np.int64).view(np.uint64).copy()
    else:
        texts = [str(key).encode("utf-8") for key in keys.tolist()]
        mixed = np.array([zlib.crc32(text) | (zlib.adler32(text) << 32) for text in texts], dtype=np.uint64)
    mixed += np.uint64((0x9E3779B97F4A7C15 * (seed + 1)) % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) / 2.0**53
