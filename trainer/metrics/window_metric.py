"""The contract of a metric: rows in; a number, or several by name, out; merged, decayed and saved without its rows.

`WindowMetric` is the protocol that the windows of a stream take. `RowMetric` is the base of the metrics here, which
serve `evaluate`, windows and `mindspore.Model` alike. A metric knows nothing of windows: the run decides which rows it
is given and what a past horizon keeps.

A metric with a `name` in a file of this folder can be asked for by that name; nothing else has to be changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from mindspore.train import Metric

from ..errors import DataError
from .predictions import Meaning, Sums, activate, to_numpy

Direction = bool | None


@runtime_checkable
class WindowMetric(Protocol):
    """A metric over the rows of a window.

    Attributes:
        group: column that `update` gets as `groups`, or None.
        parts: keys of the dict that `value` returns, where it returns one; empty for a number.
        higher_is_better: whether callbacks that follow the metric look for a maximum; optional.
    """

    group: str | None
    parts: tuple[str, ...]

    def restart(self) -> None:
        """Forget all rows, but not how predictions are read: the next window begins."""

    def update(self, predictions: Any, labels: Any, weights: Any = None, groups: Any = None) -> None:
        """Add rows: host arrays with the rows on axis 0."""

    def value(self) -> float | dict[str, float]:
        """Return the value over all rows since `restart`; NaN where they do not define it."""

    def close(self) -> None:
        """End the window: rows that come later belong to other groups than the rows so far."""

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
        name: name it has in a list of metrics; None takes that of its class.
        higher_is_better: whether callbacks that follow the metric look for a maximum; None: they have to be told. A
            dict by part where `value` returns several.
        takes_raw: whether `add` reads logits itself; otherwise predictions come with the activation applied.
        meaning: what the loss says about predictions; set by the trainer before rows come.
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
            inputs: predictions, labels and, if wanted, sample weights of shape [B]; Tensors or arrays. `set_indexes`
                chooses among more inputs.
            weights: sample weights, shape [B], finite and not negative; None counts each row once.
            groups: group of each row, shape [B] or [B, 1], integers or strings; for metrics with a `group`.

        Raises:
            DataError: shapes that do not fit each other, or values the metric cannot read.
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
        if self.group is None:
            self.add(predictions, labels, weights)
        elif groups is None:
            raise DataError(f"{kind} needs the column {self.group!r}, the group of each row")
        else:
            self.add(predictions, labels, weights, groups)

    def add(self, predictions: Any, labels: Any, weights: Any, groups: Any = None) -> None:
        """Add rows; `update` has chosen the inputs."""
        raise NotImplementedError

    def eval(self) -> float | dict[str, float]:
        """Return `value()`."""
        return self.value()

    def value(self) -> float | dict[str, float]:
        """Return the value over all rows since `clear`."""
        raise NotImplementedError

    def close(self) -> None:
        """End the window; a metric that does not rank rows against each other ignores it."""

    def restart(self) -> None:
        """Forget all rows; a metric that has inferred how predictions are read remembers that."""
        self.clear()

    def expect(self, meaning: Meaning) -> None:
        """Read predictions as `meaning` says, from now on."""
        self.meaning = meaning


class SumMetric(Sums, RowMetric):
    """Base of metrics that follow from `Sums` over rows."""

    def __init__(self) -> None:
        super().__init__()
        self.clear()
