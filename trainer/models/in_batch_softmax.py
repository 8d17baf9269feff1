"""In-batch softmax, corrected for sampling frequency (X. Yi et al., RecSys 2019)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype

from ..checks import choice, number, whole

_INTEGERS = (mstype.int8, mstype.int16, mstype.int32, mstype.int64, mstype.uint8)


class InBatchSoftmax(nn.Cell):
    """Softmax loss of a row's own item among the items of its batch.

    A frequent item is a negative too often, so log Q, the log probability that a batch samples it, is subtracted from
    its logit (equation 4). A row's own item in another row is not a negative. Gradient accumulation and several
    processes would change the negatives and are refused.

    Args:
        temperature: inner products are divided by it.
        correction: where Q comes from. "batch": the item's share of the batch's rows. "running": 1 / the mean number of
            steps between two batches with the item, estimated while training (algorithm 2), as a stream needs it: the
            estimate is part of snapshots, and evaluation uses it unchanged. None: no correction.
        buckets: entries of the running estimate; items share those that their numbers fall into.
        rate: weight of the newest interval in the running estimate, the paper's alpha. An item's first interval is the
            number of steps before it.

    Inputs:
        vectors float [N, 2 * width], as from `TwoTower`; item [N], integers that identify the items. With
        ``Features(..., label="item")``, where a feature reads the same column, text is hashed. Or vectors as
        `NextItem` gives them while it trains: each item of each history counts as a row, and the label is not read.

    Outputs:
        Scalar float32: the mean over the rows.

    Raises:
        ConfigurationError: an invalid argument.
        TypeError: items that are not integers, before the first step.
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
        whole("InBatchSoftmax(buckets=...)", buckets, most=1 << 30)
        number("InBatchSoftmax(rate=...)", rate, above=0, most=1)
        self.scale, self.correction = 1.0 / temperature, correction
        self.is_running = correction == "running"
        self.own_item = _OwnItem()
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
        vectors, item, rows = choices_of(vectors, item)
        users, items = vectors[:, : vectors.shape[1] // 2], vectors[:, vectors.shape[1] // 2 :]
        same = same_item(item)
        bias = 1e9 * (1 - rows)
        if self.correction is not None:
            share = ops.matmul(ops.expand_dims(rows / rows.sum(), 0), same).reshape(-1)
            bias = bias + (self._log_intervals(item) if self.is_running else ops.log(ops.maximum(share, 1e-12)))
        return self.own_item(users * self.scale, items, same, ops.stop_gradient(bias), rows / rows.sum())[0]

    def _log_intervals(self, item):
        """Return log Q of each row's item, and count the batch while training."""
        # Take the lower bits first: the remainder of a large int64 is wrong on CPU.
        lower = ops.cast(ops.bitwise_and(ops.cast(item, mstype.int64), self.lower_bits), mstype.int32)
        bucket = ops.floor_mod(lower, self.buckets)
        interval = ops.gather(self.interval, bucket, 0)
        last = ops.gather(self.last_step, bucket, 0)
        now = self.step + 1
        # Rows of the same item or bucket all write the same values.
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


def choices_of(vectors, item):
    """Return vectors [M, 2 * width], items [M], float32 [M] of rows that count; graph.

    Takes what `InBatchSoftmax` does. Of histories each place is a row, and padding counts 0.
    """
    if isinstance(vectors, tuple):
        of_places, items, kept = vectors
        if of_places.ndim == 2:
            raise TypeError("this loss draws its negatives from the batch; BPR(negatives=...) needs BPRLoss")
        return ops.cast(of_places.reshape(-1, of_places.shape[2]), mstype.float32), items.reshape(-1), kept.reshape(-1)
    if item.dtype not in _INTEGERS:
        raise TypeError(
            "the loss takes integers that tell items apart as the label; Features(label=...) names the column of the "
            "item's feature, or label_dtype='int32' makes a column of numbers integers"
        )
    return ops.cast(vectors, mstype.float32), item, ops.ones((item.shape[0],), mstype.float32)


def scores_and_same(vectors, item):
    """Return every user's scores of every row's item, [M, M], and more; graph code.

    The second array is 1 where both rows are of one item, the third, [M], the scores of the rows' own items.
    """
    width = vectors.shape[1] // 2
    users, items = vectors[:, :width], vectors[:, width:]
    scores = ops.matmul(users, items.swapaxes(0, 1))
    return scores, same_item(item), (users * items).sum(axis=1)


def same_item(item):
    """Return 1 where row and column are of one item, float32 [M, M]; graph code."""
    # On CPU, comparing a column with a row takes twice as long as their difference and its comparison with zero.
    return ops.cast(ops.expand_dims(item, 1) - ops.expand_dims(item, 0) == 0, mstype.float32)


def each_item_once(same, rows):
    """Return column weights, [1, M], that add up to 1 for each item; graph code."""
    count = ops.matmul(ops.expand_dims(rows, 0), same)
    return ops.stop_gradient(ops.expand_dims(rows, 0) / ops.maximum(count, 1.0))


class _OwnItem(nn.Cell):
    """Compute the weighted mean loss of the rows' items, and the gradient's array.

    The own item is column 0, the items of all rows follow; those that are the own item again have no probability. The
    gradient, probability less one for the own item, is written by hand: one array of [M, M + 1], where the operators'
    derivatives take a dozen.
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.log_softmax = ops.LogSoftmax(1)
        self.product = ops.MatMul()
        self.product_with_transposed = ops.MatMul(transpose_b=True)
        self.product_of_transposed = ops.MatMul(transpose_a=True)

    def construct(self, users, items, same, bias, weights):  # [M, width] twice; same: 1 where one item, [M, M]; [M]
        own = ops.expand_dims((users * items).sum(axis=1) - bias, 1)
        others = self.product_with_transposed(users, items) - ops.expand_dims(bias, 0) - 1e9 * same
        logs = self.log_softmax(ops.concat((own, others), 1))
        return -(logs[:, 0] * weights).sum(), logs

    def bprop(self, users, items, same, bias, weights, out, dout):
        probability = ops.exp(out[1])
        factors = ops.expand_dims(weights, 1) * dout[0]
        of_own = (probability[:, :1] - 1) * factors
        after_own = ops.concat((ops.zeros_like(items[:1]), items), 0)
        of_users = self.product(probability, after_own) * factors + of_own * items
        of_items = self.product_of_transposed(probability, users * factors)[1:] + of_own * users
        return of_users, of_items, ops.zeros_like(same), ops.zeros_like(bias), ops.zeros_like(weights)
