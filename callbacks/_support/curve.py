"""`Curve`: values over optimizer steps in bounded memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer.checks import any_number, whole


class Curve:
    """A series of (step, value) points; when it is full, every second point goes and points come half as often.

    So a run of any length keeps between `max_points / 2` and `max_points` evenly spaced points.

    Attributes:
        steps: optimizer steps, ascending.
        values: the values there, same length.
    """

    def __init__(self, max_points: int | None = None) -> None:
        self.max_points = max_points
        self.steps: list[int] = []
        self.values: list[float] = []
        self._stride = 1
        self._offered = 0

    def add(self, step: int, value: float) -> None:
        """Append a point, unless the stride leaves it out."""
        self._offered += 1
        if (self._offered - 1) % self._stride:
            return
        self.steps.append(int(step))
        self.values.append(float(value))
        if self.max_points is not None and len(self.steps) >= self.max_points:
            del self.steps[1::2], self.values[1::2]
            self._stride *= 2

    def __len__(self) -> int:
        return len(self.steps)

    def state_dict(self) -> dict[str, Any]:
        """Return the points and the stride as plain values."""
        return {
            "steps": list(self.steps),
            "values": list(self.values),
            "stride": self._stride,
            "offered": self._offered,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        steps = [whole("step", step, 0) for step in state["steps"]]
        values = [any_number("value", value) for value in state["values"]]
        if len(steps) != len(values):
            raise ValueError(f"a curve has {len(steps)} steps and {len(values)} values")
        self._stride, self._offered = whole("stride", state["stride"]), whole("offered", state["offered"], 0)
        self.steps, self.values = steps, values
