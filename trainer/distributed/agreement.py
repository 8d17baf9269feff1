"""What all processes decide together, from one small message of each: the same input, so the same decision."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import DataError
from ..state import StopReason
from .group import Group

if TYPE_CHECKING:
    from ..data.chunk import Chunk

# The first of these that any process gives is the reason of all.
_KINDS = ("signal", "non_finite", "callback", "user", "limit", "idle", "stream_end")


NO_STOP = len(_KINDS)


def stop_kind(wish: StopReason | None) -> int:
    """Return the number that stands for a wish to stop in a message to the others; `NO_STOP` without one."""
    if wish is None:
        return NO_STOP
    return _KINDS.index(wish.kind) if wish.kind in _KINDS else _KINDS.index("user")


def first_stop(kinds: Sequence[int], wish: StopReason | None) -> StopReason | None:
    """Return why all are to stop, given the numbers of all processes and the wish of this one; the same kind on all."""
    first = int(np.argmin(kinds))
    if kinds[first] == NO_STOP:
        return None
    if wish is not None and stop_kind(wish) == kinds[first]:
        return wish
    return StopReason(_KINDS[kinds[first]], f"rank {first} asked for it")


def agree_to_stop(group: Group, wish: StopReason | None) -> StopReason | None:
    """Return why all processes are to stop, if any of them wishes to; the same kind on all."""
    return first_stop(group.gather(np.array([stop_kind(wish)], np.int64))[:, 0].tolist(), wish)


def everyones_chunks(group: Group, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Yield this process's chunks of one batch each, as many on every process: made-up ones when its own have ended.

    The rows of all processes are told by `all_samples`; the epoch ends, and its position begins anew, with the last
    process's last chunk.

    Raises:
        DataError: this process has no rows at all while others have some.
    """
    last: Chunk | None = None
    done = 0
    while True:
        chunk = next(chunks, None)
        own = [0, 0] if chunk is None else [chunk.num_samples, int(not chunk.ends_epoch)]
        found = group.gather(np.array(own, np.int64))
        rows = int(found[:, 0].sum())
        if rows == 0:
            return
        if chunk is None and last is None:
            raise DataError(f"rank {group.rank} has no rows to train on, and others have; give every process some")
        if chunk is None:
            chunk = dataclasses.replace(last, num_samples=0)
        if last is None:
            done = chunk.position["batch"] - 1 if not chunk.ends_epoch else 0
            epoch = chunk.position["epoch"] - int(chunk.ends_epoch)
        last, done = chunk, done + 1
        ends = not found[:, 1].any()
        position = {"epoch": epoch + 1, "batch": 0} if ends else {"epoch": epoch, "batch": done}
        yield dataclasses.replace(chunk, all_samples=rows, ends_epoch=ends, position=position)
