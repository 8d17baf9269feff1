"""Generalised binary cross-entropy (A. Petrov and C. Macdonald, RecSys 2023).

"gSASRec: Reducing Overconfidence in Sequential Recommendation Trained with Negative Sampling".
"""

from __future__ import annotations

from typing import ClassVar

from mindspore import nn, ops

from ..checks import number, whole
from .in_batch_softmax import distinct_item_weights, flatten_positions, scores_and_same


class GBCE(nn.Cell):
    """Cross-entropy of each row's item against the other items of its batch.

    With k negatives out of I items, a = k / (I - 1) and b = a (t (1 - 1/a) + 1/a), the loss of a row is (equations 11
    and 13)

        -(b log sigmoid(s_own) + sum over the negatives of log(1 - sigmoid(s))) / (k + 1).

    The k negatives are the distinct other items of the batch. A frequent item is therefore a single negative, as in
    uniform sampling. t = 0 is the plain cross-entropy; t = 1 gives calibrated probabilities.

    Args:
        items: I, the number of all items.
        calibration: t, from 0 to 1; the paper recommends 0.75.

    Inputs and outputs are as in `InBatchSoftmax`.

    Raises:
        ConfigurationError: an invalid argument.
        TypeError: the items are not integers; raised before the first step.
    """

    rows_depend: ClassVar[bool] = True

    def __init__(self, items: int, calibration: float = 0.75) -> None:
        super().__init__()
        self.others = float(whole("GBCE(items=...)", items, 2) - 1)
        self.calibration = number("GBCE(calibration=...)", calibration, minimum=0, maximum=1)

    def construct(self, vectors, item):
        vectors, item, rows = flatten_positions(vectors, item)
        scores, same, own = scores_and_same(vectors, item)
        negatives = distinct_item_weights(same, rows) * (1 - same)
        count = ops.stop_gradient(ops.maximum(negatives.sum(axis=1), 1.0))
        rate = ops.minimum(count / self.others, 1.0)
        power = rate * (self.calibration * (1 - 1 / rate) + 1 / rate)
        # -log sigmoid(s) = log(1 + exp(-s)), -log(1 - sigmoid(s)) = log(1 + exp(s))
        losses = power * ops.softplus(-own) + (negatives * ops.softplus(scores)).sum(axis=1)
        return (rows * losses / (count + 1)).sum() / ops.maximum(rows.sum(), 1.0)
