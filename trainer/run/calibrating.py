"""Connects a Trainer to its calibrator in `fit`, `evaluate` and the other methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import nn

from ..data.chunk import Chunk
from ..embedding.tables.hashing import ids_of_rows
from ..errors import ConfigurationError, DataError
from ..features.feature import IDS, Kind
from ..graph.dropout import drops
from ..graph.program import StepOptions
from ..metrics.binary import Calibration, NormalizedEntropy
from ..metrics.calibration_map import CalibrationMap
from ..metrics.calibrator import Calibrator
from ..metrics.defaults import meaning_of, set_meanings
from ..metrics.predictions import Meaning, activate_outputs
from ..metrics.window import Window
from ..mindspore_internals.cell_structure import cells_and_names

if TYPE_CHECKING:
    from .trained_network import TrainedNetwork
    from .trainer_base import TrainerBase

CALIBRATED = "calibrated"  # prefix of the names of metrics of calibrated probabilities
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def make_calibrator(value: Any, trainer: TrainedNetwork) -> Calibrator | None:
    """Return the calibrator of `Trainer(calibration=...)`, or None.

    Raises:
        ConfigurationError: there are several processes, or `Calibrator.bind` raises it.
    """
    calibrator = Calibrator.of(value)
    if calibrator is None:
        return None
    if trainer.group.size > 1:
        raise ConfigurationError(f"calibration needs a single process; this job has {trainer.group.size}")
    known = None if trainer.features is None else [output.name for output in trainer.features.of_kind(Kind.IDS)]
    meaning = meaning_of(trainer.loss_fn, trainer.prediction_activations.get(""))
    calibrator.bind(Meaning() if trainer.tasks is not None else meaning, known, IDS)
    return calibrator


def check_online(trainer: TrainerBase, window: Window, options: StepOptions) -> None:
    """Check that `online_train` scores rows as a published model would.

    Otherwise the calibration would be fitted on different scores.

    Raises:
        ConfigurationError: the scores differ, or the window has another `negative_sampling_rate`.
    """
    calibrator = trainer.calibrator
    if calibrator is None:
        return
    own, rate = calibrator.negative_sampling_rate, window.negative_sampling_rate
    if (own or 1.0) != (rate or 1.0):
        raise ConfigurationError(f"calibration: negative_sampling_rate={own} differs from that of Window, {rate}")
    cells = [type(cell).__name__ for _, cell in cells_and_names(trainer.network) if _differs(cell)]
    differs = cells[0] if cells else "EMA or SWA" if options.average is not None else ""
    if differs:
        raise ConfigurationError(
            f"calibration: with {differs} the scores of online_train differ from a published version's; leave it out, "
            "or learn the calibration with fit(valid_dataset=...)"
        )


def _differs(cell: nn.Cell) -> bool:
    return isinstance(cell, _BATCH_NORMS) or (drops(cell) and getattr(cell, "p", 1.0) != 0.0)


def ids_of_chunk(calibrator: Calibrator, chunk: Chunk) -> np.ndarray | None:
    """Return the id of each row's value in column `by`, int64 [n]; None without `by`."""
    if calibrator.column is None:
        return None
    if calibrator.column not in chunk.names:
        raise DataError(f"calibration: by={calibrator.by!r} is not a column of the network: {', '.join(chunk.names)}")
    return ids_of_rows(calibrator.by or "", chunk.rows(chunk.names.index(calibrator.column)), calibrator.index)


def calibrated_metrics(calibrator: Calibrator) -> dict[str, Any]:
    """Return the metrics of calibrated probabilities by name."""
    sampling = ("identity", calibrator.negative_sampling_rate, False)
    metrics = {"calibration": Calibration(*sampling), "normalized_entropy": NormalizedEntropy(*sampling)}
    set_meanings(metrics, Meaning(ignored=calibrator.ignored))
    return metrics


class CalibratedRows:
    """Fits the calibration on the rows of an evaluation, or measures it on them.

    Args:
        calibrator: the Trainer's calibrator.
        fit_calibration: True fits the calibration (validation in `fit`); False measures it (`evaluate`).
    """

    def __init__(self, calibrator: Calibrator, *, fit_calibration: bool) -> None:
        self._calibrator, self._fit = calibrator, fit_calibration
        self._map = None if fit_calibration or not calibrator.is_learned else calibrator.fitted()
        self._metrics = calibrated_metrics(calibrator)

    def ids(self, chunk: Chunk) -> np.ndarray | None:
        """Return the result of `ids_of_chunk`."""
        return ids_of_chunk(self._calibrator, chunk)

    def add(self, outputs: Any, labels: Any, weights: np.ndarray | None, ids: np.ndarray | None) -> None:
        """Add a batch; see `Calibrator.add`."""
        if self._fit:
            self._calibrator.add(outputs, labels, weights, ids)
        elif self._map is not None:
            probabilities = self._map(np.asarray(outputs), ids)
            for metric in self._metrics.values():
                metric.update(probabilities, labels, weights=weights)

    def results(self) -> dict[str, float]:
        """Return the metrics of calibrated probabilities; empty if not measured."""
        if self._map is None:
            return {}
        return {f"{CALIBRATED}_{name}": metric.value() for name, metric in self._metrics.items()}


def probabilities(trainer: TrainerBase, outputs: Any, chunk: Chunk, calibration: CalibrationMap | None) -> Any:
    """Convert a network's outputs to predictions of the label, calibrated if given."""
    if calibration is not None:
        assert trainer.calibrator is not None
        first, *rest = outputs if isinstance(outputs, tuple) else (outputs,)
        calibrated = calibration(first, ids_of_chunk(trainer.calibrator, chunk))
        return (calibrated, *rest) if rest else calibrated
    tasks: tuple[str, ...] = ("",)
    losses: Any = (trainer.loss_fn,)
    if trainer.tasks is not None:
        tasks, losses = trainer.tasks.tasks, trainer.tasks.losses
    activations = {
        task: meaning_of(loss, trainer.prediction_activations.get(task)).activation
        for task, loss in zip(tasks, losses, strict=True)
    }
    return activate_outputs(activations, outputs)
