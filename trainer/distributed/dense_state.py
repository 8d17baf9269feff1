"""The parameters that every process has a copy of: made equal at the start, and before they are saved or evaluated."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from mindspore import Parameter, Tensor, ops

from ..mindspore_internals.moving_statistics import moving_statistics

if TYPE_CHECKING:
    from ..trainer import Trainer
    from .group import Group

logger = logging.getLogger(__name__)


def align(group: Group, parameters: Iterable[Parameter]) -> None:
    """Give every process the values that rank 0 has, and check that they have arrived.

    Raises:
        ConfigurationError: the processes have built different networks or optimizers.
    """
    if group.size == 1:
        return
    named = {parameter.name: parameter for parameter in parameters}
    values = {name: parameter.asnumpy() for name, parameter in named.items()}
    group.check_same("parameters", {name: np.array(value.shape) for name, value in values.items()})
    sums = np.array([zlib.crc32(np.ascontiguousarray(value)) for value in values.values()], np.int64)
    everyones = group.gather(sums)
    differing = [name for name, equal in zip(values, (everyones == everyones[0]).all(0), strict=True) if not equal]
    if differing:
        flat = np.concatenate([values[name].reshape(-1).view(np.uint8) for name in differing])
        received = group.broadcast(flat)
        start = 0
        for name in differing:
            value = values[name]
            part = received[start : start + value.nbytes].copy().view(value.dtype).reshape(value.shape)
            ops.assign(named[name], Tensor(part))
            start += value.nbytes
        logger.info("%d of %d parameters began differently; all take those of rank 0", len(differing), len(values))
        group.check_same("parameters", {name: parameter.asnumpy() for name, parameter in named.items()})


def synchronize(trainer: Trainer) -> None:
    """Let every process go on with the mean of all moving statistics, and rank 0 with what is open over all of them.

    Open are an accumulation window and the metrics' window of a stream; the place in the data is put together as well.

    To be called by all processes before a snapshot, which is then one of all, and before an evaluation.
    """
    group = trainer.group
    if group.size == 1:
        return
    for parameter in moving_statistics(trainer.network):
        value = parameter.asnumpy()
        if value.dtype.kind == "f":
            mean = group.gather(value.astype(np.float64)).mean(0)
            ops.assign(parameter, Tensor(mean.astype(value.dtype)))
    for parameter in trainer.builder.window.gradient_sums:
        total = group.total(parameter.asnumpy())
        ops.assign(parameter, Tensor(total if group.is_main else np.zeros_like(total)))
    for part in trainer.parts.values():
        part.put_together(group)
    if trainer.run is not None:
        trainer.run.cursor.of_all()


def forget_open_windows(trainer: Trainer) -> None:
    """Leave what was open in the snapshot, restored on all processes, to rank 0 alone."""
    if trainer.group.is_main:
        return
    for part in trainer.parts.values():
        part.forget_open()
    for parameter in trainer.builder.window.gradient_sums:
        ops.assign(parameter, ops.zeros_like(parameter))
