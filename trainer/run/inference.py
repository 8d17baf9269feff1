"""The verbs that train nothing: `evaluate` and `predict`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checks import choice
from ..data.as_columns import as_array
from ..data.batch_sizes import RowPadding
from ..data.chunk import InputBatch
from ..data.feed import Feed
from ..data.finite.shards import is_sharded
from ..data.finite.sources import ArraySource
from ..distributed.dense_state import average_statistics
from ..errors import DataError
from ..metrics.loss import Loss
from ..state import Phase
from ..streams.batch import is_frame
from . import declared_features, loop
from .calibrating import CalibratedRows, probabilities
from .call import call
from .feeds import evaluation_feed, find_tables, first_chunk, inference_source, prediction_feed
from .tally import Tally, host_columns

if TYPE_CHECKING:
    from .trainer_base import TrainerBase


def evaluate(
    trainer: TrainerBase, dataset: Any, callbacks: Any, batch_size: int | None, sharded: bool | None
) -> dict[str, float]:
    """Implement `Trainer.evaluate`."""
    with trainer.group.inside("evaluate"):
        return _evaluate(trainer, dataset, callbacks, batch_size, sharded)


def _evaluate(
    trainer: TrainerBase, dataset: Any, callbacks: Any, batch_size: int | None, sharded: bool | None
) -> dict[str, float]:
    loss_fn = trainer.loss_fn if trainer.own_eval_network is None else None
    dataset = declared_features.prepare(
        trainer.features, trainer.group, dataset, batch_size, sharded=sharded, loss_fn=loss_fn
    )
    feed = evaluation_feed(trainer, dataset, batch_size, sharded=sharded)
    alone = trainer.state.phase is Phase.IDLE  # a callback gets its results even after a stop signal
    with call(trainer, Phase.EVALUATE, callbacks if callbacks is not None else []) as signals:
        loop.setup(trainer)
        with contextlib.closing(feed):
            results = evaluate_feed(trainer, feed, interruptible=alone)
        loop.evaluated(trainer, results)
    signals.leave()
    return results


def evaluate_feed(
    trainer: TrainerBase, feed: Feed, *, interruptible: bool = True, learns: bool = False
) -> dict[str, float]:
    """Return the results on `feed`; empty after a stop signal.

    With `learns`, the calibration learns from the rows.
    """
    find_tables(trainer, feed.source, feed.options)
    average_statistics(trainer.group, trainer.network)
    cell, tally = trainer.builder.inference.evaluate_cell(), _tally(trainer)
    if trainer.calibrator is not None and trainer.own_eval_network is None:
        tally.calibrated = CalibratedRows(trainer.calibrator, learns=learns)
    with trainer.builder.inference.mode(cell):
        results = loop.evaluate(trainer, feed, cell, tally, interruptible=interruptible)
    return results


def try_metrics(trainer: TrainerBase, feeds: Iterable[Feed]) -> None:
    """Check the metrics on the first batch of all validation arrays.

    Other data are left alone: reading their first batch twice may change what they deliver.
    """
    if trainer.group.size > 1 or all(isinstance(metric, Loss) for metric in trainer.metrics.values()):
        return
    for feed in feeds:
        if isinstance(feed.source, ArraySource):
            _try_metrics(trainer, feed)


def _try_metrics(trainer: TrainerBase, feed: Feed) -> None:
    find_tables(trainer, feed.source, feed.options)
    cell, tally = trainer.builder.inference.evaluate_cell(), _tally(trainer)
    chunk = first_chunk(feed)
    if chunk is None:
        return
    with trainer.builder.inference.mode(cell):
        outputs = trainer.builder.inference.run(cell, chunk)
    try:
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        tally.add(outputs, chunk.num_samples, host_columns(chunk, tally.groups))
    except (DataError, ValueError, TypeError) as error:
        shapes = ", ".join(str(list(output.shape)) for output in outputs if hasattr(output, "shape"))
        raise DataError(f"the metrics cannot read the first validation batch, outputs {shapes}: {error}") from error


def _tally(trainer: TrainerBase) -> Tally:
    loss_fn, weights = trainer.loss_fn, trainer.row_weights
    if trainer.own_eval_network is not None:  # which may weigh its loss, or not
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
    features = trainer.features
    kept = declared_features.kept_columns(features, data) if keep else None
    options: dict[str, Any] = {"labelled": False, "kept": kept, "set_aside": set_aside, "sharded": sharded}
    with trainer.group.inside("predict"):
        data = tuple([declared_features.prepare(features, trainer.group, item, batch_size, **options) for item in data])
        predictions = _predict(trainer, data, batch_size, stream, sharded, output)
    if kept is None:
        return predictions
    return (kept.beside(part) for part in predictions) if stream else kept.beside(predictions)


def _predict(
    trainer: TrainerBase, data: tuple[Any, ...], batch_size: int | None, stream: bool, sharded: bool | None, output: str
) -> Any:
    if batch_size is None and (all(map(_is_array, data)) or (len(data) > 1 and all(map(_is_list, data)))):
        data = (tuple([as_array(item, f"column_{index}") for index, item in enumerate(data)]),)
        batch_size = max(1, len(data[0][0]))
    if len(data) != 1:
        raise DataError("predict: takes arrays, or one dataset; received a mixture")
    padding, source = trainer.builder.inference.row_padding, inference_source(trainer, data[0], batch_size, sharded)
    own = is_sharded(data[0]) if sharded is None else sharded
    size = _choose_size(padding, source) if isinstance(source, ArraySource) and trainer.group.size == 1 else None
    fill_up_to = None if size is None else lambda rows: size
    convert = None
    if output == "probability":
        convert = partial(probabilities, trainer, calibration=trainer.fitted_calibration())
    batches = _predictions(trainer, prediction_feed(trainer, source, fill_up_to), convert, own=own)
    return batches if stream else _concatenate(list(batches))


def first_batch(trainer: TrainerBase, data: Any, batch_size: int | None) -> InputBatch:
    """Implement `Trainer.first_batch`."""
    data = declared_features.prepare(trainer.features, trainer.group, data, batch_size, labelled=False)
    feed = prediction_feed(trainer, inference_source(trainer, data, batch_size))
    with contextlib.closing(feed):
        find_tables(trainer, feed.source, feed.options)
        chunk = first_chunk(feed)
    if chunk is None:
        raise DataError("first_batch: the dataset delivered no batches")
    return InputBatch(chunk.names[: len(chunk.arrays)], chunk.arrays, feed.ragged_inputs)


def _is_array(item: Any) -> bool:
    return hasattr(item, "shape") and not is_frame(item)


def _is_list(item: Any) -> bool:
    return isinstance(item, list) and not any(map(_is_array, item[:1]))


def _choose_size(padding: RowPadding, source: ArraySource) -> int | None:
    """Return the number of rows to pad the last batch to; None to leave it as it is."""
    if source.size > 1:
        padding.compiled(source.batch_size)
    rows = source.last_rows
    size = padding.size_for(rows)
    if source.size > 1:
        size = min(size, source.batch_size)
    padding.compiled(size)
    return None if size == rows else size


def _predictions(trainer: TrainerBase, feed: Feed, convert: Any, *, own: bool = False) -> Iterator[Any]:
    programs = trainer.builder.inference
    alone = trainer.state.phase is Phase.IDLE  # a callback gets its predictions even after a stop signal
    with contextlib.closing(feed):
        find_tables(trainer, feed.source, feed.options)
        average_statistics(trainer.group, trainer.network)
        cell = programs.predict_cell()
        with call(trainer, Phase.PREDICT, []) as signals, programs.mode(cell), contextlib.closing(feed):
            yield from loop.predict(trainer, feed, cell, convert, own=own, interruptible=alone)
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
