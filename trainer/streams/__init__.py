"""Streams: unbounded sources of rows with exact positions, one file per source.

Names are imported on first use, so a source's client library is needed only if the source is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindspore_trainer.lazy import lazy_names

if TYPE_CHECKING:
    from .base import Sharing, Stream
    from .batch import Batch, Position, Span, advance, concat
    from .dead_letter import DeadLetter
    from .formats.schema import Column, Schema
    from .retry import Retry
    from .sources.files import FileStream
    from .sources.iterable import IterableStream
    from .sources.join import DelayedLabelJoin
    from .sources.kafka import KafkaStream
    from .sources.redis import RedisStream
    from .sources.replay import ReplayStream
    from .sources.segment import write_checksum

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
    "Sharing",
    "Span",
    "Stream",
    "advance",
    "concat",
    "write_checksum",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Batch": ".batch",
        "Position": ".batch",
        "Sharing": ".base",
        "Span": ".batch",
        "Stream": ".base",
        "advance": ".batch",
        "concat": ".batch",
        "DeadLetter": ".dead_letter",
        "FileStream": ".sources.files",
        "IterableStream": ".sources.iterable",
        "DelayedLabelJoin": ".sources.join",
        "KafkaStream": ".sources.kafka",
        "RedisStream": ".sources.redis",
        "ReplayStream": ".sources.replay",
        "Retry": ".retry",
        "Column": ".formats.schema",
        "Schema": ".formats.schema",
        "write_checksum": ".sources.segment",
    },
)
