"""Delayed labels: join impressions with outcomes by key within a time limit.

The time limit is a trade-off: a short limit gives fresh data but labels late positives as negatives; a long limit gives
correct but stale labels (Chapelle, "Modeling Delayed Feedback in Display Advertising", KDD 2014). An impression waits
at most `within` seconds of event time. It is returned as a positive when its outcome arrives, or as a negative after
the limit.

The join works in rounds, each of which produces one batch of labelled rows. The position is the next row to return,
``{"join": [round, row]}``.
"""

from __future__ import annotations

import contextlib
from collections import deque
from threading import RLock
from time import monotonic
from typing import Any

import numpy as np

from ... import checks
from ...errors import DataError, StreamError
from ..base import BufferedStream, Stream
from ..batch import STATE, Batch, Cursor, Position, Span, cursors_of
from ..formats.schema import Schema
from .pending import (
    Outcome,
    OutcomeBuffer,
    PendingRows,
    Side,
    WaitingImpressions,
    hash_to_unit,
    keys_of,
    unpack_rows,
)

PARTITION = "join"
_POLL_SECONDS = 0.05
# `resolve` accepts positions at most this many returned rows ago, or `rows_ahead` of them if that is more.
_KEPT_ROWS = 131_072
# expired_rows: impressions without an outcome at their limit. repeated_rows: impressions whose key was seen before.
# dropped_rows: impressions beyond `max_waiting`. repeated_outcomes: outcomes of an impression that already has one.
# late_outcomes: outcomes of an impression that no longer waits.
_COUNTS = ("expired_rows", "repeated_rows", "dropped_rows", "repeated_outcomes", "late_outcomes")
_EXPIRED, _DROPPED = float("nan"), float("-inf")  # labels of expired and of dropped impressions


class DelayedLabelJoin(BufferedStream):
    """A stream of impressions labelled by their outcomes.

    An impression with key k and event time t is a positive if an outcome with key k has an event time from t to t +
    `within`; it is returned as soon as both have arrived. Otherwise it is returned as a negative once event time has
    passed t + `within` + `lateness`. The streams are merged by event time, so the row order depends only on the
    contents of the two streams, unless one of them is idle for longer than `idle_timeout` before its end.

    The columns are those of the impressions plus `label` and `weight`, both float32. The label of a positive is 1, or
    the outcome's value in the column `label` if the outcomes have one; the label of a negative is 0. With a
    `negative_sampling_rate` r below 1, negatives are sampled by a hash of key and seed and get weight 1/r, so that a
    weighted loss remains an unbiased estimate (McMahan et al., "Ad Click Prediction: a View from the Trenches", KDD
    2013).

    A checkpointed position contains the waiting impressions; `resolve` adds them in compressed form.

    Args:
        impressions: a stream with event times and the key column.
        outcomes: a stream with event times and the key column; it may contain positives only.
        key: name of the key column in both.
        within: largest delay of an outcome, in seconds of event time.
        label: name of the label column; replaces a column of the same name.
        weight: name of the weight column.
        negative_sampling_rate: share of negatives kept, above 0 and up to 1.
        seed: seed of the sampling.
        lateness: seconds of event time by which outcomes may arrive out of order.
        idle_timeout: seconds to wait for the stream that is behind before continuing without it; None to wait forever.
            The join always waits for a stream whose source is being retried.
        at_end: what to do with impressions that still wait when both streams have ended: "negative" or "drop".
        expired: what to do with impressions without an outcome at the limit: "negative" or "drop".
        unique: whether a key identifies a single impression. If True, further impressions with the same key within the
            limit are dropped, and an outcome may be dated up to `within` before its impression, as clocks differ.
        max_waiting: largest number of waiting impressions, and of stored outcomes; beyond it the oldest are dropped.
            None for no limit.

    Attributes:
        unmatched_outcomes: number of outcomes that matched no waiting impression, because they were late, repeated or
            had an unknown key.

    Raises:
        ConfigurationError: an argument is out of range.
    """

    label: str

    def __init__(
        self,
        impressions: Stream,
        outcomes: Stream,
        key: str,
        within: float,
        *,
        label: str = "label",
        weight: str = "weight",
        negative_sampling_rate: float = 1.0,
        seed: int = 0,
        lateness: float = 0.0,
        idle_timeout: float | None = 1.0,
        at_end: str = "negative",
        expired: str = "negative",
        unique: bool = False,
        max_waiting: int | None = None,
    ) -> None:
        super().__init__()
        checks.number("negative_sampling_rate", negative_sampling_rate, above=0, maximum=1, what="a share")
        checks.number("within", within, above=0, what="seconds")
        checks.number("lateness", lateness, minimum=0, what="seconds")
        checks.number("idle_timeout", idle_timeout, minimum=0, optional=True, what="seconds")
        checks.choice("at_end", at_end, ("negative", "drop"))
        checks.choice("expired", expired, ("negative", "drop"))
        checks.whole("max_waiting", max_waiting, optional=True)
        self.key, self.within, self.lateness = key, float(within), float(lateness)
        self.label, self.weight = label, weight
        self.rate, self.seed, self.idle_timeout, self.at_end = negative_sampling_rate, seed, idle_timeout, at_end
        self.expired, self.unique, self.max_waiting = expired, unique, max_waiting
        self._max_early = self.within if unique else 0.0  # seconds that an outcome may be dated before its impression
        self._sides = (Side(impressions, "impressions", key), Side(outcomes, "outcomes", key))
        self.reads_pipeline = impressions.reads_pipeline or outcomes.reads_pipeline
        declared = impressions.schema  # the stream has checked the columns that it declares
        self.event_time, self.max_future = impressions.event_time, impressions.max_future
        if declared is not None:
            self.event_time, self.max_future = declared.event_time, declared.max_future
        allowed = impressions.allow_nan
        self.allow_nan = allowed is True or (*(allowed or ()), *(() if declared is None else declared.columns))
        self._lock = RLock()
        self._begin(1, None)

    def _begin(self, round_number: int, input_state: dict[str, Any] | None) -> None:
        """Start a round with empty buffers; `input_state` is the state before it, or None."""
        self._clear()
        self.unmatched_outcomes = 0
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._seen_keys = OutcomeBuffer()  # keys of recent impressions, if keys are unique
        self._round = round_number
        self._latest_time = float("-inf")  # latest merged event time
        self._outcome_cutoff = float("-inf")  # earlier outcomes cannot match a future impression
        self._rows = PendingRows()
        self._waiting = WaitingImpressions()
        self._outcomes = OutcomeBuffer()
        self._emitted = 0  # rows of all rounds
        self._round_starts: deque[tuple[int, int]] = deque()  # (round, rows emitted before it)
        self._ended = False
        self._input_states: dict[int, dict[str, Any]] = {} if input_state is None else {round_number - 1: input_state}
        self._position = {PARTITION: Cursor(round_number).to_json()}

    @property
    def decoded(self) -> Schema | None:
        """Schema with which the impressions are decoded, or None if they are raw."""
        return super().decoded or self._sides[0].stream.decoded

    @property
    def retrying(self) -> bool:
        return any(side.stream.retrying for side in self._sides)

    def position(self) -> Position:
        self._save_first_input_state()
        return dict(self._position)

    def _save_first_input_state(self) -> None:
        if not self._input_states:
            for side in self._sides:
                side.position = side.stream.position()
            self._input_states[self._round - 1] = self._input_state()

    def _input_state(self) -> dict[str, Any]:
        times = [*(side.merged_until for side in self._sides), self._latest_time, self._outcome_cutoff]
        finite = [time if np.isfinite(time) else None for time in times]
        return {"positions": [side.position for side in self._sides], "reached": finite}

    def _fetch(self, max_rows: int, timeout: float) -> None:
        deadline = monotonic() + timeout
        self._save_first_input_state()
        while not self._ready and not self._ended and not self._closed:
            for side in self._sides:
                side.poll(0.0)
            with self._lock:
                if self._merge():
                    continue
            remaining = deadline - monotonic()
            if remaining <= 0:
                return
            for side in self._sides:
                if side.head is None and not side.stream.exhausted:
                    side.poll(min(remaining, _POLL_SECONDS))

    def _merge(self) -> bool:
        """Merge the rows whose order is final; return whether there were any."""
        if all(side.head is None and side.stream.exhausted for side in self._sides):
            return self._flush()
        outcomes_until, impressions_until = (side.bound(self.idle_timeout) for side in self._sides)
        # At equal event times, impressions come before outcomes.
        impressions, impression_clock = self._sides[0].take(impressions_until, inclusive=True)
        outcomes, outcome_clock = self._sides[1].take(outcomes_until, inclusive=False)
        batches = [batch for batch in (impressions, outcomes) if batch is not None]
        if not batches:
            return False
        if {side.has_text_keys for side in self._sides} == {True, False}:
            raise DataError(f"column {self.key!r} is text on one side of a join and numbers on the other: none match")
        clock = np.concatenate([impression_clock, outcome_clock])
        impression_count = len(impression_clock)
        order = np.lexsort((np.arange(len(clock)) >= impression_count, clock))
        times = np.concatenate([batch.event_time for batch in batches]).tolist()
        keys = [key for batch in batches for key in keys_of(batch.columns[self.key])]
        first_number = self._rows.count  # number of the first new impression
        if impressions is not None:
            self._rows.add(self._round, impressions.columns, np.asarray(impressions.event_time))
        values = [1.0] * len(times)
        if outcomes is not None and self.label in outcomes.columns:
            labels = outcomes.columns[self.label].astype(float)
            labels = labels.reshape(-1) if labels.shape[1:] == (1,) else labels
            if not np.isfinite(labels).all():
                raise DataError(
                    f"column {self.label!r} of the outcomes of a join holds NaN or infinity: drop such rows"
                )
            values[impression_count:] = labels.tolist()
        leaving: list[tuple[int, float]] = []  # numbers and labels of the impressions that leave the join
        clock = clock.tolist()
        for row in order.tolist():
            if row < impression_count:
                self._add_impression(keys[row], times[row], first_number + row, leaving)
            else:
                self._add_outcome(Outcome(keys[row], times[row], self._round, False, values[row]), leaving)
            self._advance_time(times[row], clock[row] if row < impression_count else clock[row] - self.within, leaving)
        self._emit(leaving)
        return True

    def _add_impression(self, key: Any, time: float, number: int, leaving: list[tuple[int, float]]) -> None:
        if self.unique:
            if self._seen_keys.with_key(key):
                self._counts["repeated_rows"] += 1
                leaving.append((number, _DROPPED))
                return
            self._seen_keys.add(Outcome(key, time, self._round, True))
        # The outcome may have arrived before its impression.
        value = self._outcomes.match(key, time - self._max_early, time + self.within)
        if value is None:
            self._waiting.add(key, time, number)
        else:
            leaving.append((number, value))

    def _add_outcome(self, outcome: Outcome, leaving: list[tuple[int, float]]) -> None:
        matches = self._waiting.match(outcome.key, outcome.time, self._max_early, self.within)
        leaving += [(number, outcome.value) for number in matches]
        outcome.matched = bool(matches)
        if self.unique and not matches and self._seen_keys.with_key(outcome.key):
            known = self._outcomes.with_key(outcome.key)
            kind = "repeated_outcomes" if any(other.matched for other in known) else "late_outcomes"
            self._counts[kind] += 1
        self._outcomes.add(outcome)

    def _advance_time(self, time: float, cutoff: float, leaving: list[tuple[int, float]]) -> None:
        """Advance event time: release expired impressions and drop old outcomes."""
        self._latest_time = max(self._latest_time, time)
        now, max_waiting = self._latest_time - self.lateness, self.max_waiting
        expired = self._waiting.expire(now, self.within)
        dropped = [] if max_waiting is None else self._waiting.trim(max_waiting)
        self._counts["expired_rows"] += len(expired)
        self._counts["dropped_rows"] += len(dropped)
        leaving += [(number, _EXPIRED if self.expired == "negative" else _DROPPED) for number in expired]
        leaving += [(number, _DROPPED) for number in dropped]
        self._outcome_cutoff = max(self._outcome_cutoff, cutoff - self.lateness - self._max_early)
        self.unmatched_outcomes += self._outcomes.drop(self._outcome_cutoff, self._round, max_waiting)
        self._seen_keys.drop(now - self.within - self._max_early, self._round, max_waiting and 2 * max_waiting)

    def _flush(self) -> bool:
        """End the join: release or drop the impressions that still wait."""
        waiting = self._waiting.clear()
        if self.at_end == "negative":
            self._emit([(number, _EXPIRED) for number in waiting])
        self._ended = True
        return True

    def _emit(self, leaving: list[tuple[int, float]]) -> None:
        """Sample the negatives and push the rows, given as (number, label), as a round."""
        if not leaving:
            return
        numbers, labels = np.array([number for number, _ in leaving]), np.array([label for _, label in leaving])
        columns, times = self._rows.gather(numbers)
        keep = labels != _DROPPED
        if self.rate < 1:
            keep &= ~np.isnan(labels) | (hash_to_unit(columns[self.key], self.seed) < self.rate)
        self._rows.mark_left(numbers, self._round, np.where(keep, np.cumsum(keep) - 1, -1), labels)
        if not keep.any():
            return
        columns = {name: column[keep] for name, column in columns.items()}
        self._push(self._labelled_batch(columns, times[keep], labels[keep], self._round, 0))
        self._input_states[self._round] = self._input_state()
        self._round += 1
        self._emitted += int(keep.sum())
        self._round_starts.append((self._round, self._emitted))
        returned, kept = self._emitted - self._ready_rows, max(_KEPT_ROWS, self.rows_ahead)
        if returned - self._round_starts[0][1] > 2 * kept:
            while returned - self._round_starts[0][1] > kept:
                self._round_starts.popleft()
            self._discard_before(self._round_starts[0][0])

    def _labelled_batch(
        self, columns: dict[str, np.ndarray], times: np.ndarray, labels: np.ndarray, round_number: int, first: int
    ) -> Batch:
        columns, expired = dict(columns), np.isnan(labels)
        columns[self.label] = np.where(expired, 0.0, labels).astype(np.float32)
        columns[self.weight] = np.where(expired, 1.0 / self.rate, 1.0).astype(np.float32)
        span = Span(PARTITION, round_number, first, first + len(times) - 1, round_number + 1)
        return Batch(columns, times, (span,))

    def _discard_before(self, before: int) -> None:
        self._rows.discard_before(before)
        self._outcomes.discard_before(before)
        self._seen_keys.discard_before(before)
        self._input_states = {number: record for number, record in self._input_states.items() if number >= before - 1}

    def resolve(self, position: Position) -> Position:
        """Return `position` with the join's state at that point, and discard older states.

        Raises:
            StreamError: the state at `position` was discarded.
        """
        if STATE in position:
            return position
        cursor = Cursor.of(position[PARTITION])
        number, row = int(cursor.offset), cursor.row
        last_round = number if row else number - 1
        with self._lock:
            self._save_first_input_state()
            record = self._input_states.get(last_round)
            if record is None:
                raise StreamError(
                    f"the state of the join in round {number} is no longer known; it is in round {self._round}"
                )
            ready, labels = self._rows.output_of(number, row) if row else (np.empty(0, np.int64), np.empty(0))
            sides = zip(self._sides, record["positions"], strict=True)
            state = {
                **record,
                "positions": [side.stream.resolve(at) for side, at in sides],
                "waiting": self._rows.pack(self._rows.waiting_after(last_round)),
                "ready": self._rows.pack(ready, labels),
                "outcomes": self._outcomes.pack(last_round),
            }
            if self.unique:
                state["seen"] = self._seen_keys.pack(last_round)
            self._discard_before(number)
        return {PARTITION: cursor.to_json(), STATE: state}

    def seek(self, position: Position) -> None:
        """Continue at `position`, as returned by `resolve`.

        Raises:
            StreamError: the position is not that of a join; or it contains no state, and this process has not kept the
                state.
        """
        cursors = cursors_of(self, position, (PARTITION,))
        if PARTITION not in cursors:
            for side in self._sides:
                side.seek({}, float("-inf"))
            self._begin(1, None)
            return
        position = self.resolve(position)
        try:
            with self._seeking(position):
                self._restore(cursors[PARTITION], position[STATE])
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise StreamError(f"the position is not one of a DelayedLabelJoin, or is damaged: {error!r}") from error

    def _restore(self, cursor: Cursor, state: dict[str, Any]) -> None:
        number, row = int(cursor.offset), cursor.row
        next_round = number + 1 if row else number
        record = {name: state[name] for name in ("positions", "reached")}
        for side, at, merged_until in zip(self._sides, state["positions"], state["reached"], strict=False):
            side.seek(at, _from_json(merged_until))
        with self._lock:
            self._begin(next_round, record)
            self._latest_time, self._outcome_cutoff = map(_from_json, state["reached"][2:])
            columns, times = unpack_rows(*state["waiting"])
            if times is not None:
                first = self._rows.add(next_round - 1, columns, times)
                for offset, (key, time) in enumerate(zip(keys_of(columns[self.key]), times.tolist(), strict=True)):
                    self._waiting.add(key, time, first + offset)
            self._outcomes.restore(state["outcomes"], next_round - 1)
            self._seen_keys.restore(state.get("seen", []), next_round - 1)
            columns, times, labels = unpack_rows(*state["ready"])
            if times is not None:
                if labels.dtype == bool:  # an earlier version stored only whether a row is positive
                    labels = np.where(labels, 1.0, _EXPIRED)
                first = self._rows.add(next_round - 1, columns, times)
                numbers = first + np.arange(len(times))
                self._rows.mark_left(numbers, number, row + np.arange(len(times)), labels)
                self._push(self._labelled_batch(columns, times, labels, number, row))
            self._position = {PARTITION: cursor.to_json()}

    def commit(self, position: Position) -> None:
        """Commit both streams at their positions in a resolved `position`."""
        if STATE in position:
            for side, at in zip(self._sides, position[STATE]["positions"], strict=True):
                side.stream.commit(at)

    def lag(self) -> int | None:
        """Return the number of unread rows of both streams, or None if unknown.

        Impressions that wait for a label are not counted.
        """
        impressions, outcomes = (side.lag() for side in self._sides)
        return None if impressions is None or outcomes is None else impressions + outcomes + self._ready_rows

    def late_rows(self) -> int | None:
        counts = [count for side in self._sides if (count := side.stream.late_rows()) is not None]
        return sum(counts) if counts else None

    @property
    def pending(self) -> int:
        """Number of impressions waiting for a label."""
        return self._waiting.rows

    def counts(self) -> dict[str, int]:
        """Return counts of impressions and outcomes, by name.

        The counts named in `_COUNTS` are included if `unique`.
        """
        known = {"waiting_rows": self._waiting.rows, "unmatched_outcomes": self.unmatched_outcomes}
        return known | (self._counts if self.unique else {})

    def close(self) -> None:
        super().close()
        with contextlib.ExitStack() as closing:
            for side in self._sides:
                closing.callback(side.stream.close)


def _from_json(time: float | None) -> float:
    return float("-inf") if time is None else float(time)
