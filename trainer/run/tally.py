"""Accumulates outputs: the mean loss of a training, metrics of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..data.as_columns import are_unnamed
from ..data.chunk import Chunk
from ..graph.denominators import COUNTED
from ..graph.multi_task import MultiTaskLoss
from ..metrics.defaults import meaning_of, set_meanings
from ..metrics.loss import Loss, WeightedMean
from ..metrics.predictions import Activation, Meaning
from ..metrics.registry import as_numbers, clear_metrics, group_of, metrics_of_task, read_metric, update_metrics
from ..mindspore_internals import device
from ..state import NUMPY_DTYPES, StepOutputs, host_copy
from .calibrating import CalibratedRows


@dataclass(frozen=True)
class RowWeights:
    """How evaluations and windows use the declared weight of rows."""

    column: str | None = None  # name of the weight column, or None if the rows have no weight
    of_loss: bool = False  # whether the loss of a batch comes with its own denominator instead of the number of rows
    of_metrics: bool = False  # whether metrics weight rows by the column


UNWEIGHTED = RowWeights()
_IDS = "@calibration.by"  # key of the calibration ids among the columns of a batch


class Tally:
    """Losses and metrics over the batches of one evaluation.

    The constructor clears the metrics. `loss_fn` is None if the outputs come from the user's evaluation network. If
    there is only one task, its name is empty.
    """

    def __init__(
        self,
        metrics: Mapping[str, Any],
        eval_indexes: Sequence[int] | None,
        loss_fn: Any,
        activations: Mapping[str, Activation],
        weights: RowWeights = UNWEIGHTED,
    ) -> None:
        self._weights = weights
        self._metrics = metrics
        self._indexes = eval_indexes
        self.calibrated: CalibratedRows | None = None
        self._tasks = loss_fn if isinstance(loss_fn, MultiTaskLoss) else None
        self._last = None if loss_fn is None else weights.column
        self._loss, self._has_loss = WeightedMean(), False
        self.own_values: dict[str, Any] = {}  # the latest value of each metric
        names = () if self._tasks is None else self._tasks.tasks
        self._task_sums = {task: np.zeros(2) for task in names}
        self._metrics_by_task = {task: metrics_of_task(metrics, task, names) for task in ("", *names)}
        groups = [*map(group_of, metrics.values()), weights.column]
        self.groups = tuple(dict.fromkeys(filter(None, groups)))
        self._meanings: dict[str, Meaning] = {}
        losses = [loss_fn] if self._tasks is None else [None, *self._tasks.losses]
        for loss, (task, task_metrics) in zip(losses, self._metrics_by_task.items(), strict=True):
            meaning = self._meanings[task] = meaning_of(loss, activations.get(task))
            set_meanings(task_metrics, meaning)
        clear_metrics(metrics)

    @property
    def has_denominators(self) -> bool:
        """Whether the last output of each batch is the denominator of its loss."""
        return self._weights.of_loss and self._tasks is None

    @property
    def counts_no_row(self) -> bool:
        """Whether batches came, and none of their rows counts in the loss."""
        return self._has_loss and not self._loss.samples

    def columns_of(self, chunk: Chunk) -> dict[str, np.ndarray]:
        """Return the columns of a batch that `add` needs."""
        columns = host_columns(chunk, self.groups, self._last)
        if self.calibrated is not None and (ids := self.calibrated.ids(chunk)) is not None:
            columns[_IDS] = ids
        return columns

    def add(self, outputs: tuple[Any, ...], num_samples: float, columns: Mapping[str, np.ndarray]) -> None:
        """Add the outputs of one batch; `columns` is the result of `columns_of`."""
        weights = columns.get(self._weights.column) if self._weights.column else None
        if self.has_denominators:
            num_samples = float(outputs[3].asnumpy())
        of_metrics = weights if self._weights.of_metrics else None
        if self._indexes is not None and self._indexes[0] >= 0:
            loss = outputs[self._indexes[0]]
            mean = loss.item() if loss.ndim == 0 else loss.asnumpy().mean()  # `item` is five times as fast
            self._loss.update(float(mean), num_samples)
            self._has_loss = True
        if self._tasks is None:
            ignored = self._meanings[""].ignored
            update_metrics(self._metrics, outputs, self._indexes, num_samples, columns, of_metrics, ignored)
            if self.calibrated is not None:
                self.calibrated.add(outputs[1].asnumpy(), outputs[2].asnumpy(), of_metrics, columns.get(_IDS))
            return
        loss, predictions, labels, losses, counts = outputs
        update_metrics(self._metrics_by_task[""], (loss, None, None), (0, 1, 2), num_samples)
        host_labels = [np.array(label.asnumpy()) for label in labels]
        means, weights = losses.asnumpy().tolist(), counts.asnumpy().tolist()
        for index, rows in enumerate(self._tasks.rows(host_labels)):
            task, kept = self._tasks.tasks[index], slice(None) if rows is None else rows
            self._task_sums[task] += (means[index] * weights[index], weights[index])
            read = (None, np.array(predictions[index].asnumpy())[kept], host_labels[index][kept])
            of_rows = {name: column[kept] for name, column in columns.items()}
            of_these = None if of_metrics is None else of_metrics[kept]
            ignored = self._meanings[task].ignored
            update_metrics(self._metrics_by_task[task], read, (0, 1, 2), len(read[2]), of_rows, of_these, ignored)

    def results(self) -> dict[str, float]:
        """Return "loss", the losses of the tasks and the metrics.

        "loss" is the mean over samples, or with several tasks the weighted sum of their losses.
        """
        # Read each metric only once, because some metrics print when they are read.
        self.own_values = {name: read_metric(metric) for name, metric in self._metrics.items()}
        results = as_numbers(self.own_values)
        if self._tasks is not None and self._tasks.kind == COUNTED:  # a task may have fewer rows than the batch
            total = self._tasks.total(*np.transpose([self._task_sums[task] for task in self._tasks.tasks]))
            results = {"loss": total} | {
                name: total if isinstance(self._metrics.get(name), Loss) else value for name, value in results.items()
            }
        sums = self._task_sums.items()
        losses = {f"{task}_loss": float(total / count) if count else math.nan for task, (total, count) in sums}
        results = {**losses, **results}
        if self.calibrated is not None:
            results |= self.calibrated.results()
        if self._has_loss and "loss" not in results:
            results = {"loss": self._loss.eval(), **results}
        return results


def mean_losses(
    meter: LossMeter, tasks: MultiTaskLoss | None, *, keep: bool = False
) -> tuple[float | None, dict[str, float]]:
    """Return the mean loss, and the mean loss of each task as ``<task>_loss``."""
    loss = meter.value()
    if tasks is None:
        return loss, {}
    if tasks.kind == COUNTED and loss is not None:
        loss = tasks.read_total()  # a task may have fewer rows than the batch
    return loss, tasks.read_losses(keep=keep)


def host_columns(chunk: Chunk, names: Sequence[str], last: str | None = None) -> dict[str, np.ndarray]:
    """Return the named columns of a chunk as arrays of shape [rows].

    `last` is the name of the last column if the columns have no names of their own.
    """
    columns = {}
    for name in names:
        if name in chunk.names:
            columns[name] = chunk.rows(chunk.names.index(name))
            continue
        if name == last and are_unnamed(chunk.names):
            columns[name] = chunk.rows(len(chunk.names) - 1)
            continue
        parts = [of_batch[name] for of_batch in chunk.extras if of_batch and name in of_batch]
        if parts and len(parts) == len(chunk.extras):
            columns[name] = np.concatenate(parts)
    return columns


MAX_PENDING_CALLS = 1024


class OutputBuffer:
    """Collects one output of many calls of a program.

    If host and device share memory, each output is copied immediately, which takes a microsecond. Keeping the tensor
    would cost more, because the memory pool would allocate new memory for the next call. On other devices a copy would
    wait for the call to end, so the tensors are kept until `read`.
    """

    def __init__(self) -> None:
        self._copies_immediately = device.current().shares_memory
        self._parts: list[Any] = []
        self._joined: list[np.ndarray] = []  # outputs of another dtype before those in `_parts`
        self._tensor_dtype: Any = None
        self._dtype: type[np.floating[Any]] | None = None
        self._size = 0

    def add(self, output: Any, entries: int) -> None:
        """Add the first `entries` values of a program's output, in row-major order."""
        if output.dtype != self._tensor_dtype:
            if self._parts:  # single steps and sunk ones may return different dtypes
                self._joined.append(self._join())
            self._tensor_dtype, self._dtype = output.dtype, NUMPY_DTYPES.get(str(output.dtype))
            self._size = np.dtype(self._dtype).itemsize
        if self._copies_immediately and self._dtype is not None:
            self._parts.append(output.get_bytes()[: entries * self._size])
        else:
            self._parts.append((output, entries))

    def read(self) -> np.ndarray:
        """Return all values, shape [sum of entries], and clear the buffer.

        The array may be read-only.
        """
        joined, self._joined = self._joined, []
        return np.concatenate([*joined, self._join()]) if joined else self._join()

    def _join(self) -> np.ndarray:
        parts, self._parts = self._parts, []
        if not parts:
            return np.empty(0, np.float32)
        if isinstance(parts[0], bytes):
            return np.frombuffer(b"".join(parts), self._dtype)
        return np.concatenate([host_copy(output).reshape(-1)[:entries] for output, entries in parts])


class LossMeter:
    """Mean loss, weighted by rows or by the denominators that come with the losses."""

    def __init__(self) -> None:
        self._mean = WeightedMean()
        self._losses = OutputBuffer()
        self._has_denominators = False  # whether each loss comes with its denominator
        self._calls: list[tuple[int, int]] = []

    def add(self, outputs: StepOutputs) -> None:
        """Add the losses of one call; they are summed up every `MAX_PENDING_CALLS` calls."""
        self._losses.add(outputs.losses_device, outputs.num_batches * outputs.values_per_loss)
        self._has_denominators = outputs.has_denominators
        self._calls.append((outputs.num_batches, outputs.num_samples))
        if len(self._calls) >= MAX_PENDING_CALLS:
            self._sum_up()

    def _sum_up(self) -> None:
        if self._calls:
            steps, samples = np.array(self._calls).T
            self._calls = []
            if self._has_denominators:
                losses, denominators = self._losses.read().reshape(-1, 2).astype(np.float64).T
                self._mean.update(np.where(denominators > 0, losses, 0.0), denominators)
            else:
                self._mean.update(self._losses.read(), np.repeat(samples // steps, steps))

    def value(self) -> float | None:
        """Return the mean so far, or None before the first step."""
        self._sum_up()
        return self._mean.eval() if self._mean.samples else None

    def clear(self) -> None:
        """Clear all losses."""
        self._mean.clear()
        self._losses, self._calls = OutputBuffer(), []

    def state_dict(self) -> dict[str, Any]:
        """Return the sums."""
        self._sum_up()
        return self._mean.state_dict()["json"]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.clear()
        self._mean.load_state_dict({"json": state, "arrays": {}})
