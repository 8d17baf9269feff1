"""`Every`: when a repeated action is due."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

from .checks import is_number, is_whole, number, refuse, whole
from .errors import ConfigurationError


class Counters(Protocol):
    """The counters that a cadence reads; `trainer.state.Progress` has them."""

    epoch: int
    global_step: int
    samples_seen: int


_UNITS = {"steps": "global_step", "samples": "samples_seen", "epochs": "epoch"}


class Every:
    """A cadence: every n optimizer steps, samples, finished epochs or seconds.

    With steps, samples and epochs it is due when a multiple of n was *crossed* since the last check, so a call that
    trains 8 steps at once fires `Every(steps=5)` once, not never. With seconds it is due n seconds after it last fired.
    Check once per step: a check moves the mark.

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
        self._counter = _UNITS.get(self.unit)
        self._mark: float | None = None

    def start(self, progress: Counters) -> None:
        """Set the mark to `progress`, so that earlier multiples do not fire."""
        self._mark = time.monotonic() if self._counter is None else getattr(progress, self._counter) // self.n

    def due(self, progress: Counters) -> bool:
        """Return whether the cadence was crossed since it was last due."""
        if self._counter is None:
            now = time.monotonic()
            begun = now if self._mark is None else self._mark
            is_due = now - begun >= self.n
            self._mark = now if is_due else begun
            return is_due
        count = getattr(progress, self._counter) // self.n
        is_due = count > (self._mark or 0)
        self._mark = count  # lower than before after a rollback
        return is_due

    def state_dict(self) -> dict[str, Any]:
        """Return the mark, for a snapshot; a cadence in seconds restarts after a resume."""
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
    """Return a copy of `value`: an `Every`, a number of optimizer steps, or None.

    None means `default`. A copy, so that two callbacks sharing one do not move each other's mark.

    Raises:
        ConfigurationError: `value` is neither, or the number is not positive.
    """
    value = default if value is None else value
    if isinstance(value, Every):
        return Every(**{value.unit: value.n})
    argument = f"{owner}(every=...)"
    if not is_whole(value):
        optional = " or None" if default is not None else ""
        refuse(argument, f"an Every, a whole number of optimizer steps{optional}", value)
    return Every(steps=whole(argument, value))
