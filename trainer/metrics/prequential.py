"""Progressive validation: how good the model is on rows it has not been trained on yet.

Every batch is scored by the forward pass that trains on it, before the update ("test, then train"; A. P. Dawid, 1984,
called it prequential). `PrequentialMetrics` keeps AUC, log loss, normalized entropy and calibration over three
horizons: the window under way, an exponentially decayed past, and the whole life of the model. `Window` says when a
window closes and how predictions are read; `WindowClock` tells that it has.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..checks import number, refuse, whole
from ..errors import ConfigurationError, DataError
from .binary import BinarySums, binary_scores, check_link, hard_labels, row_weights
from .histogram import RowBuffer, ScoreHistogram

BUFFER_ROWS = 16_384
BUCKETS = 4_096
GROUP_BUCKETS = 1_024
OTHER_GROUPS = "other"


@dataclass(frozen=True)
class Window:
    """When a metric window closes, and how predictions, labels and groups are read. Exactly one span must be given.

    Args:
        rows: close whenever a multiple of this many trained rows is crossed.
        seconds: close this many seconds of wall time after the last window closed.
        event_time: close when event time crosses a multiple of this many seconds; rows that come late count in the
            window that is open and open none anew.
        link: how predictions become probabilities: "auto", "sigmoid", "identity", "softmax"; see
            `trainer.metrics.binary.check_link`.
        decay: factor, 0 < decay < 1, by which one more closed window lowers the weight of the past in the decayed
            metrics; 0.9 looks back about 10 windows.
        group: column whose values get an AUC each, or None.
        label: column of the labels, or its position; None takes the last one.
        prediction: output of the network that holds predictions, by position; None takes the first.
        negative_sampling_rate: share of negatives that was kept, 0 < rate <= 1; log loss, entropy and calibration are
            reported for the full traffic.
        correct_probability: with a sampling rate, whether predictions need correcting too. False when training
            weighted negatives by 1 / rate already.
        max_groups: groups followed, first come first served; the rest share the name "other".

    Raises:
        ConfigurationError: not exactly one span, or a value out of range.
    """

    rows: int | None = None
    seconds: float | None = None
    event_time: float | None = None
    link: str = "auto"
    decay: float = 0.9
    group: str | None = None
    label: str | int | None = None
    prediction: int | None = None
    negative_sampling_rate: float | None = None
    correct_probability: bool = True
    max_groups: int = 32

    def __post_init__(self) -> None:
        spans = {name: getattr(self, name) for name in ("rows", "seconds", "event_time")}
        given = {name: value for name, value in spans.items() if value is not None}
        if len(given) != 1:
            shown = ", ".join(f"{name}={value!r}" for name, value in given.items()) or "none of them"
            raise ConfigurationError(f"Window takes exactly one of rows, seconds, event_time; received {shown}")
        name, value = next(iter(given.items()))
        if name == "rows":
            whole("Window(rows=...)", value)
        else:
            number(f"Window({name}=...)", value, above=0, below=math.inf)
        for option, kinds, wanted in (
            ("group", str, "a column name"),
            ("label", str | int, "a column name or position"),
            ("prediction", int, "the position of a network output"),
        ):
            value = getattr(self, option)
            if value is not None and (isinstance(value, bool) or not isinstance(value, kinds)):
                refuse(f"Window({option}=...)", f"{wanted} or None", value)
        PrequentialMetrics.from_window(self)  # the remaining options are checked where they are used

    @property
    def span(self) -> tuple[str, float]:
        """Name and value of the span that was given."""
        return next((n, getattr(self, n)) for n in ("rows", "seconds", "event_time") if getattr(self, n) is not None)


class WindowClock:
    """Tells when windows close; asked once after each call of the training program.

    Args:
        window: the window to follow.
    """

    def __init__(self, window: Window) -> None:
        self.unit, self.n = window.span
        self._mark: float | None = None

    def start(self, rows_seen: int, wall: float) -> None:
        """Open the first window, where a window is not open already (as after `load_state_dict`).

        Args:
            rows_seen: rows trained on so far.
            wall: a clock in seconds, such as `time.monotonic()`.
        """
        if self._mark is None and self.unit != "event_time":
            self._mark = wall if self.unit == "seconds" else rows_seen // self.n

    def closed(self, rows_seen: int, wall: float, event_time: float | None = None) -> bool:
        """Return whether the open window has closed; True opens the next one.

        Args:
            rows_seen: rows trained on so far.
            wall: the clock given to `start`.
            event_time: greatest event time among the rows just trained on, seconds since the epoch; NaN or None
                when they carry none.

        Raises:
            DataError: windows go by event time and the first rows carry none.
        """
        if self._mark is None:
            self.start(0, wall)
        if self.unit == "seconds":
            if wall - self._mark < self.n:
                return False
            self._mark = wall
            return True
        if self.unit == "rows":
            count = rows_seen // self.n
        else:
            if event_time is None or math.isnan(event_time):
                if self._mark is None:
                    raise DataError(
                        "Window(event_time=...) needs rows that carry an event time; this stream gives none: "
                        "name its time column in the stream's schema, or use Window(rows=...) or Window(seconds=...)"
                    )
                return False
            count = event_time // self.n
            if self._mark is None:
                self._mark = count
        if count <= self._mark:
            return False
        self._mark = count
        return True

    def state_dict(self, wall: float) -> dict[str, Any]:
        """Return where the open window stands, as JSON-serialisable values."""
        if self.unit == "seconds" and self._mark is not None:
            return {"unit": self.unit, "n": self.n, "open_for": wall - self._mark}
        return {"unit": self.unit, "n": self.n, "mark": self._mark}

    def load_state_dict(self, state: Mapping[str, Any], wall: float) -> None:
        """Restore what `state_dict` returned; the state of another span is left alone, so the window starts anew."""
        if state.get("unit") != self.unit or state.get("n") != self.n:
            return
        self._mark = wall - state["open_for"] if "open_for" in state else state.get("mark")


class _Horizon:
    """Sums and histogram over one span of the past."""

    def __init__(self, sums: BinarySums, histogram: ScoreHistogram) -> None:
        self.sums, self.histogram = sums, histogram

    def clear(self) -> None:
        logits_seen = self.sums.logits_seen  # once decided, the reading of "auto" stays
        self.sums.clear()
        self.sums.logits_seen = logits_seen
        self.histogram.clear()

    def merge(self, other: _Horizon) -> None:
        self.sums.merge(other.sums)
        self.histogram.merge(other.histogram)

    def scale(self, factor: float) -> None:
        self.sums.scale(factor)
        self.histogram.scale(factor)

    def results(self, name: str) -> dict[str, float]:
        return {
            f"{name}_auc": self.histogram.auc(),
            f"{name}_log_loss": self.sums.log_loss,
            f"{name}_normalized_entropy": self.sums.normalized_entropy,
            f"{name}_calibration": self.sums.calibration,
        }


class PrequentialMetrics:
    """AUC, log loss, normalized entropy and calibration of predictions made before the update they led to.

    Rows are collected and counted some ten thousand at a time, so `update` costs little. Rows whose prediction is NaN
    are left out and counted. Results do not depend on how rows were cut into batches; a run restored from
    `state_dict` gives the same figures as one that was never interrupted.

    Args:
        link: how predictions become probabilities; see `trainer.metrics.binary.check_link`.
        decay: factor by which a closed window lowers the weight of the past in the decayed metrics, 0 < decay < 1.
        negative_sampling_rate: share of negatives kept; see `trainer.metrics.binary.BinarySums`.
        correct_probability: whether predictions are corrected for that share.
        max_groups: groups followed; the rest share the name "other".
        buckets: resolution of the AUC; see `trainer.metrics.histogram.ScoreHistogram`.

    Raises:
        ConfigurationError: a value out of range.
    """

    def __init__(
        self,
        link: str = "auto",
        decay: float = 0.9,
        negative_sampling_rate: float | None = None,
        correct_probability: bool = True,
        max_groups: int = 32,
        buckets: int = BUCKETS,
    ) -> None:
        number("decay", decay, above=0, below=1)
        whole("max_groups", max_groups, 2)
        whole("buckets", buckets, 2)
        self._link, self._decay, self._max_groups = check_link(link), decay, max_groups
        self._horizons = {
            name: _Horizon(BinarySums(link, negative_sampling_rate, correct_probability), ScoreHistogram(buckets))
            for name in ("window", "decayed", "lifetime")
        }
        self._groups: dict[str, dict[str, ScoreHistogram]] = {"window": {}, "lifetime": {}}
        self._buffer = RowBuffer(BUFFER_ROWS)
        self._grouped: bool | None = None
        self._counts = {"window_rows": 0, "window_nan_rows": 0, "lifetime_rows": 0}

    @classmethod
    def from_window(cls, window: Window) -> PrequentialMetrics:
        """Return metrics with the options of `window`."""
        return cls(
            window.link, window.decay, window.negative_sampling_rate, window.correct_probability, window.max_groups
        )

    def update(self, predictions: Any, labels: Any, weights: Any = None, groups: Any = None) -> None:
        """Add a batch; arrays are copied. Give weights and groups always or never.

        Args:
            predictions: what the network gave before the update, shape [B], [B, 1] or [B, 2].
            labels: 0 or 1, shape [B] or [B, 1].
            weights: sample weights, shape [B], or None.
            groups: group of each row, shape [B] or [B, 1], integers or strings, or None.

        Raises:
            DataError: shapes that do not fit, labels other than 0 and 1, groups given only sometimes.
        """
        scores, labels, logits = binary_scores(predictions, labels, self._link)
        positive = hard_labels(labels)
        weights = row_weights(weights, len(scores))
        columns = [scores, positive, np.ones(len(scores)) if weights is None else weights]
        if self._grouped is None:
            self._grouped = groups is not None
        if self._grouped != (groups is not None):
            raise DataError(f"groups were {'' if self._grouped else 'not '}given before and now the other way round")
        if groups is not None:
            columns.append(_group_column(groups, len(scores)))
        nan = np.isnan(scores)
        if nan.any():
            self._counts["window_nan_rows"] += int(np.count_nonzero(nan))
            columns = [column[~nan] for column in columns]
        self._counts["window_rows"] += len(columns[0])
        if logits:
            self._horizons["window"].sums.logits_seen = True
        for block in self._buffer.push(*columns):
            self._count(*block)

    def close_window(self) -> dict[str, float]:
        """Close the window: fold it into the past, start an empty one, and return all metrics.

        Returns:
            ``{window,decayed,lifetime}_{auc,log_loss,normalized_entropy,calibration}``; window_rows, window_nan_rows
            and lifetime_rows; and ``window_auc/<group>``, ``lifetime_auc/<group>`` for every group. A metric that the
            rows do not define is NaN: AUC and normalized entropy of a single class, calibration without positives.
        """
        if self._buffer.rows:
            self._count(*self._buffer.drain())
        window = self._horizons["window"]
        if window.sums.weight:
            self._horizons["decayed"].scale(self._decay)
        for name in ("decayed", "lifetime"):
            self._horizons[name].merge(window)
        for name, histogram in self._groups["window"].items():
            self._groups["lifetime"].setdefault(name, ScoreHistogram(GROUP_BUCKETS)).merge(histogram)
        self._counts["lifetime_rows"] += self._counts["window_rows"]
        results = {
            key: value for name, horizon in self._horizons.items() for key, value in horizon.results(name).items()
        }
        results.update({name: float(count) for name, count in self._counts.items()})
        for span, groups in self._groups.items():
            results.update({f"{span}_auc/{name}": histogram.auc() for name, histogram in groups.items()})
        window.clear()
        self._groups["window"] = {}
        self._counts.update(window_rows=0, window_nan_rows=0)
        return results

    def peek(self) -> dict[str, float]:
        """Return what `close_window` would, leaving everything as it is; as costly as closing a window."""
        twin = copy.copy(self)
        twin._horizons = {name: copy.deepcopy(horizon) for name, horizon in self._horizons.items()}
        twin._groups = {span: {k: v.copy() for k, v in groups.items()} for span, groups in self._groups.items()}
        twin._counts = dict(self._counts)
        twin._buffer = RowBuffer(BUFFER_ROWS)
        twin._buffer.load_state_dict(self._buffer.state_dict())
        return twin.close_window()

    def _count(
        self, scores: np.ndarray, positive: np.ndarray, weights: np.ndarray, groups: np.ndarray | None = None
    ) -> None:
        window = self._horizons["window"]
        window.sums.add(scores, positive, weights)
        window.histogram.fold(scores, positive, weights)
        if groups is None:
            return
        values, codes = np.unique(groups, return_inverse=True)
        rows_of = np.split(np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes))[:-1])
        for value, rows in zip(values.tolist(), rows_of, strict=True):
            histogram = self._group(str(value))
            histogram.fold(scores[rows], positive[rows], weights[rows])

    def _group(self, name: str) -> ScoreHistogram:
        window, lifetime = self._groups["window"], self._groups["lifetime"]
        if name not in window and name not in lifetime:
            known = window.keys() | lifetime.keys()
            if len(known - {OTHER_GROUPS}) >= self._max_groups:
                name = OTHER_GROUPS
        return window.setdefault(name, ScoreHistogram(GROUP_BUCKETS))

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"json": ..., "arrays": {name: array of numbers}}``; reading it changes nothing."""
        buffered = self._buffer.state_dict()["arrays"]
        arrays = {f"buffer.{key}": _text_to_codes(array) for key, array in buffered.items()}
        for name, horizon in self._horizons.items():
            arrays.update({f"{name}.{key}": array for key, array in horizon.histogram.arrays().items()})
        names: dict[str, list[str]] = {}
        for span, groups in self._groups.items():
            names[span] = list(groups)
            for place, histogram in enumerate(groups.values()):
                arrays.update({f"groups.{span}.{place}.{key}": array for key, array in histogram.arrays().items()})
        sums = {name: horizon.sums.state_dict() for name, horizon in self._horizons.items()}
        state = {"sums": sums, "groups": names, "counts": dict(self._counts), "grouped": self._grouped}
        return {"json": state, "arrays": arrays}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        values, arrays = state["json"], state["arrays"]
        self._buffer = RowBuffer(BUFFER_ROWS)
        buffered = _below("buffer.", arrays)
        self._buffer.load_state_dict({"arrays": {key: _codes_to_text(array) for key, array in buffered.items()}})
        for name, horizon in self._horizons.items():
            horizon.sums.load_state_dict(values["sums"][name])
            horizon.histogram.load_arrays(_below(f"{name}.", arrays))
        for span, names in values["groups"].items():
            self._groups[span] = {}
            for place, name in enumerate(names):
                histogram = self._groups[span][name] = ScoreHistogram(GROUP_BUCKETS)
                histogram.load_arrays(_below(f"groups.{span}.{place}.", arrays))
        self._counts = {name: int(values["counts"][name]) for name in self._counts}
        self._grouped = values["grouped"]


def _below(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}


def _text_to_codes(column: np.ndarray) -> np.ndarray:
    """Return strings as their code points, uint32 [N, width], for tensor files hold numbers only."""
    return column.view(np.uint32).reshape(len(column), -1 if len(column) else 1) if column.dtype.kind == "U" else column


def _codes_to_text(column: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(column).view(f"U{column.shape[1]}").reshape(-1) if column.ndim == 2 else column


def _group_column(groups: Any, rows: int) -> np.ndarray:
    column = groups.asnumpy() if hasattr(groups, "asnumpy") else np.asarray(groups)
    if column.size != rows or column.ndim > 2:
        raise DataError(f"groups take shape [{rows}] or [{rows}, 1]; received {column.shape}")
    if column.dtype.kind == "O":
        column = column.astype(str)
    elif column.dtype.kind == "S":
        column = np.char.decode(column, "utf-8", "replace")
    if column.dtype.kind not in "biuU":
        raise DataError(f"groups are integers or strings; received dtype {column.dtype}")
    return column.reshape(-1)
