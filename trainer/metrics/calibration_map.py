"""Apply a calibration to the outputs of a network.

`trainer export` copies this file into the exported model's folder, so it may import only NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

METHODS = ("platt", "isotonic")
NAMES = ("values", "offsets", "first", "second")  # array names of a state
_EPS = float(np.finfo(np.float64).eps)


class CalibrationMap:
    """A calibration of a binary score, overall and per value of a column.

    Slice 0 is the overall calibration; slice s belongs to the value ``values[s - 1]``. The parameters of slice s are
    ``first[offsets[s]:offsets[s + 1]]`` and the same part of `second`. With "platt" they are one slope and one
    intercept of the logit (J. Platt, 1999). With "isotonic" they are the logits and probabilities of knots, with linear
    interpolation in between (B. Zadrozny, C. Elkan, 2002).

    Args:
        state: ``{"json": {"method", "activation", "column", "index"}, "arrays": ...}`` with the arrays `NAMES`.

    Attributes:
        column: the network's input whose values choose the slice, or None.
        index: the column of that input to read, or None to read the whole input.

    Raises:
        ValueError, TypeError, KeyError: `state` is not the state of a calibration.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        metadata, arrays = state["json"], {name: np.asarray(state["arrays"][name]) for name in NAMES}
        self.method, self.activation = str(metadata["method"]), str(metadata["activation"])
        self.column: str | None = metadata["column"]
        self.index: int | None = metadata["index"]
        self.values, self.offsets, self.first, self.second = arrays.values()
        slices = np.diff(self.offsets)
        is_valid = self.method in METHODS and self.activation in ("sigmoid", "softmax", "identity")
        is_valid = is_valid and len(self.offsets) == len(self.values) + 2
        is_valid = is_valid and bool((self.values[1:] > self.values[:-1]).all())  # a difference of ids may overflow
        is_valid = is_valid and self.offsets[0] == 0 and len(self.first) == len(self.second) == self.offsets[-1]
        if not (is_valid and slices.min() >= 1 and (self.method != "platt" or slices.max() == 1)):
            raise ValueError("the state is not that of a calibration")

    def state(self) -> dict[str, Any]:
        """Return the argument of the constructor."""
        names = ("method", "activation", "column", "index")
        return {
            "json": {name: getattr(self, name) for name in names},
            "arrays": {name: getattr(self, name) for name in NAMES},
        }

    def to_json(self) -> dict[str, Any]:
        """Return the state as one JSON object, for `from_json`."""
        state = self.state()
        return {**state["json"], **{name: array.tolist() for name, array in state["arrays"].items()}}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> CalibrationMap:
        """Return a calibration from the result of `to_json`."""
        return cls({"json": body, "arrays": body})

    def __call__(self, outputs: np.ndarray, ids: np.ndarray | None = None) -> np.ndarray:
        """Return calibrated probabilities, float64, in the shape of `outputs`.

        Args:
            outputs: the network's first output, shape [n] or [n, 1]; [n, 2] with "softmax".
            ids: values of `column`, int64 [n]; required if there are slices. Values without a slice use the overall
                calibration.
        """
        logits, slices = logits_of(self.activation, outputs), np.zeros(len(outputs), np.int64)
        if len(self.values):
            if ids is None:
                raise ValueError(f"the calibration reads the column {self.column!r}")
            indices = np.minimum(np.searchsorted(self.values, ids), len(self.values) - 1)
            slices = np.where(self.values[indices] == ids, indices + 1, 0)
        if self.method == "platt":
            probabilities = sigmoid(self.first[slices] * logits + self.second[slices])
        else:
            probabilities = np.empty(len(logits))
            for number in np.unique(slices):
                rows, knots = slices == number, slice(self.offsets[number], self.offsets[number + 1])
                probabilities[rows] = np.interp(logits[rows], self.first[knots], self.second[knots])
        if self.activation == "softmax":
            return np.stack([1.0 - probabilities, probabilities], 1)
        return probabilities.reshape(outputs.shape)


def logits_of(activation: str, outputs: np.ndarray) -> np.ndarray:
    """Return the logit of the positive class, float64 [n], from a network's output.

    Raises:
        ValueError: the output does not have the shape for one binary label.
    """
    outputs = np.asarray(outputs, np.float64)
    columns = outputs.shape[1] if outputs.ndim == 2 else 1 if outputs.ndim == 1 else 0
    if columns != (2 if activation == "softmax" else 1):
        raise ValueError(f"a calibration takes one binary label; the network's output is {list(outputs.shape)}")
    if activation == "softmax":
        return outputs[:, 1] - outputs[:, 0]
    if activation == "sigmoid":
        return outputs.reshape(-1)
    clipped = np.clip(outputs.reshape(-1), _EPS, 1.0 - _EPS)
    return np.log(clipped) - np.log1p(-clipped)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-logits))."""
    small = np.exp(-np.abs(logits))
    return np.where(logits >= 0, 1.0, small) / (1.0 + small)
