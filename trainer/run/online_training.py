"""The verb that trains on a stream: `online_train`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from callbacks import History

from .. import checks
from ..data.source import Source
from ..data.streaming.shared_stream import JobHooks, SharedStream
from ..data.streaming.stream_source import StreamSource, as_stream
from ..metrics.window import Window
from ..state import Phase, StopReason
from ..streams import Stream
from . import declared_features
from .call import call
from .cursor import Cursor
from .feeds import run_options, training_feed
from .online import DEFAULT_WINDOW, OnlineMetrics
from .run import train
from .scoring import Scoring
from .supported import check_stream

if TYPE_CHECKING:
    from ..trainer import Trainer

logger = logging.getLogger(__name__)


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
    if trainer.label_count:
        scoring = Scoring(window, trainer.metrics, trainer.loss_fn, trainer.label_count, trainer.prediction_activations)
    elif trainer.metrics:
        logger.warning("windows count the loss alone: without a loss_fn that takes it the label is not known")
    declared_features.restore(trainer, resume, callbacks)
    features, raw_rows = trainer.features, as_stream(stream)
    label = window.label if isinstance(window.label, str) else None
    if features is not None and label is None and len(features.labels) == 1:
        label = features.labels[0]
    weight = None if features is None else features.weight
    rows = StreamSource(
        raw_rows,
        batch_size,
        inputs=declared_features.arguments_of(trainer, trainer.network)[2],
        labelled=trainer.label_count > 0,
        label=label,
        labels=() if tasks is None else tasks.label_names,
        weight=weight or ("weight" if trainer.label_count > 1 and tasks is None else None),
        extras=() if scoring is None else scoring.groups,
        counted=None if tasks is None else tasks.rows,
        list_types=trainer.builder.list_types,
        transform=declared_features.stream_transform(trainer, raw_rows),
        flush_after=flush_after,
        idle_timeout=idle_timeout if trainer.group.size == 1 else None,
        # Lists and functions begin again with every call; an iterator, or an object with a state, goes on.
        restarts=not (isinstance(stream, Stream | Iterator) or hasattr(stream, "load_state_dict")),
    )
    source: Source = rows
    if trainer.group.size > 1:
        check_stream(trainer.group.size, rows.stream, [] if scoring is None else scoring.unmergeable)
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
    signals.leave(complete=True)
    return trainer.history


def _hooks(trainer: Trainer) -> JobHooks:
    """Return what agreements on a stream have to know of the run under way."""

    def wish() -> StopReason | None:
        return trainer.state.stop_wish if trainer.run is None else trainer.run.wish()

    return JobHooks(
        wish, trainer.state.agree_to_stop, lambda: trainer.saver.durable_count, trainer.saver.commit_durable
    )
