"""Streams: sources of rows without end and with exact positions, one file per source.

Names are imported when first used, so that a source's client library is needed only by those who use it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.streams.base import Batch, Position, Span, Stream, advance, concat, resolve
    from trainer.streams.dead_letter import DeadLetter
    from trainer.streams.files import FileStream
    from trainer.streams.iterable import IterableStream
    from trainer.streams.join import DelayedLabelJoin
    from trainer.streams.kafka import KafkaStream
    from trainer.streams.redis import RedisStream
    from trainer.streams.replay import ReplayStream
    from trainer.streams.retry import Retry
    from trainer.streams.schema import Column, Schema

_HOMES = {
    "Batch": "base",
    "Position": "base",
    "Span": "base",
    "Stream": "base",
    "advance": "base",
    "concat": "base",
    "resolve": "base",
    "DeadLetter": "dead_letter",
    "FileStream": "files",
    "IterableStream": "iterable",
    "DelayedLabelJoin": "join",
    "KafkaStream": "kafka",
    "RedisStream": "redis",
    "ReplayStream": "replay",
    "Retry": "retry",
    "Column": "schema",
    "Schema": "schema",
}

__all__ = [
    "Batch",
    "Column",
    "DeadLetter",
    "DelayedLabelJoin",
    "FileStream",
    "IterableStream",
    "KafkaStream",
    "Position",
    "RedisStream",
    "ReplayStream",
    "Retry",
    "Schema",
    "Span",
    "Stream",
    "advance",
    "concat",
    "resolve",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
