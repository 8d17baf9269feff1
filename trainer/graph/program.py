"""The training step that is compiled; `graph_call` runs it once or K times a call.

A program is a `Cell` run by `Cell.compile_and_run`, so it is a graph whatever the global mode is. Everything a step
needs besides the network lives here once: loss scale, accumulation, clipping, the guard against non-finite updates.

All of it is compiled anew for each program. Branches on a cell's own flags are decided by the parser and cost nothing;
branches on shapes, dtypes, types and lengths, and slices of tuples, cost 4 to 7 ms each, more where code follows them
in the same function.

In a function with `*columns` nothing is called with a star: MindSpore 2.10 would keep such a cell, and all it refers
to, for the life of the process. A method that takes the tuple makes the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, amp, nn, ops
from mindspore import dtype as mstype

from ..mindspore_internals.dict_networks import by_position
from ..mindspore_internals.shared_memory import overwrite
from .forward import kept_output
from .precision import AllFinite

RECORDED_BAD_STEPS = 16
_FLOATS = (mstype.float16, mstype.bfloat16, mstype.float32, mstype.float64)


@dataclass(frozen=True)
class StepOptions:
    """What a training step does besides forward, backward and update.

    Attributes:
        scaler: loss scaler, or None.
        guard: leave everything as it was when loss or gradients are not finite.
        halt: after the first non-finite step, other than an overflow of scaled gradients, apply no update any more
            (`TerminateOnNaN`).
        accumulate: micro-batches per optimizer update.
        clip_norm: bound of the global 2-norm of the gradients (Pascanu et al. 2013, algorithm 1), or None.
        clip_value: bound of each gradient entry, or None.
        transform: function of the gradient tuple applied before clipping (gradient centralization), or None.
        exchange: makes, of the step's buffers, what adds gradients up over processes
            (`trainer.distributed.exchange.Exchange`); every batch then comes with the number of its rows as a last
            input. None with one process.
        keep_predictions: also return the network's output of the training forward.
        output: which output of a network with several is kept; -1: all of them side by side, float32 [B, values].
    """

    scaler: amp.LossScaler | None = None
    guard: bool = False
    halt: bool = False
    accumulate: int = 1
    clip_norm: float | None = None
    clip_value: float | None = None
    transform: Callable[..., Any] | None = None
    exchange: Callable[..., nn.Cell] | None = None
    keep_predictions: bool = False
    output: int = 0


def _scalar(value: float, dtype: Any, name: str) -> Parameter:
    return Parameter(Tensor(value, dtype), name=f"trainer.{name}", requires_grad=False)


class TrainStep(nn.Cell):
    """Forward, backward and update of one batch.

    Args:
        forward: columns -> (loss, prediction).
        optimizer: cell taking the tuple of gradients of `parameters`.
        parameters: the parameters to differentiate, in the optimizer's order.
        options: see `StepOptions`.
        buffers: parameters that the forward itself changes (moving statistics); restored when an update is skipped.
        tables: the network's sparse tables (`trainer.embedding.layers.network_tables.SparseTables`), or None.
    """

    def __init__(
        self,
        forward: nn.Cell,
        optimizer: nn.Cell,
        parameters: Sequence[Parameter],
        options: StepOptions,
        buffers: Sequence[Parameter] = (),
        tables: nn.Cell | None = None,
    ) -> None:
        super().__init__(auto_prefix=False)
        self.forward = forward
        self.optimizer = optimizer
        self.scaler = options.scaler
        self.guard = options.guard or options.scaler is not None
        self.halt = options.halt
        self.accumulate = options.accumulate
        self.output = options.output
        self.clip_norm = options.clip_norm
        self.clip_value = options.clip_value
        self.transform = options.transform
        self.exchange = options.exchange(buffers) if options.exchange is not None else None
        if self.exchange is not None and forward.several:
            forward.apart = True  # each task has shares of its own of the rows of all processes
        # An optimizer built with a loss scale divides by it; with a scaler the gradients are unscaled already.
        self.optimizer_scale = float(getattr(optimizer, "loss_scale", 1.0)) if options.scaler is not None else 1.0
        self.tables = tables
        self.table_inputs = tables.input_count if tables is not None else 0
        self.gathers_gradients = tables is not None and tables.has_readers
        self.dense = len(parameters)
        table_rows = tables.params if tables is not None else []
        self.value_and_grad = ops.value_and_grad(self._scaled_loss, None, [*parameters, *table_rows], has_aux=True)
        self.skipped = _scalar(0, mstype.int32, "skipped")
        self.consecutive = _scalar(0, mstype.int32, "consecutive")
        self.fatal = _scalar(0, mstype.int32, "fatal")
        self.longest_run = _scalar(0, mstype.int32, "longest_run")
        self.steps_done = _scalar(0, mstype.int32, "steps_done")
        self.bad_steps = Parameter(
            Tensor(np.full(RECORDED_BAD_STEPS, -1, np.int32)), name="trainer.bad_steps", requires_grad=False
        )
        self.places = Tensor(np.arange(RECORDED_BAD_STEPS, dtype=np.int32))
        self.buffers = tuple(buffers) if self.guard else ()
        self.statistics = tuple(buffer for buffer in self.buffers if buffer.dtype in _FLOATS)
        self.has_buffers, self.has_statistics = bool(self.buffers), bool(self.statistics)
        self.all_finite = AllFinite()
        self.saved = tuple(
            Parameter(buffer.value().copy(), name=f"trainer.saved.{buffer.name}", requires_grad=False)
            for buffer in self.buffers
        )
        if self.accumulate > 1:
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
            loss, prediction = self._apply_forward(columns[:-1])
            weighed = self.exchange.weigh(loss, columns[-1])
        else:
            loss, prediction = self._apply_forward(columns)
            weighed = loss
        if self.scaler is not None:
            return self.scaler.scale(weighed), loss, prediction
        return weighed, loss, prediction

    def _apply_forward(self, columns):
        return self.forward(*columns)

    def construct(self, flush, *columns):
        """Train one batch; `flush` (bool scalar) closes an accumulation window early. Returns (loss, prediction)."""
        everyones_rows = None
        if self.exchange is not None:
            everyones_rows = columns[-1]
            columns = columns[:-1]
        rows = ()
        if self.table_inputs:
            rows = self.tables.begin(columns)
            columns = columns[: -self.table_inputs]
        if self.exchange is not None:
            everyones_rows = self.exchange.begin(everyones_rows, columns[-self.forward.labels :])
        if self.accumulate > 1:
            return self._accumulate(flush, columns, rows, everyones_rows)
        if self.has_buffers:
            self._save_buffers()
        (_, loss, prediction), gradients = self._forward_and_backward(columns, everyones_rows, rows)
        sound = self._statistics_are_finite()
        if self.exchange is not None:
            gradients, loss, sound = self.exchange.mean(gradients, everyones_rows, loss, sound)
        self._update(gradients, ops.isfinite(loss), sound, rows)
        return loss, kept_output(prediction, self.output)

    def _forward_and_backward(self, columns, everyones_rows, table_rows):
        if self.exchange is None:
            values, gradients = self.value_and_grad(*columns)
        else:
            self.exchange.remember()
            values, gradients = self.value_and_grad(*columns, everyones_rows)
            self.exchange.forget_made_up(everyones_rows)
        if self.gathers_gradients:
            gradients = self.tables.gradients(table_rows, gradients)
        return values, gradients

    def _statistics_are_finite(self):
        """A ReLU may hide a NaN from the loss, but not from the statistics of the normalisation before it."""
        if self.has_statistics:
            return self.all_finite(self.statistics, True)
        return True

    def _accumulate(self, flush, columns, table_rows, everyones_rows):
        if self.has_buffers and self.micro_step == 0:
            self._save_buffers()
        (_, loss, prediction), gradients = self._forward_and_backward(columns, everyones_rows, table_rows)
        rows = self.forward.rows(columns)
        if self.exchange is not None:
            rows = everyones_rows[1]
            loss = self.exchange.mean_loss(loss, everyones_rows)
        for index, gradient in enumerate(gradients):
            if self.exchange is not None:
                gradient = self.exchange.own(gradient, everyones_rows)
            ops.assign_add(self.gradient_sum[index], ops.cast(gradient, mstype.float32) * rows)
        ops.assign_add(self.weight_sum, ops.cast(rows, mstype.float32))
        done = self.micro_step + 1
        if ops.logical_or(done >= self.accumulate, flush):
            sound = self._statistics_are_finite()
            if self.exchange is not None:
                means, sound = self.exchange.mean_of_sums(self.gradient_sum, self.weight_sum, everyones_rows, sound)
            else:
                means = ()
                for total in self.gradient_sum:
                    means += (total / self.weight_sum,)
            self._update(means, ops.isfinite(loss), sound, table_rows)
            for total in self.gradient_sum:
                ops.assign(total, ops.zeros_like(total))
            ops.assign(self.weight_sum, ops.zeros_like(self.weight_sum))
            ops.assign(self.micro_step, ops.zeros_like(self.micro_step))
        else:
            ops.assign(self.micro_step, done)
        return loss, kept_output(prediction, self.output)

    def _update(self, gradients, loss_is_finite, statistics_are_finite, table_rows):
        if self.scaler is not None:
            gradients = self.scaler.unscale(gradients)
        if self.transform is not None:
            gradients = self.transform(gradients[: self.dense]) + gradients[self.dense :]
        if not self.guard:
            self._apply(gradients, table_rows)
            return
        finite = self.all_finite(gradients, loss_is_finite)
        if self.has_statistics:
            finite = ops.logical_and(finite, statistics_are_finite)
        if self.scaler is not None:
            self.scaler.adjust(finite)
        apply = finite
        if self.halt:
            apply = ops.logical_and(finite, self.fatal == 0)
        self._apply_or_restore(apply, gradients, table_rows)
        # With a scaler, gradients that overflow while the loss is finite are its business.
        self._count(finite, finite if self.scaler is None else loss_is_finite)

    def _apply_or_restore(self, apply, gradients, table_rows):
        if apply:
            self._apply(gradients, table_rows)
        elif self.has_buffers:
            self._restore_buffers()

    def _apply(self, gradients, table_rows):
        if self.clip_value is not None:
            gradients = ops.clip_by_value(gradients, -self.clip_value, self.clip_value)
        if self.clip_norm is not None:
            gradients = ops.clip_by_global_norm(gradients, self.clip_norm)
        dense = gradients
        if self.table_inputs:
            dense = gradients[: self.dense]
        if self.optimizer_scale != 1.0:
            scaled = ()
            for gradient in dense:
                scaled += (gradient * self.optimizer_scale,)
            dense = scaled
        if self.table_inputs:
            # the rate of this update: the optimizer's own step counter moves when it is applied
            self.tables.update(table_rows, gradients, self._learning_rate())
        self.optimizer(dense)

    def _learning_rate(self):
        rate = self.optimizer.get_lr()
        if isinstance(rate, tuple):
            rate = rate[0]
        return ops.cast(rate, mstype.float32)

    def _save_buffers(self):
        for index, buffer in enumerate(self.buffers):
            ops.assign(self.saved[index], buffer)

    def _restore_buffers(self):
        for index, buffer in enumerate(self.buffers):
            ops.assign(buffer, self.saved[index])

    def _count(self, finite, sound):
        bad = ops.cast(ops.logical_not(finite), mstype.int32)
        run = (self.consecutive + 1) * bad
        # by arithmetic: brackets with a number of the graph would be compiled to some twenty operators
        here = ops.cast(self.places == self.skipped % RECORDED_BAD_STEPS, mstype.int32) * bad
        ops.assign_add(self.bad_steps, here * (self.steps_done - self.bad_steps))
        ops.assign(self.skipped, self.skipped + bad)
        ops.assign(self.consecutive, run)
        ops.assign(self.fatal, self.fatal + ops.cast(ops.logical_not(sound), mstype.int32))
        ops.assign(self.longest_run, ops.maximum(self.longest_run, run))
        ops.assign(self.steps_done, self.steps_done + 1)


class CustomStep(nn.Cell):
    """A user's whole training step (`nn.TrainOneStepCell` and its kin) behind the interface of `TrainStep`."""

    def __init__(self, step: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.step = by_position(step)

    def construct(self, flush, *columns):
        """Train one batch; returns (loss, what the step returned). Of a tuple of outputs the first is the loss."""
        outputs = self._apply_step(columns)
        loss = outputs[0] if isinstance(outputs, tuple) else outputs
        return ops.mean(loss), outputs

    def _apply_step(self, columns):
        return self.step(*columns)


class OpenWindow:
    """The accumulation window of a step, looked at between two calls.

    Args:
        step: the step; one that does not accumulate never has an open window.
    """

    def __init__(self, step: TrainStep | CustomStep | None) -> None:
        self._step = step if isinstance(step, TrainStep) and step.accumulate > 1 else None

    @property
    def is_open(self) -> bool:
        """Whether batches have been gathered that no optimizer update has used yet; copies a number to the host."""
        return self.count is not None and int(self.count.asnumpy()) > 0

    @property
    def count(self) -> Parameter | None:
        """The number of batches that it has."""
        return None if self._step is None else self._step.micro_step

    @property
    def gradient_sums(self) -> tuple[Parameter, ...]:
        """What the gradients are added up in, those of row groups last."""
        return () if self._step is None else self._step.gradient_sum

    def parameters(self) -> dict[str, Parameter]:
        """Return what holds the gathered gradients, and the moving statistics from before them, by name.

        Gradients of sparse tables are not among them: they belong to rows, see
        `trainer.embedding.layers.open_accumulation`.
        """
        step = self._step
        if step is None:
            return {}
        return {parameter.name: parameter for parameter in (*step.gradient_sum[: step.dense], *step.saved)}

    def forget(self, *, keep_count: bool = False) -> None:
        """Forget the gradients that were gathered, whether or not they have been used.

        Args:
            keep_count: let the window close where it would have, with the gradients of the batches still to come;
                otherwise the next batch begins one.
        """
        step = self._step
        if step is None:
            return
        for parameter in (step.weight_sum, *step.gradient_sum, *(() if keep_count else (step.micro_step,))):
            overwrite(parameter, np.zeros(parameter.shape, parameter.asnumpy().dtype))
        for saved, buffer in zip(step.saved, step.buffers, strict=True):
            overwrite(saved, buffer.asnumpy())
        if step.tables is not None and not keep_count:
            step.tables.resume_accumulation({})
