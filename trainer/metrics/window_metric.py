"""The metric interface: rows in, named numbers out.

`WindowMetric` is the protocol for metrics in windows of a stream. `RowMetric` is the base class of the metrics in this
folder; they work in `evaluate`, in windows and in `mindspore.Model`. A metric does not know about windows: the run
decides which rows it gets and how past horizons are kept. A class with a `name` in a file of this folder is available
by that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from mindspore.train import Metric

from ..errors import DataError
from .predictions import Meaning, Sums, activate, to_numpy, without_ignored, without_weightless

Direction = bool | None


@runtime_checkable
class WindowMetric(Protocol):
    """A metric over the rows of a window.

    Attributes:
        group: column passed to `update` as `groups`, or None.
        parts: keys of the dict that `value` returns; empty if it returns a number.
        higher_is_better: whether callbacks that monitor the metric look for a maximum; optional.
    """

    group: str | None
    parts: tuple[str, ...]

    def restart(self) -> None:
        """Forget all rows for the next window; keep the interpretation of predictions."""

    def update(self, predictions: Any, labels: Any, weights: Any = None, groups: Any = None) -> None:
        """Add rows, as host arrays with the rows on axis 0."""

    def value(self) -> float | dict[str, float]:
        """Return the value over all rows since `restart`; NaN if undefined."""

    def close(self) -> None:
        """End the window; later rows form new groups, even with the same group value."""

    def merge(self, other: Any) -> None:
        """Add the rows of `other`, a metric of the same class and options."""

    def decay(self, factor: float) -> None:
        """Multiply the weight of all rows by `factor`."""

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"json": ..., "arrays": {name: numeric array}}``."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `state_dict`."""


class RowMetric(Metric):
    """Base of this package's metrics: a `WindowMetric` and a MindSpore `Metric`.

    Attributes:
        name: name of the metric; None derives it from the class name.
        higher_is_better: whether callbacks that monitor the metric look for a maximum. None: unknown, so the direction
            must be set in the callback. If `value` returns several parts, a dict by part.
        takes_raw: whether `add` handles logits itself; otherwise the activation is applied first.
    """

    group: str | None = None
    parts: tuple[str, ...] = ()
    name: str | None = None
    higher_is_better: Direction | Mapping[str, Direction] = None
    takes_raw: bool = False
    meaning: Meaning = Meaning()

    def update(self, *inputs: Any, weights: Any = None, groups: Any = None) -> None:
        """Add rows.

        Args:
            inputs: predictions, labels and optionally sample weights of shape [B], as Tensors or arrays. If there are
                more inputs, select these with `set_indexes`.
            weights: sample weights, shape [B], finite and not negative; None counts each row once. Rows of weight 0 are
                left out, whatever their values.
            groups: group of each row, shape [B] or [B, 1], integers or strings; required by metrics with a `group`.

        Raises:
            DataError: incompatible shapes, or values the metric cannot read.
        """
        if self.indexes:
            inputs = tuple(inputs[index] for index in self.indexes)
        kind = type(self).__name__
        if len(inputs) not in (2, 3):
            raise DataError(
                f"{kind}.update takes predictions, labels and optionally weights; received {len(inputs)} inputs"
            )
        predictions, labels, *more = inputs
        weights = more[0] if more else weights
        activation = self.meaning.activation
        if activation is not None and not (self.takes_raw and activation in ("identity", "sigmoid", "softmax")):
            predictions = activate(activation, to_numpy(predictions, "predictions"))
        labels = to_numpy(labels, "labels")
        rows = labels.size
        kept = without_weightless(predictions, labels, weights, groups)
        if self.meaning.ignored is not None:
            kept = without_ignored(self.meaning.ignored, *kept)
        predictions, labels, weights, groups = kept
        if rows and not labels.size:
            return
        if self.group is None:
            self.add(predictions, labels, weights)
        elif groups is None:
            raise DataError(f"{kind} needs the column {self.group!r}, the group of each row")
        else:
            self.add(predictions, labels, weights, groups)

    def add(self, predictions: Any, labels: Any, weights: Any, groups: Any = None) -> None:
        """Add the rows of a batch. `update` calls it after selecting and checking inputs."""
        raise NotImplementedError

    def eval(self) -> float | dict[str, float]:
        return self.value()

    def value(self) -> float | dict[str, float]:
        """Return the value over all rows since `clear`."""
        raise NotImplementedError

    def close(self) -> None:
        """End the window. Does nothing except in metrics that rank rows."""

    def restart(self) -> None:
        """Forget all rows; keep any inferred interpretation of predictions."""
        self.clear()

    def set_meaning(self, meaning: Meaning) -> None:
        """Set how to interpret predictions."""
        self.meaning = meaning


class SumMetric(Sums, RowMetric):
    """Base of metrics computed from `Sums` over rows."""

    def __init__(self) -> None:
        super().__init__()
        self.clear()
