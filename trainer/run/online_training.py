"""The verb that trains on a stream: `online_train`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import checks
from ..data import column_checks
from ..data.shared_stream import JobHooks, SharedStream
from ..data.sources import Source
from ..data.stream_source import StreamSource, as_stream
from ..distributed.supported import check_stream
from ..hooks import History
from ..metrics.window import Window
from ..state import Phase, StopReason
from ..streams import Stream
from .call import call
from .cursor import Cursor
from .feeds import run_options, training_feed
from .online import DEFAULT_WINDOW, OnlineMetrics
from .run import train
from .scoring import Scoring

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
