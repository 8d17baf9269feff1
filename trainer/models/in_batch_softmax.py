"""In-batch softmax, corrected for sampling frequency (X. Yi et al., RecSys 2019)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype

from ..checks import choice, number, whole

_INTEGERS = (mstype.int8, mstype.int16, mstype.int32, mstype.int64, mstype.uint8)


class InBatchSoftmax(nn.Cell):
    """Softmax loss of each row's item, with the batch's other items as negatives.

    Frequent items are negatives too often. To correct this, log Q is subtracted from an item's logit, where Q is the
    probability that a batch contains the item (equation 4). If another row has the same item, it is not a negative.
    Gradient accumulation and training in several processes are refused, because they would change the negatives.

    Args:
        temperature: divisor of the inner products.
        correction: how Q is estimated. "batch": by the item's share of the rows of the batch. "running": by 1 / the
            mean number of steps between two batches with the item (algorithm 2), which suits streams. This estimate is
            updated in training and saved in snapshots; evaluation does not change it. None: no correction.
        buckets: number of entries of the running estimate. Items are assigned by id modulo `buckets` and may share an
            entry.
        rate: weight of the newest interval in the running estimate, the paper's alpha. The first interval of an item is
            the number of steps until its first occurrence.

    Inputs:
        vectors float [N, 2 * width], as returned by `TwoTower`, and item [N], integers that identify the items. If the
        label is a column of strings that a feature reads too (``Features(..., label="item")``), the strings are hashed
        to integers. Alternatively, vectors as returned by `NextItem` in training: each item of each history is then a
        row, and the label is ignored.

    Outputs:
        Scalar float32, the mean over rows.

    Raises:
        ConfigurationError: an invalid argument.
        TypeError: the items are not integers; raised before the first step.
    """

    rows_depend: ClassVar[bool] = True

    def __init__(
        self,
        temperature: float = 0.05,
        correction: str | None = "batch",
        *,
        buckets: int = 1 << 20,
        rate: float = 0.01,
    ) -> None:
        super().__init__()
        number("InBatchSoftmax(temperature=...)", temperature, above=0)
        choice("InBatchSoftmax(correction=...)", correction, ("batch", "running"), optional=True)
        whole("InBatchSoftmax(buckets=...)", buckets, maximum=1 << 30)
        number("InBatchSoftmax(rate=...)", rate, above=0, maximum=1)
        self.scale, self.correction = 1.0 / temperature, correction
        self.is_running = correction == "running"
        self.own_item = _OwnItemLoss()
        if self.is_running:
            self.buckets, self.rate = buckets, rate
            self.lower_bits = Tensor(np.array([0x7FFFFFFF], np.int64))
            self.step = Parameter(Tensor(np.zeros(1, np.int32)), name="frequency_step", requires_grad=False)
            self.last_step = Parameter(Tensor(np.zeros(buckets, np.int32)), name="last_step", requires_grad=False)
            self.interval = Parameter(Tensor(np.zeros(buckets, np.float32)), name="interval", requires_grad=False)

    def construct(self, vectors, item):
        if self.is_running and isinstance(vectors, tuple):
            raise TypeError(
                "InBatchSoftmax(correction='running') counts item ids in the label, but sasrec and hstu give the items "
                "of a history only as positions in the step: use correction='batch'"
            )
        vectors, item, rows = flatten_positions(vectors, item)
        users, items = vectors[:, : vectors.shape[1] // 2], vectors[:, vectors.shape[1] // 2 :]
        same = same_item(item)
        bias = 1e9 * (1 - rows)
        weights = rows / ops.maximum(rows.sum(), 1.0)  # all histories of a batch may be empty
        if self.correction is not None:
            share = ops.matmul(ops.expand_dims(weights, 0), same).reshape(-1)
            bias = bias + (self._log_intervals(item) if self.is_running else ops.log(ops.maximum(share, 1e-12)))
        return self.own_item(users * self.scale, items, same, ops.stop_gradient(bias), weights)[0]

    def _log_intervals(self, item):
        """Return log Q of each row's item; in training, update the estimate."""
        # Take the lower bits first, because MindSpore's remainder of a large int64 is wrong on CPU.
        lower = ops.cast(ops.bitwise_and(ops.cast(item, mstype.int64), self.lower_bits), mstype.int32)
        bucket = ops.floor_mod(lower, self.buckets)
        interval = ops.gather(self.interval, bucket, 0)
        last = ops.gather(self.last_step, bucket, 0)
        now = self.step + 1
        # Rows that share a bucket all write the same values, so the order of the writes does not matter.
        passed = ops.cast(now - last, mstype.float32)
        newest = ops.select(last == 0, passed, (1 - self.rate) * interval + self.rate * passed)
        if self.training:
            interval = newest
            ops.scatter_update(self.interval, bucket, interval)
            ops.scatter_update(self.last_step, bucket, ops.broadcast_to(now, bucket.shape))
            ops.assign(self.step, now)
        else:
            interval = ops.select(last == 0, passed, interval)
        return -ops.log(ops.clamp(interval, 1.0, None))


def flatten_positions(vectors, item):
    """Return vectors [M, 2 * width], items [M] and row weights [M]; graph code.

    The inputs are those of `InBatchSoftmax`. Each position of a history becomes a row. Row weights, float32, are 0 for
    padding and 1 otherwise.
    """
    if isinstance(vectors, tuple):
        position_vectors, items, kept = vectors
        if position_vectors.ndim == 2:
            raise TypeError("this loss draws its negatives from the batch; BPR(negatives=...) needs BPRLoss")
        vectors = ops.cast(position_vectors.reshape(-1, position_vectors.shape[2]), mstype.float32)
        return vectors, items.reshape(-1), kept.reshape(-1)
    if item.dtype not in _INTEGERS:
        raise TypeError(
            "the label of this loss must be integers that identify items; Features(label=...) names the column of the "
            "item's feature, or label_dtype='int32' makes a column of numbers integers"
        )
    return ops.cast(vectors, mstype.float32), item, ops.ones((item.shape[0],), mstype.float32)


def scores_and_same(vectors, item):
    """Return the scores of all pairs of rows, and compare their items; graph code.

    Returns:
        The score of each row's user with each row's item, [M, M]; 1 where two rows have the same item, [M, M]; and the
        score of each row's own item, [M].
    """
    width = vectors.shape[1] // 2
    users, items = vectors[:, :width], vectors[:, width:]
    scores = ops.matmul(users, items.swapaxes(0, 1))
    return scores, same_item(item), (users * items).sum(axis=1)


def same_item(item):
    """Return 1 where two rows have the same item, float32 [M, M]; graph code."""
    # On CPU, comparing a column with a row takes twice as long as comparing their difference with zero.
    return ops.cast(ops.expand_dims(item, 1) - ops.expand_dims(item, 0) == 0, mstype.float32)


def distinct_item_weights(same, rows):
    """Return weights of the rows, [1, M], that sum to 1 for each item; graph code."""
    count = ops.matmul(ops.expand_dims(rows, 0), same)
    return ops.stop_gradient(ops.expand_dims(rows, 0) / ops.maximum(count, 1.0))


class _OwnItemLoss(nn.Cell):
    """Compute the weighted mean loss, and the log probabilities for its gradient.

    The logits have shape [M, M + 1]. Column 0 is the row's own item; the items of all rows follow, with repetitions of
    the own item masked out. The gradient of a logit is its probability (minus 1 for the own item). It is written by
    hand to keep a single array of this shape; automatic differentiation would keep a dozen.
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.log_softmax = ops.LogSoftmax(1)
        self.product = ops.MatMul()
        self.product_with_transposed = ops.MatMul(transpose_b=True)
        self.product_of_transposed = ops.MatMul(transpose_a=True)

    def construct(self, users, items, same, bias, weights):
        # users, items: [M, width]; same: [M, M], 1 where two rows have the same item; bias, weights: [M]
        own = ops.expand_dims((users * items).sum(axis=1) - bias, 1)
        others = self.product_with_transposed(users, items) - ops.expand_dims(bias, 0) - 1e9 * same
        logs = self.log_softmax(ops.concat((own, others), 1))
        return -(logs[:, 0] * weights).sum(), logs

    def bprop(self, users, items, same, bias, weights, out, dout):
        probability = ops.exp(out[1])
        factors = ops.expand_dims(weights, 1) * dout[0]
        own_grad = (probability[:, :1] - 1) * factors
        after_own = ops.concat((ops.zeros_like(items[:1]), items), 0)
        user_grad = self.product(probability, after_own) * factors + own_grad * items
        item_grad = self.product_of_transposed(probability, users * factors)[1:] + own_grad * users
        return user_grad, item_grad, ops.zeros_like(same), ops.zeros_like(bias), ops.zeros_like(weights)
