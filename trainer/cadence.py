"""`Every` determines when a repeated action is due."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from .checks import is_number, is_whole, number, refuse, whole
from .errors import ConfigurationError


class Counters(Protocol):
    """The counters that a cadence reads; `trainer.state.Progress` has them."""

    epoch: int
    global_step: int
    samples_seen: int


class JsonGatherer(Protocol):
    """The processes that train together (`trainer.distributed.group.Group`)."""

    def gather_json(self, value: Any) -> list[Any]:
        """Return the values of all processes."""


_UNITS = {"steps": "global_step", "samples": "samples_seen", "epochs": "epoch"}


class Every:
    """A cadence: every n optimizer steps, samples, finished epochs or seconds.

    In steps, the cadence is due at multiples of n. Program calls that train several steps end at these multiples, so
    `Every(steps=2)` limits calls to 2 steps. In samples, it is due after the call that *crosses* a multiple of n. The
    default cadences of callbacks do not shorten calls, so they are also due after the call that crosses a multiple. In
    seconds, it is due n seconds after it was last due.

    Attributes:
        cuts_calls: whether calls end at the multiples of n steps; False in default cadences.

    Raises:
        ConfigurationError: not exactly one unit was given, or it is not positive.
    """

    def __init__(
        self,
        steps: int | None = None,
        *,
        samples: int | None = None,
        epochs: int | None = None,
        seconds: float | None = None,
    ) -> None:
        given = {"steps": steps, "samples": samples, "epochs": epochs, "seconds": seconds}
        given = {unit: value for unit, value in given.items() if value is not None}
        if len(given) != 1:
            raise ConfigurationError(
                f"Every takes exactly one of steps, samples, epochs, seconds; received {given or 'none'}"
            )
        self.unit, n = next(iter(given.items()))
        argument = f"Every({self.unit}=...)"
        self.n = number(argument, n, above=0) if self.unit == "seconds" else whole(argument, n)
        self.cuts_calls = self.unit == "steps"
        self._counter = _UNITS.get(self.unit)
        self._mark: float | None = None

    def start(self, progress: Counters) -> None:
        """Start counting at `progress`, so that earlier multiples are not due."""
        self._mark = time.monotonic() if self._counter is None else getattr(progress, self._counter) // self.n

    def due(self, progress: Counters) -> bool:
        """Return whether the cadence is due; False if asked again at the same step."""
        if self._counter is None:
            now = time.monotonic()
            last_due = now if self._mark is None else self._mark
            is_due = now - last_due >= self.n
            self._mark = now if is_due else last_due
            return is_due
        count = getattr(progress, self._counter) // self.n
        is_due = count > (self._mark or 0)
        self._mark = count  # after a rollback, lower than the previous mark
        return is_due

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a snapshot; a cadence in seconds restarts after a resume."""
        return {} if self._counter is None else {"mark": self._mark}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        mark = state.get("mark")
        if mark is not None and not is_number(mark):
            raise ValueError(f"the mark of a cadence is a number or None; received {mark!r}")
        self._mark = mark

    def __repr__(self) -> str:
        return f"Every({self.unit}={self.n})"


def cadence(owner: str, value: Any, default: Every | None = None) -> Every:
    """Return an `Every` for `value`: an `Every`, a number of optimizer steps, or None.

    None means `default`, which does not shorten calls. An `Every` is copied, so that callbacks that were given the same
    object count separately.

    Raises:
        ConfigurationError: `value` is of another type, or the number is not positive.
    """
    by_default = value is None and default is not None
    value = default if by_default else value
    if isinstance(value, Every):
        copy = Every(**{value.unit: value.n})
        copy.cuts_calls = value.cuts_calls and not by_default
        return copy
    argument = f"{owner}(every=...)"
    if not is_whole(value):
        optional = " or None" if default is not None else ""
        refuse(argument, f"an Every, a whole number of optimizer steps{optional}", value)
    return Every(steps=whole(argument, value))


@dataclass(frozen=True)
class StepMarks:
    """The steps at which calls of several steps end: all multiples of `every`."""

    every: tuple[int, ...] = ()

    @classmethod
    def of(cls, cadences: Iterable[Any]) -> StepMarks:
        """Return the marks of the cadences with `cuts_calls`; other values are ignored."""
        multiples = {every.n for every in cadences if isinstance(every, Every) and every.cuts_calls}
        return cls(tuple(sorted(map(int, multiples))))

    def of_all(self, group: JsonGatherer) -> StepMarks:
        """Return the union of the marks of all processes; a collective call."""
        return StepMarks(tuple(sorted({n for every in group.gather_json(self.every) for n in every})))

    def call_size(self, step: int, max_steps: int) -> int:
        """Return the number of steps, at most `most`, for the call after `step`.

        The steps up to the next mark are divided into calls of nearly equal size, because a short call costs almost as
        much as a full one.
        """
        if not self.every:
            return max_steps
        remaining = min(n - step % n for n in self.every)
        return -(-remaining // -(-remaining // max_steps))


NO_MARKS = StepMarks()
