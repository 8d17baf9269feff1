"""Progressive validation: metrics on rows before the model is trained on them.

The forward pass of each training step provides the predictions, before the update ("test, then train"; A. P. Dawid,
1984, called it prequential). `PrequentialMetrics` keeps each metric over three horizons: the open window, an
exponentially decayed past, and the lifetime of the model. `trainer.metrics.window` decides when a window closes.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ..checks import number
from ..errors import ConfigurationError, DataError
from .adapters import BySlice, WindowOnly, directions_of
from .binary import score_table
from .histogram import RowBuffer
from .predictions import CountsByName, group_column, named_values, row_weights, split_states, strip_prefix, to_numpy
from .window_metric import Direction, WindowMetric

logger = logging.getLogger(__name__)

BUFFER_ROWS = 16_384
BUFFER_BYTES = 4 << 20
FORMAT = 2  # format of `PrequentialMetrics.state_dict`
HORIZONS = ("window", "decayed", "lifetime")


class PrequentialMetrics:
    """Metrics of predictions made before the update, over three horizons.

    The horizons are the open window, the decayed past and the lifetime. Rows are buffered and processed in blocks of
    about ten thousand, so `update` is cheap. Rows with a NaN prediction or label are excluded and counted separately.
    Results do not depend on batch sizes, and a run restored from `state_dict` gives the same values as an uninterrupted
    run.

    Args:
        metrics: metrics by name. Each is a `WindowMetric`, or an object with `clear`, `update` and `eval`; the latter
            is reported for windows only. A metric with several values reports each as ``<name>_<part>``, or ``<part>``
            if its name is empty.
        decay: factor applied to the weight of the decayed past when a window closes, 0 < decay < 1.
        task: prefix for the metrics' names if the model has several tasks.
        lenient: names of metrics that are dropped with a warning if they cannot process the rows; others raise.
        ignored: class number of labels that MindSpore's metrics do not receive, or None; see `Meaning.ignored`.
    """

    def __init__(
        self,
        metrics: Mapping[str, Any],
        decay: float = 0.9,
        *,
        task: str = "",
        lenient: Collection[str] = (),
        ignored: int | None = None,
    ) -> None:
        self._decay = number("decay", decay, above=0, below=1)
        self.task = task
        self._lenient = frozenset(lenient)
        self._metrics = CountsByName()  # name -> horizon -> metric
        for name, metric in metrics.items():
            if isinstance(metric, WindowMetric):
                metric = copy.deepcopy(metric)
                metric.restart()
                self._metrics[name] = CountsByName({horizon: copy.deepcopy(metric) for horizon in HORIZONS})
            else:
                window = metric if isinstance(metric, WindowOnly) else WindowOnly(metric, ignored)
                self._metrics[name] = CountsByName(window=window)
        self._failed: set[str] = set()
        self._buffer: RowBuffer | None = None
        self._row_shapes: tuple[tuple[int, ...], ...] = ()
        self._counts = {"window_rows": 0, "window_nan_rows": 0, "lifetime_rows": 0}

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the columns that `update` needs in `groups`, sorted."""
        return tuple(sorted({window.group for window in self._windows.values() if window.group is not None}))

    @property
    def _windows(self) -> CountsByName:
        return CountsByName({name: horizons["window"] for name, horizons in self._metrics.items()})

    def directions(self) -> dict[str, Direction]:
        """Return whether higher is better, by result name; slices are omitted."""
        names: dict[str, Direction] = {}
        for name, horizons in self._metrics.items():
            for horizon, metric in horizons.items():
                if not isinstance(metric, BySlice):
                    directions = directions_of(metric)
                    names |= {self._name(horizon, name, part): higher for part, higher in directions.items()}
        return {**names, **{self._name(*count.split("_", 1)): None for count in self._counts}}

    def _name(self, horizon: str, name: str, part: str = "") -> str:
        name = name.partition("/")[0]  # "auc/site" is the AUC of each slice of a column: "window_auc/site=3"
        words = "_".join(filter(None, (horizon, self.task, name, "" if part.startswith("/") else part)))
        return words + part if part.startswith("/") else words

    def update(
        self, predictions: Any, labels: Any, weights: Any = None, groups: Mapping[str, Any] | None = None
    ) -> None:
        """Add a batch of host arrays, which are copied.

        Args:
            predictions, labels, weights: as in `WindowMetric.update`, with predictions made before the update.
            groups: values of the columns in `self.groups`, by name, shape [B] or [B, 1], integers or strings.

        Raises:
            DataError: incompatible shapes, values that a metric cannot read, or a missing group column.
        """
        predictions, labels = _flat(to_numpy(predictions, "predictions")), _flat(to_numpy(labels, "labels"))
        rows = len(predictions)
        if len(labels) != rows:
            raise DataError(
                f"a window takes as many labels as predictions; received predictions {predictions.shape} and labels "
                f"{labels.shape}"
            )
        weights = row_weights(weights, rows)
        columns = [predictions, labels, np.ones(rows) if weights is None else weights]
        for name in self.groups:
            if groups is None or name not in groups:
                raise DataError(f"a metric reads the column {name!r}, which the rows do not have")
            columns.append(group_column(groups[name], rows))
        nan = _nan_rows(predictions) | _nan_rows(labels)
        if nan.any():
            self._counts["window_nan_rows"] += int(np.count_nonzero(nan))
            columns = [column[~nan] for column in columns]
        self._counts["window_rows"] += len(columns[0])
        for block in self._buffer_for(columns).push(*columns):
            self._count(*block)

    def _buffer_for(self, columns: list[np.ndarray]) -> RowBuffer:
        shapes = tuple(column.shape[1:] for column in columns)
        if self._buffer is None or shapes != self._row_shapes:
            self._drain()
            row_bytes = sum(column[:1].nbytes for column in columns) or 1
            self._buffer = RowBuffer(max(1, min(BUFFER_ROWS, BUFFER_BYTES // row_bytes)))
            self._row_shapes = shapes
        return self._buffer

    def _drain(self) -> None:
        if self._buffer is not None and self._buffer.rows:
            self._count(*self._buffer.drain())

    def _count(self, predictions: np.ndarray, labels: np.ndarray, weights: np.ndarray, *groups: np.ndarray) -> None:
        of_group = dict(zip(self.groups, groups, strict=True))
        for name, horizons in self._metrics.items():
            if name in self._failed:
                continue
            metric = horizons["window"]
            try:
                metric.update(predictions, labels, weights=weights, groups=of_group.get(metric.group))
            except Exception as error:
                if name not in self._lenient:
                    raise
                self._drop_metric(name, error)

    def _drop_metric(self, name: str, error: Exception) -> None:
        self._failed.add(name)
        shown = self._name("window", name) if name else ", ".join(self._metrics[name]["window"].parts)
        logger.warning("windows continue without %s, which cannot read these rows: %s", shown, error)

    def close_window(self) -> dict[str, float]:
        """Add the window to the past horizons, start an empty one, return all metrics.

        Returns:
            ``{window,decayed,lifetime}_<name>`` for every metric, and window_rows, window_nan_rows and lifetime_rows.
            An undefined metric, such as the AUC of a single class, is NaN.
        """
        self._drain()
        counts = self._counts
        counts["lifetime_rows"] += counts["window_rows"]
        results: dict[str, float] = {}
        for name, horizons in self._metrics.items():
            window = horizons["window"]
            if len(horizons) > 1:
                window.close()
                if counts["window_rows"]:
                    horizons["decayed"].decay(self._decay)
                for past in ("decayed", "lifetime"):
                    horizons[past].merge(window)
            results |= self._results(name, horizons)
            window.restart()
        results |= {self._name(*count.split("_", 1)): float(value) for count, value in counts.items()}
        counts.update(window_rows=0, window_nan_rows=0)
        return results

    def _results(self, name: str, horizons: Mapping[str, Any]) -> dict[str, float]:
        results: dict[str, float] = {}
        for horizon, metric in horizons.items():
            if name in self._failed:
                results |= {self._name(horizon, name, part): float("nan") for part in metric.parts or ("",)}
                continue
            try:
                values = named_values("", metric.value())
            except ConfigurationError as error:
                self._drop_metric(name, error)
                continue
            results |= {self._name(horizon, name, part): value for part, value in values.items()}
        return results

    def score_table(self) -> dict[str, Any] | None:
        """Return the `score_table` of the decayed horizon."""
        return score_table(horizons["decayed"] for horizons in self._metrics.values() if "decayed" in horizons)

    def take_window(self) -> dict[str, Any]:
        """Remove the open window and return its state, for `put_window`."""
        self._drain()
        state = self._windows.state_dict()
        counts = {name: self._counts[name] for name in ("window_rows", "window_nan_rows")}
        self.forget_window()
        return {**state, "json": {"metrics": state["json"], "counts": counts, "failed": sorted(self._failed)}}

    def put_window(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Merge states from `take_window`, in order, into the empty open window."""
        for state in states:
            values = state["json"]
            self._failed |= set(values["failed"])
            for name, count in values["counts"].items():
                self._counts[name] += count
            others = copy.deepcopy(self._windows)
            others.restart()
            others.load_state_dict({"json": values["metrics"], "arrays": state["arrays"]})
            self._windows.merge(others)

    def forget_window(self) -> None:
        """Empty the open window; keep the past horizons."""
        self._drain()
        self._windows.restart()
        self._counts.update(window_rows=0, window_nan_rows=0)

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"json": ..., "arrays": {name: numeric array}}``, without side effects."""
        state, counts = self._metrics.state_dict(), dict(self._counts)
        values = {"format": FORMAT, "metrics": state["json"], "counts": counts, "groups": list(self.groups)}
        buffered = {} if self._buffer is None else self._buffer.state_dict()["arrays"]
        codes = {f"buffer.{key}": _text_to_codes(array) for key, array in buffered.items()}
        return {"json": values, "arrays": {**state["arrays"], **codes}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `state_dict`.

        Metrics missing from the state start empty, and states of unknown metrics are ignored. A warning is logged in
        both cases.
        """
        values, arrays = state["json"], state["arrays"]
        if values.get("format") != FORMAT:
            logger.warning("the snapshot's windows were written by an earlier version: all windows start empty")
            return
        saved = split_states({"json": values["metrics"], "arrays": arrays})
        if set(saved) != set(self._metrics):
            shown = [", ".join(sorted(filter(None, names))) or "the defaults" for names in (saved, self._metrics)]
            logger.warning("the snapshot's windows measure %s, this run measures %s: new metrics start empty", *shown)
        for name, horizons in self._metrics.items():
            known = split_states(saved[name]) if name in saved else {}
            for horizon, metric in horizons.items():
                if horizon in known:
                    metric.load_state_dict(known[horizon])
        self._counts = {name: int(values["counts"][name]) for name in self._counts}
        self._buffer = None
        buffered = strip_prefix("buffer.", arrays)
        if buffered and values["groups"] == list(self.groups):
            columns = {key: _codes_to_text(array, int(key) > 2) for key, array in buffered.items()}
            ordered = [columns[str(index)] for index in range(len(columns))]
            self._buffer_for(ordered).load_state_dict({"arrays": columns})


def _flat(array: np.ndarray) -> np.ndarray:
    """Flatten [B, 1] to [B], so that both shapes use the same buffer."""
    return array.reshape(-1) if array.ndim == 2 and array.shape[1] == 1 else array


def _nan_rows(array: np.ndarray) -> np.ndarray:
    return np.isnan(array).any(axis=tuple(range(1, array.ndim)))


def _text_to_codes(column: np.ndarray) -> np.ndarray:
    """Convert strings to code points, uint32 [N, width]; snapshots hold only numbers."""
    return column.view(np.uint32).reshape(len(column), -1 if len(column) else 1) if column.dtype.kind == "U" else column


def _codes_to_text(column: np.ndarray, group: bool) -> np.ndarray:
    if not group or column.ndim != 2:
        return column
    return np.ascontiguousarray(column).view(f"U{column.shape[1]}").reshape(-1)
