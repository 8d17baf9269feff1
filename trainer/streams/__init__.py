"""Streams: unbounded sources of rows with exact positions, one file per source.

Names are imported on first use, so a source's client library is needed only if the source is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from callbacks.lazy_names import declared_imports, lazy_names

if TYPE_CHECKING:
    from .base import Sharing as Sharing
    from .base import Stream as Stream
    from .batch import Batch as Batch
    from .batch import Position as Position
    from .batch import Span as Span
    from .batch import advance as advance
    from .batch import concat as concat
    from .dead_letter import DeadLetter as DeadLetter
    from .formats.schema import Column as Column
    from .formats.schema import Schema as Schema
    from .retry import Retry as Retry
    from .sources.files import FileStream as FileStream
    from .sources.iterable import IterableStream as IterableStream
    from .sources.join import DelayedLabelJoin as DelayedLabelJoin
    from .sources.kafka import KafkaStream as KafkaStream
    from .sources.redis import RedisStream as RedisStream
    from .sources.replay import ReplayStream as ReplayStream
    from .sources.segment import write_checksum as write_checksum
    from .sources.served import ServedOutcomes as ServedOutcomes

_HOMES = declared_imports(__file__)
__all__ = sorted(_HOMES)

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
