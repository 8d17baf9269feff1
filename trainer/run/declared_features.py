"""Declared features in the verbs: raw rows become the network's inputs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import nn

from callbacks import Callback

from ..data import column_checks
from ..data.as_columns import Columns, as_columns
from ..data.finite.block_source import BlockSource, rebatched
from ..data.finite.interactions import DrawnNegatives
from ..data.finite.shards import EveryNth
from ..data.finite.sources import ArraySource
from ..data.source import Item, Source
from ..distributed.group import Group
from ..distributed.packing import gather_states
from ..errors import ConfigurationError
from ..features.feature_data import (
    KeptColumns,
    batches_of,
    inputs_of,
    is_named,
    is_raw,
    learns_from_next,
)
from ..features.features import Features
from ..features.learned import Learned
from ..features.raw_files import PART_ROWS, RawBlocks, RawFiles
from ..features.stream_rows import BatchTransform, WindowDrift
from ..graph.denominators import name_of
from ..graph.roles import labels_of
from ..storage.fetch import fetched_snapshot
from ..streams import Sharing, Stream
from .call import make_callbacks, published_folders, snapshot_folders

if TYPE_CHECKING:
    from .trainer_base import TrainerBase

logger = logging.getLogger(__name__)

DEFAULT_BATCH_SIZE = 1024


def restore(trainer: TrainerBase, resume: str | Path | None, callbacks: Any) -> str | Path | None:
    """Restore the features' statistics from the run to resume; return its path.

    The path is that of a local copy if `resume` is the URL of a mirror.
    """
    if resume is None:
        return None
    called = make_callbacks(callbacks)[0]
    run_dir = trainer.run_dir
    resume = fetched_snapshot(resume, trainer.group, run_dir, lambda: published_folders(run_dir, called))
    if trainer.features is not None and resume is not None:
        state = trainer.saver.part_to_resume(resume, "features", snapshot_folders(run_dir, called))
        if state is not None:
            trainer.features.load_state_dict(state)
    return resume


def prepare(
    features: Features | None,
    group: Group,
    data: Any,
    batch_size: int | None = None,
    *,
    labelled: bool = True,
    kept: KeptColumns | None = None,
    set_aside: bool = False,
    sharded: bool | None = None,
    loss_fn: Any = None,
) -> Any:
    """Return the network's inputs for raw rows to evaluate or predict.

    Other data are returned unchanged. `loss_fn` is given what comes out.
    """
    if features is None:
        return data
    if is_raw(data):
        check_labels(features, loss_fn)
    if is_named(features, data):
        options: dict[str, Any] = {"labelled": labelled, "set_aside": set_aside, "sharded": sharded, "loss_fn": loss_fn}
        return {name: prepare(features, group, part, batch_size, **options) for name, part in data.items()}
    files = _large_files(data)
    if files is None:
        return inputs_of(features, data, labelled=labelled, kept=kept, set_aside=set_aside)
    source = RawRowsInOrder(features, files, batch_size or DEFAULT_BATCH_SIZE, labelled, kept, set_aside)
    return source if group.size == 1 or sharded else EveryNth(source, group)


def prepare_training(
    trainer: TrainerBase, data: Any, batch_size: int | None, shuffle: bool, sharded: bool | None
) -> Any:
    """Return the network's inputs for raw rows to train on, or a source of them.

    Other data are returned unchanged. Features that have not learned yet learn from the rows, of all processes if each
    has its own.
    """
    features, group = trainer.features, trainer.group
    if features is None:
        return data
    if is_raw(data):
        check_labels(features, trainer.loss_fn)
    if sharded and group.size > 1 and is_raw(data):
        _learn_together(features, data, group)
    files = _large_files(data)
    source: Source
    if isinstance(data, DrawnNegatives):
        source = DrawnRows(features, data, batch_size, shuffle, trainer.order_seed)
    elif files is None:
        return inputs_of(features, data, fit=True)
    else:
        source = RawRowBlocks(features, files, batch_size or DEFAULT_BATCH_SIZE, shuffle, trainer.order_seed)
    return source if group.size == 1 or sharded else EveryNth(source, group)


def check_labels(features: Features, loss_fn: Any) -> None:
    """Refuse raw rows without a declared label where the loss takes one.

    Raises:
        ConfigurationError: as said.
    """
    takes = 0 if loss_fn is None else labels_of(loss_fn)
    if takes and not features.labels:
        raise ConfigurationError(
            f"Features: no column is declared as label, and {name_of(loss_fn)} takes {takes} after the prediction; add "
            f"label={'the name of a column' if takes == 1 else 'the names of columns'} of the rows"
        )


def kept_columns(features: Features | None, data: tuple[Any, ...]) -> KeptColumns:
    """Return the collector of the columns of raw rows that are kept for output."""
    if features is None or len(data) != 1 or not is_raw(data[0]):
        raise ConfigurationError("predict(keep=True) goes with Trainer(features=...) and one argument of raw rows")
    features.check_keep()
    return KeptColumns()


def _large_files(data: Any) -> RawFiles | None:
    """Return `data` as files if they are too large for memory, else None."""
    files = RawFiles(data) if isinstance(data, str | Path) else data
    return files if isinstance(files, RawFiles) and not files.in_memory else None


def _learn_together(features: Features, data: Any, group: Group) -> None:
    """Learn the same statistics on all processes, from the rows of all."""
    if group.any(learns_from_next(features)):
        merged = features.learned.copy()  # ids that have a row of a table keep it
        features.learned = Learned(features.features, features.columns)
        features.fit(data)
        for state in gather_states(group, features.learned.state_dict()):
            part = Learned(features.features, features.columns)
            part.load_state_dict(state)
            merged.merge(part)
        features.learned = merged
    group.check_same("what the features have learned", features.learned.state_dict()["arrays"])


def stream_transform(
    features: Features | None, stream: Stream, processes: int, loss_fn: Any = None
) -> BatchTransform | None:
    """Return the transform of the stream's raw rows; None without features."""
    if features is None:
        return None
    check_labels(features, loss_fn)
    if features.learns_online:
        if processes > 1 and stream.sharing is Sharing.PARTITIONED:
            raise ConfigurationError(
                f"Features(update_every={features.update_every}): each process reads other partitions of this stream, "
                "so their statistics would differ; leave update_every out, or train with one process"
            )
        features.is_fitted = True  # with nothing learned yet, every id is unseen and numbers stay as they are
    if not features.is_fitted:
        raise ConfigurationError(
            f"features: {', '.join(features.statistics)} learn from data first: call features.fit(data) with a table "
            "or file of earlier rows, load a snapshot of a trainer that has learned, or let them learn from the "
            "stream, with Features(..., update_every=10_000)"
        )
    # Finite tables may hold times to come; mypy takes the default of `Schema.max_future` for its type.
    stream.declare(replace(features.schema, max_future=stream.max_future))
    return BatchTransform(features, stream)


def window_drift(transform: BatchTransform | None, callbacks: Iterable[Callback]) -> WindowDrift | None:
    """Return the `WindowDrift` of the features that callbacks monitor, or None."""
    names = dict.fromkeys(name for callback in callbacks for name in callback.drift_features)
    if not names:
        return None
    if transform is None:
        raise ConfigurationError(
            f"DriftMonitor(feature={next(iter(names))!r}) goes with declared features: Trainer(features=...)"
        )
    transform.drift = WindowDrift(transform.features, names)
    return transform.drift


def arguments_of(features: Features | None, network: nn.Cell) -> tuple[int, int | None, list[str]]:
    """Return `column_checks.arguments_of`; variable arguments take the features."""
    least, most, names = column_checks.arguments_of(network)
    if features is None or most is not None:
        return least, most, names
    names = list(features.inputs)
    return len(names), len(names), names


class DrawnRows(ArraySource):
    """Interactions as network inputs, with the negatives of each epoch."""

    def __init__(
        self, features: Features, data: DrawnNegatives, batch_size: int | None, shuffle: bool, seed: int
    ) -> None:
        super().__init__(inputs_of(features, data, fit=True), batch_size, shuffle=shuffle, seed=seed)
        self._features, self._data, self._drawn = features, data, 0

    def batches(self, epoch: int, start: int, state: Any = None) -> Iterator[Item]:
        """Yield the batches of an epoch, see `ArraySource`."""
        if epoch != self._drawn:
            self._columns = as_columns(inputs_of(self._features, self._data.of_epoch(epoch)), self.names)[0]
            self._drawn = epoch
        yield from super().batches(epoch, start, state)


class RawRowBlocks(BlockSource):
    """The rows of files in shuffled blocks, transformed when they are read."""

    def __init__(self, features: Features, data: RawFiles, batch_size: int, shuffle: bool, seed: int) -> None:
        size, learn = data.shuffled_rows, learns_from_next(features)
        self._blocks = RawBlocks(features, data, learn=learn, block_rows=min(PART_ROWS, size))
        self.set_aside, self.names = self._blocks.report, self._blocks.names
        if self.set_aside is not None:
            logger.warning("features: %s", self.set_aside)
        super().__init__(self._blocks.rows, batch_size, shuffle=shuffle, seed=seed, shuffled_rows=size, ahead=True)
        self.takes_seed = True

    def read(self, numbers: Sequence[int]) -> Columns:
        """Return the columns of all rows of some blocks."""
        parts = self._blocks.read(numbers)
        return tuple([np.concatenate([part[name] for part in parts]) for name in self.names or ()])


@dataclass(eq=False)
class RawRowsInOrder(Source):
    """The rows of files in their order, read once per pass."""

    features: Features
    data: RawFiles
    batch_size: int
    labelled: bool  # whether rows must have labels
    kept: KeptColumns | None  # collects the columns kept for output
    leave_out: bool  # whether any number of bad rows is set aside, of rows without labels too

    def batches(self, epoch: int, start: int, state: Any = None) -> Iterator[Item]:
        """Yield the batches."""
        yield from rebatched(self._columns(self.kept), self.batch_size)

    def peek(self, should_stop: Any = lambda: False) -> Columns | None:
        """Return the columns of one batch, which `batches` delivers and judges later."""
        for item in rebatched(self._columns(None, peeks=True), self.batch_size):
            return item.columns
        return None

    def _columns(self, kept: KeptColumns | None, *, peeks: bool = False) -> Iterator[Columns]:
        options: dict[str, Any] = {"set_aside": self.leave_out or peeks, "log": not peeks}
        for inputs in batches_of(self.features, self.data, labelled=self.labelled, kept=kept, **options)[1]:
            self.names = tuple(inputs)
            yield tuple(inputs.values())
