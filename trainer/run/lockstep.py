"""Lockstep of several processes: all train as many chunks and stop together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Iterator

import numpy as np

from ..data.chunk import Chunk
from ..distributed.agreement import StopHooks, stop_kind
from ..distributed.group import Group
from ..errors import DataError

_WAITING = 2  # besides 0 and 1, whether a process has a chunk


def all_go_on(group: Group, hooks: StopHooks, ready: bool | None) -> bool:
    """Return whether all processes train the next chunk; a collective call.

    A process that waits for its data (`ready` is None) calls it repeatedly and learns whether to keep waiting, because
    MindSpore limits the time in one collective. A process that wants to stop while it waits ends the waiting of all;
    none of them trains its chunk then.

    Raises:
        DataError: the data of some processes has ended before that of others.
    """
    state = _WAITING if ready is None else int(ready)
    while True:
        kinds, states = group.gather(np.array([stop_kind(hooks.requested_stop()), state], np.int64)).T
        if hooks.decide(kinds.tolist()):
            return False
        if ready is None:
            return True
        if not (states == _WAITING).any():
            break
    if states.any() and not states.all():
        raise DataError(
            f"the data of ranks {np.flatnonzero(states == 0).tolist()} ended before that of the others; give all "
            "processes the same dataset, or say sharded=True where each has rows of its own"
        )
    return bool(ready)


def lockstep_chunks(
    group: Group,
    hooks: StopHooks,
    open_chunks: Callable[[Callable[[], bool]], Iterator[Chunk]],
    meet: Callable[[], None],
) -> Generator[Chunk, None, None]:
    """Yield as many chunks of one batch on every process.

    After the end of its own data a process yields its last chunk without rows. `all_samples` counts the rows of all
    processes. The epoch ends with the last chunk of any process. The iteration ends as soon as a process wants to stop.
    A process that waits for its data takes part in further agreements, because MindSpore limits the time in one
    collective.

    Args:
        group, hooks: the processes and the run.
        open_chunks: returns this process's chunks, given a function that they call while they wait: whether to end.
        meet: waits for all processes, where chunks cannot call anything while they wait.

    Raises:
        DataError: this process has no rows at all while others have some.
    """
    ended = False

    def agree(rows: int, more: bool, waits: bool) -> np.ndarray:
        nonlocal ended
        messages = group.gather(np.array([rows, more, waits, stop_kind(hooks.requested_stop())], np.int64))
        ended = hooks.decide(messages[:, 3].tolist())
        return messages

    def wait() -> bool:
        agree(0, True, True)
        return ended

    chunks = open_chunks(wait)
    last: Chunk | None = None
    done = 0
    while True:
        chunk = next(chunks, None)
        meet()
        waits = not ended
        while waits and not ended:
            messages = agree(*((0, False) if chunk is None else (chunk.num_samples, not chunk.ends_epoch)), False)
            waits = bool(messages[:, 2].any())
        if ended:
            return
        rows = int(messages[:, 0].sum())
        if rows == 0:
            return
        if chunk is None:
            if last is None:
                raise DataError(f"rank {group.rank} has no rows to train on, and others have; give every process some")
            chunk = dataclasses.replace(last, num_samples=0)
        if last is None:
            done = chunk.position.batch - 1 if not chunk.ends_epoch else 0
            epoch = chunk.position.epoch - int(chunk.ends_epoch)
        last, done = chunk, done + 1
        ends = not messages[:, 1].any()
        position = chunk.position.at(epoch + 1, 0) if ends else chunk.position.at(epoch, done)
        yield dataclasses.replace(chunk, all_samples=rows, ends_epoch=ends, position=position)
