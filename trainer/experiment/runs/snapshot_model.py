"""A run's snapshot as a Trainer with sample rows, for export."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ConfigurationError, DataError
from ...streams.formats.ragged_column import Ragged
from ..configuration.experiment_config import ExperimentConfig
from .training_run import build_restored, split_of, splits_of

if TYPE_CHECKING:
    from ...features.features import Features
    from ...trainer import Trainer

_ROWS = 256


def snapshot_model(config: ExperimentConfig, checkpoint: Path, split: str | None = None) -> tuple[Trainer, Any]:
    """Return a Trainer with a snapshot's weights, and rows for its `predict`.

    Args:
        split: dataset whose first rows are taken; None: the first in the configuration. If it has only a stream, the
            stream is not read; the declared features get rows in which every value is missing.

    Raises:
        ConfigurationError: no such dataset, or only a stream and no declared features.
        CheckpointError: there is no intact snapshot, or it belongs to another network.
        DataError: the dataset has no good rows.
    """
    chosen = split_of(config, split) if split or splits_of(config) else None
    experiment = build_restored(config, checkpoint, chosen)
    trainer = experiment.trainer
    if chosen is not None:
        data = experiment.datasets[chosen]
        return trainer, data if trainer.features is None else _first_rows(trainer.features, data)
    if trainer.features is not None:
        return trainer, trainer.features.apply(_blank_rows(trainer.features))
    raise ConfigurationError(
        f"{config.source}: data: has a stream alone, and the network's columns are not declared; name a dataset "
        "that shows them, by --set data.test.class_path=... --set data.test.init_args...=..."
    )


def _first_rows(features: Features, data: Any) -> Any:
    """Return the network's inputs for the first raw rows; or data as they are."""
    from ...features.feature_data import has_parts, is_raw, rows_of

    if not is_raw(data):
        return data
    raw = next(rows_of(features, data, labelled=has_parts(data)), None)
    if raw is None:
        raise DataError("the data have no good rows")
    return features.apply({name: column[:_ROWS] for name, column in raw.columns.items()})


def _blank_rows(features: Features) -> dict[str, Any]:
    """Return the raw columns of two rows in which every value is missing."""
    columns: dict[str, Any] = {}
    for name, column in features.columns.items():
        if None in column.shape:
            values = np.zeros((0, *column.shape[1:]), column.dtype)
            columns[name] = Ragged(values, np.zeros(3, np.int64))
        else:
            columns[name] = np.zeros((2, *column.shape), column.dtype)
    return columns
