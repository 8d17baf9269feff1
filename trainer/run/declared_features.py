"""Turns raw rows into the network's inputs with the features of the Trainer."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindspore import nn

from callbacks import Callback

from ..data import column_checks
from ..errors import ConfigurationError
from ..features.features import Features
from ..features.stream_rows import BatchTransform, WindowDrift
from ..graph.denominators import name_of
from ..graph.roles import labels_of
from ..storage.fetch import local_snapshot
from ..streams import Sharing, Stream
from .call import make_callbacks, published_folders, snapshot_folders

if TYPE_CHECKING:
    from .trainer_base import TrainerBase

logger = logging.getLogger(__name__)

DEFAULT_BATCH_SIZE = 1024


def restore(trainer: TrainerBase, resume: str | Path | None, callbacks: Any) -> str | Path | None:
    """Restore the features' statistics from the run to resume; return its path.

    If `resume` is the URL of a mirror, the returned path is that of a local copy.
    """
    if resume is None:
        return None
    called = make_callbacks(callbacks)[0]
    run_dir = trainer.run_dir
    resume = local_snapshot(resume, trainer.group, run_dir, lambda: published_folders(run_dir, called))
    if trainer.features is not None and resume is not None:
        state = trainer.saver.part_to_resume(resume, "features", snapshot_folders(run_dir, called))
        if state is not None:
            trainer.features.load_state_dict(state)
    return resume


def check_labels(features: Features | None, loss_fn: Any) -> None:
    """Check that the features declare a label if the loss needs one.

    Raises:
        ConfigurationError: the loss needs a label, and none is declared.
    """
    takes = 0 if loss_fn is None else labels_of(loss_fn)
    if takes and features is not None and not features.labels:
        raise ConfigurationError(
            f"Features: no column is declared as label, and {name_of(loss_fn)} takes {takes} after the prediction; add "
            f"label={'the name of a column' if takes == 1 else 'the names of columns'} of the rows"
        )


def stream_transform(
    features: Features | None, stream: Stream, processes: int, loss_fn: Any = None
) -> BatchTransform | None:
    """Return the transform for the stream's raw rows; None without features."""
    if features is None:
        return None
    check_labels(features, loss_fn)
    if features.learns_online:
        if processes > 1 and stream.sharing is Sharing.PARTITIONED:
            raise ConfigurationError(
                f"Features(update_every={features.update_every}): each process reads other partitions of this stream, "
                "so their statistics would differ; leave update_every out, or train with one process"
            )
        features.is_fitted = True  # ids are treated as unseen, and numbers are not scaled, until statistics exist
    if not features.is_fitted:
        raise ConfigurationError(
            f"features: {', '.join(features.statistics)} learn from data first: call features.fit(data) with a table "
            "or file of earlier rows, load a snapshot of a trainer that has learned, or let them learn from the "
            "stream, with Features(..., update_every=10_000)"
        )
    # The stream's own `max_future` applies, because the schema of features also serves tables with future times.
    stream.declare(replace(features.schema, max_future=stream.max_future))
    return BatchTransform(features, stream, processes if stream.sharing is not Sharing.PARTITIONED else 1)


def window_drift(transform: BatchTransform | None, callbacks: Iterable[Callback]) -> WindowDrift | None:
    """Return the `WindowDrift` of the features that callbacks monitor, or None."""
    names = dict.fromkeys(name for callback in callbacks for name in callback.drift_features)
    if not names:
        return None
    if transform is None:
        raise ConfigurationError(
            f"DriftMonitor(feature={next(iter(names))!r}) needs declared features: Trainer(features=...)"
        )
    transform.drift = WindowDrift(transform.features, names)
    return transform.drift


def arguments_of(features: Features | None, network: nn.Cell) -> tuple[int, int | None, list[str]]:
    """Return a network's arguments; the features' inputs if it accepts any number.

    The result has the form of `column_checks.arguments_of`.
    """
    least, most, names = column_checks.arguments_of(network)
    if features is None or most is not None:
        return least, most, names
    names = list(features.inputs)
    return len(names), len(names), names
