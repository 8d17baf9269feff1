"""Fit features to a Parquet folder in Ray tasks."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..checks import require
from ..errors import DataError, did_you_mean
from .features import Features
from .raw_rows import BadRowCounter


def fit_on_ray(features: Features, folder: str | Path, *, rows: int | None = None) -> None:
    """Learn from all rows of a Parquet folder, in tasks of Ray Data.

    `RAY_ADDRESS` names a running cluster; without it, Ray starts one on this machine. Counts equal those of
    `Features.fit`; means and deviations are equal up to rounding.

    Args:
        features: unfitted features; every node must be able to import their custom functions.
        folder: a Parquet folder or file, or its URL, which every node must be able to read.
        rows: rows per task; None: one block of Ray Data.

    Raises:
        ConfigurationError: Ray is missing, or a custom function cannot be imported.
        DataError: no good rows, a column is absent, or more rows are bad than `max_bad_share` allows.
    """
    ray = require("ray", "--engine ray needs Ray", "ray")
    require("ray.data", "--engine ray needs Ray Data", "ray")
    declaration, bad_rows, good_rows = features.declaration(), BadRowCounter(features.max_bad_share), 0
    was_running = ray.is_initialized()
    try:
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars, context.execution_options.preserve_order = False, True
        data = ray.data.read_parquet(str(folder))
        names = data.schema().names
        for name, column in features.schema.fields.items():
            if name not in names and column.default is None:
                raise DataError(f"{folder}: the data have no column {name!r}{did_you_mean(name, names)}")
        data = data.select_columns([name for name in features.schema.fields if name in names])
        parts = data.map_batches(
            _learn, batch_format="pyarrow", batch_size=rows, fn_kwargs={"declaration": declaration}
        )
        for part in parts.iter_rows():
            learned, good, bad, reasons, first = pickle.loads(part["learned"])
            other = Features.from_declaration(declaration)
            other.load_state_dict(learned)
            features.merge(other)
            bad_rows.reasons.update(reasons)
            bad_rows.first = bad_rows.first or first
            bad_rows.count(good, bad)
            good_rows += good
    finally:
        if not was_running:
            ray.shutdown()
    features.finish_learning(good_rows)


def _learn(table: Any, declaration: Mapping[str, Any]) -> dict[str, list[bytes]]:
    """Learn from a block of rows; return the learned state as a batch of one row."""
    features, bad_rows = Features.from_declaration(declaration), BadRowCounter()
    rows = features.read(table)
    bad_rows.add(rows, 0)
    if rows.good:
        features.learn(rows.columns)
    learned = (features.published_state(), rows.good, len(rows.bad), bad_rows.reasons, bad_rows.first)
    return {"learned": [pickle.dumps(learned)]}
