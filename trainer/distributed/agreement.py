"""Collective decisions to stop: every rank sends one small message and computes the same result."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from ..state import StopReason
from .group import Group

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


@dataclasses.dataclass(frozen=True)
class StopHooks:
    """Connects an agreement to the run.

    Attributes:
        wish: returns why this process wants the run to end, or None.
        stop: called with the reason that all have agreed on.
    """

    wish: Callable[[], StopReason | None]
    stop: Callable[[StopReason], None]

    def decide(self, kinds: Sequence[int]) -> bool:
        """Return whether all stop, given the numbers of all processes; call `stop` if so."""
        reason = first_stop(kinds, self.wish())
        if reason is not None:
            self.stop(reason)
        return reason is not None
