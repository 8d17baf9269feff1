"""Declared features in the verbs: what has been learned is restored, raw rows become the network's inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from mindspore import nn

from ..checkpoint.saver import Saver
from ..data import column_checks
from ..data.finite.shards import EveryNth
from ..data.source import ReadMode
from ..errors import ConfigurationError
from ..features.feature_data import (
    BatchTransform,
    KeptColumns,
    has_parts,
    inputs_of,
    is_named,
    is_raw,
    learns_from_next,
)
from ..features.features import Features
from ..features.raw_files import RawFiles
from ..streams import Stream
from ..streams.batch import Batch
from .owner import Owner
from .raw_row_source import RawRowBlocks, RawRowsInOrder

DEFAULT_BATCH_SIZE = 1024


def restore(
    features: Features | None, resume: str | Path | None, saver: Saver, folders: Callable[[], Iterable[Path]]
) -> None:
    """Restore what the features had learned in the run that goes on, before they read its first rows."""
    if features is None or resume is None:
        return
    state = saver.part_to_resume(resume, "features", folders())
    if state is not None:
        features.load_state_dict(state)


def prepare(
    trainer: Owner,
    data: Any,
    batch_size: int | None = None,
    *,
    labelled: bool = True,
    kept: KeptColumns | None = None,
) -> Any:
    """Return the network's inputs, to evaluate or predict, where features are declared and `data` are raw rows."""
    features = trainer.features
    if features is None:
        return data
    if is_named(features, data):
        return {name: prepare(trainer, part, batch_size, labelled=labelled) for name, part in data.items()}
    files = _large_files(data)
    if files is None:
        return inputs_of(features, data, labelled=labelled, kept=kept)
    labelled = labelled or has_parts(files)
    source = RawRowsInOrder(features, files, batch_size or DEFAULT_BATCH_SIZE, labelled=labelled, kept=kept)
    return source if trainer.group.size == 1 else EveryNth(source, trainer.group)


def prepare_training(trainer: Owner, data: Any, batch_size: int | None, shuffle: bool, sharded: bool | None) -> Any:
    """Return the network's inputs, or a source of them, where features are declared and `data` are raw rows.

    Features that have learned nothing yet learn from the rows.
    """
    features = trainer.features
    files = None if features is None else _large_files(data)
    if features is None or files is None:
        return data if features is None else inputs_of(features, data, fit=True)
    source = RawRowBlocks(
        features,
        files,
        batch_size or DEFAULT_BATCH_SIZE,
        learn=learns_from_next(features),
        shuffle=shuffle,
        seed=trainer.seed,
        read_mode=ReadMode.SEPARATE if sharded else ReadMode.COMMON,
    )
    return source if trainer.group.size == 1 or sharded else EveryNth(source, trainer.group)


def kept_columns(trainer: Owner, data: tuple[Any, ...]) -> KeptColumns:
    """Return what takes the columns that are kept for output while rows are predicted.

    Raises:
        ConfigurationError: `data` are no raw rows, or no columns are kept.
    """
    if trainer.features is None or len(data) != 1 or not is_raw(data[0]):
        raise ConfigurationError("predict(keep=True) goes with Trainer(features=...) and one argument of raw rows")
    trainer.features.check_keep()
    return KeptColumns()


def _large_files(data: Any) -> RawFiles | None:
    """Return `data` where they are files that are not held in memory."""
    files = RawFiles(data) if isinstance(data, str | Path) else data
    return files if isinstance(files, RawFiles) and not files.in_memory else None


def check_shared(features: Features | None, processes: int) -> None:
    """Check that processes with rows of their own transform them alike.

    Raises:
        ConfigurationError: the features would learn from the rows of each process alone.
    """
    if processes > 1 and features is not None and not features.is_fitted:
        raise ConfigurationError(
            f"sharded=True: {', '.join(features.statistics)} learn from the rows of all processes; call "
            "features.fit(data) with all rows on each of them first"
        )


def batch_size_for(features: Features | None, data: Any, batch_size: int | None) -> int | None:
    """Return the rows of a batch; raw rows have a default."""
    raw = features is not None and batch_size is None and is_raw(data)
    return DEFAULT_BATCH_SIZE if raw else batch_size


def stream_transform(features: Features | None, stream: Stream) -> Callable[[Batch], Batch] | None:
    """Return what turns the stream's raw rows into the network's inputs; None without features.

    Raises:
        ConfigurationError: the features learn from data and have not yet.
    """
    if features is None:
        return None
    if not features.is_fitted:
        raise ConfigurationError(
            f"features: {', '.join(features.statistics)} learn from data first: call features.fit(data) with a table "
            "or file of earlier rows, or load a snapshot of a trainer that has learned"
        )
    stream.declare(features.schema)
    return BatchTransform(features, stream)


def arguments_of(features: Features | None, network: nn.Cell) -> tuple[int, int | None, list[str]]:
    """Return `column_checks.arguments_of`; a network on features that takes any columns takes theirs."""
    least, most, names = column_checks.arguments_of(network)
    if features is None or most is not None:
        return least, most, names
    names = list(features.inputs)
    return len(names), len(names), names
