"""Learn to calibrate binary scores from rows the network has not trained on."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..checks import choice, nonempty_text, number, refuse, require, whole
from ..errors import CheckpointMismatchError, ConfigurationError, DataError, did_you_mean
from ..state import Stateful
from .calibration_map import METHODS, CalibrationMap, logits_of, sigmoid
from .defaults import BINARY, CLASSES
from .histogram import RowBuffer
from .predictions import Meaning, row_weights, strip_prefix, to_numpy

BLOCK_ROWS = 8192  # rows processed at once; a fixed size makes the result independent of batch sizes
_BINS, _BINS_PER_UNIT = 320, 10  # bins of width 0.1 for logits from -16 to 16; values beyond go into the outer bins
_SUMS = ("positives", "negatives", "logits")  # per bin: weight of each class, sum of weighted logits
_STEPS = 50


class Calibrator(Stateful):
    """Turns scores of a binary label into calibrated probabilities.

    In `online_train` every row is scored before the network trains on it, and the calibration learns from these scores.
    In `fit` it learns from the rows of the latest validation. `Publish` adds the newest calibration to each version.

    Args:
        method: "platt" fits a slope and an intercept of the logit by logistic regression (J. Platt, 1999). "isotonic"
            fits a non-decreasing function (B. Zadrozny, C. Elkan, 2002) and needs scikit-learn (extra [calibration]).
        by: column for which each value gets its own calibration: a declared `Categorical`, or an input of the network
            with integers or strings. None: one calibration for all rows.
        negative_sampling_rate: share of negatives that was kept, 0 < rate <= 1; probabilities are corrected to the full
            traffic. None if no negatives were dropped, or if row weights already correct for it.
        half_life: number of stream rows after which the weight of a row has halved. It is at most half of the rows seen
            so far.
        min_rows: minimum number of rows of each class. Values of `by` with fewer rows, and unknown values, use the
            overall calibration.
        max_values: maximum number of values of `by` with their own calibration, in the order of their first rows.

    Raises:
        ConfigurationError: an invalid argument, or scikit-learn is missing.
    """

    of_model = True

    def __init__(
        self,
        method: str = "platt",
        by: str | None = None,
        *,
        negative_sampling_rate: float | None = None,
        half_life: int = 1_000_000,
        min_rows: int = 100,
        max_values: int = 500,
    ) -> None:
        self.method = choice("calibration: method", method, METHODS)
        if method == "isotonic":
            require("sklearn", "calibration: method 'isotonic' needs scikit-learn ('platt' does not)", "calibration")
        self.by = nonempty_text("calibration: by", by, "the name of a column", optional=True)
        rate = number(
            "calibration: negative_sampling_rate",
            negative_sampling_rate,
            above=0,
            maximum=1,
            optional=True,
            what="a share",
        )
        self.negative_sampling_rate = rate
        self.half_life = whole("calibration: half_life", half_life)
        self.min_rows = whole("calibration: min_rows", min_rows)
        self.max_values = whole("calibration: max_values", max_values)
        self.column: str | None = by
        self.index: int | None = None
        self._activation = "sigmoid"
        self.ignored: int | None = None  # see `Meaning.ignored`
        self._forgets = True
        self.catch_up: Callable[[], None] = lambda: None  # set by the run: adds its queued rows before a read
        self.restart()

    @classmethod
    def of(cls, value: Any) -> Calibrator | None:
        """Return a calibrator from an instance, a method or a mapping of options."""
        if value is None or isinstance(value, cls):
            return value
        if isinstance(value, str):
            return cls(value)
        if not isinstance(value, Mapping):
            refuse("calibration", f"{', '.join(METHODS)}, a mapping of options, a Calibrator or None", value)
        try:
            return cls(**value)
        except TypeError:
            known = ("method", "by", "negative_sampling_rate", "half_life", "min_rows", "max_values")
            wrong = next((name for name in value if name not in known), value)
            raise ConfigurationError(
                f"calibration takes {', '.join(known)}; received {wrong!r}{did_you_mean(str(wrong), known)}"
            ) from None

    def bind(self, meaning: Meaning, id_names: Sequence[str] | None, ids_input: str = "") -> None:
        """Check that predictions with this meaning can be calibrated; find column `by`.

        Args:
            meaning: how to interpret the network's predictions.
            id_names: names of the declared features with a single id per row, in the column order of the network's
                input `ids_input`. None if no features are declared: `by` is then itself the name of an input.
            ids_input: name of the network's input that holds the ids.

        Raises:
            ConfigurationError: the label is not one binary label, or `by` is not a known column.
        """
        kind = meaning.activation or ("identity" if meaning.target == BINARY else None)
        if meaning.target not in (BINARY, CLASSES, None) or kind not in ("sigmoid", "softmax", "identity"):
            raise ConfigurationError(
                "calibration takes one binary label whose probability the loss defines (BCEWithLogitsLoss, BCELoss, "
                "CrossEntropyLoss of two classes, or prediction_activation 'sigmoid', 'softmax' or 'identity')"
            )
        self._activation, self.ignored = kind, meaning.ignored
        if self.by is not None and id_names is not None:
            if self.by not in id_names:
                known = ", ".join(id_names) or "there is none"
                hint = did_you_mean(self.by, id_names)
                refuse("calibration: by", f"a feature whose value is one id ({known})", self.by, hint)
            self.column, self.index = ids_input, list(id_names).index(self.by)

    # -- learning ------------------------------------------------------------------------------------------------

    def restart(self, *, forgets: bool = True) -> None:
        """Forget all rows; with `forgets`, later rows count more than earlier ones."""
        self._forgets = forgets
        self._buffer = RowBuffer(BLOCK_ROWS)
        self._slice_of: dict[int, int] = {}  # value of `by` -> its index in the sums; index 0 is for all rows
        self._sums = {name: np.zeros((1, _BINS)) for name in _SUMS}
        self._counts = np.zeros((1, 2))  # number of negative and positive rows
        self._seen = 0
        self._current: CalibrationMap | None = None
        self._is_current = False

    def follow_stream(self) -> None:
        """Let later rows count more than those so far, such as those of a validation."""
        self._forgets = True

    def add(self, outputs: Any, labels: Any, weights: Any = None, ids: np.ndarray | None = None) -> None:
        """Add rows that the network has not been trained on.

        Args:
            outputs: the network's first output, [n, ...]; rows with NaN are ignored.
            labels: 0 or 1, [n] or [n, 1].
            weights: weights of the rows, [n], or None.
            ids: the values of `by` as integers, int64 [n].

        Raises:
            DataError: the outputs or labels do not belong to one binary label.
        """
        labels = to_numpy(labels, "labels").reshape(-1).astype(np.float64)
        if self.ignored is not None:
            labels[labels == self.ignored] = np.nan
        try:
            logits = logits_of(self._activation, to_numpy(outputs, "predictions"))
        except ValueError as error:
            raise DataError(str(error)) from None
        known = labels[~np.isnan(labels)]
        if len(logits) != len(labels) or not np.isin(known, (0, 1)).all():
            raise DataError(f"calibration takes a label of 0 or 1 for each of {len(logits)} rows")
        is_known = ~(np.isnan(logits) | np.isnan(labels))
        weights = row_weights(weights, len(labels))
        rows = [logits, labels, np.ones(len(labels)) if weights is None else weights]
        rows.append(np.zeros(len(labels), np.int64) if ids is None else ids)
        for block in self._buffer.push(*(column[is_known] for column in rows)):
            self._learn(*block)
            self._is_current = False

    def _learn(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray, ids: np.ndarray) -> None:
        self._seen += len(logits)
        if self._forgets:
            # Scores change quickly early in training: cap the half-life at half of the rows seen so far.
            factor = 0.5 ** (len(logits) / min(self.half_life, max(self._seen / 2, len(logits))))
            self._counts *= factor
            for sums in self._sums.values():
                sums *= factor
        bounded = np.clip(logits, -_BINS / _BINS_PER_UNIT / 2, _BINS / _BINS_PER_UNIT / 2)
        bins = np.minimum((bounded * _BINS_PER_UNIT + _BINS // 2).astype(np.int64), _BINS - 1)
        positives = weights * labels
        negatives = weights * (1.0 - labels) / (self.negative_sampling_rate or 1.0)
        amounts = dict(zip(_SUMS, (positives, negatives, (positives + negatives) * bounded), strict=True))
        parts: list[tuple[np.ndarray, Any]] = [(np.zeros(len(bins), np.int64), slice(None))]
        if self.column is not None:
            rows = self._slices_of(ids)
            parts.append((rows[rows > 0], rows > 0))
        for rows, selected in parts:
            size, bin_index = len(self._counts), rows * _BINS + bins[selected]
            for name, values in amounts.items():
                self._sums[name] += np.bincount(bin_index, values[selected], size * _BINS).reshape(size, _BINS)
            class_index = 2 * rows + labels[selected].astype(np.int64)
            self._counts += np.bincount(class_index, minlength=2 * size).reshape(size, 2)

    def _slices_of(self, ids: np.ndarray) -> np.ndarray:
        values, inverse = np.unique(ids, return_inverse=True)
        for value in values.tolist():
            if value not in self._slice_of and len(self._slice_of) < self.max_values:
                self._slice_of[value] = len(self._slice_of) + 1
        missing = len(self._slice_of) + 1 - len(self._counts)
        if missing:
            self._counts = np.concatenate([self._counts, np.zeros((missing, 2))])
            self._sums = {name: np.concatenate([s, np.zeros((missing, _BINS))]) for name, s in self._sums.items()}
        return np.array([self._slice_of.get(value, 0) for value in values.tolist()], np.int64)[inverse]

    # -- the result ----------------------------------------------------------------------------------------------

    @property
    def is_learned(self) -> bool:
        """Whether enough rows of both classes have been added."""
        buffered = self._buffer.peek()
        positives = float(buffered[1].sum()) if buffered else 0.0
        return bool((self._counts[0] + (self._buffer.rows - positives, positives) >= self.min_rows).all())

    def current(self) -> CalibrationMap | None:
        """Return the calibration from all full blocks, or None if rows are too few."""
        if not self._is_current:
            self._is_current = True
            self._current = self._fit() if (self._counts[0] >= self.min_rows).all() else None
        return self._current

    def fitted(self) -> CalibrationMap:
        """Return the calibration from all rows added.

        Raises:
            DataError: there are fewer than `min_rows` rows of a class.
        """
        self.catch_up()
        if not self.is_learned:
            raise DataError(
                f"the calibration has too few rows: it needs {self.min_rows} rows of each class, from the windows of "
                "online_train or from fit(valid_dataset=...); without it there is no probability"
            )
        if not self._buffer.rows:
            current = self.current()
            assert current is not None
            return current
        other = copy.copy(self)
        other.load_state_dict(self.state_dict())  # gives it sums and rows of its own
        other._learn(*other._buffer.drain())
        return other._fit()

    def _fit(self) -> CalibrationMap:
        has_weight = (self._sums["positives"] + self._sums["negatives"]).any(axis=1)
        has_weight[0] = True
        fitted_slices = np.flatnonzero((self._counts >= self.min_rows).all(axis=1) & has_weight)
        values = np.array(list(self._slice_of), np.int64)[fitted_slices[fitted_slices > 0] - 1]
        order = np.argsort(values)
        rows = np.concatenate([[0], fitted_slices[fitted_slices > 0][order]]).astype(np.int64)
        positives, negatives, logits = (self._sums[name][rows] for name in _SUMS)
        weights = positives + negatives
        has_rows = weights.any(axis=0)
        positives, negatives, weights = positives[:, has_rows], negatives[:, has_rows], weights[:, has_rows]
        means = logits[:, has_rows] / np.where(weights > 0, weights, 1.0)
        if self.method == "platt":
            first, second = platt(means, positives, negatives)
            sizes = [1] * len(rows)
        else:
            knots = [isotonic(*arrays) for arrays in zip(means, positives, negatives, strict=True)]
            first, second = (np.concatenate(part) for part in zip(*knots, strict=True))
            sizes = [len(part[0]) for part in knots]
        arrays = {"values": values[order], "offsets": np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)}
        metadata = {"method": self.method, "activation": self._activation, "column": self.column, "index": self.index}
        return CalibrationMap({"json": metadata, "arrays": {**arrays, "first": first, "second": second}})

    # -- snapshots -----------------------------------------------------------------------------------------------

    def _options(self) -> dict[str, Any]:
        return {"by": self.by, "negative_sampling_rate": self.negative_sampling_rate}

    def state_dict(self) -> dict[str, Any]:
        self.catch_up()
        buffered = self._buffer.state_dict()["arrays"]
        arrays = {"counts": self._counts, **self._sums, **{f"waiting.{key}": array for key, array in buffered.items()}}
        json = {**self._options(), "values": list(self._slice_of), "forgets": self._forgets, "seen": self._seen}
        return {"json": json, "arrays": {name: array.copy() for name, array in arrays.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `state_dict`.

        Raises:
            CheckpointMismatchError: the state was learned with another `by` or `negative_sampling_rate`.
        """
        saved, arrays = state["json"], state["arrays"]
        for name, value in self._options().items():
            if saved[name] != value:
                raise CheckpointMismatchError(
                    f"the snapshot's calibration was learned with {name}={saved[name]!r}; here it is {value!r}"
                )
        self.restart(forgets=bool(saved["forgets"]))
        self._seen = int(saved["seen"])
        self._slice_of = {int(value): row for row, value in enumerate(saved["values"], 1)}
        self._counts = np.array(arrays["counts"], np.float64)
        self._sums = {name: np.array(arrays[name], np.float64) for name in _SUMS}
        self._buffer.load_state_dict({"arrays": strip_prefix("waiting.", arrays)})


def platt(logits: np.ndarray, positives: np.ndarray, negatives: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fit the slope and intercept of each slice by Newton's method.

    Targets are smoothed as in J. Platt (1999), so that a finite solution exists even for separated classes. A step that
    raises the loss is halved, as in H.-T. Lin, C.-J. Lin and R. Weng (2007).

    Args:
        logits: shape [slices, n].
        positives, negatives: weight of each class at each logit, shape [slices, n].

    Returns:
        Slopes and intercepts, float64 [slices].
    """
    positive_total, negative_total = (weights.sum(axis=1, keepdims=True) for weights in (positives, negatives))
    target = positives * (positive_total + 1) / (positive_total + 2) + negatives / (negative_total + 2)
    weights = positives + negatives

    def loss(parameters: np.ndarray) -> np.ndarray:
        z = parameters[:, :1] * logits + parameters[:, 1:]
        return (weights * (np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z)))) - target * z).sum(axis=1)

    parameters = np.tile([1.0, 0.0], (len(logits), 1))
    best_loss = loss(parameters)
    for _ in range(_STEPS):
        p = sigmoid(parameters[:, :1] * logits + parameters[:, 1:])
        error, curvature = weights * p - target, weights * p * (1 - p)
        gradient = np.stack([(error * logits).sum(axis=1), error.sum(axis=1)], 1)
        moments = [(curvature * logits**power).sum(axis=1) for power in (0, 1, 2)]
        ridge = 1e-9 * (1 + moments[0] + moments[2])
        rows = [np.stack(pair, 1) for pair in ((moments[2] + ridge, moments[1]), (moments[1], moments[0] + ridge))]
        step = np.linalg.solve(np.stack(rows, 1), gradient[:, :, None])[:, :, 0]
        for _ in range(_STEPS):
            new_loss = loss(parameters - step)
            is_worse = new_loss > best_loss + 1e-9 * np.abs(best_loss)
            if not is_worse.any():
                break
            step[is_worse] /= 2
        parameters, best_loss = parameters - step, np.minimum(new_loss, best_loss)
        if np.abs(step).max() < 1e-10:
            break
    slopes, intercepts = parameters.T.copy()
    return slopes, intercepts


def isotonic(logits: np.ndarray, positives: np.ndarray, negatives: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fit a non-decreasing function to one slice and return its knots.

    Knots are returned as logits and probabilities. Probabilities are clipped to [e, 1 - e] with e = 0.5 / (total weight
    + 1), so that none is exactly 0 or 1.
    """
    from sklearn.isotonic import isotonic_regression

    weights = positives + negatives
    has_rows = weights > 0
    weights = weights[has_rows]
    probabilities = isotonic_regression(positives[has_rows] / weights, sample_weight=weights)
    margin = 0.5 / (weights.sum() + 1)
    probabilities, knots = np.clip(probabilities, margin, 1 - margin), logits[has_rows]
    is_knot = np.ones(len(probabilities), np.bool_)
    is_knot[1:-1] = (probabilities[1:-1] != probabilities[:-2]) | (probabilities[1:-1] != probabilities[2:])
    return knots[is_knot], probabilities[is_knot]
