"""`Scoring`: metrics of predictions and labels in the windows of a stream."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..data.chunk import Chunk
from ..distributed.group import SINGLE, Group
from ..distributed.packing import gather_states
from ..errors import ConfigurationError, DataError
from ..graph.multi_task import MultiTaskLoss
from ..metrics.calibrator import Calibrator
from ..metrics.defaults import default_metrics, meaning_of, possible_targets, set_meanings, target_of
from ..metrics.loss import Loss
from ..metrics.predictions import Activation, activate
from ..metrics.prequential import PrequentialMetrics
from ..metrics.registry import clear_metrics, copies_of, group_of, metrics_of_task
from ..metrics.window import Window
from ..metrics.window_metric import Direction, WindowMetric
from ..state import StepOutputs
from .calibrating import CALIBRATED, calibrated_metrics, ids_of_chunk
from .tally import UNWEIGHTED, OutputBuffer, RowWeights, host_columns

logger = logging.getLogger(__name__)

SCORED_ROWS = 4096  # rows scored at once; scoring every batch of 32 rows takes ten times as long


class Scoring:
    """Computes window metrics from the predictions made before each update.

    A window has the metrics that the user chose, and the default metrics for the kind of target: binary, real numbers
    or classes. The loss function and the first rows determine this kind before the first step. For other kinds there
    are no default metrics. If the user chose only the loss, windows have no other metric.

    The last `label_count` columns are passed to the loss; the first of them is the label. If the loss is not a
    `MultiTaskLoss`, there is a single task with an empty name.
    """

    def __init__(
        self,
        window: Window,
        chosen: Mapping[str, Any],
        loss_fn: Any,
        label_count: int,
        activations: Mapping[str, Activation],
        processes: int,
        weights: RowWeights = UNWEIGHTED,
        calibrator: Calibrator | None = None,
    ) -> None:
        self._calibrator, self._ids = calibrator, list[np.ndarray]()
        self._weight = weights.column if weights.of_metrics else None
        self.window, self.label_count, self._loss_fn = window, label_count, loss_fn
        self._multi = loss_fn if isinstance(loss_fn, MultiTaskLoss) else None
        self._tasks: tuple[str, ...] = self._multi.tasks if self._multi is not None else ("",)
        # Copies, because an evaluation during the run clears the trainer's metrics.
        self._chosen = copies_of({name: metric for name, metric in chosen.items() if not isinstance(metric, Loss)})
        unmergeable = [metric for metric in self._chosen.values() if not isinstance(metric, WindowMetric)]
        if unmergeable and processes > 1:
            raise ConfigurationError(
                f"metrics: {type(unmergeable[0]).__name__} has no merge, so a window cannot sum it over {processes} "
                "processes; take one of trainer.metrics"
            )
        self._meanings = {task: meaning_of(self._loss_of(task), activations.get(task)) for task in self._tasks}
        for task, meaning in self._meanings.items():
            set_meanings(metrics_of_task(self._chosen, task, self._tasks), meaning)
        groups = map(group_of, self._chosen.values())
        self.groups = tuple(dict.fromkeys(filter(None, groups)))  # names of the columns that metrics read as groups
        self._windows: dict[str, PrequentialMetrics] = {}
        self._decided = bool(chosen) and not self._chosen and calibrator is None  # only "loss" was chosen
        self._restored: Mapping[str, Any] | None = None
        self._clear_after_restore = False  # the restored state belongs to rank 0
        self._label_indexes: list[int] = []
        self._shapes: list[tuple[int, ...]] = []
        self._row_size = 0  # number of predicted values per row
        self._predictions = OutputBuffer()
        self._labels: list[list[np.ndarray]] = []
        self._groups: dict[str, list[np.ndarray]] = {}  # columns of groups and weights, by name
        self._column_names = tuple(dict.fromkeys(filter(None, (*self.groups, self._weight))))
        self._rows = 0
        self._open_rows = 0  # number of the last of these rows that belong to an update that is not complete
        self._before_open: Mapping[str, Any] | None = None  # the calibrator before any row of that update

    @property
    def needs_predictions(self) -> bool:
        """Whether predictions are needed; False once no task has metrics."""
        return bool(self._windows) or not self._decided

    def directions(self) -> dict[str, Direction]:
        """Return for each result, by name, whether higher is better.

        Before the first rows, it includes all possible results.
        """
        windows = list(self._windows.values())
        if not self._decided:
            targets = [(task, target) for task in self._tasks for target in possible_targets(self._loss_of(task))]
            windows = [self._make_metrics(task, target) for task, target in targets]
            windows += [] if self._calibrator is None else [self._calibrated_windows(self._calibrator)]
        return {name: higher for window in windows for name, higher in window.directions().items()}

    def _loss_of(self, task: str) -> Any:
        return self._loss_fn if self._multi is None else self._multi.losses[self._tasks.index(task)]

    def _make_metrics(self, task: str, target: str) -> PrequentialMetrics:
        defaults, chosen = default_metrics(target, self.window), metrics_of_task(self._chosen, task, self._tasks)
        metrics = defaults | chosen
        set_meanings(metrics, self._meanings[task])
        lenient = [name for name in metrics if name not in chosen]
        ignored = self._meanings[task].ignored
        return PrequentialMetrics(metrics, self.window.decay, task=task, lenient=lenient, ignored=ignored)

    def _calibrated_windows(self, calibrator: Calibrator) -> PrequentialMetrics:
        return PrequentialMetrics(calibrated_metrics(calibrator), self.window.decay, task=CALIBRATED)

    def decide(self, chunk: Chunk, predictions: Sequence[np.ndarray] | None, group: Group = SINGLE) -> None:
        """Choose the metrics, and check that they accept the first rows.

        `predictions` are the network's outputs for the first batch, one per task, or None if the outputs do not have
        one row per row of the batch. The processes of `group` decide from the first rows of all of them.
        """
        if self._decided:
            return
        self._decided = True
        first = len(chunk.names) - self.label_count
        self._label_indexes = list(range(first, first + len(self._tasks)))
        if predictions is None:
            problem = "the network's output does not have the rows of the batch on axis 0"
            if self._chosen or self._calibrator is not None:
                raise DataError(f"metrics need predictions row by row: {problem}")
            logger.info("windows count only the loss: %s", problem)
            return
        self._shapes = [prediction.shape[1:] for prediction in predictions]
        self._row_size = sum(math.prod(shape) for shape in self._shapes)
        size = len(predictions[0])
        labels = [chunk.rows(index)[:size] for index in self._label_indexes]
        columns = host_columns(chunk, self.groups) if chunk.num_samples else {}
        groups = {name: values[:size] for name, values in columns.items()}
        if group.size > 1:
            predictions, labels, groups = _first_rows(
                group, predictions, labels, groups, has_rows=chunk.num_samples > 0
            )
        for task, prediction, label, rows in zip(self._tasks, predictions, labels, self._counted(labels), strict=True):
            row_groups = {name: values[rows] for name, values in groups.items()}
            self._decide_task(task, prediction[rows], label[rows], row_groups)
        if self._calibrator is not None:
            if "" not in self._windows:
                raise DataError("calibration takes one binary label; the first rows have another target")
            self._windows[CALIBRATED] = self._calibrated_windows(self._calibrator)
        if self._restored is not None:
            self.load_state_dict(self._restored)
            self._restored = None
            if self._clear_after_restore:
                self.clear_on_followers()

    def _decide_task(self, task: str, prediction: np.ndarray, label: np.ndarray, groups: Mapping[str, Any]) -> None:
        activation = self._meanings[task].activation
        activated = activate(activation, prediction) if callable(activation) else prediction
        target = target_of(self._loss_of(task), activated, label)
        of = f" of task {task!r}" if task else ""
        described = f"predictions {list(prediction.shape)} and labels {list(label.shape)} ({label.dtype})"
        chosen = metrics_of_task(self._chosen, task, self._tasks)
        if target:
            logger.info("windows count the metrics of a %s target%s", target, of)
        elif not chosen:
            logger.info(
                "windows count only the loss%s: %s are neither binary, nor real numbers, nor classes; "
                "Trainer(metrics=...) chooses metrics",
                of,
                described,
            )
            return
        self._windows[task] = self._make_metrics(task, target)
        if not len(label):  # the first batch has no row for this task
            return
        trial = PrequentialMetrics(chosen, ignored=self._meanings[task].ignored)
        try:
            trial.update(prediction, label, groups=groups)
            trial.close_window()
        except Exception as error:
            raise DataError(f"the metrics chosen{of} cannot read {described}: {error}") from error
        finally:
            clear_metrics({name: m for name, m in chosen.items() if not isinstance(m, WindowMetric)})

    def _counted(self, labels: Sequence[np.ndarray]) -> list[Any]:
        """Return for each task an index of the rows that have a label for it."""
        counted = [None] * len(labels) if self._multi is None else self._multi.rows(labels)
        return [slice(None) if rows is None else rows for rows in counted]

    def add(self, chunk: Chunk, outputs: StepOutputs) -> None:
        """Add a trained chunk."""
        if not self._windows or not chunk.num_samples:
            return
        self._predictions.add(outputs.predictions_device, chunk.num_samples * self._row_size)
        self._labels.append([chunk.rows(index) for index in self._label_indexes])
        if self._column_names:
            for name, values in host_columns(chunk, self._column_names, self._weight).items():
                self._groups.setdefault(name, []).append(values)
        if self._calibrator is not None and (ids := ids_of_chunk(self._calibrator, chunk)) is not None:
            self._ids.append(ids)
        self._rows += chunk.num_samples
        self._open_rows += chunk.num_samples
        if not chunk.position.micro_batches:  # the update is complete
            self._open_rows, self._before_open = 0, None
        if self._rows >= SCORED_ROWS:
            self.score()

    def score(self) -> None:
        """Update the metrics with the rows kept since the last call."""
        if not self._rows:
            return
        labels = [np.concatenate(parts) for parts in zip(*self._labels, strict=True)]
        groups = {name: np.concatenate(parts) for name, parts in self._groups.items()}
        flat = self._predictions.read().reshape(self._rows, -1)
        closed = self._rows - self._open_rows
        self._labels, self._groups, self._rows, self._open_rows = [], {}, 0, 0
        start = 0
        for task, shape, label, rows in zip(self._tasks, self._shapes, labels, self._counted(labels), strict=True):
            stop = start + math.prod(shape)
            if task in self._windows:
                prediction = flat[:, start:stop].reshape(-1, *shape)[rows]
                row_groups = {name: values[rows] for name, values in groups.items()}
                weights = row_groups[self._weight] if self._weight else None
                self._windows[task].update(prediction, label[rows], weights, groups=row_groups)
                if self._calibrator is not None:
                    self._calibrate(self._calibrator, prediction, label, weights, closed)
            start = stop

    def _calibrate(
        self, calibrator: Calibrator, prediction: np.ndarray, label: np.ndarray, weights: Any, closed: int
    ) -> None:
        """Evaluate the calibration fitted on earlier rows; then add these rows to it.

        The rows after the first `closed` ones belong to an update that is not complete.
        """
        ids, self._ids = np.concatenate(self._ids) if self._ids else None, []
        if (earlier := calibrator.current()) is not None:
            self._windows[CALIBRATED].update(earlier(prediction, ids), label, weights)
        for rows in (slice(closed), slice(closed, None)):
            if not len(label[rows]):
                continue
            if rows.stop is None and self._before_open is None:
                self._before_open = calibrator.state_dict()
            parts = [None if column is None else column[rows] for column in (weights, ids)]
            calibrator.add(prediction[rows], label[rows], *parts)

    def forget_open_rows(self) -> None:
        """Let the calibration forget the rows of an incomplete update."""
        if self._calibrator is not None and self._before_open is not None:
            self._calibrator.load_state_dict(self._before_open)
        self._before_open = None

    def close_window(self, group: Group = SINGLE) -> dict[str, float]:
        """Close the window and return its metrics; a collective call."""
        self.score()
        results: dict[str, float] = {}
        for windows in self._windows.values():
            if group.size > 1:
                windows.put_window(gather_states(group, windows.take_window()))
            results |= windows.close_window()
        return results

    def score_tables(self) -> dict[str, dict[str, Any]]:
        """Return the score table of each task; older windows count less (`decay`)."""
        tables = {task: windows.score_table() for task, windows in self._windows.items()}
        return {task: table for task, table in tables.items() if table is not None}

    def peek(self, group: Group = SINGLE) -> dict[str, float]:
        """Return the results of the open window without closing it."""
        self.score()
        kept, self._windows = self._windows, copy.deepcopy(self._windows)
        try:
            return self.close_window(group)
        finally:
            self._windows = kept

    def merge_on_main(self, group: Group) -> None:
        """Move the open window of all processes to rank 0."""
        if self._restored is not None:
            return
        self.score()
        for windows in self._windows.values():
            states = gather_states(group, windows.take_window())
            if group.is_main:
                windows.put_window(states)

    def clear_on_followers(self) -> None:
        """Clear the open window on this rank; rank 0 continues it."""
        self._clear_after_restore = self._restored is not None
        for windows in self._windows.values():
            windows.forget_window()

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"json": ..., "arrays": ...}``, the open window included."""
        if self._restored is not None:  # no rows since the restore
            return dict(self._restored)
        self.score()
        if self._multi is None and self._calibrator is None:
            return self._windows[""].state_dict() if self._windows else {"json": None, "arrays": {}}
        states = {task: windows.state_dict() for task, windows in self._windows.items()}
        arrays = {f"{task}/{key}": a for task, state in states.items() for key, a in state["arrays"].items()}
        return {"json": {"tasks": {task: state["json"] for task, state in states.items()}}, "arrays": arrays}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; deferred until the first rows arrive."""
        if not self._decided:
            self._restored = state
            return
        saved, arrays = state["json"], state["arrays"]
        if saved is None:
            return
        of_tasks = saved.get("tasks", {"": saved})
        for task, windows in self._windows.items():
            if task in of_tasks:
                prefix = f"{task}/" if "tasks" in saved else ""
                task_arrays = {key[len(prefix) :]: array for key, array in arrays.items() if key.startswith(prefix)}
                windows.load_state_dict({"json": of_tasks[task], "arrays": task_arrays})


def _first_rows(
    group: Group,
    predictions: Sequence[np.ndarray],
    labels: Sequence[np.ndarray],
    groups: Mapping[str, np.ndarray],
    *,
    has_rows: bool,
) -> tuple[list[np.ndarray], list[np.ndarray], dict[str, np.ndarray]]:
    """Return predictions, labels and groups of all processes, in order of rank."""
    arrays = {f"p{index}": array for index, array in enumerate(predictions)}
    arrays |= {f"l{index}": array for index, array in enumerate(labels)}
    arrays |= {f"g{name}": array for name, array in groups.items()}
    states = gather_states(group, {"json": None, "arrays": arrays if has_rows else {}})
    parts = [state["arrays"] for state in states if state["arrays"]]
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return (
        [joined[f"p{index}"] for index in range(len(predictions))],
        [joined[f"l{index}"] for index in range(len(labels))],
        {name[1:]: array for name, array in joined.items() if name.startswith("g")},
    )
