"""Labels in the dtype that a loss takes, and a word about shapes that MindSpore would broadcast in silence."""

from __future__ import annotations

import itertools
import logging
import math
from typing import Any

from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

logger = logging.getLogger(__name__)

CLASSES, VALUES, OTHER = 2, 1, 0
_FLOATS = (mstype.float16, mstype.bfloat16, mstype.float32, mstype.float64)
_VALUE_LOSSES = (
    *(nn.BCELoss, nn.BCEWithLogitsLoss, nn.HuberLoss, nn.L1Loss, nn.MAELoss, nn.MSELoss, nn.RMSELoss),
    *(nn.SmoothL1Loss, nn.SoftMarginLoss),
)
_numbers = itertools.count()
_said: set[tuple[int, str]] = set()


def kind_of(loss_fn: Any) -> int:
    """Return what the labels of MindSpore's own losses are: class numbers, values like predictions; else `OTHER`."""
    if type(loss_fn) in _VALUE_LOSSES:
        return VALUES
    if type(loss_fn) is nn.SoftmaxCrossEntropyWithLogits:
        return OTHER if loss_fn.sparse else VALUES
    return CLASSES if type(loss_fn) is nn.CrossEntropyLoss else OTHER


def takes_class_numbers(loss_fn: Any) -> str | None:
    """Return the name of a loss that takes one class number a row as an integer; None of all others."""
    return type(loss_fn).__name__ if kind_of(loss_fn) == CLASSES else None


class LabelCast(nn.Cell):
    """Gives a label the dtype that one of MindSpore's losses takes; what was changed is logged once a cell.

    Class numbers of any integer dtype, or bool, become int32; values that are integers or bool the prediction's dtype.
    Labels that are floats, and those of a loss that is not MindSpore's own, stay as they are.

    Args:
        loss_fn: the loss.

    Inputs:
        label, prediction: tensors.

    Outputs:
        The label.
    """

    def __init__(self, loss_fn: Any) -> None:
        super().__init__(auto_prefix=False)
        self.kind = kind_of(loss_fn)
        self.loss = type(loss_fn).__name__
        self.number = next(_numbers)

    def construct(self, label, prediction):
        """Return the label; graph code."""
        if self.kind == OTHER:
            return label
        if not isinstance(prediction, Tensor):
            raise TypeError(
                f"{self.loss} takes one prediction, and the network returns several outputs; return one, or pass "
                "MultiTaskLoss or a loss cell of your own, which is given all of them"
            )
        dtypes, shapes = (label.dtype, prediction.dtype), (label.shape, prediction.shape)
        return ops.cast(label, _wanted_dtype(self.kind, self.number, self.loss, dtypes, shapes))


def _say(number: int, level: int, key: str, text: str, *values: Any) -> None:
    if (number, key) not in _said:
        _said.add((number, key))
        logger.log(level, text, *values)


# constexpr: Python that runs when the graph is made, not when it is run. As branches of the graph it took a tenth of
# the time that a small step takes to compile; a cast to the dtype there already is no operator in the end.
@ops.constexpr
def _wanted_dtype(kind, number, loss, dtypes, shapes):
    (received, predicted), (label, prediction) = dtypes, shapes
    if kind == VALUES and len(label) != len(prediction) and math.prod(label) == math.prod(prediction):
        text = (
            "labels have the shape %s and predictions %s: %s compares each prediction with each label, or fails; give "
            "both one shape, e.g. labels[:, None] or prediction.squeeze(1)"
        )
        _say(number, logging.WARNING, "broadcast", text, list(label), list(prediction), loss)
    if received in _FLOATS:
        return received
    if kind == VALUES or len(label) == len(prediction):
        wanted = predicted
    else:
        wanted = mstype.int32 if len(label) < len(prediction) else received
    if wanted != received:
        _say(number, logging.INFO, "cast", "labels are converted from %s to %s, which %s takes", received, wanted, loss)
    return wanted
