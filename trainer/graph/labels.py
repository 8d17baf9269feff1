"""Cast labels to the dtype and shape of a loss; check class numbers on the host."""

from __future__ import annotations

import itertools
import logging
import math
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from ..errors import DataError
from ..mindspore_internals.execution import eager_mode, wait_for_operators

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from ..data.chunk import Chunk

CLASSES, VALUES, OTHER = 2, 1, 0
_FLOATS = (mstype.float16, mstype.bfloat16, mstype.float32, mstype.float64)
_VALUE_LOSSES = (
    *(nn.BCELoss, nn.BCEWithLogitsLoss, nn.HuberLoss, nn.L1Loss, nn.MAELoss, nn.MSELoss, nn.RMSELoss),
    *(nn.KLDivLoss, nn.PoissonNLLLoss, nn.SmoothL1Loss, nn.SoftMarginLoss),
)
_ids = itertools.count()
_logged: set[tuple[int, str]] = set()
_casts: weakref.WeakValueDictionary[int, Any] = (
    weakref.WeakValueDictionary()
)  # graph code can pass a number, but not an object
_shapes: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}  # number -> shapes of label and prediction


def kind_of(loss_fn: Any) -> int:
    """Return the label kind of a MindSpore loss (class numbers or values), or `OTHER`."""
    if type(loss_fn) in _VALUE_LOSSES:
        return VALUES
    if type(loss_fn) is nn.SoftmaxCrossEntropyWithLogits:
        return OTHER if loss_fn.sparse else VALUES
    return CLASSES if type(loss_fn) is nn.CrossEntropyLoss else OTHER


def takes_class_numbers(loss_fn: Any) -> str | None:
    """Return the name of a loss that takes one class number per row, or None."""
    return type(loss_fn).__name__ if kind_of(loss_fn) == CLASSES else None


class LabelCast(nn.Cell):
    """Cast labels to the dtype and shape that a loss expects; log a change once.

    For MindSpore's losses, integer and bool labels are cast to int32 if they are class numbers, and to the prediction's
    dtype if they are values. Float labels and labels of other losses keep their dtype.

    A label [N] with a prediction [N, 1], or the reverse, is reshaped to the prediction's shape if the loss compares
    values, because MindSpore would broadcast both to [N, N]. A custom loss is called with two rows to find out whether
    it broadcasts: it does if swapping the two labels changes nothing, or if the call fails only for unequal shapes.
    """

    def __init__(self, loss_fn: Any) -> None:
        super().__init__(auto_prefix=False)
        self.kind = kind_of(loss_fn)
        self.takes_values = self.kind == VALUES
        self.loss = type(loss_fn).__name__ if isinstance(loss_fn, nn.Cell) else getattr(loss_fn, "__name__", "the loss")
        self.number = next(_ids)
        # refuse integer probabilities [rows, classes], because the loss's denominator would count them as class numbers
        self.requires_class_numbers = False
        object.__setattr__(self, "loss_fn", loss_fn)  # not a child: another cell owns its parameters
        _casts[self.number] = self
        weakref.finalize(self, _shapes.pop, self.number, None)

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Shapes of label and prediction in the newest program, or None without one."""
        return _shapes.get(self.number)

    def construct(self, label, prediction):
        """Return the label, cast and reshaped for the loss; graph code."""
        if self.kind == OTHER:
            return self.match_shapes((label,), prediction)[0]
        if not isinstance(prediction, Tensor):
            raise TypeError(
                f"{self.loss} takes one prediction, and the network returns several outputs; return one, or pass "
                "MultiTaskLoss or your own loss cell, which receives all of them"
            )
        dtypes, shapes = (label.dtype, prediction.dtype), (label.shape, prediction.shape)
        if self.takes_values:
            wanted = _wanted_shape(self.number, self.loss, *shapes)
            if wanted != label.shape:
                label = ops.reshape(label, wanted)
        return ops.cast(label, _wanted_dtype(self.kind, self.number, self.loss, dtypes, shapes))

    def match_shapes(self, labels, prediction):
        """Reshape labels like the prediction if the loss would broadcast; graph code."""
        if self.kind != OTHER or not isinstance(prediction, Tensor):
            return labels
        shapes, dtypes = (), ()
        for label in labels:
            shapes += (label.shape,)
            dtypes += (label.dtype,)
        wanted = _wanted_shapes(self.number, self.loss, shapes, dtypes, prediction.shape)
        if wanted == shapes:
            return labels
        reshaped = ()
        for index, label in enumerate(labels):
            reshaped += (ops.reshape(label, wanted[index]),)
        return reshaped


def _log_once(number: int, level: int, key: str, text: str, *values: Any) -> None:
    if (number, key) not in _logged:
        _logged.add((number, key))
        logger.log(level, text, *values)


# A constexpr function runs in Python at compile time. Written as graph code, these branches took a tenth of the compile
# time of a small step. A cast to the dtype that a tensor already has adds no operator to the program.
@ops.constexpr
def _wanted_dtype(kind, number, loss, dtypes, shapes):
    (received, predicted), (label, prediction) = dtypes, shapes
    _shapes[number] = shapes
    _check_classes(number, loss, label, prediction)
    if received in _FLOATS:
        return received
    if kind == VALUES or len(label) == len(prediction):
        if _casts[number].requires_class_numbers:
            raise TypeError(
                f"{loss} received integers of shape {list(label)} as probabilities of classes; give them as float32, "
                "or give class numbers, which several processes or micro-batches need to count rows"
            )
        wanted = predicted
    else:
        wanted = mstype.int32 if len(label) < len(prediction) else received
    if wanted != received:
        text = "labels are converted from %s to %s, which %s takes"
        _log_once(number, logging.INFO, "cast", text, received, wanted, loss)
    return wanted


@ops.constexpr
def _wanted_shape(number, loss, label, prediction):
    if not _differ_by_ones(label, prediction):
        return label
    _log_shape(number, loss, label, prediction)
    return prediction


@ops.constexpr
def _wanted_shapes(number, loss, labels, dtypes, prediction):
    _shapes[number] = labels[0], prediction
    _check_classes(number, loss, labels[0], prediction)
    if not _differ_by_ones(labels[0], prediction):
        return labels
    with eager_mode():
        broadcasts = _broadcasts(_casts[number].loss_fn, labels, dtypes, prediction)
    if broadcasts is None:
        text = "labels have the shape %s and predictions %s; does %s broadcast them? Give both one shape"
        _log_once(number, logging.WARNING, "shape", text, list(labels[0]), list(prediction), loss)
    if not broadcasts:
        return labels
    _log_shape(number, loss, labels[0], prediction)
    return tuple([prediction if _differ_by_ones(label, prediction) else label for label in labels])


def _check_classes(number, loss, label, prediction) -> None:
    """Refuse a single value per row for a loss of classes."""
    kinds = nn.CrossEntropyLoss, nn.NLLLoss, nn.SoftmaxCrossEntropyWithLogits
    if type(_casts[number].loss_fn) not in kinds:
        return
    if len(prediction) == 1 or (len(label) == len(prediction) and prediction[1] == 1):
        raise TypeError(
            f"{loss} compares the classes of a row, and the network returns one value per row, {list(prediction)}; "
            "return one per class, [rows, classes] (models with the option classes do), or take nn.BCEWithLogitsLoss "
            "for labels 0 and 1, nn.MSELoss for numbers"
        )


def _differ_by_ones(label, prediction) -> bool:
    """Return whether two shapes of as many rows differ only by axes of length 1."""
    if len(label) == len(prediction) or not label or not prediction or label[0] != prediction[0]:
        return False
    return [n for n in label if n != 1] == [n for n in prediction if n != 1]


def _log_shape(number, loss, label, prediction) -> None:
    text = "labels get the shape %s of the predictions instead of %s: %s would compare each row with every other one"
    _log_once(number, logging.INFO, "shape", text, list(prediction), list(label), loss)


def _broadcasts(loss, labels, dtypes, prediction) -> bool | None:
    """Return whether a loss broadcasts labels and predictions; None if unknown."""
    rows = np.array([0, 1], np.float32)
    shape = (2, *prediction[1:])
    # All predictions differ, so swapping the labels of two rows changes any loss that compares row by row.
    predicted = np.linspace(0.3, 0.7, math.prod(shape), dtype=np.float32).reshape(shape)

    def value(first, shapes) -> float | None:
        columns = [first, *[np.ones(2, np.float32)] * (len(shapes) - 1)]
        tensors = [
            Tensor(np.broadcast_to(column.reshape(2, *[1] * (len(shape) - 1)), (2, *shape[1:])).copy()).astype(dtype)
            for column, shape, dtype in zip(columns, shapes, dtypes, strict=True)
        ]
        call = loss.construct if isinstance(loss, nn.Cell) else loss
        try:
            return float(np.mean(call(Tensor(predicted), *tensors).asnumpy()))
        except Exception:
            wait_for_operators()
            return None

    before, after = value(rows, labels), value(rows[::-1], labels)
    if before is not None and after is not None:
        return math.isclose(before, after, rel_tol=1e-5, abs_tol=1e-7)
    fits = value(rows, [prediction if _differ_by_ones(label, prediction) else label for label in labels])
    return None if fits is None else True


class ClassRangeCheck:
    """Refuses class numbers outside the prediction's classes.

    MindSpore's losses accept them: `nn.CrossEntropyLoss` trains on -1 as if it were the last class, and a sparse
    `nn.SoftmaxCrossEntropyWithLogits` trains on numbers that are too high. Once an operator has raised an
    error, MindSpore runs no other program in the process. `after` is the number of columns after the labels. `counted`
    returns for the label columns of several tasks each one's mask of rows that count, or None if all do.
    """

    def __init__(
        self,
        losses: Sequence[Any],
        casts: Sequence[LabelCast],
        *,
        ignores: bool = True,
        after: int = 0,
        counted: Callable[[Sequence[np.ndarray]], Sequence[np.ndarray | None]] | None = None,
    ) -> None:
        self.ignores = ignores  # whether labels may have a loss's `ignore_index`
        self._counted = counted
        self._labels = range(-len(losses) - after, -after)
        pairs = enumerate(zip(losses, casts, strict=True))
        self.columns = [(n - len(losses) - after, loss, cast) for n, (loss, cast) in pairs if _takes_classes(loss)]
        self._compiled = not self.columns

    def __bool__(self) -> bool:
        return bool(self.columns)

    def __call__(self, chunk: Chunk, compile_first: Callable[[], None] | None) -> None:
        """Check one chunk.

        The first call runs `compile_first`, if given: compiling the chunk's program records the shapes to check.
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
                rows = None
                if self._counted is not None:
                    rows = self._counted([chunk.rows(index) for index in self._labels])[self._labels.index(column)]
                _refuse(chunk, column, loss, classes, self.ignores, rows)


def _takes_classes(loss: Any) -> bool:
    return type(loss) is nn.CrossEntropyLoss or (type(loss) is nn.SoftmaxCrossEntropyWithLogits and loss.sparse)


def _refuse(chunk: Chunk, column: int, loss: nn.Cell, classes: int, ignores: bool, counted: np.ndarray | None) -> None:
    labels = chunk.rows(column)
    ignored = getattr(loss, "ignore_index", np.nan)
    is_wrong = ((labels < 0) | (labels >= classes)) & (labels != (ignored if ignores else np.nan))
    if counted is not None:
        is_wrong &= counted.reshape(-1, *[1] * (labels.ndim - 1))
    wrong = np.argwhere(is_wrong)
    if not len(wrong):
        return
    first = tuple(wrong[0])
    row = first[0] % (len(labels) // chunk.num_batches) if first else 0
    raise DataError(
        f"column {chunk.names[column]!r}: class {labels[first]} in row {row} of the batch (rows: {len(wrong)}); "
        f"{type(loss).__name__} takes 0 to {classes - 1}, because the network returns {classes} values per "
        "row. Number the classes from 0, or widen the network's last layer"
    )
