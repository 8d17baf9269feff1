"""Multi-task loss: one loss per network output, masked, weighted and summed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype

from ..checks import choice, number, refuse
from ..errors import ConfigurationError
from .denominators import COUNTED, ONE, ROWS, ClassWeights, RowCount, denominator_of, name_of
from .labels import LabelCast
from .losses import broadcasting
from .row_losses import weighable


class MultiTaskLoss(nn.Cell):
    """The weighted sum of the losses of several tasks, as `loss_fn` of a `Trainer`.

        MultiTaskLoss(
            {"click": nn.BCEWithLogitsLoss(), "buy": nn.BCEWithLogitsLoss(reduction="none")},
            weights={"buy": 0.5},
            masks={"buy": "click"},  # rows that were clicked
        )

    The network returns a dict of predictions by task, a tuple or list of predictions in the order of `losses`, or a
    tensor [N, tasks] with one column per task. With a single task the tensor may have any shape.

    Each task has one label column. In data with named columns, it is the column with the name of the task, or the name
    given in `labels`. In a tuple of arrays, the labels are the last arrays, in the order of `losses`.
    Metrics are named by task: ``click_auc``, ``buy_auc``; losses ``click_loss``, ``buy_loss``.

    A task with a mask or with `ignore_nan` needs a loss that returns one value per row (``reduction="none"``). The
    values of the rows that count are averaged; without such rows the loss is 0.

    Args:
        losses: task -> its loss, a Cell or function of (prediction, label). A loss of one value per row is averaged.
            A label with as many elements as the prediction is reshaped to the prediction's shape; if it holds integers,
            it is also cast to the prediction's dtype.
        weights: weight of a task's loss in the sum; 1 for tasks not named.
        masks: task -> task whose label must be above 0 for a row to count.
        labels: task -> name of its label column; the task's own name for tasks not named.
        ignore_nan: tasks whose rows with a NaN label do not count; True for all.

    Raises:
        ConfigurationError: there is no task, a name is unknown, a weight is not a number >= 0, or a task with a mask or
            `ignore_nan` has a loss that reduces its rows.

    Inputs:
        predictions (dict, tuple, list or tensor), then one label tensor per task.

    Outputs:
        Scalar.
    """

    def __init__(
        self,
        losses: Mapping[str, Any],
        weights: Mapping[str, float] | None = None,
        masks: Mapping[str, str] | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        ignore_nan: Collection[str] | bool = (),
    ) -> None:
        super().__init__(auto_prefix=False)
        if not isinstance(losses, Mapping) or not losses or not all(isinstance(n, str) and n for n in losses):
            refuse("MultiTaskLoss(losses=...)", "a dict from the name of a task to its loss", losses)
        self.tasks = tuple(losses)
        weights, masks, labels = dict(weights or {}), dict(masks or {}), dict(labels or {})
        ignored = self.tasks if ignore_nan is True else tuple(ignore_nan or ())
        task_names = {"weights": weights, "masks": [*masks, *masks.values()], "labels": labels, "ignore_nan": ignored}
        for option, names in task_names.items():
            for name in names:
                choice(f"MultiTaskLoss({option}=...)", name, self.tasks)
        self.weights = tuple(
            number(f"MultiTaskLoss(weights={{{task!r}: ...}})", weights.get(task, 1.0), minimum=0)
            for task in self.tasks
        )
        self.label_names = tuple(labels.get(task, task) for task in self.tasks)
        self.mask_indices = tuple(self.tasks.index(masks[task]) if task in masks else -1 for task in self.tasks)
        self.ignores_nan = tuple(task in ignored for task in self.tasks)
        self.losses = nn.CellList([_as_cell(task, loss) for task, loss in losses.items()])
        self.applied = nn.CellList([broadcasting(loss) for loss in self.losses], auto_prefix=False)
        self.label_casts = nn.CellList([LabelCast(loss) for loss in losses.values()])
        denominators = [denominator_of(loss) for loss in losses.values()]
        pairs = enumerate(zip(losses.values(), denominators, strict=True))
        # Losses with an unknown denominator.
        self.unknown = [loss for index, (loss, known) in pairs if known is None and not self.ignores_rows(index)]
        self.row_losses: Any = None  # the losses with row weights, after `weigh_rows`
        self.ignores_labels = True  # whether labels may have a loss's `ignore_index`
        self._set_denominators([denominator or RowCount() for denominator in denominators])
        for index, (task, loss) in enumerate(losses.items()):
            reduction = getattr(loss, "reduction", None)
            if self.ignores_rows(index) and reduction not in (None, "none"):
                raise ConfigurationError(
                    f"MultiTaskLoss: rows of task {task!r} are left out, so its loss must give one value per row; "
                    f"build {type(loss).__name__} with reduction='none' (received {reduction!r})"
                )
        zeros = np.zeros(len(self.tasks), np.float32)
        self.loss_sums = Parameter(Tensor(zeros), name="trainer.task_loss_sums", requires_grad=False)
        self.row_counts = Parameter(Tensor(zeros.copy()), name="trainer.task_row_counts", requires_grad=False)

    def ignores_rows(self, index: int) -> bool:
        """Return whether the task at `index` may ignore rows."""
        return self.mask_indices[index] >= 0 or self.ignores_nan[index]

    def weigh_rows(self, weight: str) -> None:
        """Weight the rows of every task by the column `weight` from now on.

        Raises:
            ConfigurationError: a task's loss is a sum, or returns one number for all rows.
        """
        functions = [loss.function if isinstance(loss, _FunctionLoss) else loss for loss in self.losses]
        losses = dict(zip(self.tasks, functions, strict=True))
        weighted = [weighable(loss, weight, f"task {task!r}: ") for task, loss in losses.items()]
        for task, loss in zip(self.tasks, weighted, strict=True):
            if loss.kind == ONE:
                raise ConfigurationError(
                    f"Features(weight={weight!r}): the loss of task {task!r} is a sum, and a task's is divided by "
                    f"its weights; build {name_of(losses[task])} with reduction='mean' or 'none'"
                )
        self.row_losses, self.unknown = nn.CellList(weighted), []
        self._set_denominators([*self.denominators])

    def _set_denominators(self, denominators: Sequence[nn.Cell]) -> None:
        self.denominators = nn.CellList(denominators)
        kinds = [self.kind_of(index) for index in range(len(self.tasks))]
        self.same_denominators = len({*kinds}) == 1 and kinds[0] != COUNTED
        self.kind = kinds[0] if self.same_denominators and self.row_losses is None else COUNTED
        self.of_classes = tuple(isinstance(denominator, ClassWeights) for denominator in denominators)
        self.sums = tuple(float(kind == ONE) for kind in kinds)

    def unify_denominators(self) -> bool:
        """Return whether the losses of all tasks have the same denominator.

        If they differ, cross-entropy losses without class weights are first changed to count all rows. Labels with the
        loss's `ignore_index` are then refused.
        """
        if not self.same_denominators and len(self.tasks) > 1:
            plain = [isinstance(d, ClassWeights) and not d.has_classes and d.ignored < 0 for d in self.denominators]
            self.ignores_labels = not any(plain)
            pairs = zip(plain, self.denominators, strict=True)
            self._set_denominators([RowCount() if is_plain else denominator for is_plain, denominator in pairs])
        return self.same_denominators or len(self.tasks) == 1

    def kind_of(self, index: int) -> str:
        """Return the kind of a task's denominator; see `graph.denominators`."""
        return COUNTED if self.ignores_rows(index) else self.denominators[index].kind

    def in_order(self, predictions):
        """Return the predictions as a tuple, in the order of the tasks; graph code."""
        if isinstance(predictions, dict):
            ordered = ()
            for task in self.tasks:
                ordered += (predictions[task],)
            return ordered
        if not isinstance(predictions, Tensor):
            return tuple(predictions)
        if len(self.tasks) == 1:
            return (predictions,)
        if predictions.ndim != 2 or predictions.shape[1] != len(self.tasks):
            raise ValueError(
                "MultiTaskLoss takes a dict of predictions by task, a tuple of one per task, or a tensor [N, tasks]; "
                f"the network returns a tensor of shape {predictions.shape} for {len(self.tasks)} tasks"
            )
        columns = ()
        for index in range(len(self.tasks)):
            columns += (ops.slice(predictions, (0, index), (predictions.shape[0], 1)),)
        return columns

    def construct(self, predictions, *labels):
        """Return the weighted sum of the tasks' losses."""
        losses, counts = self.task_losses(self.in_order(predictions), labels)
        if self.training:
            self.add(losses * counts, counts)
        return self.weighted_sum(losses)

    def weighted_sum(self, losses):
        """Return the weighted sum of `losses`, float32 [T]; graph code."""
        return ops.sum(losses * Tensor(self.weights, mstype.float32))

    def add(self, sums, counts):
        """Add loss sums and row counts, both [T], to those of `read_losses`; graph code."""
        ops.assign_add(self.loss_sums, sums)
        ops.assign_add(self.row_counts, counts)

    def task_losses(self, predictions, labels, weights=None):
        """Return each task's loss and its denominator, float32 [T]; graph code.

        `weights` are row weights, float32 [rows]; call `weigh_rows` before using them.
        """
        losses = ()
        counts = self.denominators_of(labels, weights)
        for index in range(len(self.tasks)):
            prediction = predictions[index]
            label = self.label_casts[index](_fitted(labels[index], prediction), prediction)
            rows = prediction.shape[0]
            counted = self._counted(index, labels)
            if self.ignores_rows(index):
                # replace ignored labels before the loss, because NaN times 0 is NaN
                kept = ops.reshape(counted, (rows,) + (1,) * (label.ndim - 1)) > 0
                label = ops.select(ops.broadcast_to(kept, label.shape), label, ops.zeros_like(label))
            if weights is not None:
                losses += (self.row_losses[index](prediction, (label,), counted * weights),)
            elif self.ignores_rows(index):
                each = ops.reshape(self.applied[index](prediction, label), (rows, -1)).mean(axis=1)
                losses += (ops.sum(ops.cast(each, mstype.float32) * counted) / ops.maximum(counted.sum(), 1.0),)
            else:
                if self.of_classes[index]:
                    label = self.denominators[index].where_counted(label, counts[index])
                loss = ops.cast(ops.mean(self.applied[index](prediction, label)), mstype.float32)
                if self.kind_of(index) == COUNTED:  # the loss is NaN if no label counts
                    loss = ops.select(counts[index] > 0, loss, ops.zeros_like(loss))
                losses += (loss,)
        return ops.stack(losses), counts

    def denominator(self, *labels):
        """Return the denominator of each task's loss, float32 [T]; graph code."""
        return self.denominators_of(labels)

    def denominators_of(self, labels, weights=None):
        """Return each task's denominator, [T], for rows with `weights`; graph code."""
        counts = ()
        for index in range(len(self.tasks)):
            if weights is not None:
                counted = self._counted(index, labels) * weights
                counts += (self.row_losses[index].divisor((labels[index],), counted),)
            elif self.ignores_rows(index):
                counts += (self._counted(index, labels).sum(),)
            elif self.kind_of(index) == COUNTED:
                counts += (self.denominators[index]((labels[index],)),)
            else:
                count = labels[index].shape[0] if self.kind_of(index) == ROWS else 1
                counts += (ops.full((), count, dtype=mstype.float32),)
        return ops.stack(counts)

    def _counted(self, index, labels):
        """Return 1 for rows that count in a task, 0 for others, float32 [B]; graph code."""
        rows = labels[index].shape[0]
        counted = ops.ones((rows,), mstype.float32)
        if self.mask_indices[index] >= 0:
            mask = ops.reshape(labels[self.mask_indices[index]], (rows,))
            counted = ops.cast(ops.cast(mask, mstype.float32) > 0, mstype.float32)
        if self.ignores_nan[index]:
            missing = ops.isnan(ops.cast(labels[index], mstype.float32))
            known = ops.logical_not(ops.reshape(missing, (rows, -1)).any(axis=1))
            counted = counted * ops.cast(known, mstype.float32)
        return counted

    def rows(self, labels: Sequence[np.ndarray]) -> list[np.ndarray | None]:
        """Return each task's mask of rows that count, bool [B], or None if all do."""
        masks: list[np.ndarray | None] = []
        for index, label in enumerate(labels):
            counted = None
            if self.mask_indices[index] >= 0:
                counted = np.asarray(labels[self.mask_indices[index]]).reshape(len(label)) > 0
            if self.ignores_nan[index] and np.asarray(label).dtype.kind == "f":
                known = ~np.isnan(label).reshape(len(label), -1).any(axis=1)
                counted = known if counted is None else counted & known
            masks.append(counted)
        return masks

    def read_losses(self, *, keep: bool = False) -> dict[str, float]:
        """Return each task's mean loss since the last call without `keep`.

        The keys are ``<task>_loss``; a task without rows has NaN. Copies from the device.
        """
        sums, counts = np.array(self.loss_sums.asnumpy()), np.array(self.row_counts.asnumpy())
        if not keep:
            zeros = Tensor(np.zeros(len(self.tasks), np.float32))
            ops.assign(self.loss_sums, zeros)
            ops.assign(self.row_counts, zeros)
        return {
            f"{task}_loss": float(total / count) if count else float("nan")
            for task, total, count in zip(self.tasks, sums, counts, strict=True)
        }

    def read_total(self) -> float:
        """Return the total loss over the rows of `read_losses`; copies from the device."""
        return self.total(self.loss_sums.asnumpy(), self.row_counts.asnumpy())

    def total(self, sums: np.ndarray, counts: np.ndarray) -> float:
        """Return the weighted sum of the tasks' mean losses, or NaN without any rows.

        Args:
            sums: sum of the losses of each task's rows, [T].
            counts: number of each task's rows, [T]; a task without rows adds 0.
        """
        means = [weight * sums[i] / counts[i] for i, weight in enumerate(self.weights) if counts[i]]
        return float(sum(means)) if means else float("nan")

    def describe(self, losses: Mapping[str, float] | None = None) -> str:
        """Return tasks, weights, masks and losses (of `read_losses`) as text for the log."""
        descriptions = []
        for task, weight, mask, nan in zip(self.tasks, self.weights, self.mask_indices, self.ignores_nan, strict=True):
            condition = f" where {self.tasks[mask]}" if mask >= 0 else ""
            options = f"(weight {weight:g}{condition}{', without NaN labels' if nan else ''})"
            descriptions.append(
                f"{task} {options}" if losses is None else f"{task}_loss {losses[task + '_loss']:.6g} {options}"
            )
        return ", ".join(descriptions)


class _FunctionLoss(nn.Cell):
    def __init__(self, function: Any) -> None:
        super().__init__(auto_prefix=False)
        self.function = function

    def construct(self, prediction, label):
        return self.function(prediction, label)


def _as_cell(task: str, loss: Any) -> nn.Cell:
    if isinstance(loss, nn.Cell):
        return loss
    if isinstance(loss, type) or not callable(loss):
        refuse(f"MultiTaskLoss(losses={{{task!r}: ...}})", "a Cell or a function of (prediction, label)", loss)
    return _FunctionLoss(loss)


def _fitted(label, prediction):
    """Reshape the label like the prediction if sizes are equal; graph code."""
    if label.size == prediction.size:
        label = ops.reshape(label, prediction.shape)
    elif label.ndim == 2 and label.shape[1] == 1:
        label = ops.reshape(label, (label.shape[0],))
    if label.shape == prediction.shape and not ops.is_floating_point(label):
        label = ops.cast(label, prediction.dtype)
    return label
