"""Feeds of chunks to train on and of batches to evaluate or predict."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from callbacks import Callback

from ..cadence import NO_MARKS, Every, StepMarks
from ..data import column_checks
from ..data.as_columns import ColumnOrder, describe_non_finite
from ..data.chunk import Chunk, ChunkTransform, FeedOptions
from ..data.feed import Feed, peek
from ..data.finite.sources import ArraySource, PipelineSource
from ..data.position import Position
from ..data.ragged import RaggedColumns, RaggedInput
from ..data.source import Item, Source
from ..data.user_data import UserData
from ..data.waiting import DATA_WAIT
from ..embedding.layers.embedding_cells import check_trainable, describe_dense, embedding_cells
from ..errors import ConfigurationError
from ..graph.averaging import AverageRule
from ..graph.boost import MAX_FROZEN_STEPS
from ..graph.labels import takes_class_numbers
from ..graph.multi_task import MultiTaskLoss
from ..graph.program import StepOptions
from ..metrics.registry import group_of
from ..mindspore_internals import device
from ..mindspore_internals.dict_networks import batch_keys
from .declared_features import arguments_of
from .job_checks import check_data, check_training
from .limits import Trial

if TYPE_CHECKING:
    from mindspore import nn

    from ..data.table_feed import TableFeed
    from .trained_network import TrainedNetwork


logger = logging.getLogger(__name__)

ALL_BATCHES = Trial()
MAX_BYTES_PER_CALL = 32 << 20


def steps_per_epoch(batches: int | None, accumulate: int) -> int | None:
    """Return the optimizer steps of an epoch of `batches`; None if unknown."""
    return None if batches is None else -(-batches // accumulate)


def run_options(
    options: StepOptions, callbacks: Iterable[Callback], *, keep_predictions: bool = False, output: int = 0
) -> StepOptions:
    """Return the trainer's step options, extended by those that callbacks need."""
    callbacks = tuple(callbacks)
    policies = {callback.non_finite for callback in callbacks} - {None}
    rules = [callback.weight_average for callback in callbacks if callback.weight_average is not None]
    if len(rules) > 1:
        raise ConfigurationError("a run accepts EMA or SWA, not both")
    return dataclasses.replace(
        options,
        guard=bool(policies),
        halt="terminate" in policies,
        average=AverageRule(**rules[0]) if rules else None,
        keep_predictions=keep_predictions,
        output=output,
    )


def step_marks(callbacks: Iterable[Callback], valid_every: Every | None = None) -> StepMarks:
    """Return the steps at which calls end because a cadence in steps is due."""
    return StepMarks.of([valid_every, *(value for callback in callbacks for value in vars(callback).values())])


def training_feed(
    trainer: TrainedNetwork,
    source: Source,
    options: StepOptions,
    steps_per_call: int | None,
    trial: Trial = ALL_BATCHES,
    *,
    marks: StepMarks = NO_MARKS,
) -> Feed:
    """Return the feed of a training.

    If `steps_per_call` is None, it is chosen from the device and the size of the first batch. Calls end at `marks`. If
    `options` have a guard, batches with non-finite values are named in the log.

    Raises:
        ConfigurationError: the network's sparse tables cannot be trained.
    """
    check_trainable(trainer.network, trainer.optimizer)
    if dense := describe_dense(trainer.network):
        logger.info("tables that are ordinary dense parameters: %s", dense)
    ignored = _labels_that_may_be_missing(trainer, source)
    source.warn_of_non_finite(ignored)
    batches = trial.train_batches(source)
    size = source.size if batches is None else min(batches, source.size or batches)

    def steps_for(item: Item) -> int:
        steps = steps_per_call if trainer.compiled else 1
        if steps is None:
            most = device.current().automatic_steps
            most = most if trainer.boost.freezing is None else min(most, MAX_FROZEN_STEPS)
            nbytes = max(1, sum(column.nbytes for column in item.columns) * trainer.accumulate)
            steps = max(1, min(most, MAX_BYTES_PER_CALL // nbytes, steps_per_epoch(size, trainer.accumulate) or most))
            if source.agrees:  # batches of other processes may have different sizes
                steps = int(trainer.group.gather(np.array([steps], np.int64)).min())
        steps = min([steps, *(StepMarks((n,)).call_size(0, steps) for n in marks.every)])
        trainer.sink_mode = f"graph loop of {steps} steps" if steps > 1 else "off: one step per call"
        logger.debug("sink mode: %s", trainer.sink_mode)
        return steps

    feed_options = FeedOptions(
        steps_for,
        trainer.accumulate,
        check=_check_with_labels(trainer),
        inspect=partial(describe_non_finite, ignored=ignored) if options.guard else None,
        arguments=arguments_of(trainer.features, trainer.network)[2],
        list_types=None if source.endless else trainer.builder.list_types,
        order=None if source.endless else column_order(trainer, source, trainer.network, trainer.label_count),
        rows_column=-trainer.label_count,
        weighed=trainer.label_count if trainer.builder.padded.weighed else 0,
        pads_alike=True,
        batches_per_epoch=batches,
        marks=marks,
        same_batches=trial.overfit_batches is not None,
    )
    try:
        find_tables(trainer, source, feed_options)
        check_training(trainer.group.size, trainer.network, trainer.optimizer)
    except BaseException:
        Feed(source, feed_options).close()
        source.go_back(Position(), 0)  # before the rows that were peeked at
        raise
    filling = None
    if source.any_size and trainer.group.size == 1 and trainer.compiled and trainer.boost.freezing is None:
        filling = trainer.builder.padded.training
        filling.restart()
    transform: ChunkTransform | None = trainer.tables
    if trainer.tables is not None and trainer.group.size > 1:
        from ..data.table_feed import DividedTables

        transform = DividedTables(trainer.tables, trainer.group)
    return Feed(source, dataclasses.replace(feed_options, filling=filling, transform=lambda: transform))


def _check_with_labels(trainer: TrainedNetwork) -> column_checks.ColumnCheck:
    loss = trainer.loss_fn
    losses = loss.losses if isinstance(loss, MultiTaskLoss) else (loss,)
    class_losses = [takes_class_numbers(loss) for loss in losses]
    return column_checks.ColumnCheck(
        trainer.network,
        trainer.label_count,
        class_losses=class_losses,
        numeric_labels=all(type(loss).__module__.startswith("mindspore.") for loss in losses),
        assumed=trainer.builder.list_types.assumed,
    )


def _labels_that_may_be_missing(trainer: TrainedNetwork, source: Source) -> tuple[str, ...]:
    """Return the names of the label columns in which NaN means a missing label."""
    if trainer.tasks is None:
        return ()
    labels, names = trainer.tasks.label_names, tuple(source.names or ())
    first = len(names) - trainer.label_count
    columns = labels if not names or set(labels) <= set(names) else names[first : first + len(labels)]
    return tuple(name for name, ignored in zip(columns, trainer.tasks.ignores_nan, strict=False) if ignored)


def inference_source(
    trainer: TrainedNetwork, data: UserData, batch_size: int | None, sharded: bool | None = None, **raw: Any
) -> Source:
    """Return this process's batches of an evaluation or a prediction.

    `raw` are the options for reading raw rows; see `UserData.source`.

    Raises:
        ConfigurationError: the processes have different data without ``sharded=True``.
    """
    seed = trainer.order_seed
    source = data.inference_source(trainer.group, sharded=sharded, batch_size=batch_size, seed=seed, **raw)
    check_data(trainer.group, source, own=data.has_own_rows(sharded))
    return source


def evaluation_feed(
    trainer: TrainedNetwork,
    data: UserData,
    batch_size: int | None,
    trial: Trial = ALL_BATCHES,
    sharded: bool | None = None,
) -> Feed:
    """Return the feed of an evaluation."""
    source = inference_source(trainer, data, batch_size, sharded)
    filling = None if trainer.group.size > 1 else trainer.builder.padded.evaluation
    if filling is not None and isinstance(source, ArraySource) and source.size > 1:
        filling.leave_unpadded(source.batch_size)
    own = trainer.own_eval_network
    source.warn_of_non_finite(_labels_that_may_be_missing(trainer, source))
    options = FeedOptions(
        check=_check_with_labels(trainer) if own is None else column_checks.ColumnCheck(own, 0),
        rows_column=-trainer.label_count if own is None else 0,
        weighed=trainer.label_count if own is None and trainer.builder.padded.weighed else 0,
        padded_size=None if filling is None else filling.size_for_evaluation,
        row_weights=filling is not None,
        has_weights=trainer.builder.padded.weighed,
        batches_per_epoch=trial.valid_batches(source),
    )
    return _inference_feed(trainer, source, trainer.network if own is None else own, options, labels_needed=True)


def prediction_feed(
    trainer: TrainedNetwork, source: Source, padded_size: Callable[[int], int | None] | None = None
) -> Feed:
    """Return the feed of a prediction, which has only the input columns."""
    check = column_checks.ColumnCheck(trainer.network, 0, extra=True, assumed=trainer.builder.list_types.assumed)
    source.warn_of_non_finite()
    options = FeedOptions(check=check, padded_size=padded_size)
    return _inference_feed(trainer, source, trainer.network, options, labels_needed=False)


def _inference_feed(
    trainer: TrainedNetwork, source: Source, network: nn.Cell, options: FeedOptions, *, labels_needed: bool
) -> Feed:
    labels = trainer.label_count if trainer.own_eval_network is None else 0
    _, most, arguments = arguments_of(trainer.features, network)
    options = dataclasses.replace(
        options,
        columns=None if labels_needed else most,
        arguments=arguments,
        list_types=trainer.builder.list_types,
        order=column_order(trainer, source, network, labels, labels_needed=labels_needed),
        transform=lambda: None if trainer.tables is None else trainer.tables.reader,
    )
    return Feed(source, options)


def first_chunk(feed: Feed) -> Chunk | None:
    """Return the first chunk of `feed`, or None if it has no data."""
    with contextlib.closing(feed.chunks(Position())) as chunks:
        return next(chunks, None)


def column_order(
    trainer: TrainedNetwork, source: Source, network: nn.Cell, labels: int, *, labels_needed: bool = True
) -> ColumnOrder | None:
    """Return how columns are ordered by name; None if they keep their order."""
    least, most, arguments = arguments_of(trainer.features, network)
    # MindSpore passes the columns of a pipeline by position.
    by_name = bool(batch_keys(network)) or not isinstance(source, PipelineSource)
    inputs = arguments[:least] if by_name else ()
    names = trainer.builder.loss_columns.names if labels and by_name else ()
    groups = dict.fromkeys(filter(None, map(group_of, trainer.metrics.values())))
    if trainer.features is not None and trainer.features.group is not None:
        groups[trainer.features.group] = None
    takes = math.inf if most is None else most + labels
    groups.pop(trainer.builder.loss_columns.weight or "", None)
    return ColumnOrder(takes, names, tuple(groups), inputs, requires_labels=labels_needed) or None


def find_tables(trainer: TrainedNetwork, source: Source, options: FeedOptions) -> None:
    """Find the id columns of the sparse tables in the first batch, once per trainer."""
    if trainer.tables is not None or not embedding_cells(trainer.network):
        return
    from ..data.table_feed import TableFeed

    ragged = RaggedColumns(options.arguments)
    with contextlib.nullcontext() if source.agrees else DATA_WAIT:
        sample, names = peek(source, options, lambda: trainer.state.stop_reason is not None, ragged)
    takes = arguments_of(trainer.features, trainer.network)[1] or len(sample) - trainer.label_count
    tables = TableFeed.find(
        trainer.network, sample[:takes], names[:takes], trainer.optimizer, trainer.accumulate, trainer.group
    )
    if tables is not None:
        trainer.use_tables(tables)
        _warn_of_padding(tables, ragged.inputs)


def _warn_of_padding(tables: TableFeed, lists: Mapping[str, RaggedInput]) -> None:
    """Warn of lists whose padding a table would read as an id."""
    for name, (suffixes, padding, *_) in lists.items():
        if {"_mask", "_lengths"} & set(suffixes):
            continue
        for table, own in tables.tables.planner.paddings_of(name):
            if own is not None and own != padding:
                logger.warning(
                    "lists of column %r are padded with %r, which table %r, whose padding is %d, reads as an id: give "
                    "Ragged.of(lists, padding=...) and the table the same, or let the network take %s_mask",
                    *(name, padding, table, own, name),
                )
