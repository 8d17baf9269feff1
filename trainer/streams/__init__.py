"""Streams: sources of rows without end and with exact positions, one file per source.

Names are imported when first used, so that a source's client library is needed only by those who use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.lazy import lazy_names

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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Batch": "trainer.streams.base",
        "Position": "trainer.streams.base",
        "Span": "trainer.streams.base",
        "Stream": "trainer.streams.base",
        "advance": "trainer.streams.base",
        "concat": "trainer.streams.base",
        "resolve": "trainer.streams.base",
        "DeadLetter": "trainer.streams.dead_letter",
        "FileStream": "trainer.streams.files",
        "IterableStream": "trainer.streams.iterable",
        "DelayedLabelJoin": "trainer.streams.join",
        "KafkaStream": "trainer.streams.kafka",
        "RedisStream": "trainer.streams.redis",
        "ReplayStream": "trainer.streams.replay",
        "Retry": "trainer.streams.retry",
        "Column": "trainer.streams.schema",
        "Schema": "trainer.streams.schema",
    },
)
