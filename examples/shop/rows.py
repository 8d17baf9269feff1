"""The shop's data: declared columns, and MovieLens-100K as visits ordered by time."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from examples.last_films import last_films
from examples.movielens import load
from trainer.features import Categorical, Features, ListFeature
from trainer.models import DIN

WITHIN = 600.0  # seconds of event time within which visitors report that they liked a film
COLUMNS = ("user", "item", "age", "gender", "occupation", "year", "genres", "liked", "timestamp")


def features() -> Features:
    """Return the declared columns."""
    single = [Categorical(name) for name in ("user", "age", "gender", "occupation", "year")]
    lists = [
        ListFeature("genres", pooling="mean", max_length=6),
        ListFeature("liked", pooling=None, table="item", max_length=20),
    ]
    return Features([*single, Categorical("item", table="item"), *lists], label="label", event_time="timestamp")


def network(declared: Features) -> DIN:
    """Return the network, a sequence model on the films that the user liked before."""
    return DIN(declared, candidate="item", dim=8, hidden=(64, 32), attention_hidden=(16,))


def visits() -> dict[str, Any]:
    """Return all 100,000 visits, oldest first; "label" is 1 if the film was liked."""
    columns = load()
    before = last_films(columns)
    table: dict[str, Any] = {name: columns[name].astype(np.int64) for name in COLUMNS[:6]}
    table["genres"] = [np.flatnonzero(row).tolist() for row in columns["genres"]]
    pairs = zip(before["films"], before["stars"], strict=True)
    table["liked"] = [films[stars >= 4].tolist() for films, stars in pairs]
    table["timestamp"] = columns["timestamp"].astype(np.float64)
    table["label"] = columns["label"]
    return table


def part(table: dict[str, Any], rows: slice) -> dict[str, Any]:
    """Return some of the visits."""
    return {name: column[rows] for name, column in table.items()}


def delay(visit: str) -> float:
    """Return the delay, in seconds of event time, of the report of a liked film."""
    return 5.0 + zlib.crc32(visit.encode()) % 500
