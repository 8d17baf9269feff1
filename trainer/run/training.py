"""The verbs that train: `fit`, `online_train`, and `compile`, which trains nothing yet."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import checks
from ..data import column_checks
from ..data.datasets import is_arrays, make_source
from ..data.feed import Feed
from ..data.shards import make_shard
from ..data.shared_stream import JobHooks, SharedStream
from ..data.sources import Source
from ..data.stream_source import StreamSource, as_stream
from ..distributed.supported import check_stream
from ..errors import ConfigurationError, DataError
from ..hooks import History
from ..metrics.window import Window
from ..state import Phase, StopReason
from ..streams import Stream
from .call import call, check_idle, make_callbacks
from .cursor import Cursor
from .feeds import inference_feed, run_options, training_feed
from .inference import evaluate_feed
from .limits import Every
from .online import DEFAULT_WINDOW, OnlineMetrics
from .run import train
from .scoring import Scoring

if TYPE_CHECKING:
    from ..trainer import Trainer

logger = logging.getLogger(__name__)


def fit(
    trainer: Trainer,
    train_dataset: Any,
    epochs: int,
    valid_dataset: Any,
    valid_every: Every | int | None,
    callbacks: Any,
    steps_per_call: int | None,
    *,
    batch_size: int | None,
    shuffle: bool,
    sharded: bool | None,
    max_steps: int | None,
    max_seconds: float | None,
    resume: str | Path | None,
) -> History:
    """Do what `Trainer.fit` says."""
    checks.epochs(epochs)
    with contextlib.ExitStack() as opened:
        valid = _validation_feeds(trainer, train_dataset, valid_dataset, batch_size, opened)
        in_memory = any(is_arrays(data) for data in named_sets(valid_dataset).values())
        if in_memory and not is_arrays(train_dataset):
            batch_size = None  # it was for the validation arrays
        source = make_shard(
            train_dataset, trainer.group, sharded=sharded, batch_size=batch_size, shuffle=shuffle, seed=trainer.seed
        )
        every = Every(valid_every) if isinstance(valid_every, int) else valid_every
        trainer.state.progress.step_in_epoch = 0
        with call(trainer, Phase.FIT, callbacks) as signals, opened:  # closed while signals are listened to
            options = run_options(trainer, trainer.callbacks)
            feed = training_feed(trainer, source, options, steps_per_call)
            train(
                trainer,
                feed,
                options,
                Cursor(source, trainer.state.progress, every, feed.options.filling),
                resume=resume,
                epochs=epochs,
                max_steps=max_steps,
                max_seconds=max_seconds,
                evaluate=(lambda: _validate(trainer, valid)) if valid else None,
                valid_sets=tuple(valid),
            )
    signals.leave()
    return trainer.history


def named_sets(valid_dataset: Any) -> dict[str, Any]:
    """Return validation sets by name; a single one, such as a dict of arrays, has an empty name."""
    if valid_dataset is None:
        return {}
    named = isinstance(valid_dataset, Mapping) and valid_dataset
    if named and all(map(_is_dataset, valid_dataset.values())):
        for name in valid_dataset:
            if not isinstance(name, str) or not name:
                checks.refuse("valid_dataset", "a dict from names to datasets", name)
        return dict(valid_dataset)
    return {"": valid_dataset}


def _is_dataset(value: Any) -> bool:
    """Return whether `value` is a dataset of its own and no column: columns are arrays, lists and tuples of numbers."""
    if isinstance(value, tuple):
        return bool(value) and all(hasattr(column, "shape") for column in value)
    if isinstance(value, Mapping) or callable(value) or hasattr(value, "create_tuple_iterator"):
        return True
    column = isinstance(value, list | str) or hasattr(value, "dtype") or hasattr(value, "to_pylist")
    return hasattr(value, "__iter__") and not column


def _validation_feeds(
    trainer: Trainer, train_dataset: Any, valid_dataset: Any, batch_size: int | None, opened: contextlib.ExitStack
) -> dict[str, Feed]:
    feeds = {}
    for name, data in named_sets(valid_dataset).items():
        data = column_checks.in_order_of(train_dataset, data)
        feeds[name] = inference_feed(trainer, data, batch_size if is_arrays(data) else None)
        opened.callback(feeds[name].close)
    return feeds


def _validate(trainer: Trainer, feeds: Mapping[str, Feed]) -> dict[str, float]:
    """Return the results of every validation set, by its name and theirs; empty when a signal asked to leave."""
    results: dict[str, float] = {}
    for name, feed in feeds.items():
        found = evaluate_feed(trainer, feed)
        if not found:
            return {}
        results |= {f"{name}_{key}" if name else key: value for key, value in found.items()}
    return results


def compile_program(
    trainer: Trainer, sample: Any, callbacks: Any, steps_per_call: int | None, batch_size: int | None
) -> None:
    """Do what `Trainer.compile` says."""
    source = make_source(sample, batch_size=batch_size, seed=trainer.seed)
    if source.one_shot:
        raise ConfigurationError("compile: would use up the generator; pass a function that returns a fresh one")
    if trainer.tables is not None:
        raise ConfigurationError("compile: programs with sparse tables are compiled when the first ids are known")
    check_idle(trainer)
    options = run_options(trainer, make_callbacks(callbacks if callbacks is not None else [])[0])
    feed = training_feed(trainer, source, options, steps_per_call)
    chunks = feed.chunks({})
    try:
        chunk = next(chunks, None)
    finally:
        chunks.close()
        feed.close()
    if chunk is None:
        raise DataError("compile: the dataset delivered no batches")
    size = len(chunk.arrays[0]) if chunk.stacked else None
    trainer.builder.compile(options, size, chunk)


def online_train(
    trainer: Trainer,
    stream: Any,
    callbacks: Any,
    steps_per_call: int,
    *,
    batch_size: int | None,
    window: Window | int | None,
    max_steps: int | None,
    max_seconds: float | None,
    idle_timeout: float | None,
    flush_after: float,
    resume: str | Path | None,
) -> History:
    """Do what `Trainer.online_train` says."""
    checks.whole("batch_size", batch_size, optional=True)
    checks.number("idle_timeout", idle_timeout, least=0, optional=True, what="seconds")
    checks.number("flush_after", flush_after, least=0, what="seconds")
    window = Window(rows=window) if isinstance(window, int) else window or DEFAULT_WINDOW
    tasks = trainer.tasks
    scoring = None
    if trainer.loss_fn is not None:
        scoring = Scoring(window, trainer.metrics, trainer.loss_fn, trainer.label_count)
    elif trainer.metrics:
        logger.warning("windows count the loss alone: without a loss_fn the network's label is not known")
    rows = StreamSource(
        as_stream(stream),
        batch_size,
        inputs=column_checks.arguments_of(trainer.network)[2],
        labelled=trainer.loss_fn is not None,
        label=window.label if isinstance(window.label, str) else None,
        labels=() if tasks is None else tasks.label_names,
        weight="weight" if trainer.label_count > 1 and tasks is None else None,
        extras=() if scoring is None else scoring.groups,
        flush_after=flush_after,
        idle_timeout=idle_timeout if trainer.group.size == 1 else None,
    )
    # Lists and functions begin anew with every call; an iterator, or what keeps a state, goes on.
    rows.private = not (isinstance(stream, Stream | Iterator) or hasattr(stream, "load_state_dict"))
    source: Source = rows
    if trainer.group.size > 1:
        check_stream(trainer, rows.stream, scoring)
        ahead = steps_per_call * trainer.accumulate
        source = SharedStream(rows, trainer.group, ahead, _hooks(trainer), idle_timeout)
    scored = scoring is not None and scoring.wanted
    output = -1 if tasks is not None else window.prediction or 0
    with call(trainer, Phase.ONLINE, callbacks) as signals:
        options = run_options(trainer, trainer.callbacks, keep_predictions=scored, output=output)
        feed = training_feed(trainer, source, options, steps_per_call)
        online = OnlineMetrics(feed, window, scoring, tasks, group=trainer.group)
        trainer.parts["online"] = online
        try:
            train(
                trainer,
                feed,
                options,
                Cursor(source, trainer.state.progress, filling=feed.options.filling),
                resume=resume,
                epochs=None,
                max_steps=max_steps,
                max_seconds=max_seconds,
                online=online,
            )
        finally:
            del trainer.parts["online"]
    signals.leave()
    return trainer.history


def _hooks(trainer: Trainer) -> JobHooks:
    """Return what agreements on a stream have to know of the run under way."""

    def wish() -> StopReason | None:
        return trainer.state.stop_wish if trainer.run is None else trainer.run.wish()

    return JobHooks(wish, trainer.state.agree_to_stop, lambda: trainer.saver.durable_count, trainer.saver.settle)
