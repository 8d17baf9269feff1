"""Class numbers are checked before a program sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import nn

from ..errors import DataError

if TYPE_CHECKING:
    from ..data.chunk import Chunk
    from .labels import LabelCast


class ClassRange:
    """Refuses class numbers that the prediction has no value for.

    `nn.CrossEntropyLoss` trains on -1 as if it were the last class, a sparse `nn.SoftmaxCrossEntropyWithLogits` on
    numbers too high. Where an operator does refuse them, MindSpore runs no further program of the process.

    Args:
        losses: the loss of each label column, in order.
        casts: their cells, which know the shapes once a program is compiled.
    """

    def __init__(self, losses: Sequence[Any], casts: Sequence[LabelCast]) -> None:
        pairs = enumerate(zip(losses, casts, strict=True))
        self.columns = [(n - len(losses), loss, cast) for n, (loss, cast) in pairs if _takes_classes(loss)]
        self._compiled = not self.columns

    def __bool__(self) -> bool:
        return bool(self.columns)

    def __call__(self, chunk: Chunk, compile_first: Callable[[], None] | None) -> None:
        """Check one chunk; `compile_first` compiles the program for it without running it, unless it is None.

        Raises:
            DataError: a class number out of range.
        """
        if not self._compiled and compile_first is not None:
            compile_first()
            self._compiled = True
        for column, loss, cast in self.columns:
            if cast.shapes is None:
                continue
            labels, (label, prediction) = chunk.arrays[column], cast.shapes
            if labels.dtype.kind not in "iu" or not labels.size or len(label) >= len(prediction):
                continue
            classes = prediction[min(1, len(prediction) - 1)]
            if labels.min() < 0 or labels.max() >= classes:
                _refuse(chunk, column, loss, classes)


def _takes_classes(loss: Any) -> bool:
    return type(loss) is nn.CrossEntropyLoss or (type(loss) is nn.SoftmaxCrossEntropyWithLogits and loss.sparse)


def _refuse(chunk: Chunk, column: int, loss: nn.Cell, classes: int) -> None:
    labels = chunk.arrays[column]
    wrong = np.argwhere(((labels < 0) | (labels >= classes)) & (labels != getattr(loss, "ignore_index", np.nan)))
    if not len(wrong):
        return
    first = tuple(wrong[0])
    row = first[1] if chunk.stacked else first[0] if first else 0
    raise DataError(
        f"column {chunk.names[column]!r}: class {labels[first]} in row {row} of the batch (rows: {len(wrong)}); "
        f"{type(loss).__name__} takes 0 to {classes - 1}, for the network gives {classes} values a row. Number the "
        "classes from 0, or widen the network's last layer"
    )
