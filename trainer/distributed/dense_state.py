"""Synchronize replicated state: at the start, for snapshots and for evaluations."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from ..errors import TrainerError
from ..mindspore_internals.cell_structure import moving_statistics, parameters_of
from ..state import Stateful
from .group import Group

logger = logging.getLogger(__name__)


def broadcast_parameters(group: Group, parameters: Iterable[Parameter]) -> None:
    """Copy the parameters of rank 0 to all processes, and check the result.

    Raises:
        ConfigurationError: the processes have different networks or optimizers.
    """
    if group.size == 1:
        return
    named = {parameter.name: parameter for parameter in parameters}
    values = {name: parameter.asnumpy() for name, parameter in named.items()}
    group.check_same("parameters", {name: np.array(value.shape) for name, value in values.items()})
    differing = _differing(group, values)
    if differing:
        flat = group.broadcast(np.concatenate([values[name].reshape(-1).view(np.uint8) for name in differing]))
        parts = np.split(flat, np.cumsum([values[name].nbytes for name in differing])[:-1])
        for name, part in zip(differing, parts, strict=True):
            value = values[name]
            ops.assign(named[name], Tensor(part.copy().view(value.dtype).reshape(value.shape)))
        logger.info("%d of %d parameters differed at first; all take those of rank 0", len(differing), len(values))
        group.check_same("parameters", {name: parameter.asnumpy() for name, parameter in named.items()})


def _differing(group: Group, values: Mapping[str, np.ndarray]) -> list[str]:
    """Return the names of the arrays that differ between processes; a collective call."""
    sums = np.array([zlib.crc32(np.ascontiguousarray(value).data) for value in values.values()], np.int64)
    all_sums = group.gather(sums)
    return [name for name, equal in zip(values, (all_sums == all_sums[0]).all(0), strict=True) if not equal]


def check_training_step(group: Group, step: nn.Cell) -> None:
    """Check that a user's training step keeps parameters equal on all processes.

    Moving statistics may differ. A collective call.

    Raises:
        TrainerError: on all processes, if a parameter differs, because the step has not reduced all gradients.
    """
    if group.size == 1:
        return
    statistics = {id(parameter) for parameter in moving_statistics(step)}
    parameters = [parameter for parameter in parameters_of(step) if id(parameter) not in statistics]
    differing = _differing(group, {parameter.name: parameter.asnumpy() for parameter in parameters})
    if differing:
        raise TrainerError(
            f"{type(step).__name__}: {len(differing)} of {len(parameters)} parameters differ between the processes "
            f"after a training step, the first is {differing[0]!r}: each process has used its own gradients. Before "
            "the optimizer write gradients = self.grad_reducer(gradients), the reducer of nn.TrainOneStepCell, or give "
            "Trainer network, loss_fn and optimizer"
        )


def average_statistics(group: Group, network: nn.Cell, average: Any = None) -> None:
    """Average the moving statistics over all processes; a collective call.

    Also those in `average`, a `WeightAverage` or None: each process has averaged its own.
    """
    if group.size == 1:
        return
    statistics = moving_statistics(network)
    if average is not None:
        own = {id(parameter) for parameter in statistics}
        averages = zip(average.sources, average.averages, strict=True)
        statistics = [*statistics, *(mean for source, mean in averages if id(source) in own)]
    for parameter, mean in _means(group, statistics):
        ops.assign(parameter, Tensor(mean))


def mean_statistics(group: Group, network: nn.Cell) -> dict[str, np.ndarray]:
    """Return the moving statistics averaged over all processes; a collective call."""
    means = () if group.size == 1 else _means(group, moving_statistics(network))
    return {parameter.name: mean for parameter, mean in means}


def _means(group: Group, parameters: Iterable[Parameter]) -> Iterator[tuple[Parameter, np.ndarray]]:
    for parameter in parameters:
        value = parameter.asnumpy()
        if value.dtype.kind == "f":
            yield parameter, group.gather(value.astype(np.float64)).mean(0).astype(value.dtype)


def merge_on_main(group: Group, gradient_sums: Iterable[Parameter], parts: Iterable[Stateful]) -> None:
    """Move open accumulations and metric windows to rank 0; a collective call."""
    for parameter in gradient_sums:
        total = group.total(parameter.asnumpy())
        ops.assign(parameter, Tensor(total if group.is_main else np.zeros_like(total)))
    for part in parts:
        part.merge_on_main(group)


def clear_on_followers(group: Group, gradient_sums: Iterable[Parameter], parts: Iterable[Stateful]) -> None:
    """Clear the restored state of `merge_on_main` on all ranks except 0."""
    if group.is_main:
        return
    for part in parts:
        part.clear_on_followers()
    for parameter in gradient_sums:
        ops.assign(parameter, ops.zeros_like(parameter))
