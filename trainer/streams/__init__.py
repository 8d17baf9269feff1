"""Streams: sources of rows without end and with exact positions, one file per source.

Names are imported when first used, so that a source's client library is needed only by those who use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..hooks import lazy_names

if TYPE_CHECKING:
    from .base import Batch, Position, Span, Stream, advance, concat
    from .dead_letter import DeadLetter
    from .files import FileStream
    from .iterable import IterableStream
    from .join import DelayedLabelJoin
    from .kafka import KafkaStream
    from .redis import RedisStream
    from .replay import ReplayStream
    from .retry import Retry
    from .schema import Column, Schema

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
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Batch": ".base",
        "Position": ".base",
        "Span": ".base",
        "Stream": ".base",
        "advance": ".base",
        "concat": ".base",
        "DeadLetter": ".dead_letter",
        "FileStream": ".files",
        "IterableStream": ".iterable",
        "DelayedLabelJoin": ".join",
        "KafkaStream": ".kafka",
        "RedisStream": ".redis",
        "ReplayStream": ".replay",
        "Retry": ".retry",
        "Column": ".schema",
        "Schema": ".schema",
    },
)
