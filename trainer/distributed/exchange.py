"""Sum gradients and losses over processes inside a training step, as graph code."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype

from ..mindspore_internals import device
from ..mindspore_internals.cell_structure import hide
from ..mindspore_internals.python_operators import operator
from .dense_sum import DenseSum
from .group import Group

BUCKET_ENTRIES = 1 << 22  # float32 entries of several gradients in one message; each message costs at least 0.7 ms
BEFORE = "trainer.before."  # prefix of parameters that snapshots leave out
_HEAD = 2  # number of leading values in `rows` and in `head`, before the values of tasks
_TINY = 1e-30  # smallest divisor


class Exchange(nn.Cell):
    """Sums gradients and losses over all processes, with equal bits on each.

    Most methods take `rows`, float32 [2]: the denominator of this process's loss (`trainer.graph.denominators`) and the
    sum of the denominators of all processes. `begin` computes them from the numbers of rows. A process without rows
    takes part with a dummy batch, whose loss and gradients are ignored.

    Each process multiplies its loss by its share of the denominator before the backward pass. The sum of the gradients
    is then the result, and gradients are as large as with one process, which matters in float16.

    With several tasks the loss is float32 [T], one value per task. `rows` is then float32 [2 + 2 * T]: the numbers of
    rows on this process and on all processes, then the tasks' denominators on this process and on all processes.

    On CPU `DenseSum` computes the sums. A token, passed from each sum to the next, gives all processes the same order
    of sums. `head`, float32 [2 + T], is summed together with the gradients: this process's part of the loss, a number
    greater than 0 if its values are not finite, and the loss sum of each task.
    """

    def __init__(
        self,
        group: Group,
        gradients: int,  # number of gradients that `mean` and `mean_of_sums` receive
        buffers: Sequence[Parameter] = (),  # parameters that a forward pass updates
        combine: nn.Cell | None = None,  # combines the mean gradients of processes (Adasum); None averages them
        tasks: nn.Cell | None = None,  # the loss of several tasks (`trainer.graph.multi_task.MultiTaskLoss`)
        denominator: str = "rows",  # kind of denominator, see `trainer.graph.denominators`
    ) -> None:
        super().__init__(auto_prefix=False)
        self.is_sum_loss, self.has_denominators = denominator == "one", denominator == "counted"
        self.processes, self.is_main = group.size, group.is_main
        self.combine = combine
        self.tasks = tasks
        self.count = 0 if tasks is None else len(tasks.tasks)
        sums = [] if tasks is None else tasks.sums
        self.has_sums = any(sums)
        self.sums = Tensor(np.array(sums if self.has_sums else [0], np.float32))  # 1 for a task whose loss is a sum
        self.on_host = device.current().runs_python
        self.sums_on_host = False
        if self.on_host:
            hide(self, "dense_sum", DenseSum(group))
            self.sum_on_host = operator(self.dense_sum.add, lambda values, token: values)
            self.sums_on_host = combine is None and gradients > 0
            if self.sums_on_host:
                outputs = gradients + 1  # the gradients and `head`, with the shapes of the first inputs
                self.sum_gradients = operator(
                    self.dense_sum.add_gradients, lambda *shapes: shapes[:outputs], inputs=outputs + 2, outputs=outputs
                )
            self.share_token(Parameter(Tensor(np.zeros(1, np.float32)), name="trainer.exchange", requires_grad=False))
        else:
            self.all_reduce = ops.AllReduce()
        # These operators compile faster than indices, slices and loops; see `graph.program`.
        self.pick, self.map = ops.Gather(), ops.HyperMap()
        self.index_0, self.index_1, self.only_index_0 = (Tensor(index, mstype.int32) for index in (0, 1, [0]))
        self.buffers = tuple(buffers)
        self.before = tuple(
            Parameter(buffer.value().copy(), name=f"{BEFORE}{buffer.name}", requires_grad=False)
            for buffer in self.buffers
        )

    def share_token(self, token: Parameter) -> None:
        """Set the token, float32 [1], that all exchanges on these connections share."""
        hide(self, "token", token)

    def add(self, values):
        """Return the sum of the `values` of all processes, float32 [n]."""
        if not self.on_host:
            return self.all_reduce(values)
        total = self.sum_on_host(values, self.token)
        ops.assign(self.token, self.pick(total, self.only_index_0, 0))
        return total

    def denominator(self, rows):
        """Return the denominator of the loss over all processes, float32 [].

        Not for several tasks with different denominators.
        """
        if self.tasks is not None and self.has_denominators:
            return self._first(self._all_of_tasks(rows))
        return self._second(rows)

    def zero_if_dummy_of(self, rows, part):
        """Call `zero_if_dummy` with its arguments reversed, for `ops.partial`."""
        return self.zero_if_dummy(part, rows)

    def _first(self, values):
        return self.pick(values, self.index_0, 0)

    def _second(self, values):
        return self.pick(values, self.index_1, 0)

    def begin(self, rows, denominator):
        """Return the `rows` that other methods take; see the class.

        Args:
            rows: number of rows of this process and of all processes, float32 [2].
            denominator: denominator of this process's loss, a number or float32 []; with tasks float32 [T].
        """
        if self.has_denominators:
            local = self.zero_if_dummy(ops.reshape(denominator, (-1,)), rows)
            total = self.add(local)
            if self.has_sums:
                total = ops.select(self.sums > 0, ops.ones_like(total), total)
            return ops.concat((local, total) if self.tasks is None else (rows, local, total))
        if self.is_sum_loss:
            rows = ops.minimum(rows, 1.0)
        if self.tasks is None:
            return rows
        return ops.concat((rows, ops.tile(rows[:1], (self.count,)), ops.tile(rows[1:], (self.count,))))

    def save_buffers(self):
        """Copy the buffers before a forward pass."""
        for index, buffer in enumerate(self.buffers):
            ops.assign(self.before[index], buffer)

    def restore_buffers(self, rows):
        """Restore the buffers after a forward pass of dummy rows."""
        for index, buffer in enumerate(self.buffers):
            # Not a branch: MindSpore cannot compile one together with the Python operators of tables.
            no_rows = ops.broadcast_to(self._first(rows) == 0, buffer.shape)
            ops.assign(buffer, ops.select(no_rows, self.before[index], buffer))

    def scale_loss(self, loss, rows):
        """Return this process's contribution to the loss over all rows."""
        if self.tasks is None:
            return loss * (self._first(rows) / ops.maximum(self._second(rows), _TINY))
        return self.tasks.weighted_sum(
            loss * (self._local_of_tasks(rows) / ops.maximum(self._all_of_tasks(rows), _TINY))
        )

    def _local_of_tasks(self, rows):
        return rows[_HEAD : _HEAD + self.count]

    def _all_of_tasks(self, rows):
        return rows[_HEAD + self.count :]

    def zero_if_dummy(self, part, rows):
        """Return `part`, a gradient or loss, as float32; zeros for dummy rows."""
        part = ops.cast(part, mstype.float32)
        return ops.select(ops.broadcast_to(self._first(rows) > 0, part.shape), part, ops.zeros_like(part))

    def mean(self, gradients, rows, loss, statistics_finite, rows_finite=True):
        """Return mean gradients, mean loss, and whether all processes have finite values.

        `statistics_finite` and `rows_finite` say whether this process's moving statistics, and its row gradients of
        tables, are finite.
        """
        non_finite = self._non_finite(rows, statistics_finite, rows_finite)
        head = ops.stack((self.zero_if_dummy(self.scale_loss(loss, rows), rows), non_finite))
        head = self._with_tasks(head, loss, rows)
        if self.sums_on_host:
            totals, head = self._total_on_host(gradients, head, rows)
        else:
            parts = ()
            for gradient in gradients:
                parts += (self.zero_if_dummy(gradient, rows),)
            totals, head = self._total(parts, head, self._first(rows) / self._second(rows))
        self._record_tasks(head, rows)
        return self._cast_like(totals, gradients), self._first(head), self._second(head) == 0

    def _cast_like(self, totals, gradients):
        return self.map(_cast_as, totals, (*gradients,))  # a user's step may pass a list

    def mean_gradients(self, gradients, rows, factor):
        """Return `factor` times the mean gradients over the rows of all processes."""
        share = factor * self._first(rows) / self._second(rows)
        parts = ()
        for gradient in gradients:
            parts += (self.zero_if_dummy(ops.cast(gradient, mstype.float32) * share, rows),)
        return self._cast_like(self._total(parts, ops.zeros((_HEAD,), mstype.float32), share)[0], gradients)

    def clip(self, gradients, dense, squares, norm):
        """Return gradients clipped by their global norm over all processes.

        Args:
            gradients: gradients that are equal on all processes, followed by local ones.
            dense: number of gradients that are equal on all processes.
            squares: sum of the squares of the local gradients, float32 scalar.
            norm: bound of the global 2-norm.
        """
        total = ops.reshape(self.add(ops.reshape(squares, (1,))), ())
        for gradient in gradients[:dense]:
            total += ops.sum(ops.square(ops.cast(gradient, mstype.float32)))
        factor = norm / ops.maximum(ops.sqrt(total), norm)
        clipped = ()
        for gradient in gradients:
            clipped += (gradient * ops.cast(factor, gradient.dtype),)
        return clipped

    def mean_of_sums(self, sums, weight, rows, statistics_finite, rows_finite=True):
        """Return the mean gradients of an accumulation, and the same flag as `mean`.

        The means are the total of all processes' `sums`, divided by `weight`.
        """
        non_finite = self._non_finite(rows, statistics_finite, rows_finite)
        head = ops.stack((non_finite, non_finite))
        if self.sums_on_host:
            totals, head = self._total_on_host(sums, head, ops.ones_like(head))  # `sums` have no dummy rows
        else:
            totals, head = self._total(sums, head, self._first(rows) / self._second(rows))
        means = ()
        for total in totals:
            means += (total / weight,)
        return means, self._second(head) == 0

    def mean_loss(self, loss, rows):
        """Return the loss over the rows of all processes."""
        local = self.zero_if_dummy(self.scale_loss(loss, rows), rows)
        head = self.add(self._with_tasks(ops.stack((local, ops.zeros_like(local))), loss, rows))
        self._record_tasks(head, rows)
        return self._first(head)

    def _with_tasks(self, head, loss, rows):
        """Return `head` followed by this process's loss sum of each task."""
        if self.tasks is None:
            return head
        return ops.concat((head, self.zero_if_dummy(loss * self._local_of_tasks(rows), rows)))

    def _record_tasks(self, head, rows):
        if self.tasks is not None:
            self.tasks.add(head[_HEAD:], self._all_of_tasks(rows))

    def _non_finite(self, rows, statistics_finite, rows_finite):
        """Return a number > 0 if values of this process are not finite, else 0."""
        own_rows = self._first(rows)
        flag = ops.zeros_like(own_rows)
        if statistics_finite is not True:
            flag = ops.cast(ops.logical_and(own_rows > 0, ops.logical_not(statistics_finite)), mstype.float32)
        if rows_finite is not True:
            flag = flag + ops.cast(ops.logical_not(rows_finite), mstype.float32)
        return flag

    def _total_on_host(self, parts, head, rows):
        """Return the sums of `parts` and `head`; `parts` count as 0 if `rows[0]` is 0."""
        *totals, head = self.sum_gradients(*self.map(_as_float32, parts), head, rows, self.token)
        totals = (*totals,)  # from a list
        ops.assign(self.token, self.pick(head, self.only_index_0, 0))
        return totals, head

    def _total(self, parts, head, share):
        if self.combine is not None:
            means = ()
            for part in parts:
                means += (part / ops.maximum(share, _TINY * ops.ones_like(share)),)
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
                start = head.size
                head = flat[:start]
            for index in bucket:
                totals += (ops.reshape(flat[start : start + sizes[index]], parts[index].shape),)
                start += sizes[index]
        return totals, head


def _as_float32(value):
    return ops.cast(value, mstype.float32)


def _cast_as(value, other):
    return ops.cast(value, other.dtype)


def make_exchange(
    group: Group, combine: nn.Cell | None, tasks: nn.Cell | None = None, denominator: str = "rows"
) -> Callable[..., Exchange] | None:
    """Return a function that makes an `Exchange` for a step, or None for one process."""
    if group.size == 1:
        return None
    return functools.partial(Exchange, group, combine=combine, tasks=tasks, denominator=denominator)


def buckets(sizes):
    """Divide gradients into messages of limited size; return tuples of their indices."""
    groups: list[tuple[int, ...]] = [()]
    entries = _HEAD
    for index, size in enumerate(sizes):
        if groups[-1] and entries + size > BUCKET_ENTRIES:
            groups.append(())
            entries = 0
        groups[-1] += (index,)
        entries += size
    return tuple(groups)


_buckets = ops.constexpr(buckets)
