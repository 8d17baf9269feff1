"""Adapters: a metric per value of a column; metrics of other libraries in windows."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import mindspore.train as ms_train
import numpy as np

from ..checks import nonempty_text, refuse, whole
from .predictions import CountsByName, Meaning, group_column, row_weights, to_numpy, without_ignored
from .window_metric import Direction, RowMetric, WindowMetric

OTHER = "other"
_HIGHER_IS_BETTER = (
    *(ms_train.Accuracy, ms_train.Precision, ms_train.Recall, ms_train.Fbeta, ms_train.TopKCategoricalAccuracy),
    *(ms_train.Dice, ms_train.BleuScore, ms_train.CosineSimilarity),
)
_LOWER_IS_BETTER = (
    *(ms_train.MAE, ms_train.MSE, ms_train.Loss, ms_train.Perplexity),
    *(ms_train.HausdorffDistance, ms_train.MeanSurfaceDistance, ms_train.RootMeanSquareDistance),
)


def direction_of(metric: Any) -> Direction | Mapping[str, Direction]:
    """Return ``higher_is_better`` of a metric; None if unknown.

    MindSpore's metric classes do not define it, so their direction is taken from a list.
    """
    listed = True if isinstance(metric, _HIGHER_IS_BETTER) else False if isinstance(metric, _LOWER_IS_BETTER) else None
    return getattr(metric, "higher_is_better", listed)


def is_of_mindspore(metric: Any) -> bool:
    """Return whether MindSpore defines the metric's class."""
    return type(metric).__module__.startswith("mindspore.")


def directions_of(metric: Any) -> dict[str, Direction]:
    """Return the direction of each part of a metric's value.

    The only key is "" if the value is a single number.
    """
    higher = direction_of(metric)
    parts = metric.parts if isinstance(metric, RowMetric | WindowMetric) else ()
    return {part: higher.get(part) if isinstance(higher, Mapping) else higher for part in parts or ("",)}


class BySlice(RowMetric):
    """A metric for each value of a column: ``auc/site=7``, ``auc/site=12``, ...

    With several labels or outputs, each slice reports only the mean.

    Args:
        metric: name of a metric, or a metric of this package that returns one number.
        column: column whose values define the slices; integers or strings.
        max_slices: maximum number of slices; values seen later share the slice "other".

    Raises:
        ConfigurationError: an unknown metric, a metric that cannot be computed per slice, or no column name.
    """

    takes_raw = True

    def __init__(self, metric: Any, column: str, max_slices: int = 32) -> None:
        super().__init__()
        from .registry import get_metrics

        nonempty_text("BySlice(column=...)", column, "the name of a column")
        metrics = get_metrics([metric] if isinstance(metric, str) else metric)
        name, template = next(iter(metrics.items()), ("", None))
        if len(metrics) != 1 or not isinstance(template, WindowMetric) or template.parts or template.group:
            refuse("BySlice(metric=...)", "one metric of trainer.metrics such as 'auc' or 'rmse'", metric)
        self.name: str = f"{name}/{column}"
        self.group = column
        self.higher_is_better = direction_of(template)
        self.max_slices = whole("BySlice(max_slices=...)", max_slices)
        self._template = template
        self.clear()

    def clear(self) -> None:
        self._known: dict[str, None] = {}
        self.restart()

    def restart(self) -> None:
        self._slices = CountsByName()

    def set_meaning(self, meaning: Meaning) -> None:
        """Set how the metric of each slice interprets predictions."""
        for metric in (self._template, *self._slices.values()):
            if isinstance(metric, RowMetric):
                metric.set_meaning(meaning)

    def add(self, predictions: Any, labels: Any, weights: Any, groups: Any = None) -> None:
        predictions, labels = to_numpy(predictions, "predictions"), to_numpy(labels, "labels")
        weights = row_weights(weights, len(labels))
        column = group_column(groups, len(labels))
        values, codes = np.unique(column, return_inverse=True)
        row_groups = np.split(np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes))[:-1])
        for value, rows in zip(values.tolist(), row_groups, strict=True):
            slice_weights = None if weights is None else weights[rows]
            self._slice(str(value)).update(predictions[rows], labels[rows], weights=slice_weights)

    def _slice(self, name: str) -> Any:
        if len(self._known) < self.max_slices:
            self._known[name] = None
        if name not in self._known:
            name = OTHER
        if name not in self._slices:
            self._slices[name] = copy.deepcopy(self._template)
        return self._slices[name]

    def value(self) -> dict[str, float]:
        """Return the metric of each slice as ``{"/<column>=<value>": ...}``."""
        values = {name: metric.value() for name, metric in self._slices.items()}
        return {f"/{self.group}={n}": v[""] if isinstance(v, Mapping) else v for n, v in values.items()}

    def close(self) -> None:
        for metric in self._slices.values():
            metric.close()

    def merge(self, other: BySlice) -> None:
        for name, metric in other._slices.items():
            if name == OTHER:
                self._slices.setdefault(OTHER, copy.deepcopy(self._template)).merge(metric)
            else:
                self._slice(name).merge(metric)

    def decay(self, factor: float) -> None:
        self._slices.decay(factor)

    def state_dict(self) -> dict[str, Any]:
        state = self._slices.state_dict()
        return {"json": {"slices": state["json"], "known": list(self._known)}, "arrays": state["arrays"]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._known = dict.fromkeys(state["json"]["known"])
        names = [name for name, _ in state["json"]["slices"]]
        self._slices = CountsByName({name: copy.deepcopy(self._template) for name in names})
        self._slices.load_state_dict({"json": state["json"]["slices"], "arrays": state["arrays"]})


class WindowOnly:
    """Adapts a metric with `clear`, `update` and `eval` to windows.

    Such a metric cannot be merged or decayed. It therefore has no decayed and lifetime values, and works in one process
    only. It receives predictions as the network returns them. Snapshots include its open window if it has `state_dict`
    and `load_state_dict`; otherwise a resumed run counts only the rows after the snapshot.
    """

    group: str | None = None
    parts: tuple[str, ...] = ()

    def __init__(self, metric: Any, ignored: int | None = None) -> None:
        self.metric, self._ignored = metric, ignored if is_of_mindspore(metric) else None
        metric.clear()

    @property
    def higher_is_better(self) -> Any:
        return direction_of(self.metric)

    def restart(self) -> None:
        self.metric.clear()

    clear = restart

    def update(self, predictions: Any, labels: Any, weights: Any = None, groups: Any = None) -> None:
        """Add rows; pass weights on only if the metric's `update` accepts them."""
        if self._ignored is not None:
            predictions, labels, weights = without_ignored(self._ignored, predictions, labels, weights)
            if not len(labels):
                return
        accepts_weights = weights is not None and "weights" in inspect.signature(self.metric.update).parameters
        self.metric.update(predictions, labels, **({"weights": weights} if accepts_weights else {}))

    def value(self) -> Any:
        return self.metric.eval()

    def state_dict(self) -> dict[str, Any]:
        save = getattr(self.metric, "state_dict", None)
        return save() if callable(save) else {"json": None, "arrays": {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        load = getattr(self.metric, "load_state_dict", None)
        if callable(load) and state["json"] is not None:
            load(state)
