"""Declared features in the verbs: what has been learned is restored, raw rows become the network's inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from mindspore import nn

from ..checkpoint.saver import Saver
from ..data import column_checks
from ..errors import ConfigurationError
from ..features.feature_data import BatchTransform, inputs_of, is_raw
from ..features.features import Features
from ..streams import Stream
from ..streams.batch import Batch

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


def prepare(features: Features | None, data: Any, *, fit: bool = False, labelled: bool = True) -> Any:
    """Return the network's inputs where features are declared and `data` are raw rows, else `data`."""
    return data if features is None else inputs_of(features, data, fit=fit, labelled=labelled)


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
