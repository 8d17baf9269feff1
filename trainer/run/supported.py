"""What several processes cannot do together, refused before the first compilation."""

from __future__ import annotations

from collections.abc import Sequence

from mindspore import get_auto_parallel_context, nn

from ..errors import ConfigurationError
from ..streams import Stream

_MODES = ("stand_alone", "data_parallel")


def check_training(
    processes: int, network: nn.Cell, optimizer: nn.Cell | None, *, accumulate: int, has_tables: bool, separate: bool
) -> None:
    """Check that several processes can train a network together.

    Args:
        processes: how many there are.
        network, optimizer: what is trained.
        accumulate: batches per optimizer update.
        has_tables: whether the network has sparse tables.
        separate: whether each process has data of its own.

    Raises:
        ConfigurationError: they would train networks of their own, or wait for each other for ever.
    """
    if processes == 1:
        return
    if optimizer is None:
        raise ConfigurationError(
            f"fit: {type(network).__name__} is a whole training step, whose gradients cannot be added up over "
            f"{processes} processes; give network, loss_fn and optimizer instead"
        )
    if has_tables and separate:
        raise ConfigurationError(
            "fit: sparse tables do not go with data that the user has divided (sharded=True or num_shards): all "
            "processes have to know the ids of a step; give all of them the whole dataset"
        )
    if separate and accumulate > 1:
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
    mode = get_auto_parallel_context("parallel_mode")
    if mode not in _MODES:
        raise ConfigurationError(
            f"parallel_mode={mode!r} is set: MindSpore would divide the network by itself; the trainer trains whole "
            "copies and adds their gradients up; leave the parallel context alone or set 'data_parallel'"
        )
    if get_auto_parallel_context("enable_parallel_optimizer"):
        raise ConfigurationError(
            "enable_parallel_optimizer=True is set: the optimizer's state would be divided among the processes, and a "
            "snapshot would hold a part of it; leave it off"
        )


def check_stream(processes: int, stream: Stream, unmergeable: Sequence[str]) -> None:
    """Check that several processes can share a stream and merge their metric windows.

    Raises:
        ConfigurationError: the stream cannot be divided, or the metrics named in `unmergeable` cannot be merged.
    """
    if not stream.sharing.possible:
        raise ConfigurationError(
            f"online_train: {type(stream).__name__} cannot be divided among {processes} processes: it has no "
            "partitions, and it is not known to give every process the same rows; give a stream with partitions "
            "(KafkaStream, RedisStream, FileStream), or a function that returns the same rows on every process, of "
            "which each takes its share; a stream of your own declares its `sharing`"
        )
    if unmergeable:
        raise ConfigurationError(
            f"online_train: the windows of {processes} processes cannot be put together for the metrics "
            f"{', '.join(unmergeable)}, which have no merge; take metrics of the trainer (such as auc, log_loss, "
            "accuracy, mae, rmse), or a WindowMetric of your own"
        )
