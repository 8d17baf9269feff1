"""What several processes cannot do together, refused before the first compilation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ConfigurationError

if TYPE_CHECKING:
    from ..data.sources import Source
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
    if trainer.tasks is not None:
        raise ConfigurationError(
            "fit: the losses of several tasks are means over the rows that have a label, which are not yet added up "
            "over processes; start one process"
        )
    if trainer.tables is not None and source.separate:
        raise ConfigurationError(
            "fit: sparse tables do not go with data that the user has divided (sharded=True or num_shards): all "
            "processes have to know the ids of a step; give all of them the whole dataset"
        )
    if source.endless:
        raise ConfigurationError("online_train: streams are not yet divided among processes; start one process")
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
