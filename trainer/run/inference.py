"""Implements `Trainer.evaluate` and `Trainer.predict`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checks import choice
from ..data.batch_sizes import RowPadding
from ..data.chunk import InputBatch
from ..data.feed import Feed
from ..data.finite.sources import ArraySource
from ..data.source import Source
from ..data.user_data import Form, UserData
from ..distributed.dense_state import average_statistics
from ..errors import ConfigurationError, DataError
from ..features.feature_data import KeptColumns
from ..metrics.loss import Loss
from ..state import Phase
from . import declared_features, loop
from .calibrating import CalibratedRows, probabilities
from .call import call
from .feeds import evaluation_feed, find_tables, first_chunk, inference_source, prediction_feed
from .tally import Tally

if TYPE_CHECKING:
    from .trainer_base import TrainerBase


def evaluate(
    trainer: TrainerBase, dataset: Any, callbacks: Any, batch_size: int | None, sharded: bool | None
) -> dict[str, float]:
    """Implement `Trainer.evaluate`."""
    with trainer.group.inside("evaluate"):
        data = UserData(dataset, trainer.features)
        if trainer.own_eval_network is None:
            data = data.in_order(trainer.state.trained_columns)
        if data.form is Form.RAW and trainer.own_eval_network is None:
            declared_features.check_labels(trainer.features, trainer.loss_fn)
        feed = evaluation_feed(trainer, data, batch_size, sharded=sharded)
        is_top_level = trainer.state.phase is Phase.IDLE  # a call from a callback completes even after a stop signal
        with call(trainer, Phase.EVALUATE, callbacks if callbacks is not None else []) as signals:
            loop.setup(trainer)
            with contextlib.closing(feed):
                results = evaluate_feed(trainer, feed, interruptible=is_top_level)
            loop.report_evaluation(trainer, results)
        signals.leave()
    return results


def evaluate_feed(
    trainer: TrainerBase, feed: Feed, *, interruptible: bool = True, fit_calibration: bool = False
) -> dict[str, float]:
    """Return the results on `feed`; empty after a stop signal.

    With `fit_calibration`, the calibration is fitted on the rows.
    """
    find_tables(trainer, feed.source, feed.options)
    average_statistics(trainer.group, trainer.network, trainer.builder.average)
    cell, tally = trainer.builder.inference.evaluate_cell(), _make_tally(trainer)
    if trainer.calibrator is not None and trainer.own_eval_network is None:
        tally.calibrated = CalibratedRows(trainer.calibrator, fit_calibration=fit_calibration)
    with trainer.builder.inference.mode(cell):
        return loop.evaluate(trainer, feed, cell, tally, interruptible=interruptible)


def try_metrics(trainer: TrainerBase, feeds: Iterable[Feed]) -> None:
    """Check the metrics on the first batch of each validation set of arrays.

    Other data are not checked, because reading their first batch twice may change what they deliver.
    """
    if trainer.group.size > 1 or all(isinstance(metric, Loss) for metric in trainer.metrics.values()):
        return
    for feed in feeds:
        if isinstance(feed.source, ArraySource):
            _try_metrics(trainer, feed)


def _try_metrics(trainer: TrainerBase, feed: Feed) -> None:
    find_tables(trainer, feed.source, feed.options)
    cell, tally = trainer.builder.inference.evaluate_cell(), _make_tally(trainer)
    chunk = first_chunk(feed)
    if chunk is None:
        return
    with trainer.builder.inference.mode(cell):
        outputs = trainer.builder.inference.run(cell, chunk)
    try:
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        tally.add(outputs, chunk.num_samples, tally.columns_of(chunk))
    except (DataError, ValueError, TypeError) as error:
        shapes = ", ".join(str(list(output.shape)) for output in outputs if hasattr(output, "shape"))
        raise DataError(
            f"the metrics cannot read the first validation batch, whose outputs have the shapes {shapes}: {error}"
        ) from error


def _make_tally(trainer: TrainerBase) -> Tally:
    loss_fn, weights = trainer.loss_fn, trainer.row_weights
    if trainer.own_eval_network is not None:  # its loss may already be weighted
        loss_fn, weights = None, dataclasses.replace(weights, of_loss=False)
    return Tally(trainer.metrics, trainer.eval_indexes, loss_fn, trainer.prediction_activations, weights)


def predict(
    trainer: TrainerBase,
    data: tuple[Any, ...],
    batch_size: int | None,
    stream: bool,
    keep: bool = False,
    set_aside: bool = False,
    sharded: bool | None = None,
    output: str = "network",
) -> Any:
    """Implement `Trainer.predict`."""
    choice("output", output, ("network", "probability"))
    kept = KeptColumns() if keep else None
    with trainer.group.inside("predict"):
        user_data, batch_size = UserData.of_arguments(data, trainer.features, batch_size)
        user_data = _named_inputs(trainer, user_data)
        if keep:
            _check_keep(user_data)
        raw = {"labelled": False, "kept": kept, "set_aside": set_aside}
        source = inference_source(trainer, user_data, batch_size, sharded, **raw)
        predictions = _predict(trainer, source, stream, output, own=user_data.has_own_rows(sharded))
    if kept is None:
        return predictions
    return (kept.with_predictions(part) for part in predictions) if stream else kept.with_predictions(predictions)


def _named_inputs(trainer: TrainerBase, data: UserData) -> UserData:
    """Return arrays by name in the order of `fit`, without further columns."""
    names = trainer.state.trained_columns
    return data.in_order(names, names[: len(names) - trainer.label_count])


def _check_keep(data: UserData) -> None:
    if data.form is not Form.RAW or data.features is None:
        raise ConfigurationError("predict(keep=True) needs Trainer(features=...) and one argument of raw rows")
    data.features.check_keep()


def _predict(trainer: TrainerBase, source: Source, stream: bool, output: str, *, own: bool) -> Any:
    padding = trainer.builder.inference.row_padding
    size = _choose_size(padding, source) if isinstance(source, ArraySource) and trainer.group.size == 1 else None
    padded_size = None if size is None else lambda rows: size
    convert = None
    if output == "probability":
        convert = partial(probabilities, trainer, calibration=trainer.fitted_calibration())
    batches = _predictions(trainer, prediction_feed(trainer, source, padded_size), convert, own=own, joined=not stream)
    return batches if stream else _concatenate(list(batches))


def first_batch(trainer: TrainerBase, data: Any, batch_size: int | None) -> InputBatch:
    """Implement `Trainer.first_batch`."""
    user_data = _named_inputs(trainer, UserData(data, trainer.features))
    source = inference_source(trainer, user_data, batch_size, labelled=False)
    feed = prediction_feed(trainer, source)
    with contextlib.closing(feed):
        find_tables(trainer, feed.source, feed.options)
        chunk = first_chunk(feed)
    if chunk is None:
        raise DataError("first_batch: the dataset delivered no batches")
    return InputBatch(chunk.names[: len(chunk.arrays)], chunk.arrays, feed.ragged_inputs)


def _choose_size(padding: RowPadding, source: ArraySource) -> int | None:
    """Return the number of rows to pad the last batch to; None for no padding."""
    if source.size > 1:
        padding.compiled(source.batch_size)
    rows = source.last_rows
    size = padding.size_for(rows)
    if source.size > 1:
        size = min(size, source.batch_size)
    padding.compiled(size)
    return None if size == rows else size


def _predictions(trainer: TrainerBase, feed: Feed, convert: Any, **options: bool) -> Iterator[Any]:
    programs = trainer.builder.inference
    is_top_level = trainer.state.phase is Phase.IDLE  # a call from a callback completes even after a stop signal
    with contextlib.closing(feed):
        find_tables(trainer, feed.source, feed.options)
        average_statistics(trainer.group, trainer.network, trainer.builder.average)
        cell = programs.predict_cell()
        with call(trainer, Phase.PREDICT, []) as signals, programs.mode(cell), contextlib.closing(feed):
            yield from loop.predict(trainer, feed, cell, convert, interruptible=is_top_level, **options)
    signals.leave()


def _concatenate(batches: list[Any]) -> Any:
    if not batches:
        raise DataError("predict: the dataset delivered no batches")
    first = batches[0]
    if isinstance(first, tuple):
        return tuple(_concatenate(list(parts)) for parts in zip(*batches, strict=True))
    if isinstance(first, dict):
        return {name: _concatenate([batch[name] for batch in batches]) for name in first}
    return _join(batches)


def _join(parts: Sequence[np.ndarray]) -> Any:
    if len(parts) == 1:
        return parts[0]
    if len({part.shape[1:] for part in parts}) > 1:
        return list(parts)
    return np.concatenate(parts) if parts[0].ndim else np.stack(parts)
