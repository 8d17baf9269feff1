"""What several processes cannot do together, refused before the first compilation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ConfigurationError

if TYPE_CHECKING:
    from ..data.sources import Source
    from ..run.scoring import Scoring
    from ..streams import Stream
    from ..trainer import Trainer

_MODES = ("stand_alone", "data_parallel")


def check_training(trainer: Trainer, source: Source) -> None:
    """Check that the processes can train this together.

    Raises:
        ConfigurationError: they would train networks of their own, or wait for each other for ever.
    """
    if trainer.group.size == 1:
        return
    if trainer.optimizer is None:
        raise ConfigurationError(
            f"fit: {type(trainer.network).__name__} is a whole training step, whose gradients cannot be added up over "
            f"{trainer.group.size} processes; give network, loss_fn and optimizer instead"
        )
    if trainer.tables is not None and source.separate:
        raise ConfigurationError(
            "fit: sparse tables do not go with data that the user has divided (sharded=True or num_shards): all "
            "processes have to know the ids of a step; give all of them the whole dataset"
        )
    if source.separate and trainer.accumulate > 1:
        raise ConfigurationError(
            "fit: gradient_accumulation_steps does not go with data that the user has divided (sharded=True or "
            "num_shards): processes may have different numbers of batches; give all of them the whole dataset"
        )
    check_parallel_mode()


def check_parallel_mode() -> None:
    """Check that the user's own parallel context leaves the network whole.

    Raises:
        ConfigurationError: MindSpore would divide the network, or the optimizer's state, among the processes.
    """
    import mindspore

    mode = mindspore.get_auto_parallel_context("parallel_mode")
    if mode not in _MODES:
        raise ConfigurationError(
            f"parallel_mode={mode!r} is set: MindSpore would divide the network by itself; the trainer trains whole "
            "copies and adds their gradients up; leave the parallel context alone or set 'data_parallel'"
        )
    if mindspore.get_auto_parallel_context("enable_parallel_optimizer"):
        raise ConfigurationError(
            "enable_parallel_optimizer=True is set: the optimizer's state would be divided among the processes, and a "
            "snapshot would hold a part of it; leave it off"
        )


def check_stream(trainer: Trainer, stream: Stream, scoring: Scoring | None) -> None:
    """Check that the processes can share a stream and put their windows together.

    Raises:
        ConfigurationError: nobody could tell whose rows are whose, or a metric cannot be merged.
    """
    if not (stream.partitioned or stream.repeatable):
        raise ConfigurationError(
            f"online_train: {type(stream).__name__} cannot be divided among {trainer.group.size} processes: it has no "
            "partitions, and it is not known to give every process the same rows; give a stream with partitions "
            "(KafkaStream, RedisStream, FileStream), or a function that returns the same rows on every process, of "
            "which each takes its share"
        )
    alone = [] if scoring is None else scoring.unmergeable
    if alone:
        raise ConfigurationError(
            f"online_train: the windows of {trainer.group.size} processes cannot be put together for the metrics "
            f"{', '.join(alone)}, which have no merge; take metrics of the trainer (such as auc, log_loss, accuracy, "
            "mae, rmse), or a WindowMetric of your own"
        )
