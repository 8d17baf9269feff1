"""A stream of the rows that a server scored, labelled by later outcomes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ... import checks
from ...errors import ConfigurationError, DataError
from ..base import Stream
from ..batch import Batch
from ..dead_letter import DeadLetter
from ..formats.column import Column
from ..formats.schema import Schema
from ..sinks import KAFKA, kafka_address, scheme_of, split_url
from .files import FileStream
from .join import DelayedLabelJoin
from .kafka import KafkaStream
from .redis import RedisStream

SERVED_AT, SHARE = "served_at", "share"
LOG_COLUMNS = ("request_id", SERVED_AT, "version", "score", SHARE)  # columns that the log adds to the raw columns
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")


class ServedOutcomes(DelayedLabelJoin):
    """A stream of the rows that `trainer serve --log` wrote, labelled by outcomes.

    A row becomes a positive if an outcome with its id follows within `wait` of the row's time. A row without an
    outcome becomes a negative after `negative_after`, in event time. If several rows have the same id, only the first
    one is used. If an outcome has a value in the label's column, the row gets that value as its label.

    The columns are those that the Trainer's features declare, including the label. If the features declare a weight,
    its value is the inverse of the logged share of requests; for sampled negatives it is also divided by
    `negative_sampling_rate`.

    Args:
        served: folder, ``redis://`` or ``kafka://`` URL that the server writes to, or a stream.
        outcomes: folder, URL or stream of the outcomes, JSON objects with the key and a time.
        key: name of the column with the id, in the rows and in the outcomes.
        wait: longest time from a row to its outcome, in seconds or as a text such as "30m", "12h" or "7d".
        negative_after: time after which a row without an outcome becomes a negative, at least `wait`; longer if
            outcomes are delivered late. None uses `wait`; "never" drops such rows.
        time: name of the outcomes' time. None uses the name of the features' event time, or "time" if they have none.
        weight: name of the weight column of the features.
        negative_sampling_rate, seed, idle_timeout: see `DelayedLabelJoin`.
        max_waiting: largest number of rows, and of outcomes, that wait in memory; beyond it the oldest are dropped and
            counted.

    Raises:
        ConfigurationError: an argument is out of range, or `served` or `outcomes` cannot be read.
    """

    counts_rows = True

    def __init__(
        self,
        served: Stream | str | Path,
        outcomes: Stream | str | Path,
        key: str = "request_id",
        *,
        wait: float | str,
        negative_after: float | str | None = None,
        time: str | None = None,
        weight: str = "weight",
        negative_sampling_rate: float = 1.0,
        seed: int = 0,
        idle_timeout: float | None = 1.0,
        max_waiting: int = 1_000_000,
    ) -> None:
        within, never = duration("wait", wait), negative_after == "never"
        after = within if never or negative_after is None else duration("negative_after", negative_after)
        if after < within:
            raise ConfigurationError(
                f"negative_after takes wait ({within:g} s) or longer, or 'never'; received {negative_after!r}"
            )
        self.time = time
        super().__init__(
            _as_stream("served", served),
            _as_stream("outcomes", outcomes),
            key,
            within,
            weight=weight,
            negative_sampling_rate=negative_sampling_rate,
            seed=seed,
            lateness=after - within,
            idle_timeout=idle_timeout,
            at_end="drop" if never else "negative",
            expired="drop" if never else "negative",
            unique=True,
            max_waiting=checks.whole("max_waiting", max_waiting),
        )
        self.served, self.outcomes = (side.stream for side in self._sides)
        dead_letter = self.served.dead_letter
        self.dead_letter = DeadLetter() if dead_letter is None else dead_letter

    def declare(self, schema: Schema) -> None:
        """Declare the features' columns for the rows, and their label for the outcomes.

        Raises:
            ConfigurationError: the features do not have exactly one numeric label, or lack the weight that negative
                sampling needs.
        """
        if self.schema is not None:
            return
        label = schema.label
        if label is None or schema.fields[label].dtype.kind not in "biuf":
            received = "none, or several" if label is None else f"{label!r} of {schema.fields[label].type_name}"
            raise ConfigurationError(
                "data.stream: outcomes label the rows; declare exactly one numeric label in the features "
                f"(received {received})"
            )
        weight = schema.fields.get(
            self.weight
        )  # a weight is needed and never negative; a feature may have the same name
        self._is_weighted = weight is not None and weight.default is None and weight.minimum == 0
        if self.rate < 1 and not self._is_weighted:
            raise ConfigurationError(
                f"negative_sampling_rate={self.rate:g} needs weights: declare weight: {self.weight} in the features"
            )
        self.label, self.schema = label, schema
        text, share = Column(np.str_, coerce=True), Column(np.float32, minimum=0, default=1.0)
        added = (label, self.weight) if self._is_weighted else (label,)
        columns = {name: column for name, column in schema.columns.items() if name not in added}
        served = {**columns, self.key: text, SHARE: share}
        self.served.declare(
            replace(schema, columns=served, label=None, key=self.key, event_time=schema.event_time or SERVED_AT)
        )
        time_name = self.time or schema.event_time or "time"
        outcome = {self.key: text, label: replace(schema.columns[label], default=1.0)}
        if time_name == schema.event_time:
            outcome[time_name] = schema.fields[time_name]  # with the unit and the order of days that it declares
        unit = schema.event_time_unit if time_name == schema.event_time else None
        options: dict[str, Any] = {"event_time": time_name, "event_time_unit": unit, "max_future": schema.max_future}
        self.outcomes.declare(Schema(outcome, key=self.key, **options))

    def _labelled_batch(self, columns: dict[str, Any], *args: Any) -> Batch:
        if self.schema is None or self.label is None:
            raise ConfigurationError(
                "data.stream: served rows need features, which declare their columns and their label"
            )
        batch = super()._labelled_batch(columns, *args)
        labelled, share = dict(batch.columns), batch.columns[SHARE]
        if not self._is_weighted and (share != 1).any():
            raise DataError(
                f"a share of {share[share != 1][0]:g} of the requests was logged, so rows need weights: declare "
                f"weight: {self.weight} in the features"
            )
        if self._is_weighted:
            labelled[self.weight] = labelled[self.weight] / share
        elif self.weight in columns:
            labelled[self.weight] = columns[self.weight]
        labelled[self.label] = labelled[self.label].astype(self.schema.columns[self.label].dtype)
        return replace(batch, columns={name: labelled[name] for name in self.schema.columns})


def duration(name: str, value: Any) -> float:
    """Return a duration in seconds: a number, or a text such as "30m".

    Raises:
        ConfigurationError: the value is neither, or is not above 0.
    """
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    seconds = float(match[1]) * _UNITS[match[2]] if match else value
    if not checks.is_number(seconds) or not 0 < seconds < float("inf"):
        raise ConfigurationError(f"{name} takes seconds > 0, or text as 45s, 30m, 12h or 7d; received {value!r}")
    return float(seconds)


def _as_stream(name: str, source: Any) -> Stream:
    """Return a stream of a folder or a broker's URL; a stream is returned as is."""
    if isinstance(source, Stream):
        return source
    if not isinstance(source, str | Path):
        raise ConfigurationError(f"{name} takes a folder, redis://, kafka:// or a stream; received {source!r}")
    scheme = scheme_of(source) if str(source).startswith(("redis", "unix", "kafka")) else ""
    if scheme == KAFKA:
        servers, topic, settings = kafka_address(str(source))
        return KafkaStream(topic, servers=servers, config=settings)
    if scheme:
        url, options = split_url(str(source), ("key", "maxlen"))
        return RedisStream(options.get("key", name), url=url)
    return FileStream(source)
