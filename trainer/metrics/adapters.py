"""Metrics made of others: one for each value of a column, and metrics of MindSpore or of a user in windows."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..checks import refuse, whole
from .binary_metrics import below
from .rows import group_column, row_weights, to_numpy
from .window_metric import RowMetric, WindowMetric

OTHER = "other"


class BySlice(RowMetric):
    """A metric for the rows of each value of a column: ``auc/site=7``, ``auc/site=12``, ...

    Args:
        metric: name of a metric, or a metric of this package that returns one number.
        column: column whose values tell slices apart; integers or strings.
        max_slices: values followed, first come first served; the rest share the name "other".
        prefix: what stands before the value in the names; None is the column and "=".

    Raises:
        ConfigurationError: no such metric, or one that cannot be copied for each slice; no column name.
    """

    def __init__(self, metric: Any, column: str, max_slices: int = 32, prefix: str | None = None) -> None:
        super().__init__()
        from .registry import get_metrics

        if not isinstance(column, str) or not column:
            refuse("BySlice(column=...)", "the name of a column", column)
        found = get_metrics([metric] if isinstance(metric, str) else metric)
        name, made = next(iter(found.items()), ("", None))
        if len(found) != 1 or not isinstance(made, WindowMetric) or made.parts or made.group:
            refuse("BySlice(metric=...)", "one metric of trainer.metrics such as 'auc' or 'rmse'", metric)
        self.name, self.group = f"{name}/{column}", column
        self._prefix = f"{column}=" if prefix is None else prefix
        self.max_slices = whole("BySlice(max_slices=...)", max_slices)
        self._empty = made
        self._slices: dict[str, Any] = {}
        self._known: dict[str, None] = {}

    def clear(self) -> None:
        """Forget everything."""
        self._slices, self._known = {}, {}

    def restart(self) -> None:
        """Forget all rows, but not which values are followed."""
        self._slices = {}

    def expect_logits(self) -> None:
        """See `RowMetric.expect_logits`."""
        if isinstance(self._empty, RowMetric):
            self._empty.expect_logits()

    def add(self, predictions: Any, labels: Any, weights: Any, groups: Any = None) -> None:
        """Add rows."""
        predictions, labels = to_numpy(predictions, "predictions"), to_numpy(labels, "labels")
        weights = row_weights(weights, len(labels))
        column = group_column(groups, len(labels))
        values, codes = np.unique(column, return_inverse=True)
        rows_of = np.split(np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes))[:-1])
        for value, rows in zip(values.tolist(), rows_of, strict=True):
            part = None if weights is None else weights[rows]
            self._slice(str(value)).update(predictions[rows], labels[rows], weights=part)

    def _slice(self, name: str) -> Any:
        if name not in self._known:
            if len(self._known) >= self.max_slices:
                name = OTHER
            else:
                self._known[name] = None
        if name not in self._slices:
            self._slices[name] = copy.deepcopy(self._empty)
        return self._slices[name]

    def value(self) -> dict[str, float]:
        """Return the metric of each slice, as ``{"/<prefix><value>": ...}``."""
        return {f"/{self._prefix}{name}": metric.value() for name, metric in self._slices.items()}

    def close(self) -> None:
        """Close each slice."""
        for metric in self._slices.values():
            metric.close()

    def merge(self, other: BySlice) -> None:
        """Add the slices of `other`."""
        for name, metric in other._slices.items():
            if name == OTHER:
                self._slices.setdefault(OTHER, copy.deepcopy(self._empty)).merge(metric)
            else:
                self._slice(name).merge(metric)

    def decay(self, factor: float) -> None:
        """Multiply the weight of all rows."""
        for metric in self._slices.values():
            metric.decay(factor)

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"json": ..., "arrays": {name: array}}``."""
        states = {name: metric.state_dict() for name, metric in self._slices.items()}
        arrays = {
            f"{place}.{key}": array
            for place, state in enumerate(states.values())
            for key, array in state["arrays"].items()
        }
        slices = [[name, state["json"]] for name, state in states.items()]
        return {"json": {"slices": slices, "known": list(self._known)}, "arrays": arrays}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._known = dict.fromkeys(state["json"]["known"])
        self._slices = {}
        for place, (name, saved) in enumerate(state["json"]["slices"]):
            metric = self._slices[name] = copy.deepcopy(self._empty)
            metric.load_state_dict({"json": saved, "arrays": below(f"{place}.", state["arrays"])})


class WindowOnly:
    """A metric with `clear`, `update` and `eval`, such as MindSpore's, in windows: over each window's rows alone.

    It cannot be joined or aged, so it has no decayed and lifetime values. Its open window is in snapshots if it has
    `state_dict` and `load_state_dict`; otherwise the window that a resumed run finds open counts the rows after that.

    Args:
        metric: the metric.
    """

    group: str | None = None
    parts: tuple[str, ...] = ()

    def __init__(self, metric: Any) -> None:
        self.metric = metric
        metric.clear()

    def restart(self) -> None:
        """Forget all rows."""
        self.metric.clear()

    def update(self, predictions: Any, labels: Any, weights: Any = None, groups: Any = None) -> None:
        """Add rows, one by one or by thousands; weights are not passed on."""
        self.metric.update(predictions, labels)

    def value(self) -> Any:
        """Return what the metric's `eval` returns."""
        return self.metric.eval()

    def state_dict(self) -> dict[str, Any]:
        """Return the metric's state, where it has one of this form."""
        save = getattr(self.metric, "state_dict", None)
        return save() if callable(save) else {"json": None, "arrays": {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        load = getattr(self.metric, "load_state_dict", None)
        if callable(load) and state["json"] is not None:
            load(state)
