"""Checks for training with several processes."""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import mindspore
from mindspore import nn

from ..data.source import Source
from ..distributed.group import Group
from ..distributed.step_reducer import reducers_of
from ..errors import ConfigurationError
from ..mindspore_internals.cell_structure import cells_and_names
from ..streams import Sharing, Stream

if TYPE_CHECKING:
    from .trained_network import TrainedNetwork

logger = logging.getLogger(__name__)

# Excludes `nn.SyncBatchNorm`, which uses the statistics of all processes (on Ascend only).
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_CELL_ATTRIBUTES = frozenset(vars(nn.Cell()))


def check_settings(trainer: TrainedNetwork, source: Source, limits: Mapping[str, Any]) -> None:
    """Check that all processes have the same network, settings and data.

    This is a collective call, and all processes raise the same error. Three inputs may differ: initial weights (rank
    0's are used), data that the user has sharded, and streams. `limits` are the arguments that end the run, such as
    epochs.
    """
    group = trainer.group
    if group.size == 1:
        return
    _compare(group, {**_settings_of(trainer), **limits, **_data_of(source)})


def check_data(group: Group, source: Source, *, own: bool) -> None:
    """Check that all processes evaluate or predict the same data.

    This is a collective call, and all processes raise the same error. With `own`, each process has its own rows.
    """
    if group.size > 1:
        _compare(group, {"sharded": own, **({} if own else _data_of(source))})


def _compare(group: Group, settings: Mapping[str, Any]) -> None:
    settings_by_rank = group.gather_json(settings)
    first = settings_by_rank[0]
    for rank, settings in enumerate(settings_by_rank):
        differences = "; ".join(
            f"{name}: rank 0 has {first.get(name)!r}, rank {rank} {settings.get(name)!r}"
            for name in {**first, **settings}
            if first.get(name) != settings.get(name)
        )
        if differences:
            raise ConfigurationError(
                f"rank {rank} and rank 0 differ: {differences}; all processes must run the same program on the same "
                "data. If each process has its own rows, pass sharded=True"
            )


def warn_of_own_statistics(network: nn.Cell, group: Group) -> None:
    """Warn on rank 0 if BatchNorm uses separate statistics in each process."""
    if group.size == 1 or not group.is_main:
        return
    paths = [path for path, cell in cells_and_names(network) if isinstance(cell, _BATCH_NORMS)]
    if paths:
        logger.warning(
            "BatchNorm (%s%s) normalizes with the mean and variance of the rows of each process, not of all %d: "
            "the result differs from training in one process; moving statistics are averaged for evaluations, "
            "versions and snapshots. LayerNorm does not depend on the number of processes",
            ", ".join(paths[:3]),
            f" and {len(paths) - 3} more" if len(paths) > 3 else "",
            group.size,
        )


def _settings_of(trainer: TrainedNetwork) -> dict[str, Any]:
    options, scaler, rate = trainer.step_options, trainer.scaler, trainer.learning_rate
    schedule = getattr(trainer.optimizer, "learning_rate", None) if rate is None else None
    return {
        "seed": trainer.order_seed,
        "amp_level": trainer.precision.level,
        "boost": list(trainer.boost.parts),
        "gradient_accumulation_steps": options.accumulate,
        "clip_norm": options.clip_norm,
        "clip_value": options.clip_value,
        "loss scaler": None if scaler is None else [type(scaler).__name__, trainer.loss_scale],
        **_describe("optimizer", trainer.optimizer),
        "learning rate": None if rate is None else _short(rate),
        **(_describe("learning rate", schedule) if isinstance(schedule, nn.Cell) else {}),
        **_describe("loss_fn", trainer.loss_fn),
        "network": _ADDRESS.sub("", str(trainer.network)),
        "code of the network": _checksum(trainer.network),
    }


def _data_of(source: Source) -> dict[str, Any]:
    if source.agrees:
        return {}
    data = {f"data: {name}": value for name, value in source.describe().items()}
    data["data: columns"] = list(source.names or ())
    return data | {f"data: {name}": checksum for name, checksum in source.checksums().items()}


def _describe(what: str, cell: nn.Cell | None) -> dict[str, Any]:
    """Return a cell's class, and attributes and parameters of scalars or text."""
    if cell is None:
        return {what: None}
    own = {name: value for name, value in vars(cell).items() if name not in _CELL_ATTRIBUTES and name[0] != "_"}
    plain = {name: value for name, value in own.items() if isinstance(value, bool | int | float | str)}
    scalars = [parameter for parameter in nn.Cell.get_parameters(cell, expand=False) if parameter.shape == ()]
    plain |= {parameter.name: _short(float(parameter.asnumpy())) for parameter in scalars}
    return {what: type(cell).__name__, **{f"{what} {name}": value for name, value in plain.items()}}


def _short(number: float) -> float:
    """Return `number` rounded to 7 digits, the precision of float32."""
    return float(f"{number:.7g}")


def _checksum(network: nn.Cell) -> int:
    """Return a checksum of the bytecode of the network's cells."""
    kinds = sorted({type(cell) for _, cell in cells_and_names(network)}, key=lambda k: (k.__module__, k.__qualname__))
    codes = [getattr(getattr(kind, "construct", None), "__code__", None) for kind in kinds]
    return zlib.crc32(b"".join([code.co_code + repr(code.co_names).encode() for code in codes if code is not None]))


def check_training(processes: int, network: nn.Cell, optimizer: nn.Cell | None) -> None:
    """Check that several processes can train copies of a network together."""
    if processes == 1:
        return
    if optimizer is None and not reducers_of(network):
        raise ConfigurationError(
            f"fit: without an optimizer {type(network).__name__} is a whole training step. It has no gradient reducer, "
            f"so each of {processes} processes would train its own network. Derive it from nn.TrainOneStepCell and "
            "write gradients = self.grad_reducer(gradients) before the optimizer; or give it an "
            "nn.DistributedGradReducer(optimizer.parameters, mean=True); or pass network, loss_fn and optimizer to "
            "Trainer"
        )
    # MindSpore has deprecated this context; versions without it count as "stand_alone".
    setting = getattr(mindspore, "get_auto_parallel_context", {"parallel_mode": "stand_alone"}.get)
    mode = setting("parallel_mode")
    if mode not in ("stand_alone", "data_parallel"):
        raise ConfigurationError(
            f"parallel_mode={mode!r} is set: MindSpore would partition the network, but the trainer trains whole "
            "copies and sums their gradients; leave the parallel context alone or set 'data_parallel'"
        )
    if setting("enable_parallel_optimizer"):
        raise ConfigurationError(
            "enable_parallel_optimizer=True is set: the optimizer's state would be divided among the processes, and a "
            "snapshot would hold a part of it; leave it off"
        )


def check_stream(processes: int, stream: Stream) -> None:
    """Check that several processes can share a stream."""
    if stream.sharing is Sharing.ALONE:
        raise ConfigurationError(
            f"online_train: {type(stream).__name__} cannot be divided among {processes} processes: it has no "
            "partitions and may give every process other rows. Pass a stream with partitions (KafkaStream, "
            "RedisStream, FileStream), or a function that returns the same rows on every process: each process then "
            "trains on its share. A custom stream declares its `sharing`"
        )
