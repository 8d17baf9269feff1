"""What all processes decide together, from one small message of each: the same input, so the same decision."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
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
_NOT_YET = 2  # beside 0 and 1, whether there is a chunk


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


@dataclasses.dataclass(frozen=True)
class StopHooks:
    """What an agreement has to know of the run, and to tell it.

    Attributes:
        wish: returns why this process wants the run to end, or None.
        stop: called with what all have agreed to end for.
    """

    wish: Callable[[], StopReason | None]
    stop: Callable[[StopReason], None]

    def decide(self, kinds: Sequence[int]) -> bool:
        """Return whether all stop, given the numbers of all processes, and make it known."""
        reason = first_stop(kinds, self.wish())
        if reason is not None:
            self.stop(reason)
        return reason is not None


def go_on(group: Group, hooks: StopHooks, ready: bool | None) -> bool:
    """Return whether all processes train the next chunk; all call it together.

    A process that waits for its data calls it again and again with None and learns whether to wait on: nobody stays in
    one collective for longer than MindSpore allows. One that wants to stop while it waits ends the waiting of all, and
    none of them trains its chunk then.

    Args:
        group: the processes.
        hooks: the run.
        ready: whether this process has a chunk; None: not yet.

    Raises:
        DataError: the data of some processes has ended before that of others.
    """
    state = _NOT_YET if ready is None else int(ready)
    while True:
        found = group.gather(np.array([stop_kind(hooks.wish()), state], np.int64))
        if hooks.decide(found[:, 0].tolist()):
            return False
        states = found[:, 1]
        if ready is None:
            return True
        if not (states == _NOT_YET).any():
            break
    if states.any() and not states.all():
        raise DataError(
            f"the data of ranks {np.flatnonzero(states == 0).tolist()} ended before that of the others; give all "
            "processes the same dataset, or say sharded=True where each has rows of its own"
        )
    return bool(ready)


def everyones_chunks(
    group: Group,
    hooks: StopHooks,
    open_chunks: Callable[[Callable[[], bool]], Iterator[Chunk]],
    meet: Callable[[], None],
) -> Iterator[Chunk]:
    """Yield this process's chunks of one batch each, as many on every process: made-up ones when its own have ended.

    The rows of all processes are told by `all_samples`; the epoch ends, and its position begins anew, with the last
    process's last chunk. They end as soon as a process wants to stop. A process that waits for its data agrees anew
    all the while, so that the others are not in one collective for longer than MindSpore allows.

    Args:
        group: the processes.
        hooks: the run.
        open_chunks: returns this process's chunks, given what they ask while they wait: whether to end.
        meet: waits for all processes, where chunks ask nothing while they wait.

    Raises:
        DataError: this process has no rows at all while others have some.
    """
    ended = False

    def agree(rows: int, more: bool, waits: bool) -> np.ndarray:
        nonlocal ended
        found = group.gather(np.array([rows, more, waits, stop_kind(hooks.wish())], np.int64))
        ended = hooks.decide(found[:, 3].tolist())
        return found

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
            found = agree(*((0, False) if chunk is None else (chunk.num_samples, not chunk.ends_epoch)), False)
            waits = bool(found[:, 2].any())
        if ended:
            return
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
