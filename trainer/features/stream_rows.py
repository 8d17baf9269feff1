"""Turns a stream's raw rows into network inputs while features learn from them."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from ..streams.base import Stream
from ..streams.batch import Batch
from ..streams.dead_letter import BadRow, DeadLetter
from .features import Features
from .learned import Learned, Recent
from .window_drift import Keys, WindowDrift

_RAW = "@raw."  # prefix of the names of raw columns carried along with the inputs


class BatchTransform:
    """Turns a stream's raw rows into network inputs; bad rows go to the dead letter.

    Online learning runs ahead of training, on the reading thread: each batch is transformed with what the features
    learned from earlier rows. `trained_to` then copies to the trainer's features the state that belongs to the newest
    trained batch.

    Args:
        features: the trainer's declared columns, fitted.
        stream: the stream; without a dead letter it gets one that only counts.

    Attributes:
        drift: gets the rows of every trained batch, to measure their drift; or None.
    """

    def __init__(self, features: Features, stream: Stream) -> None:
        self.features, self.source = features, type(stream).__name__
        if stream.dead_letter is None:
            stream.dead_letter = DeadLetter()
        self.dead_letter = stream.dead_letter
        self.drift: WindowDrift | None = None
        self._versions: deque[tuple[Any, Learned, Recent, Keys | None]] = deque()
        self._ahead = features

    def begin(self) -> None:
        """Start from what the trainer's features have learned."""
        self._versions.clear()
        self._ahead = self.features.copy() if self.features.learns_online else self.features

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch of the good rows, with their positions in the stream.

        Raises:
            StreamError: too many rows are bad, or the dead-letter file cannot be written.
        """
        features = self._ahead
        if features.learns_online and features.recent.rows >= (features.update_every or 0):
            features.learned, features.recent = features.learned.updated(features.recent), Recent()
        event_time = features.event_time
        raw: dict[str, Any] = dict(batch.columns)
        if event_time is not None and batch.event_time is not None:
            raw.setdefault(event_time, batch.event_time)
        rows = features.read(raw)
        if rows.bad:
            bad = [
                BadRow(*batch.origin_of(row), reason, {name: str(column[row]) for name, column in raw.items()})
                for row, reason in sorted(rows.bad.items())
            ]
            self.dead_letter.record(self.source, bad, batch.spans)
            self.dead_letter.count(0, len(bad))
            mask = np.ones(batch.rows, bool)
            mask[list(rows.bad)] = False
            batch = batch.keep(mask)
        times = batch.event_time
        if times is None and event_time is not None:
            times = rows.columns[event_time]
        columns: dict[str, Any] = dict(features.batch(rows.columns))
        columns |= {_RAW + name: rows.columns[name] for name in self._carried}
        return Batch(columns, times, batch.spans)

    def learn(self, batch: Batch, state: Any) -> None:
        """Learn from a batch that `__call__` returned, or a join of such, in order.

        Args:
            batch: the batch.
            state: the position after the batch, with which `trained_to` finds it.
        """
        features, drift = self._ahead, None
        raw = {name: batch.columns[_RAW + name] for name in self._carried}
        if features.learns_online:
            features.recent = features.recent.with_batch(batch.rows, features.learned.observed(raw))
        if self.drift is not None:
            drift = self.drift.keys_of(raw)
        if self._carried:
            self._versions.append((state, features.learned, features.recent, drift))

    @property
    def _carried(self) -> tuple[str, ...]:
        """Names of the raw columns carried along with the inputs."""
        if self._ahead.learns_online:
            return tuple(self._ahead.columns)
        return () if self.drift is None else tuple(self.drift.columns)

    def trained_to(self, state: Any) -> None:
        """Update the trainer's features to what was learned up to position `state`.

        A known position, such as that of a made-up batch, changes nothing.
        """
        if not any(position is state for position, *_ in self._versions):
            return
        while self._versions:
            position, learned, recent, drift = self._versions.popleft()
            if self.drift is not None and drift is not None:
                self.drift.add(drift)
            if position is state:
                self.features.learned, self.features.recent = learned, recent
                return
