"""The compiled training step; `graph_call` runs it once or K times per call.

The step is a `Cell` run by `Cell.compile_and_run`, so it runs as a graph even if MindSpore's global mode is PyNative.
It contains the forward and backward passes, loss scaling, accumulation, clipping, the guard against non-finite values
and the update.

Every program compiles this code again, so the code avoids constructs that compile slowly. These are the costs of some
constructs in a first compilation (the caches of `mindspore_internals.compilation` make later compilations cheaper):

- a branch on a flag of the cell: nothing, because the parser decides it;
- a branch on a shape, dtype, type or length: 4 to 7 ms, more if much code follows it in the same function;
- a slice of a tuple: 15 to 20 ms; `*first, last = columns`: 5 ms;
- a loop over a tuple: 30 ms; with `enumerate`: 75 ms; a `HyperMap` instead: 5 ms;
- an index into a tensor: 50 ms;
- the first use of a function such as `ops.reshape`, `ops.zeros`, `ops.gather` or `ops.mean`, which checks axes: 20 to
  35 ms; the primitive `ops.Gather()` instead: 2 ms.

A function with a `*columns` parameter must not unpack it in a call (`f(*columns)`): MindSpore 2.10 would then keep the
cell, and everything it refers to, until the process ends. Such a function passes the tuple to a method that unpacks it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, amp, nn, ops
from mindspore import dtype as mstype

from .averaging import AverageRule, WeightAverage
from .denominators import COUNTED, ONE, ROWS
from .forward import kept_output
from .precision import AllFinite, FiniteNorm

RECORDED_BAD_STEPS = 16
_FLOATS = (mstype.float16, mstype.bfloat16, mstype.float32, mstype.float64)


@dataclass(frozen=True)
class StepOptions:
    """The options of a training step."""

    scaler: amp.LossScaler | None = None
    guard: bool = False  # skip an update if the loss or the gradients' norm is not finite
    # Apply no update after the first non-finite step, except an overflow of scaled gradients (`TerminateOnNaN`).
    halt: bool = False
    accumulate: int = 1  # micro-batches per optimizer update
    clip_norm: float | None = None  # bound of the gradients' global 2-norm (Pascanu et al. 2013, algorithm 1)
    clip_value: float | None = None
    transform: Callable[..., Any] | None = None  # applied to the gradients before clipping (gradient centralization)
    # Function of (number of gradients, buffers) that returns a `trainer.distributed.exchange.Exchange`, which sums
    # gradients over processes. With an exchange, the row counts of a batch are the last input of the step.
    exchange: Callable[..., nn.Cell] | None = None
    keep_predictions: bool = False  # also return the network's output of the training forward
    average: AverageRule | None = None
    output: int = 0  # index of the network output to keep; -1 concatenates all outputs to float32 [B, values]


def _scalar(value: float, dtype: Any, name: str) -> Parameter:
    return Parameter(Tensor(value, dtype), name=f"trainer.{name}", requires_grad=False)


class TrainStep(nn.Cell):
    """Forward, backward and update of one batch."""

    def __init__(
        self,
        forward: nn.Cell,
        optimizer: nn.Cell,
        parameters: Sequence[Parameter],  # parameters to differentiate, in the optimizer's order
        options: StepOptions,
        buffers: Sequence[Parameter] = (),  # moving statistics, restored when an update is skipped
        tables: nn.Cell | None = None,  # `trainer.embedding.layers.network_tables.SparseTables`
        average: WeightAverage | None = None,
    ) -> None:
        super().__init__(auto_prefix=False)
        self.forward = forward
        self.kind = forward.kind
        self.returns_denominator = forward.returns_denominator
        self.optimizer = optimizer
        self.scaler = options.scaler
        self.guard = options.guard or options.scaler is not None
        self.halt = options.halt
        self.accumulate = options.accumulate
        self.output = options.output
        self.clip_norm = options.clip_norm
        self.clip_value = options.clip_value
        self.transform = options.transform
        # An optimizer built with a loss scale divides gradients by it. A scaler has already unscaled them, so `_apply`
        # multiplies them by the optimizer's scale.
        self.optimizer_scale = float(getattr(optimizer, "loss_scale", 1.0)) if options.scaler is not None else 1.0
        self.is_experimental = not hasattr(optimizer, "get_lr")  # of `mindspore.experimental.optim`
        self.tables = tables
        self.average = average
        self.table_inputs = tables.input_count if tables is not None else 0
        # With `by_owner`, each process sums and updates only the table rows that it owns.
        self.by_owner = tables is not None and tables.by_owner
        # Gradients of `tables.params` may have to be converted to gradients of rows first.
        self.gathers_gradients = tables is not None and tables.has_readers
        self.dense_count = len(parameters)  # number of dense gradients; those of table rows follow them
        table_rows = tables.params if tables is not None else []
        self.exchange = None
        if options.exchange is not None:
            self.exchange = options.exchange(self.dense_count + (0 if self.by_owner else len(table_rows)), buffers)
            forward.separate_losses = forward.is_multi_task  # the exchange weights each task's loss by the task's rows
            if self.by_owner:
                self.exchange.share_token(tables.token)
        self.value_and_grad = ops.value_and_grad(self._scaled_loss, None, [*parameters, *table_rows], has_aux=True)
        # Numbers of skipped steps: all, in the current run, fatal (see `_update`), and in the longest run. `steps_done`
        # counts all steps. `bad_steps` is a ring buffer with the indices of the last skipped steps.
        for counter in ("skipped", "consecutive", "fatal", "longest_run", "steps_done"):
            setattr(self, counter, _scalar(0, mstype.int32, counter))
        self.zero = Tensor(0, mstype.int32)
        self.bad_steps = Parameter(
            Tensor(np.full(RECORDED_BAD_STEPS, -1, np.int32)), name="trainer.bad_steps", requires_grad=False
        )
        self.ring_positions = Tensor(np.arange(RECORDED_BAD_STEPS, dtype=np.int32))
        self.buffers = tuple(buffers) if self.guard else ()
        self.statistics = tuple(buffer for buffer in self.buffers if buffer.dtype in _FLOATS)
        self.has_buffers, self.has_statistics = bool(self.buffers), bool(self.statistics)
        self.all_finite = AllFinite()
        # With clipping by value, finite entries are enough: clipping keeps their squares finite.
        self.finite_norm = FiniteNorm() if options.clip_value is None else self.all_finite
        self.map = ops.HyperMap()  # compiles in a fraction of the time of a loop
        self.saved = tuple(
            Parameter(buffer.value().copy(), name=f"trainer.saved.{buffer.name}", requires_grad=False)
            for buffer in self.buffers
        )
        if self.accumulate > 1:
            self.pick, self.first = ops.Gather(), Tensor(0, mstype.int32)
            self.nan = Tensor(np.nan, mstype.float32)
            self.micro_step = _scalar(0, mstype.int32, "micro_step")
            self.weight_sum = _scalar(0.0, mstype.float32, "weight_sum")
            self.gradient_sum = tuple(
                Parameter(
                    ops.zeros(p.shape, mstype.float32), name=f"trainer.gradient_sum.{p.name}", requires_grad=False
                )
                for p in parameters
            )
            if tables is not None:
                self.gradient_sum += tuple(tables.gradient_sums)

    def _scaled_loss(self, *columns):
        if self.exchange is not None:
            *columns, row_counts = columns
            loss, prediction = self._apply_forward(columns)
            weighted_loss = self.exchange.scale_loss(loss, row_counts)
        else:
            loss, prediction = self._apply_forward(columns)
            weighted_loss = loss
        if self.scaler is not None:
            return self.scaler.scale(weighted_loss), loss, prediction
        return weighted_loss, loss, prediction

    def _apply_forward(self, columns):
        return self.forward(*columns)

    def construct(self, flush, *columns):
        """Train one batch; return (loss, prediction). `flush` ends an accumulation.

        The columns of the batch are followed by the inputs of sparse tables, if there are any, and with an exchange by
        the row counts of this process and of all processes, float32 [2].

        The loss is float32 []; if `returns_denominator`, it is float32 [2]: (loss, denominator).
        """
        row_counts = None
        if self.exchange is not None:
            *columns, row_counts = columns
        rows = ()
        if self.table_inputs:
            rows = self.tables.begin(columns)
            columns = columns[: -self.table_inputs]
        if self.exchange is not None:
            if self.by_owner:  # exchange table rows first: all processes need the same order of exchanges
                row_counts = ops.depend(row_counts, self.tables.token)
            if self.kind != ROWS or self.exchange.tasks is not None:
                row_counts = self.exchange.begin(row_counts, self.forward.denominator(columns))
        if self.accumulate > 1:
            return self._accumulate(flush, columns, rows, row_counts)
        if self.has_buffers:
            self._save_buffers()
        (_, loss, prediction), gradients = self._forward_and_backward(columns, row_counts, rows)
        statistics_finite = self._statistics_are_finite()
        if self.by_owner:
            gradients, loss, statistics_finite = self._sum_by_owner(
                gradients, row_counts, loss, statistics_finite, rows
            )
        elif self.exchange is not None:
            gradients, loss, statistics_finite = self.exchange.mean(gradients, row_counts, loss, statistics_finite)
        self._update(gradients, ops.isfinite(loss), statistics_finite, rows)
        return self._with_denominator(loss, columns, row_counts), kept_output(prediction, self.output)

    def _forward_and_backward(self, columns, row_counts, table_rows):
        if self.exchange is None:
            values, gradients = self.value_and_grad(*columns)
        else:
            self.exchange.save_buffers()
            values, gradients = self.value_and_grad(*columns, row_counts)
            self.exchange.restore_buffers(row_counts)
        if self.gathers_gradients:
            gradients = self.tables.gradients(table_rows, gradients)
        return values, gradients

    def _sum_by_owner(self, gradients, row_counts, loss, statistics_finite, table_rows):
        """Sum gradients over all processes; sums of rows go to the rows' owners.

        Returns (gradients, loss, whether all are finite). Dense gradients come first, those of own rows last.
        """
        sums = self.tables.sums_at_owners(table_rows, gradients)
        finite = True
        if self.guard:
            finite = self.finite_norm(sums, True)
        # Exchange dense gradients and the loss after the rows, so that all processes keep the same order.
        dense = ()
        for gradient in gradients[: self.dense_count]:
            for total in sums:
                gradient = ops.depend(gradient, total)
            dense += (gradient,)
        for total in sums:
            loss = ops.depend(loss, total)
        dense, loss, statistics_finite = self.exchange.mean(dense, row_counts, loss, statistics_finite, finite)
        return dense + sums, loss, statistics_finite

    def _statistics_are_finite(self):
        """Check the moving statistics, which show a NaN even if a ReLU hides it."""
        if self.has_statistics:
            return self.all_finite(self.statistics, True)
        return True

    def _accumulate(self, flush, columns, table_rows, row_counts):
        if self.has_buffers and self.micro_step == 0:
            self._save_buffers()
        (_, loss, prediction), gradients = self._forward_and_backward(columns, row_counts, table_rows)
        if self.exchange is not None:
            weight = self.exchange.denominator(row_counts)
            loss = self.exchange.mean_loss(loss, row_counts)
            gradients = self.map(ops.partial(self.exchange.zero_if_dummy_of, row_counts), gradients)
        else:
            weight = self._micro_weight(columns)
        if self.kind == COUNTED:  # gradients are NaN if no label of the micro-batch counts
            gradients = self.map(ops.partial(self._counted, weight), gradients)
        weight = self._weight_if_finite(weight, loss)
        self.map(ops.partial(self._add_gradient, weight), self.gradient_sum, gradients)
        ops.assign_add(self.weight_sum, ops.cast(weight, mstype.float32))
        done = self.micro_step + 1
        if ops.logical_or(done >= self.accumulate, flush):
            statistics_finite = self._statistics_are_finite()
            if self.by_owner:
                means, statistics_finite = self._mean_by_owner(row_counts, loss, statistics_finite, table_rows)
            elif self.exchange is not None:
                means, statistics_finite = self.exchange.mean_of_sums(
                    self.gradient_sum, self._divisor(), row_counts, statistics_finite
                )
            else:
                means = self.map(ops.partial(self._mean_of, self._divisor()), self.gradient_sum)
            self._update(means, ops.isfinite(self.weight_sum), statistics_finite, table_rows)
            self.map(self._clear, (*self.gradient_sum, self.weight_sum, self.micro_step))
        else:
            ops.assign(self.micro_step, done)
        return self._with_denominator(loss, columns, row_counts), kept_output(prediction, self.output)

    def _with_denominator(self, loss, columns, row_counts):
        """Return the loss, or (loss, denominator) stacked if `returns_denominator`."""
        if not self.returns_denominator:
            return loss
        denominator = self.forward.denominator(columns)
        if self.exchange is not None:
            denominator = self.exchange.denominator(row_counts)
        return ops.stack((loss, denominator))

    def _divisor(self):
        """Return the divisor of gradient sums, above 0 even if no label counts."""
        if self.kind == ONE:
            return ops.ones_like(self.weight_sum)
        if self.kind == COUNTED:
            return ops.maximum(self.weight_sum, 1e-30)
        return self.weight_sum

    def _weight_if_finite(self, weight, loss):
        """Return the weight, or NaN if the update is to be skipped because of this loss."""
        if not self.guard:
            return weight
        weight, finite = ops.cast(weight, mstype.float32), ops.isfinite(loss)
        if self.kind == COUNTED:  # without labels that count, the loss is NaN
            finite = ops.logical_or(finite, weight == 0)
        return ops.select(finite, weight, self.nan)

    def _micro_weight(self, columns):
        weight = self.forward.denominator(columns)
        if not self.forward.is_multi_task:
            return weight
        return self.pick(weight, self.first, 0)  # equal for all tasks, see `check_denominator`

    def _counted(self, weight, gradient):
        return ops.select(ops.broadcast_to(weight > 0, gradient.shape), gradient, ops.zeros_like(gradient))

    def _add_gradient(self, weight, total, gradient):
        return ops.assign_add(total, ops.cast(gradient, mstype.float32) * weight)

    def _mean_of(self, weight, total):
        return total / weight

    def _clear(self, total):
        return ops.assign(total, ops.zeros_like(total))

    def _mean_by_owner(self, row_counts, loss, statistics_finite, table_rows):
        """Return mean accumulated gradients, own rows last, and whether all are finite.

        The `ops.depend` calls keep the exchanges in the same order on all processes: loss, rows, dense gradients.
        """
        accumulated = ()
        for total in self.gradient_sum:
            accumulated += (ops.depend(total, loss),)
        sums = self.tables.sums_at_owners(table_rows, accumulated)
        finite = True
        if self.guard:
            finite = self.finite_norm(sums, True)
        dense = ()
        for total in self.gradient_sum[: self.dense_count]:
            for row_sum in sums:
                total = ops.depend(total, row_sum)
            dense += (total,)
        means, statistics_finite = self.exchange.mean_of_sums(
            dense, self._divisor(), row_counts, statistics_finite, finite
        )
        for row_sum in sums:
            means += (row_sum / self._divisor(),)
        return means, statistics_finite

    def _update(self, gradients, loss_is_finite, statistics_are_finite, table_rows):
        if self.scaler is not None:
            gradients = self.scaler.unscale(gradients)
        if self.transform is not None:
            gradients = self.transform(gradients[: self.dense_count]) + gradients[self.dense_count :]
        if not self.guard:
            self._apply(gradients, table_rows)
            return
        # Row gradients were checked on all processes when they were summed; only dense gradients remain.
        checked = gradients[: self.dense_count] if self.by_owner else gradients
        finite = self.finite_norm(checked, loss_is_finite)
        if self.has_statistics or self.by_owner:
            finite = ops.logical_and(finite, statistics_are_finite)
        if self.scaler is not None:
            self.scaler.adjust(finite)
        apply = finite
        if self.halt:
            apply = ops.logical_and(finite, self.fatal == 0)
        # With a scaler, an overflow of only the gradients is not fatal: the scaler lowers its scale.
        self._apply_or_skip(apply, finite, finite if self.scaler is None else loss_is_finite, gradients, table_rows)
        ops.assign(self.steps_done, self.steps_done + 1)

    def _apply_or_skip(self, apply, finite, not_fatal, gradients, table_rows):
        if apply:
            self._apply(gradients, table_rows)
            ops.assign(self.consecutive, self.zero)
        else:
            if self.has_buffers:
                self._restore_buffers()
            self._count(finite, not_fatal)
        return apply  # without a result, MindSpore would call Python in every step

    def _apply(self, gradients, table_rows):
        if self.clip_value is not None:
            gradients = ops.clip_by_value(gradients, -self.clip_value, self.clip_value)
        if self.clip_norm is not None:
            if self.by_owner:
                squares = self.tables.squares(table_rows, gradients)
                for gradient in gradients[: self.dense_count]:  # exchange squares after gradients, on every process
                    squares = ops.depend(squares, gradient)
                gradients = self.exchange.clip(gradients, self.dense_count, squares, self.clip_norm)
            else:
                gradients = ops.clip_by_global_norm(gradients, self.clip_norm)
        dense = gradients
        if self.table_inputs:
            dense = gradients[: self.dense_count]
        if self.optimizer_scale != 1.0:
            scaled = ()
            for gradient in dense:
                scaled += (gradient * self.optimizer_scale,)
            dense = scaled
        if self.table_inputs:
            # Read the learning rate first, because the optimizer advances its own step counter.
            self.tables.update(table_rows, gradients, self._learning_rate())
        self.optimizer(dense)
        if self.average is not None:
            self.average()

    def _learning_rate(self):
        rate = self.optimizer.lrs if self.is_experimental else self.optimizer.get_lr()
        if isinstance(rate, tuple):
            rate = rate[0]
        return ops.cast(rate, mstype.float32)

    def _save_buffers(self):
        for index, buffer in enumerate(self.buffers):
            ops.assign(self.saved[index], buffer)

    def _restore_buffers(self):
        for index, buffer in enumerate(self.buffers):
            ops.assign(buffer, self.saved[index])

    def _count(self, finite, not_fatal):
        bad = ops.cast(ops.logical_not(finite), mstype.int32)
        run = (self.consecutive + 1) * bad
        # Use arithmetic, because indexing with a tensor compiles to about twenty operators.
        newest = ops.cast(self.ring_positions == self.skipped % RECORDED_BAD_STEPS, mstype.int32) * bad
        ops.assign_add(self.bad_steps, newest * (self.steps_done - self.bad_steps))
        ops.assign(self.skipped, self.skipped + bad)
        ops.assign(self.consecutive, run)
        ops.assign(self.fatal, self.fatal + ops.cast(ops.logical_not(not_fatal), mstype.int32))
        ops.assign(self.longest_run, ops.maximum(self.longest_run, run))
