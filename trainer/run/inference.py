"""The verbs that train nothing: `evaluate` and `predict`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..data import column_checks
from ..data.feed import Feed, FeedOptions
from ..data.sources import make_source
from ..embedding.table_feed import TableFeed, has_tables
from ..errors import DataError
from ..graph.boost import Boost
from ..state import Phase
from . import loop
from .session import Session


class Inference(Session):
    """The part of a `Trainer` that applies the network."""

    eval_network: Any
    eval_indexes: tuple[int, int, int] | None
    tables: TableFeed | None
    boost: Boost
    boost_parts: tuple[str, ...]
    label_count: int
    accumulate: int
    seed: int

    def evaluate(
        self, dataset: Any, callbacks: Any = None, dataset_sink_mode: bool = True, *, batch_size: int | None = None
    ) -> dict[str, float]:
        """Evaluate and return "loss" (mean over samples) and the metrics.

        A callback may call it in the middle of a training, which then goes on undisturbed.

        Args:
            dataset: as in `fit`; not shuffled.
            callbacks: their on_eval_* hooks run; those of a training under way do not.
            dataset_sink_mode: accepted for likeness with `mindspore.Model`; without effect.
            batch_size: rows a batch, for arrays.
        """
        feed = self._inference_feed(dataset, batch_size)
        alone = self._loop is None  # else a callback asks, who is given results even when a signal wants the run to end
        with self._session(Phase.EVALUATE, callbacks if callbacks is not None else []) as signals:
            self.callbacks.call("setup", self)
            with contextlib.closing(feed):
                results = self._evaluate(feed, interruptible=alone)
            self.state.metrics = results
            self.callbacks.call("on_eval_end", self)
        signals.leave()
        return results

    def _validate(self, feed: Feed) -> None:
        results = self._evaluate(feed)
        if results:
            self.state.metrics = {f"val_{name}": value for name, value in results.items()}
            self.callbacks.call("on_eval_end", self)

    def _evaluate(self, feed: Feed, *, interruptible: bool = True) -> dict[str, float]:
        self._find_tables(feed)
        cell = self.builder.evaluate_cell()
        with self.builder.inference(cell):
            return loop.evaluate(self, feed, cell, self.metrics, self.eval_indexes, interruptible=interruptible)

    def predict(self, *data: Any, batch_size: int | None = None, stream: bool = False) -> Any:
        """Apply the network.

        Args:
            data: the input arrays themselves (one call, as `mindspore.Model.predict`), or one dataset, or, with
                `batch_size`, one dict or tuple of arrays. A label column after the inputs is dropped.
            batch_size: rows a batch, for arrays.
            stream: return an iterator over the batches' predictions instead of one array.

        Returns:
            Predictions as float32 arrays with the rows on axis 0; a tuple of them when the network returns a tuple.
        """
        if batch_size is None and all(hasattr(item, "shape") for item in data):
            data, batch_size = (tuple(data),), max(1, len(data[0]))
        if len(data) != 1:
            raise DataError("predict: takes arrays, or one dataset; received a mixture")
        feed = self._inference_feed(data[0], batch_size, predict=True)
        batches = self._predictions(feed)
        return batches if stream else _concatenate(list(batches))

    def _predictions(self, feed: Feed) -> Iterator[Any]:
        self._find_tables(feed)
        cell = self.builder.predict_cell()
        with self._session(Phase.PREDICT, []) as signals, self.builder.inference(cell):
            self.callbacks.call("on_predict_begin", self)
            try:
                yield from loop.predictions(self, feed, cell)
            finally:
                feed.close()
            self.callbacks.call("on_predict_end", self)
        signals.leave()

    def _inference_feed(self, dataset: Any, batch_size: int | None, *, predict: bool = False) -> Feed:
        source = make_source(dataset, batch_size=batch_size, seed=self.seed)
        check = None
        if predict:
            check = column_checks.ColumnCheck(self.network, 0, extra=True)
        elif self.eval_network is not None:
            check = column_checks.ColumnCheck(self.eval_network, 0)
        else:
            check = column_checks.ColumnCheck(self.network, self.label_count)
        inputs = column_checks.arguments_of(self.network)[1] if predict else None
        return Feed(source, FeedOptions(columns=inputs, check=check))

    def _find_tables(self, feed: Feed, *, training: bool = False) -> None:
        """Let `feed` translate the ids of sparse tables; which columns hold them is found out once, from one batch."""
        if self.tables is None and has_tables(self.network):
            sample = feed.source.peek(lambda: self.state.stop_reason is not None)
            takes = column_checks.arguments_of(self.network)[1] or len(sample) - self.label_count
            names = (feed.source.names or ())[:takes]
            self.tables = TableFeed.find(self.network, sample[:takes], names, self.optimizer, self.accumulate)
            if self.tables is not None:
                self.builder.tables = self.tables.tables
                self.parts["tables"] = self.tables
                self.boost = self.builder.boost = self.boost.without_freezing("embedding tables train in whole steps")
                self.boost_parts = self.boost.parts
        if self.tables is not None and training:
            feed.options.prepare, feed.options.release = self.tables.prepare, self.tables.release
        elif self.tables is not None:
            feed.options.prepare = self.tables.prepare_reading


def _concatenate(batches: list[Any]) -> Any:
    if not batches:
        raise DataError("predict: the dataset delivered no batches")
    if isinstance(batches[0], tuple):
        return tuple(np.concatenate(parts) for parts in zip(*batches, strict=True))
    return np.concatenate(batches)
