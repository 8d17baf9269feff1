"""Decide when the windows of a stream close: the user's `Window` and its clock."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..checks import number, whole
from ..errors import ConfigurationError, DataError
from .binary_counts import BinarySums


@dataclass(frozen=True)
class Window:
    """When a metric window closes, and how much past windows count.

    Give exactly one of `rows`, `seconds` and `event_time`.

    Args:
        rows: close each time the number of trained rows crosses a multiple of this number.
        seconds: close this many seconds of wall time after the last window closed.
        event_time: close when event time crosses a multiple of this many seconds. Late rows count in the open window;
            closed windows are not reopened.
        decay: factor applied to the weight of past windows in the decayed metrics each time a window closes, 0 < decay
            < 1; 0.9 looks back about 10 windows.
        negative_sampling_rate: share of negatives that was kept, 0 < rate <= 1. Log loss, normalized entropy and
            calibration are then reported for the full traffic.
        correct_probability: with a sampling rate, whether predictions are corrected to the full traffic too. Use False
            if training already weighted negatives by 1 / rate.

    Raises:
        ConfigurationError: not exactly one of `rows`, `seconds` and `event_time`, or a value out of range.
    """

    rows: int | None = None
    seconds: float | None = None
    event_time: float | None = None
    decay: float = 0.9
    negative_sampling_rate: float | None = None
    correct_probability: bool = True

    def __post_init__(self) -> None:
        spans = {name: getattr(self, name) for name in ("rows", "seconds", "event_time")}
        specified = {name: value for name, value in spans.items() if value is not None}
        if len(specified) != 1:
            shown = ", ".join(f"{name}={value!r}" for name, value in specified.items()) or "none of them"
            raise ConfigurationError(f"Window takes exactly one of rows, seconds, event_time; received {shown}")
        name, value = next(iter(specified.items()))
        if name == "rows":
            whole("Window(rows=...)", value)
        else:
            number(f"Window({name}=...)", value, above=0, below=math.inf)
        BinarySums(negative_sampling_rate=self.negative_sampling_rate)  # validates the rate
        number("decay", self.decay, above=0, below=1)

    @property
    def span(self) -> tuple[str, float]:
        """Name and value of the given one of `rows`, `seconds` and `event_time`."""
        return next((n, getattr(self, n)) for n in ("rows", "seconds", "event_time") if getattr(self, n) is not None)


class WindowClock:
    """Decides after each training call whether the open window closes."""

    def __init__(self, window: Window) -> None:
        self.unit, self.n = window.span
        self._mark: float | None = None
        self._open_for = 0.0  # seconds the window was open before a restore

    def start(self, rows_seen: int, wall: float) -> None:
        """Open the first window if none is open; `wall` is a clock in seconds."""
        if self._mark is None and self.unit != "event_time":
            self._mark = wall - self._open_for if self.unit == "seconds" else rows_seen // self.n
            self._open_for = 0.0

    def closed(self, rows_seen: int, wall: float, event_time: float | None = None) -> bool:
        """Return whether the open window has closed; if so, open the next one.

        Args:
            rows_seen: number of rows trained on so far.
            wall: clock in seconds.
            event_time: latest event time of the rows just trained on, in seconds since the epoch; NaN or None if they
                have none.

        Raises:
            DataError: windows use event time and the first rows have none.
        """
        self.start(0, wall)
        if self.unit == "event_time":
            if event_time is None or math.isnan(event_time):
                if self._mark is None:
                    raise DataError(
                        "Window(event_time=...) needs rows that carry an event time; this stream gives none: "
                        "name its time column in the stream's schema, or use Window(rows=...) or Window(seconds=...)"
                    )
                return False
            mark = event_time // self.n
            self._mark = mark if self._mark is None else self._mark
        else:
            mark = wall if self.unit == "seconds" else rows_seen // self.n
        assert self._mark is not None  # `start` has set it
        has_closed = mark - self._mark >= self.n if self.unit == "seconds" else not mark <= self._mark
        if has_closed:
            self._mark = mark
        return has_closed

    def state_dict(self, wall: float) -> dict[str, Any]:
        """Return the state of the open window as JSON-serialisable values."""
        if self.unit == "seconds" and (self._mark is not None or self._open_for):
            open_for = self._open_for if self._mark is None else wall - self._mark
            return {"unit": self.unit, "n": self.n, "open_for": open_for}
        return {"unit": self.unit, "n": self.n, "mark": self._mark}

    def load_state_dict(self, state: Mapping[str, Any], wall: float | None) -> None:
        """Restore a state from `state_dict`.

        If the state has another kind or length of window, an empty window starts. If `wall` is None, the time of a
        window in seconds continues at the first call of `closed`.
        """
        if state.get("unit") != self.unit or state.get("n") != self.n:
            return
        self._mark, self._open_for = state.get("mark"), state.get("open_for", 0.0)
        if self._open_for and wall is not None:
            self.start(0, wall)
