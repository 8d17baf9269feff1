"""Learn a calibration of binary scores from rows that were scored before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..checks import choice, nonempty_text, number, refuse, require, whole
from ..errors import CheckpointMismatchError, ConfigurationError, DataError, did_you_mean
from ..state import Stateful
from .calibration_map import METHODS, CalibrationMap, logits_of, sigmoid
from .defaults import BINARY, CLASSES
from .histogram import RowBuffer
from .predictions import Meaning, row_weights, to_numpy

BLOCK_ROWS = 8192  # learned at once, so that the result does not depend on the size of batches
_BINS, _PER_UNIT = 320, 10  # bins of logits from -16 to 16; the outer bins hold the rest
_SUMS = ("positives", "negatives", "logits")  # weights of the classes and sum of weighted logits, in each bin
_STEPS = 50


class Calibrator(Stateful):
    """Turns scores of a binary label into probabilities, by rows scored before.

    In `online_train` every row is scored before it is learned from, and the calibration learns from these scores; in
    `fit` it learns from the rows of the latest validation. `Publish` puts the newest calibration into each version.

    Args:
        method: "platt": a slope and an intercept of the logit, by logistic regression (J. Platt, 1999); "isotonic": a
            rising step function (B. Zadrozny, C. Elkan, 2002), by scikit-learn (extra [calibration]).
        by: a column with a calibration for each of its values: a declared `Categorical`, or an input of the network
            with integers or texts. None: one for all rows.
        negative_sampling_rate: share of negatives that was kept, 0 < rate <= 1: the probabilities are those of the full
            traffic. None where rows are weighted for it, or none were left out.
        half_life: rows of a stream after which a row counts half, and never more than half of the rows seen.
        least: rows of each class that a calibration takes; a value of `by` with fewer, or an unknown one, takes the
            overall calibration.
        max_values: most values of `by`, the first ones seen; others take the overall calibration.

    Raises:
        ConfigurationError: an argument cannot work, or scikit-learn is missing.
    """

    of_model = True

    def __init__(
        self,
        method: str = "platt",
        by: str | None = None,
        *,
        negative_sampling_rate: float | None = None,
        half_life: int = 1_000_000,
        least: int = 100,
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
            most=1,
            optional=True,
            what="a share",
        )
        self.negative_sampling_rate = rate
        self.half_life = whole("calibration: half_life", half_life)
        self.least = whole("calibration: least", least)
        self.max_values = whole("calibration: max_values", max_values)
        self.column: str | None = by
        self.index: int | None = None
        self._activation = "sigmoid"
        self._forgets = True
        self.catch_up: Callable[[], None] = lambda: None  # adds rows that wait elsewhere; called before a state is read
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
            known = ("method", "by", "negative_sampling_rate", "half_life", "least", "max_values")
            wrong = next((name for name in value if name not in known), value)
            raise ConfigurationError(
                f"calibration takes {', '.join(known)}; received {wrong!r}{did_you_mean(str(wrong), known)}"
            ) from None

    def bind(self, meaning: Meaning, id_names: Sequence[str] | None, ids_input: str = "") -> None:
        """Check that scores of this meaning can be calibrated; find the column `by`.

        Args:
            id_names: the declared features whose value is one id, in the order of the network's input `ids_input`;
                None: the network's inputs have their own names.

        Raises:
            ConfigurationError: the label is not one binary label, or there is no such column.
        """
        kind = meaning.activation or ("identity" if meaning.target == BINARY else None)
        if meaning.target not in (BINARY, CLASSES, None) or kind not in ("sigmoid", "softmax", "identity"):
            raise ConfigurationError(
                "calibration takes one binary label, whose probability the loss defines (BCEWithLogitsLoss, BCELoss, "
                "CrossEntropyLoss of two classes, or prediction_activation 'sigmoid', 'softmax' or 'identity')"
            )
        self._activation = kind
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
        self._rows_of: dict[int, int] = {}  # value -> its row of the sums; row 0 has the sums of all rows
        self._sums = {name: np.zeros((1, _BINS)) for name in _SUMS}
        self._counts = np.zeros((1, 2))  # rows of each class
        self._seen = 0
        self._current: CalibrationMap | None = None
        self._is_current = False

    def add(self, outputs: Any, labels: Any, weights: Any = None, ids: np.ndarray | None = None) -> None:
        """Add rows that the network has not learned from.

        Args:
            outputs: its first output, [n, ...]; rows that are NaN are left out.
            labels: 0 or 1, [n] or [n, 1].
            weights: weights of the rows, [n], or None.
            ids: the values of `by` as integers, int64 [n].

        Raises:
            DataError: they are not scores and labels of one binary label.
        """
        labels = to_numpy(labels, "labels").reshape(-1).astype(np.float64)
        try:
            logits = logits_of(self._activation, to_numpy(outputs, "predictions"))
        except ValueError as error:
            raise DataError(str(error)) from None
        known = labels[~np.isnan(labels)]
        if len(logits) != len(labels) or not np.isin(known, (0, 1)).all():
            raise DataError(f"calibration takes a label of 0 or 1 for each of {len(logits)} rows")
        good = ~(np.isnan(logits) | np.isnan(labels))
        weights = row_weights(weights, len(labels))
        rows = [logits, labels, np.ones(len(labels)) if weights is None else weights]
        rows.append(np.zeros(len(labels), np.int64) if ids is None else ids)
        for block in self._buffer.push(*(column[good] for column in rows)):
            self._learn(*block)
            self._is_current = False

    def _learn(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray, ids: np.ndarray) -> None:
        self._seen += len(logits)
        if self._forgets:
            # A network that has just begun gives other scores than later: at first half of the rows seen count.
            factor = 0.5 ** (len(logits) / min(self.half_life, max(self._seen / 2, len(logits))))
            self._counts *= factor
            for sums in self._sums.values():
                sums *= factor
        bounded = np.clip(logits, -_BINS / _PER_UNIT / 2, _BINS / _PER_UNIT / 2)
        bins = np.minimum((bounded * _PER_UNIT + _BINS // 2).astype(np.int64), _BINS - 1)
        positives = weights * labels
        negatives = weights * (1.0 - labels) / (self.negative_sampling_rate or 1.0)
        of_rows = dict(zip(_SUMS, (positives, negatives, (positives + negatives) * bounded), strict=True))
        parts: list[tuple[np.ndarray, Any]] = [(np.zeros(len(bins), np.int64), slice(None))]
        if self.column is not None:
            rows = self._known_rows(ids)
            parts.append((rows[rows > 0], rows > 0))
        for rows, chosen in parts:
            size, at = len(self._counts), rows * _BINS + bins[chosen]
            for name, values in of_rows.items():
                self._sums[name] += np.bincount(at, values[chosen], size * _BINS).reshape(size, _BINS)
            of_class = 2 * rows + labels[chosen].astype(np.int64)
            self._counts += np.bincount(of_class, minlength=2 * size).reshape(size, 2)

    def _known_rows(self, ids: np.ndarray) -> np.ndarray:
        values, inverse = np.unique(ids, return_inverse=True)
        for value in values.tolist():
            if value not in self._rows_of and len(self._rows_of) < self.max_values:
                self._rows_of[value] = len(self._rows_of) + 1
        more = len(self._rows_of) + 1 - len(self._counts)
        if more:
            self._counts = np.concatenate([self._counts, np.zeros((more, 2))])
            self._sums = {name: np.concatenate([s, np.zeros((more, _BINS))]) for name, s in self._sums.items()}
        return np.array([self._rows_of.get(value, 0) for value in values.tolist()], np.int64)[inverse]

    # -- the result ----------------------------------------------------------------------------------------------

    @property
    def is_learned(self) -> bool:
        """Whether enough rows of both classes have been added."""
        waiting = self._buffer.peek()
        positives = float(waiting[1].sum()) if waiting else 0.0
        return bool((self._counts[0] + (self._buffer.rows - positives, positives) >= self.least).all())

    def current(self) -> CalibrationMap | None:
        """Return the calibration by all complete blocks of rows, None before enough."""
        if not self._is_current:
            self._is_current = True
            self._current = self._fit() if (self._counts[0] >= self.least).all() else None
        return self._current

    def fitted(self) -> CalibrationMap:
        """Return the calibration by all rows added.

        Raises:
            DataError: they are too few, so there is no calibrated probability.
        """
        self.catch_up()
        if not self.is_learned:
            raise DataError(
                f"the calibration has not learned yet: it takes {self.least} rows of each class, from the windows of "
                "online_train or from fit(valid_dataset=...); without it there is no probability"
            )
        if not self._buffer.rows:
            current = self.current()
            assert current is not None
            return current
        copy = Calibrator(self.method, self.by, half_life=self.half_life, least=self.least, max_values=self.max_values)
        copy.negative_sampling_rate, copy._activation = self.negative_sampling_rate, self._activation
        copy.column, copy.index = self.column, self.index
        copy.load_state_dict(self.state_dict())
        copy._learn(*copy._buffer.drain())
        return copy._fit()

    def _fit(self) -> CalibrationMap:
        thick = np.flatnonzero((self._counts >= self.least).all(axis=1))
        values = np.array(list(self._rows_of), np.int64)[thick[thick > 0] - 1]
        order = np.argsort(values)
        rows = np.concatenate([[0], thick[thick > 0][order]]).astype(np.int64)
        positives, negatives, logits = (self._sums[name][rows] for name in _SUMS)
        weights = positives + negatives
        seen = weights.any(axis=0)
        positives, negatives, weights = positives[:, seen], negatives[:, seen], weights[:, seen]
        means = logits[:, seen] / np.where(weights > 0, weights, 1.0)
        if self.method == "platt":
            first, second = platt(means, positives, negatives)
            sizes = [1] * len(rows)
        else:
            knots = [isotonic(*arrays) for arrays in zip(means, positives, negatives, strict=True)]
            first, second = (np.concatenate(part) for part in zip(*knots, strict=True))
            sizes = [len(part[0]) for part in knots]
        arrays = {"values": values[order], "offsets": np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)}
        about = {"method": self.method, "activation": self._activation, "column": self.column, "index": self.index}
        return CalibrationMap({"json": about, "arrays": {**arrays, "first": first, "second": second}})

    # -- snapshots -----------------------------------------------------------------------------------------------

    def _options(self) -> dict[str, Any]:
        return {"by": self.by, "negative_sampling_rate": self.negative_sampling_rate}

    def state_dict(self) -> dict[str, Any]:
        self.catch_up()
        waiting = self._buffer.state_dict()["arrays"]
        arrays = {"counts": self._counts, **self._sums, **{f"waiting.{key}": array for key, array in waiting.items()}}
        json = {**self._options(), "values": list(self._rows_of), "forgets": self._forgets, "seen": self._seen}
        return {"json": json, "arrays": {name: array.copy() for name, array in arrays.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned.

        CheckpointMismatchError: it was learned with another `by` or `negative_sampling_rate`.
        """
        saved, arrays = state["json"], state["arrays"]
        for name, value in self._options().items():
            if saved[name] != value:
                raise CheckpointMismatchError(
                    f"the snapshot's calibration was learned with {name}={saved[name]!r}; here it is {value!r}"
                )
        self.restart(forgets=bool(saved["forgets"]))
        self._seen = int(saved["seen"])
        self._rows_of = {int(value): row for row, value in enumerate(saved["values"], 1)}
        self._counts = np.array(arrays["counts"], np.float64)
        self._sums = {name: np.array(arrays[name], np.float64) for name in _SUMS}
        waiting = {key.removeprefix("waiting."): a for key, a in arrays.items() if key.startswith("waiting.")}
        self._buffer.load_state_dict({"arrays": waiting})


def platt(logits: np.ndarray, positives: np.ndarray, negatives: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return slope and intercept of each slice, by Newton's method.

    The targets are smoothed as J. Platt (1999) does, so that they exist for separated classes too; a step that raises
    the loss is halved, as H.-T. Lin, C.-J. Lin and R. Weng (2007) do.

    Args:
        logits, positives, negatives: [slices, n], the logits and the weight of each class there.

    Returns:
        Slopes and intercepts, float64 [slices].
    """
    plus, minus = (weights.sum(axis=1, keepdims=True) for weights in (positives, negatives))
    target, weights = positives * (plus + 1) / (plus + 2) + negatives / (minus + 2), positives + negatives

    def loss(line: np.ndarray) -> np.ndarray:
        z = line[:, :1] * logits + line[:, 1:]
        return (weights * (np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z)))) - target * z).sum(axis=1)

    line = np.tile([1.0, 0.0], (len(logits), 1))
    least = loss(line)
    for _ in range(_STEPS):
        p = sigmoid(line[:, :1] * logits + line[:, 1:])
        error, curvature = weights * p - target, weights * p * (1 - p)
        gradient = np.stack([(error * logits).sum(axis=1), error.sum(axis=1)], 1)
        moments = [(curvature * logits**power).sum(axis=1) for power in (0, 1, 2)]
        ridge = 1e-9 * (1 + moments[0] + moments[2])
        rows = [np.stack(pair, 1) for pair in ((moments[2] + ridge, moments[1]), (moments[1], moments[0] + ridge))]
        step = np.linalg.solve(np.stack(rows, 1), gradient[:, :, None])[:, :, 0]
        for _ in range(_STEPS):
            tried = loss(line - step)
            worse = tried > least + 1e-9 * np.abs(least)
            if not worse.any():
                break
            step[worse] /= 2
        line, least = line - step, np.minimum(tried, least)
        if np.abs(step).max() < 1e-10:
            break
    slopes, intercepts = line.T.copy()
    return slopes, intercepts


def isotonic(logits: np.ndarray, positives: np.ndarray, negatives: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the knots of a rising function of one slice: logits and probabilities.

    The probabilities stay as far from 0 and 1 as half a row would bring them.
    """
    from sklearn.isotonic import isotonic_regression

    weights = positives + negatives
    seen = weights > 0
    weights = weights[seen]
    rising = isotonic_regression(positives[seen] / weights, sample_weight=weights)
    edge = 0.5 / (weights.sum() + 1)
    rising, knots = np.clip(rising, edge, 1 - edge), logits[seen]
    ends = np.ones(len(rising), np.bool_)
    ends[1:-1] = (rising[1:-1] != rising[:-2]) | (rising[1:-1] != rising[2:])
    return knots[ends], rising[ends]
