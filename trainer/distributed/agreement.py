"""Agree to stop: every rank sends one message and computes the same result."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from ..errors import DataError
from ..state import StopReason
from .group import Group

# In order of precedence: the first kind that any process reports is the common reason.
_KINDS = ("signal", "non_finite", "callback", "user", "limit", "idle", "stream_end")
NO_STOP = len(_KINDS)


def stop_kind(requested: StopReason | None) -> int:
    """Return the code of a requested stop; `NO_STOP` for None."""
    if requested is None:
        return NO_STOP
    return _KINDS.index(requested.kind) if requested.kind in _KINDS else _KINDS.index("user")


def first_stop(kinds: Sequence[int], requested: StopReason | None) -> StopReason | None:
    """Return the reason to stop, of the same kind on all processes, or None.

    `kinds` are the codes of all processes (`stop_kind`) in rank order. `requested` is this process's reason.
    """
    first = int(np.argmin(kinds))
    if kinds[first] == NO_STOP:
        return None
    if requested is not None and stop_kind(requested) == kinds[first]:
        return requested
    return StopReason(_KINDS[kinds[first]], f"requested by rank {first}")


def agree_to_stop(group: Group, requested: StopReason | None) -> StopReason | None:
    """Return the common reason to stop, or None; a collective call."""
    return first_stop(group.gather(np.array([stop_kind(requested)], np.int64))[:, 0].tolist(), requested)


@dataclasses.dataclass(frozen=True)
class StopHooks:
    """Functions through which a run takes part in the decision to stop."""

    requested_stop: Callable[[], StopReason | None]  # returns this process's own reason to stop, or None
    stop: Callable[[StopReason], None]  # called with the common reason

    def decide(self, kinds: Sequence[int]) -> bool:
        """Return whether to stop, given the codes of all ranks; call `stop` if so."""
        reason = first_stop(kinds, self.requested_stop())
        if reason is not None:
            self.stop(reason)
        return reason is not None


_WAITING = 2  # state of a process that waits for data; 0 and 1 say whether it has a chunk


def agree_to_continue(group: Group, hooks: StopHooks, ready: bool | None) -> bool:
    """Return whether all processes train the next chunk; a collective call.

    `ready` says whether this process has a chunk; None means that it waits for data. A waiting process calls this
    function repeatedly, because a collective has a time limit, and gets whether to keep waiting. If any process wants
    to stop in the meantime, all stop waiting, and none trains its chunk.

    Raises:
        DataError: the data of some processes ended before that of others.
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
            "processes the same dataset, or pass sharded=True if each has its own rows"
        )
    return bool(ready)
