"""What a metric is: rows in, a number (or several, by name) out; joined, aged and saved without its rows being kept.

`WindowMetric` is the protocol that windows of a stream take; `RowMetric` is the base of the metrics here, which serve
an evaluation, a stream's windows and `mindspore.Model` alike. A metric knows nothing of windows: which rows it is
given, and what a past horizon keeps of it, is the run's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

from mindspore.train import Metric

from ..errors import DataError


@runtime_checkable
class WindowMetric(Protocol):
    """A metric over the rows of a window.

    Attributes:
        group: column that `update` gets as `groups`, or None.
        parts: keys of the dict that `value` returns, where it returns one; empty for a number.
    """

    group: str | None
    parts: tuple[str, ...]

    def restart(self) -> None:
        """Forget all rows, but not how predictions are to be read: the next window begins."""

    def update(self, predictions: Any, labels: Any, weights: Any = None, groups: Any = None) -> None:
        """Add rows: host arrays with the rows on axis 0."""

    def value(self) -> float | dict[str, float]:
        """Return the value over all rows since `restart`; NaN where they do not define it."""

    def close(self) -> None:
        """The window has ended: rows that come later belong to other lists than the rows so far."""

    def merge(self, other: Any) -> None:
        """Add what `other`, of the same kind and options, has seen."""

    def decay(self, factor: float) -> None:
        """Multiply the weight of everything seen by `factor`."""

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"json": ..., "arrays": {name: array of numbers}}``."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""


class RowMetric(Metric):
    """Base of the metrics of this package: a `WindowMetric` that is a `mindspore.train.Metric` too.

    Attributes:
        name: name it goes by in a list of metrics; None takes that of its class.
    """

    group: str | None = None
    parts: tuple[str, ...] = ()
    name: str | None = None

    def update(self, *inputs: Any, weights: Any = None, groups: Any = None) -> None:
        """Add rows.

        Args:
            inputs: predictions, labels and, if wanted, sample weights of shape [B]; Tensors or arrays. Which of more
                inputs are meant, `set_indexes` says.
            weights: sample weights, shape [B], finite and not negative; None counts each row once.
            groups: group of each row, shape [B] or [B, 1], integers or strings; for metrics with a `group`.

        Raises:
            DataError: shapes that do not fit each other, or values the metric cannot read.
        """
        if self.indexes:
            inputs = tuple(inputs[place] for place in self.indexes)
        if len(inputs) not in (2, 3):
            kind = type(self).__name__
            raise DataError(
                f"{kind}.update takes predictions, labels and optionally weights; received {len(inputs)} inputs"
            )
        weights = inputs[2] if len(inputs) == 3 else weights
        if self.group is not None:
            if groups is None:
                raise DataError(f"{type(self).__name__} needs the column {self.group!r}, the group of each row")
            self.add(inputs[0], inputs[1], weights, groups)
        else:
            self.add(inputs[0], inputs[1], weights)

    def add(self, predictions: Any, labels: Any, weights: Any, groups: Any = None) -> None:
        """Add rows; what `update` does once it has found its inputs."""
        raise NotImplementedError

    def eval(self) -> float | dict[str, float]:
        """Return `value()`."""
        return self.value()

    def value(self) -> float | dict[str, float]:
        """Return the value over all rows since `clear`."""
        raise NotImplementedError

    def close(self) -> None:
        """The window has ended; metrics that do not rank rows against each other need not know."""

    def restart(self) -> None:
        """Forget all rows; a metric that found out how predictions are to be read remembers that."""
        self.clear()

    def expect_logits(self) -> None:
        """Take binary predictions for logits until `clear`, also while all lie in [0, 1], where link is "auto"."""


class SumMetric(RowMetric):
    """Base of metrics that follow from sums over rows.

    Attributes:
        sums: names of the sums.
    """

    sums: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        super().__init__()
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.total = dict.fromkeys(self.sums, 0.0)

    def merge(self, other: SumMetric) -> None:
        """Add the sums of `other`, which stays as it is."""
        self.total = {name: value + other.total[name] for name, value in self.total.items()}

    def decay(self, factor: float) -> None:
        """Multiply every sum by `factor`."""
        self.total = {name: value * factor for name, value in self.total.items()}

    def mean(self, name: str, weight: str = "weight") -> float:
        """Return one sum over another, NaN when that is 0."""
        return self.total[name] / self.total[weight] if self.total[weight] else float("nan")

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"json": the sums, "arrays": {}}``."""
        return {"json": dict(self.total), "arrays": {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.total = {name: float(state["json"][name]) for name in self.sums}
