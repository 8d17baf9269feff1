"""Implement `trainer features`: show declared features, or fit them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np

from ...checks import choice
from ...errors import CheckpointNotFoundError, ConfigurationError, DataError
from ...features import KINDS, Features
from ...features.categorical import IdFeature, Time, missing_ids
from ...features.feature import UNSEEN_ROW, Feature, Kind
from ...features.feature_data import rows_of
from ...features.feature_files import save_fitted
from ...features.raw_files import RawFiles
from ...features.raw_rows import BadRowCounter, Rows, first_rows
from ...features.ray_fit import fit_on_ray
from ...streams.formats.ragged_column import Ragged
from ..configuration.experiment_config import ExperimentConfig
from ..configuration.instantiate import instantiate
from ..configuration.object_spec import ObjectSpec
from ..configuration.sections import make_features
from ..runs.compare import table

logger = logging.getLogger(__name__)

SHOWN_ROWS = 3
CHANGED, SHIFTED = 0.25, 0.1  # see `Features.drift`
_KIND_NAMES = {kind: name for name, kind in KINDS.items()}


def describe_features(config: ExperimentConfig, snapshot: Path | None, data: Path | None, rows: int = 10_000) -> str:
    """Return a table of the first rows' features, their statistics and their drift.

    Args:
        snapshot: a run folder, a folder of snapshots or a snapshot. Its fitted features are used, and drift is measured
            from the rows they were fitted on. Without a snapshot, the features are fitted on data.train.
        data: a file or folder of raw rows; None: data.train, else the files of data.stream.
        rows: maximum number of rows to read.
    """
    if config.features is None:
        raise ConfigurationError(f"{config.source}: has no section features, whose columns could be shown")
    features = make_features(config.features)
    source = data if data is not None else _default_rows(config)
    learned_from = None if snapshot is None else restore_features(features, snapshot)
    drift = {}
    if learned_from is not None and features.learned.profiled_rows:  # older snapshots have no profile
        drift = features.drift(source, max_rows=rows)
    if not features.is_fitted:
        features.fit(source if config.data.train is None else instantiate(config.data.train))
        learned_from = "data.train" if config.data.train is not None else str(source)
    bad_rows = BadRowCounter()
    rows_read = first_rows(rows_of(features, source, labelled=False, bad_rows=bad_rows), rows)
    if not rows_read.count:
        raise DataError(f"{source}: no good rows: {bad_rows.report()}")
    lines = table(
        [["feature", "kind", "missing", "distinct", "range", "unseen", f"first {SHOWN_ROWS} rows", "drift (PSI)"]]
        + [_feature_row(feature, features, rows_read, drift) for feature in features.features]
    )
    notes = [f"{rows_read.count:,} rows; inputs of the network: {', '.join(features.inputs)}"]
    if learned_from is not None:
        notes.append(f"learned statistics are from {learned_from}")
    if (report := bad_rows.report()) is not None:
        notes.append(report)
    return "\n".join([*lines, "", *notes])


def fit_features(config: ExperimentConfig, data: Path | None, target: Path | None, engine: str) -> str:
    """Fit the declared features on all rows, and write them to a folder.

    Args:
        data: a file or folder of raw rows; None: data.train, else the files of data.stream.
        target: a folder that does not exist yet.
        engine: "local", or "ray" for Ray Data over a Parquet folder.

    Returns:
        A message to print.
    """
    choice("--engine", engine, ("local", "ray"))
    if config.features is None or target is None:
        raise ConfigurationError(f"{config.source}: --fit takes --to FOLDER, and an experiment with a section features")
    features = make_features({name: value for name, value in config.features.items() if name != "fitted"})
    source = data if data is not None else _default_rows(config)
    if engine == "local":
        features.fit(source)
    elif isinstance(source, RawFiles) and source.part is not None:
        raise ConfigurationError("--engine ray reads whole folders; give the rows to learn from by --data FOLDER")
    else:
        fit_on_ray(features, source.path if isinstance(source, RawFiles) else source)
    save_fitted(features, target)
    return f"{', '.join(features.statistics) or 'nothing'} learned; for training: features: {{fitted: {target}}}"


def restore_features(features: Features, path: Path) -> str | None:
    """Restore features from the newest snapshot in `path`; return its path, or None."""
    from ... import checkpoint
    from ...checkpoint.capture import part_states
    from ...checkpoint.saver import snapshots_of

    try:
        snapshot = checkpoint.find(snapshots_of(path))
    except CheckpointNotFoundError:
        return None
    states = part_states(snapshot, "features")
    if not states:
        return None
    features.load_state_dict(states[-1])
    return str(snapshot.path)


def _default_rows(config: ExperimentConfig) -> Any:
    if config.data.train is not None:
        return instantiate(config.data.train)
    stream = config.data.stream
    path = stream.init_args.get("path") if isinstance(stream, ObjectSpec) else None
    if isinstance(path, str) and Path(path).exists():
        return Path(path)
    raise ConfigurationError(f"{config.source}: data: names no file of rows to look at; give --data FILE")


def _feature_row(feature: Feature, features: Features, rows: Rows, drift: dict[str, float]) -> list[str]:
    columns = list(feature.raw())
    values = rows.columns[columns[0]]
    missing, distinct, value_range = _column_facts(values, isinstance(feature, Time))
    arrays = feature.apply(rows.columns, features.statistics.get(feature.name))
    shown = "; ".join(_format_rows(array, output.kind) for output, array in zip(feature.outputs(), arrays, strict=True))
    indices = [drift[name] for name in columns if name in drift]
    kind = _KIND_NAMES.get(type(feature), type(feature).__name__)
    unseen, drift_text = _unseen(feature, arrays[0]), _format_drift(max(indices)) if indices else ""
    return [feature.name, kind, f"{missing:.1%}", distinct, value_range, unseen, shown, drift_text]


def _column_facts(values: Any, times: bool) -> tuple[float, str, str]:
    """Return the share of missing rows, the number of distinct values, and the range."""
    if isinstance(values, Ragged):
        lengths = values.lengths
        value_range = f"{lengths.min()} to {lengths.max()} values" if len(lengths) else ""
        return float((lengths == 0).mean()), f"{len(np.unique(values[:].values)):,}", value_range
    values = np.asarray(values)
    if values.dtype.kind == "f":
        absent = ~np.isfinite(values)
        absent = absent.any(1) if absent.ndim > 1 else absent
        present = values[~absent]
        extremes = (present.min(), present.max()) if present.size else ()
        value_range = " to ".join(_time(end) if times else f"{end:.6g}" for end in extremes)
        return float(absent.mean()), f"{len(np.unique(present, axis=0)):,}", value_range
    absent = missing_ids(values)
    present = values[~absent]
    value_range = f"{present.min()} to {present.max()}" if len(present) and values.dtype.kind in "iu" else ""
    return float(absent.mean()), f"{len(np.unique(present)):,}", value_range


def _time(seconds: float) -> str:
    return str(np.datetime64(int(seconds), "s")).replace("T", " ")


def _unseen(feature: Feature, ids: Any) -> str:
    """Return the share of ids outside the vocabulary, or "" without a vocabulary."""
    if not isinstance(feature, IdFeature) or feature.vocabulary is None:
        return ""
    ids = ids[:].values if isinstance(ids, Ragged) else ids
    return f"{float((ids == UNSEEN_ROW).mean()):.1%}" if len(ids) else ""


def _format_rows(array: Any, kind: Kind) -> str:
    if isinstance(array, Ragged):
        rows = [list(row) for row in array[:SHOWN_ROWS]]
        return ", ".join(f"[{' '.join(map(_short, row[:3]))}{' …' * (len(row) > 3)}]" for row in rows)
    if kind is Kind.NUMBERS:
        return ", ".join(" ".join(f"{number:.4g}" for number in row) for row in array[:SHOWN_ROWS])
    return ", ".join(map(_short, array[:SHOWN_ROWS]))


def _short(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)
    return text if len(text) <= 8 else f"{text[:7]}…"


def _format_drift(index: float) -> str:
    word = " changed" if index > CHANGED else " shifted" if index > SHIFTED else ""
    return f"{index:.3f}{word}"
