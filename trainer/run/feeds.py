"""Feeds of the verbs: chunks to train on, and batches to evaluate or predict."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from callbacks import Callback

from ..data import column_checks
from ..data.as_columns import ColumnOrder, describe_non_finite
from ..data.chunk import FeedOptions
from ..data.feed import Feed
from ..data.finite.shards import make_shard
from ..data.finite.sources import ArraySource, PipelineSource
from ..data.source import Item, Source
from ..data.waiting import DATA_WAIT
from ..embedding.layers.embedding_cells import check_trainable, embedding_cells
from ..graph.boost import MAX_FROZEN_STEPS
from ..graph.labels import takes_class_numbers
from ..graph.multi_task import MultiTaskLoss
from ..graph.program import StepOptions
from ..metrics.registry import group_of
from ..mindspore_internals.dict_networks import batch_keys
from .declared_features import arguments_of
from .job_checks import check_training
from .owner import Model

if TYPE_CHECKING:
    from mindspore import nn


logger = logging.getLogger(__name__)

MAX_SUNK_STEPS = 32
MAX_SUNK_BYTES = 32 << 20


def steps_per_epoch(source: Source, accumulate: int) -> int | None:
    """Return the optimizer steps of one epoch, or None when the data does not know its size."""
    return None if source.size is None else -(-source.size // accumulate)


def run_options(
    trainer: Model, callbacks: Iterable[Callback], *, keep_predictions: bool = False, output: int = 0
) -> StepOptions:
    """Return what each step of a run does: what the trainer was given, and what callbacks want of it."""
    policies = {callback.non_finite for callback in callbacks} - {None}
    return dataclasses.replace(
        trainer.step_options,
        guard=bool(policies),
        halt="terminate" in policies,
        keep_predictions=keep_predictions,
        output=output,
    )


def training_feed(trainer: Model, source: Source, options: StepOptions, steps_per_call: int | None) -> Feed:
    """Return the feed of a training.

    Args:
        trainer: whose network the columns are checked against.
        source: the data.
        options: with a guard, batches that are not finite are named in the log.
        steps_per_call: optimizer steps per call of the program; None chooses by the size of the first batch.

    Raises:
        ConfigurationError: the network's sparse tables cannot be trained.
    """
    check_trainable(trainer.network, trainer.optimizer)

    def batches_per_call(item: Item) -> int:
        steps = 1 if source.read_mode.separate or not trainer.compiled else steps_per_call
        if steps is None:
            most = MAX_SUNK_STEPS if trainer.boost.freezing is None else MAX_FROZEN_STEPS
            size = max(1, sum(column.nbytes for column in item.columns) * trainer.accumulate)
            steps = max(1, min(most, MAX_SUNK_BYTES // size, steps_per_epoch(source, trainer.accumulate) or most))
        trainer.sink_mode = f"graph loop of {steps} steps" if steps > 1 else "off: one step per call"
        logger.info("sink mode: %s", trainer.sink_mode)
        return steps * trainer.accumulate

    check = _check_with_labels(trainer)
    feed_options = FeedOptions(
        batches_per_call,
        trainer.accumulate,
        check=check,
        arguments=arguments_of(trainer.features, trainer.network)[2],
        list_types=None if source.endless else trainer.builder.list_types,
        order=None if source.endless else column_order(trainer, source, trainer.network, trainer.label_count),
        counted=-trainer.label_count,
        alike=True,
    )
    if options.guard:
        feed_options.inspect = describe_non_finite
    feed = Feed(source, feed_options)
    try:
        find_tables(trainer, feed)
        check_training(
            trainer.group.size,
            trainer.network,
            trainer.optimizer,
            accumulate=trainer.accumulate,
            has_tables=trainer.tables is not None,
            separate=source.read_mode.separate,
        )
    except Exception:
        feed.close()
        raise
    if source.any_size and trainer.group.size == 1 and trainer.compiled and trainer.boost.freezing is None:
        feed.options.filling = trainer.builder.filled.training
        feed.options.filling.restart()
    if trainer.tables is not None:
        feed.options.transform = trainer.tables
        if trainer.group.size > 1:
            from ..data.table_feed import UnionTables

            feed.options.transform = UnionTables(trainer.tables, trainer.group)
    return feed


def _check_with_labels(trainer: Model) -> column_checks.ColumnCheck:
    loss = trainer.loss_fn
    losses = loss.losses if isinstance(loss, MultiTaskLoss) else (loss,)
    class_losses = [takes_class_numbers(loss) for loss in losses]
    return column_checks.ColumnCheck(
        trainer.network, trainer.label_count, class_losses=class_losses, assumed=trainer.builder.list_types.assumed
    )


def inference_feed(trainer: Model, dataset: Any, batch_size: int | None, *, predict: bool = False) -> Feed:
    """Return the feed of an evaluation, or of a prediction, which takes the input columns alone."""
    source = make_shard(
        dataset, trainer.group, whole_batches=True, batch_size=batch_size, seed=trainer.seed, fitting=True
    )
    if predict:
        check = column_checks.ColumnCheck(trainer.network, 0, extra=True, assumed=trainer.builder.list_types.assumed)
    elif trainer.eval_network is not None:
        check = column_checks.ColumnCheck(trainer.eval_network, 0)
    else:
        check = _check_with_labels(trainer)
    network = trainer.network if predict or trainer.eval_network is None else trainer.eval_network
    _, most, arguments = arguments_of(trainer.features, network)
    counted = 0 if predict or trainer.eval_network is not None else -trainer.label_count
    options = FeedOptions(
        columns=most if predict else None,
        check=check,
        arguments=arguments,
        list_types=trainer.builder.list_types,
        order=column_order(
            trainer,
            source,
            network,
            trainer.label_count if trainer.eval_network is None else 0,
            labels_needed=not predict,
        ),
        counted=counted,
    )
    filling = None if predict or trainer.group.size > 1 else trainer.builder.filled.evaluation
    if filling is not None:
        if isinstance(source, ArraySource) and source.size > 1:
            filling.keep(source.batch_size)
        options.fill_up_to, options.row_weights = filling.next, True
    return Feed(source, options)


def column_order(
    trainer: Model, source: Source, network: nn.Cell, labels: int, *, labels_needed: bool = True
) -> ColumnOrder | None:
    """Return what puts the columns of a batch in the order of network and loss, or None where nothing has names."""
    least, most, arguments = arguments_of(trainer.features, network)
    by_name = bool(batch_keys(network)) or not isinstance(source, PipelineSource)  # which MindSpore takes by position
    inputs = arguments[:least] if by_name else ()
    names = () if trainer.tasks is None or not labels else trainer.tasks.label_names
    groups = dict.fromkeys(filter(None, map(group_of, trainer.metrics.values())))
    if trainer.features is not None and trainer.features.group is not None:
        groups[trainer.features.group] = None
    order = ColumnOrder(
        None if most is None else most + labels, names, tuple(groups), inputs, labels_needed=labels_needed
    )
    return order or None


def read_tables(trainer: Model, feed: Feed) -> None:
    """Let `feed` translate the ids of sparse tables for programs that only read them."""
    find_tables(trainer, feed)
    if trainer.tables is not None:
        feed.options.transform = trainer.tables.reading


def find_tables(trainer: Model, feed: Feed) -> None:
    """Determine once, from the first batch, which columns hold the ids of the sparse tables."""
    if trainer.tables is not None or not embedding_cells(trainer.network):
        return
    from ..data.table_feed import TableFeed

    with contextlib.nullcontext() if feed.source.read_mode.agrees_while_reading else DATA_WAIT:
        sample, names = feed.peek(lambda: trainer.state.stop_reason is not None)
    takes = arguments_of(trainer.features, trainer.network)[1] or len(sample) - trainer.label_count
    tables = TableFeed.find(
        trainer.network, sample[:takes], names[:takes], trainer.optimizer, trainer.accumulate, trainer.group
    )
    if tables is not None:
        trainer.use_tables(tables)
