"""State of a join: unmerged rows, impressions waiting for a label, and outcomes.

Rows and outcomes are kept for some rounds after they leave the join, so that a checkpoint can store the state at the
end of an earlier round.
"""

from __future__ import annotations

import heapq
import zlib
from dataclasses import dataclass
from operator import attrgetter
from time import monotonic
from typing import Any

import numpy as np

from ...embedding.tables.hashing import mix64
from ...errors import DataError
from ..base import Stream
from ..batch import STATE, Batch, Position, advance, far_ahead
from ..formats.coercion import EXACT, is_missing
from .packed_columns import exact_array, pack, unpack

_WAITING = -1
_READ_ROWS = 4096
_FIELDS = attrgetter("key", "time", "matched", "value")  # of an outcome, as `OutcomeBuffer.pack` stores them


class Side:
    """One of the two streams of a join, with its unmerged rows and its event time.

    Attributes:
        head: rows read but not merged yet, or None.
        clock: merge order of the rows in `head`: running maximum of their event times, float64 [rows].
        merged_until: event time up to which rows were merged.
        position: position after the last merged row.
    """

    def __init__(self, stream: Stream, name: str, key: str) -> None:
        self.stream, self.name, self.key = stream, name, key
        self.position: Position = {}
        self.has_text_keys: bool | None = None  # None if unknown
        self.reset(float("-inf"))

    def reset(self, merged_until: float) -> None:
        """Drop the unmerged rows and set the event time up to which rows were merged."""
        self.head: Batch | None = None
        self.merged_until = merged_until
        self.idle_since: float | None = None
        self.clock = np.empty(0)

    def seek(self, position: Position, merged_until: float) -> None:
        """Continue at `position`, before which rows were merged up to `merged_until`."""
        self.stream.seek(position)
        self.reset(merged_until)
        # The state belongs to this position alone, and `resolve` adds it to later ones.
        self.position = {name: value for name, value in position.items() if name != STATE}

    def lag(self) -> int | None:
        """Return the number of rows that are unread or unmerged, or None if unknown."""
        upstream = self.stream.lag()
        return None if upstream is None else upstream + (0 if self.head is None else self.head.rows)

    def poll(self, timeout: float) -> None:
        """Read rows unless unmerged rows are left."""
        if self.head is not None:
            return
        batch = self.stream.poll(_READ_ROWS, timeout)
        if batch is None:
            return
        times = np.array([np.nan]) if batch.event_time is None else batch.event_time
        if self.key not in batch.columns or not np.isfinite(times).all():
            missing = self.key if np.isfinite(times).all() else "event time"
            raise DataError(f"the {self.name} of a join need {missing!r} in each row; received {list(batch.columns)}")
        keys = _checked_keys(batch.columns[self.key], f"column {self.key!r} of the {self.name} of a join")
        self.has_text_keys = _are_texts(keys.tolist()) if keys.dtype.kind == "O" else keys.dtype.kind in "US"
        if self.stream.schema is None:  # a stream with a schema has removed such rows already
            for reason in far_ahead(times, self.stream.max_future).values():
                raise DataError(f"the {self.name} of a join: {reason}; it would make waiting impressions negative")
        self.head = batch
        # The running maximum keeps the rows of a stream in their order, even if event times are out of order.
        self.clock = np.maximum.accumulate(np.maximum(times, self.merged_until))
        self.idle_since = None

    def bound(self, idle_timeout: float | None) -> float:
        """Return the time up to which the other stream may be merged.

        It is a lower bound of the event times still to come, or infinity if this stream has ended or is idle.
        """
        if self.head is not None:
            return float(self.clock[-1])
        if self.stream.exhausted:
            return float("inf")
        if self.stream.retrying:
            self.idle_since = None
            return self.merged_until
        now = monotonic()
        if self.idle_since is None:
            self.idle_since = now
        idle = idle_timeout is not None and now - self.idle_since >= idle_timeout
        return float("inf") if idle else self.merged_until

    def take(self, until: float, *, inclusive: bool) -> tuple[Batch | None, np.ndarray]:
        """Remove the unmerged rows before a time and return them with their clock."""
        rows = int(np.searchsorted(self.clock, until, side="right" if inclusive else "left"))
        if not rows or self.head is None:
            return None, np.empty(0)
        taken, rest = self.head.split(rows)
        clock, self.clock = self.clock[:rows], self.clock[rows:]
        self.head = rest if rest.rows else None
        self.merged_until = float(clock[-1])
        self.position = advance(self.position, taken)
        return taken, clock


def keys_of(column: np.ndarray) -> list[Any]:
    """Return the keys of rows; bytes become text, a missing key a NaN of its own."""
    keys = (column.astype("M8[ns]") if column.dtype.kind == "M" else column).tolist()
    if column.dtype.kind == "M":
        keys = [None if absent else key for key, absent in zip(keys, np.isnat(column).tolist(), strict=True)]
    elif column.dtype.kind not in "OS":
        return keys
    keys = [key.decode("utf-8", "surrogateescape") if isinstance(key, bytes) else key for key in keys]
    return [float("nan") if is_missing(key) else key for key in keys]


def _checked_keys(keys: Any, what: str) -> Any:
    """Return keys, one per row; raise DataError if they cannot equal the other side's."""
    if keys.ndim != 1:
        raise DataError(f"{what} takes one key per row; received rows of shape {list(keys.shape[1:])}")
    if keys.dtype.kind == "f" and (np.abs(keys) >= EXACT).any():
        raise DataError(
            f"{what} holds floats too large to be exact integers, as pandas makes of integers beside missing values: "
            "read them as integers (dtype Int64) or as text"
        )
    return keys


def _are_texts(keys: list[Any]) -> bool | None:
    """Return whether all known keys are texts; None if only some are, or none."""
    kinds = {isinstance(key, str | bytes) for key in keys if not is_missing(key)}
    return kinds.pop() if len(kinds) == 1 else None


class _ImpressionBlock:
    """Impressions that arrived together in round `arrival`, numbered from `first` on.

    Attributes:
        left_round: round in which each row left, or `_WAITING`, int64 [rows].
        output_index: index of each row in the output of that round, or -1 if it was not returned, int64 [rows].
        labels: label of each row, float64 [rows].
    """

    def __init__(self, first: int, arrival: int, columns: dict[str, np.ndarray], times: np.ndarray) -> None:
        self.first, self.arrival, self.columns, self.times = first, arrival, columns, times
        self.left_round = np.full(len(times), _WAITING, dtype=np.int64)
        self.output_index = np.full(len(times), -1, dtype=np.int64)
        self.labels = np.zeros(len(times))


class PendingRows:
    """Impressions in order of arrival; rows that left are kept until `discard_before`.

    Attributes:
        count: number of impressions added so far.
    """

    def __init__(self) -> None:
        self._blocks: list[_ImpressionBlock] = []
        self.count = 0

    def add(self, arrival: int, columns: dict[str, np.ndarray], times: np.ndarray) -> int:
        """Add impressions; return the number of the first."""
        first = self.count
        self._blocks.append(_ImpressionBlock(first, arrival, columns, times))
        self.count += len(times)
        return first

    def _locate(self, numbers: np.ndarray) -> list[tuple[_ImpressionBlock, np.ndarray, np.ndarray]]:
        """Return (block, row indexes, indexes in `numbers`) of each block of `numbers`."""
        block_indices = np.searchsorted([block.first for block in self._blocks], numbers, side="right") - 1
        located = [(self._blocks[c], np.flatnonzero(block_indices == c)) for c in np.unique(block_indices)]
        return [(block, numbers[indices] - block.first, indices) for block, indices in located]

    def gather(self, numbers: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return the columns and times of rows, in the order of `numbers`."""
        located = self._locate(numbers)
        order = np.argsort(np.concatenate([indices for _, _, indices in located]))
        columns = {
            name: np.concatenate([block.columns[name][rows] for block, rows, _ in located])[order]
            for name in located[0][0].columns
        }
        return columns, np.concatenate([block.times[rows] for block, rows, _ in located])[order]

    def pack(self, numbers: np.ndarray, *labels: np.ndarray) -> list[Any]:
        """Encode the columns and times of rows, and `labels`, for `unpack_rows`."""
        if not len(numbers):
            return [None, None, *map(pack, labels)]
        columns, times = self.gather(numbers)
        return [{name: pack(column, name) for name, column in columns.items()}, pack(times), *map(pack, labels)]

    def mark_left(self, numbers: np.ndarray, round_number: int, indices: np.ndarray, labels: np.ndarray) -> None:
        """Record that rows left in a round.

        `indices` has each row's index in the output of that round, or -1 if the row was not returned.
        """
        for block, rows, positions in self._locate(numbers):
            block.left_round[rows] = round_number
            block.output_index[rows], block.labels[rows] = indices[positions], labels[positions]

    def waiting_after(self, round_number: int) -> np.ndarray:
        """Return the numbers of the rows still waiting at the end of a round."""
        parts = [
            block.first + np.flatnonzero((block.left_round == _WAITING) | (block.left_round > round_number))
            for block in self._blocks
            if block.arrival <= round_number
        ]
        return np.concatenate([np.empty(0, np.int64), *parts])

    def output_of(self, round_number: int, first_index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows and labels in the output of a round, from row `first_index` on."""
        parts = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))]
        for block in self._blocks:
            rows = np.flatnonzero((block.left_round == round_number) & (block.output_index >= first_index))
            parts.append((block.first + rows, block.output_index[rows], block.labels[rows]))
        numbers, indices, labels = map(np.concatenate, zip(*parts, strict=True))
        order = np.argsort(indices, kind="stable")
        return numbers[order], labels[order]

    def discard_before(self, before: int) -> None:
        """Drop chunks whose impressions all left before round `before`."""
        self._blocks = [b for b in self._blocks if not ((b.left_round != _WAITING) & (b.left_round < before)).all()]

    @property
    def rows(self) -> int:
        """Number of rows held in memory."""
        return sum(len(block.times) for block in self._blocks)


class WaitingImpressions:
    """Numbers of the impressions that wait for an outcome, by key and by time."""

    def __init__(self) -> None:
        self.rows = 0
        self._by_key: dict[Any, list[tuple[float, int]]] = {}
        self._by_time: list[tuple[float, int, Any]] = []  # a heap; impressions that left stay until they are at its top

    def add(self, key: Any, time: float, number: int) -> None:
        """Add an impression."""
        self.rows += 1
        self._by_key.setdefault(key, []).append((time, number))
        heapq.heappush(self._by_time, (time, number, key))

    def match(self, key: Any, time: float, early: float, within: float) -> list[int]:
        """Remove the impressions that match an outcome at `time`; return their numbers."""
        waiting = self._by_key.get(key, ())
        matches = [(since, number) for since, number in waiting if since - early <= time <= since + within]
        for since, number in matches:
            self._remove(key, since, number)
        return [number for _, number in matches]

    def expire(self, now: float, within: float) -> list[int]:
        """Remove impressions whose limit has passed; return their numbers."""
        removed = []
        while self._by_time and self._by_time[0][0] + within < now:
            removed += self._remove_oldest()
        return removed

    def trim(self, maximum: int) -> list[int]:
        """Remove the oldest impressions beyond `maximum`; return their numbers."""
        removed = []
        while self.rows > maximum:
            removed += self._remove_oldest()
        return removed

    def clear(self) -> list[int]:
        """Remove all impressions; return their numbers in ascending order."""
        numbers = sorted(number for waiting in self._by_key.values() for _, number in waiting)
        self.rows, self._by_key, self._by_time = 0, {}, []
        return numbers

    def _remove_oldest(self) -> list[int]:
        time, number, key = heapq.heappop(self._by_time)
        return [number] if self._remove(key, time, number) else []

    def _remove(self, key: Any, time: float, number: int) -> bool:
        """Remove an impression; return whether it was still waiting."""
        waiting = self._by_key.get(key, [])
        if (time, number) not in waiting:
            return False
        waiting.remove((time, number))
        self.rows -= 1
        if not waiting:
            del self._by_key[key]
        return True


@dataclass(eq=False, slots=True)
class Outcome:
    """An outcome kept for impressions still to come.

    Attributes:
        arrival: round in which the outcome arrived.
        matched: whether it has matched an impression.
        value: label that it gives to an impression.
        dropped_round: round in which it was dropped, or None.
    """

    key: Any
    time: float
    arrival: int
    matched: bool
    value: float = 1.0
    dropped_round: int | None = None


class OutcomeBuffer:
    """Outcomes by key; dropped outcomes stay in a log until `discard_before`."""

    def __init__(self) -> None:
        self._by_key: dict[Any, list[Outcome]] = {}
        self._queue: list[tuple[float, int, Outcome]] = []  # heap ordered by event time, then by arrival
        self._log: list[Outcome] = []
        self._count = 0

    def add(self, outcome: Outcome) -> None:
        """Add an outcome."""
        self._by_key.setdefault(outcome.key, []).append(outcome)
        self._log.append(outcome)
        self._count += 1
        heapq.heappush(self._queue, (outcome.time, self._count, outcome))

    def with_key(self, key: Any) -> list[Outcome]:
        """Return the outcomes of a key."""
        return self._by_key.get(key, [])

    def match(self, key: Any, since: float, until: float) -> float | None:
        """Mark the outcomes of a key from `since` to `until` as matched.

        Returns:
            The value of the earliest of them, or None if there is none.
        """
        matches = [outcome for outcome in self.with_key(key) if since <= outcome.time <= until]
        for outcome in matches:
            outcome.matched = True
        return min(matches, key=lambda outcome: outcome.time).value if matches else None

    def drop(self, before: float, round_number: int, maximum: int | None = None) -> int:
        """Drop the outcomes before a time, and the oldest ones beyond `maximum`.

        Returns how many of the dropped outcomes had matched no impression.
        """
        unmatched = 0
        while self._queue and (self._queue[0][0] < before or (maximum is not None and len(self._queue) > maximum)):
            outcome = heapq.heappop(self._queue)[2]
            outcome.dropped_round = round_number
            unmatched += not outcome.matched
            outcomes = self._by_key[outcome.key]
            outcomes.remove(outcome)
            if not outcomes:
                del self._by_key[outcome.key]
        return unmatched

    def discard_before(self, before: int) -> None:
        """Remove outcomes dropped before round `before` from the log."""
        self._log = [o for o in self._log if o.dropped_round is None or o.dropped_round >= before]

    def pack(self, round_number: int) -> list[Any]:
        """Return the outcomes kept at the end of a round, encoded as JSON."""
        arrived = [o for o in self._log if o.arrival <= round_number]
        kept = [o for o in arrived if o.dropped_round is None or o.dropped_round > round_number]
        return [pack(exact_array(values), "key") for values in zip(*map(_FIELDS, kept), strict=True)]

    def restore(self, packed: list[Any], arrival: int) -> None:
        """Add outcomes encoded by `pack`, as if they had arrived in round `arrival`."""
        if packed:
            for key, time, matched, *value in zip(*(unpack(values).tolist() for values in packed), strict=True):
                self.add(Outcome(key, time, arrival, matched, *value))


def hash_to_unit(keys: np.ndarray, seed: int) -> np.ndarray:
    """Hash each key and the seed to a number in [0, 1).

    Text is first hashed to 64 bits with CRC-32 and Adler-32.
    """
    if keys.dtype.kind in "iub":
        hashes = keys.astype(np.int64).view(np.uint64)
    else:
        texts = [str(key).encode("utf-8") for key in keys.tolist()]
        hashes = np.array([zlib.crc32(text) | (zlib.adler32(text) << 32) for text in texts], dtype=np.uint64)
    mixed = mix64(hashes + np.uint64((0x9E3779B97F4A7C15 * seed) % 2**64))
    return (mixed >> np.uint64(11)).astype(np.float64) / 2.0**53


def unpack_rows(columns: Any, times: Any, *labels: Any) -> list[Any]:
    """Decode the output of `PendingRows.pack`; None for columns without rows."""
    if times is None:
        return [None, None, *labels]
    return [{name: unpack(column) for name, column in columns.items()}, unpack(times), *map(unpack, labels)]
