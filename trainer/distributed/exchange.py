"""What the processes exchange inside a training step: the sums of their gradients, as graph code."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from mindspore import Parameter, nn, ops
from mindspore import dtype as mstype

from .group import Group

BUCKET_ENTRIES = 1 << 22  # float32 entries of one message: a message costs 0.7 ms at least, whatever is in it
BEFORE = "trainer.before."  # begins the names of parameters that no snapshot holds
_HEAD = 2


class Exchange(nn.Cell):
    """Adds up gradients and losses over all processes in a few flat messages, the same bits on every process.

    `rows` below is a float32 tensor of two: the rows of this process in a batch, and those of all processes. A process
    without rows takes part with a made-up batch. A batch's loss is weighed by the share of its rows before the backward
    pass, so that the gradients have the size they have in one process, in float16 too, and only need to be added.

    Args:
        buffers: parameters that a forward changes by itself.
        combine: cell that combines the processes' own mean gradients (Adasum) instead of the mean over all rows.
    """

    def __init__(self, buffers: Sequence[Parameter] = (), combine: nn.Cell | None = None) -> None:
        super().__init__(auto_prefix=False)
        self.combine = combine
        self.add = ops.AllReduce()
        self.buffers = tuple(buffers)
        self.before = tuple(
            Parameter(buffer.value().copy(), name=f"{BEFORE}{buffer.name}", requires_grad=False)
            for buffer in self.buffers
        )

    def remember(self):
        """Keep the buffers as they are before a forward."""
        for index, buffer in enumerate(self.buffers):
            ops.assign(self.before[index], buffer)

    def forget_made_up(self, rows):
        """Put the buffers back when the forward was one of made-up rows."""
        if len(self.buffers) > 0:
            self._forget(rows[0] == 0)

    def _forget(self, made_up):
        if made_up:
            for index, buffer in enumerate(self.buffers):
                ops.assign(buffer, self.before[index])

    def weigh(self, loss, rows):
        """Return the part of the mean loss over all rows that this process's mean loss stands for."""
        return loss * (rows[0] / rows[1])

    def own(self, part, rows):
        """Return what this process adds to a gradient or loss, float32: nothing from made-up rows."""
        part = ops.cast(part, mstype.float32)
        return ops.select(ops.broadcast_to(rows[0] > 0, part.shape), part, ops.zeros_like(part))

    def mean(self, gradients, rows, loss, sound):
        """Return mean gradients, mean loss and whether the statistics are sound, of all processes together."""
        parts = ()
        for gradient in gradients:
            parts += (self.own(gradient, rows),)
        bad = self._bad(rows, sound)
        totals, head = self._total(parts, ops.stack((self.own(self.weigh(loss, rows), rows), bad)), rows[0] / rows[1])
        found = ()
        for index, total in enumerate(totals):
            found += (ops.cast(total, gradients[index].dtype),)
        return found, head[0], head[1] == 0

    def mean_of_sums(self, sums, weight, rows, sound):
        """Return the mean gradients and whether the statistics are sound, from sums over an accumulation window."""
        bad = self._bad(rows, sound)
        totals, head = self._total(sums, ops.stack((bad, bad)), rows[0] / rows[1])
        means = ()
        for total in totals:
            means += (total / weight,)
        return means, head[1] == 0

    def mean_loss(self, loss, rows):
        """Return the mean loss over the rows of all processes."""
        return self.add(ops.reshape(self.own(self.weigh(loss, rows), rows), (1,)))[0]

    def _bad(self, rows, sound):
        bad = ops.zeros_like(rows[0])
        if sound is not True:
            bad = ops.cast(ops.logical_and(rows[0] > 0, ops.logical_not(sound)), mstype.float32)
        return bad

    def _total(self, parts, head, share):
        if self.combine is not None:
            means = ()
            for part in parts:
                means += (part / ops.maximum(share, 1e-30 * ops.ones_like(share)),)
            return self.combine(means), self.add(head)
        sizes = ()
        for part in parts:
            sizes += (part.size,)
        totals = ()
        for number, bucket in enumerate(_buckets(sizes)):
            pieces = (head,) if number == 0 else ()
            for index in bucket:
                pieces += (ops.reshape(parts[index], (-1,)),)
            flat = self.add(ops.concat(pieces))
            start = 0
            if number == 0:
                head = flat[:_HEAD]
                start = _HEAD
            for index in bucket:
                totals += (ops.reshape(flat[start : start + sizes[index]], parts[index].shape),)
                start += sizes[index]
        return totals, head


def make_exchange(group: Group, combine: nn.Cell | None) -> Callable[..., Exchange] | None:
    """Return what makes an `Exchange` of a step's buffers; None for one process, which builds no collective."""
    return functools.partial(Exchange, combine=combine) if group.size > 1 else None


def buckets(sizes):
    """Return which gradients, given their sizes, travel together: a tuple of tuples of indices, in order."""
    made, held = [()], _HEAD
    for index, size in enumerate(sizes):
        if made[-1] and held + size > BUCKET_ENTRIES:
            made.append(())
            held = 0
        made[-1] += (index,)
        held += size
    return tuple(made)


_buckets = ops.constexpr(buckets)
