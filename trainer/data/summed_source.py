"""A stream that every process reads whole, with a checksum of the rows so far: different rows on a process are seen."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from .ragged import Ragged
from .sources import Item, Source
from .stream_source import StreamSource


class SummedSource(Source):
    """A stream whose positions are (sum, position): a CRC-32 of all rows so far, which shows that all read the same."""

    def __init__(self, source: StreamSource) -> None:
        self.source = source
        self.thread_bound = source.thread_bound

    @property
    def names(self) -> tuple[str, ...] | None:
        """Column names."""
        return self.source.names

    def batches(self, epoch: int, start: int, state: Any = None) -> Iterator[Item | None]:
        """Yield the batches of the stream."""
        total = 0
        for item in self.source.batches(epoch, start, state):
            if item is not None:
                for column in item.columns:
                    for part in _content(column):
                        total = zlib.crc32(part, total)
                item = item._replace(state=(total, item.state))
            yield item

    def interrupt(self) -> None:
        """See `Source.interrupt`."""
        self.source.interrupt()

    def close(self) -> None:
        """See `Source.close`."""
        self.source.close()


def _content(column: Any) -> list[Any]:
    if isinstance(column, Ragged):
        rows = column[:]  # a view may start in the middle of its values
        return [rows.lengths, *_content(rows.values)]
    if column.dtype.kind in "OU":  # objects are addresses, and text may be stored in arrays of different widths
        return [repr(column.tolist()).encode()]
    return [np.ascontiguousarray(column)]
