"""Build the optimizer from a user's argument; read and set its learning rate."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from ..checks import choice
from ..embedding.layers.row_optimizer import RowOptimizer
from ..errors import ConfigurationError
from ..mindspore_internals.cell_structure import parameters_of, trainable_parameters

PLACEHOLDER = "trainer.no_dense_parameter"


class OptimizerGroups(nn.Cell):
    """Several optimizers in one step: FTRL for the wide part, Adam for the deep part.

    The reported learning rate is that of the first optimizer. Setting the learning rate sets it in all optimizers.

    Raises:
        ConfigurationError: there are fewer than two optimizers, one is not from `mindspore.nn`, two hold the same
            parameter, or they have different values of `loss_scale`.
    """

    def __init__(self, optimizers: Sequence[nn.Optimizer]) -> None:
        super().__init__(auto_prefix=False)
        if len(optimizers) < 2 or not all(isinstance(one, nn.Optimizer) for one in optimizers):
            shown = ", ".join(type(one).__name__ for one in optimizers)
            raise ConfigurationError(
                f"optimizer takes two or more mindspore.nn optimizers in a list; received [{shown}]"
            )
        self.parameters = [parameter for one in optimizers for parameter in one.parameters]
        if len({id(parameter) for parameter in self.parameters}) < len(self.parameters):
            twice = sorted({p.name for p in self.parameters if sum(q is p for q in self.parameters) > 1})
            raise ConfigurationError(f"optimizer: {', '.join(twice)} is in two of the optimizers")
        scales = [float(one.loss_scale) for one in optimizers]
        if len(set(scales)) > 1:
            shown = ", ".join(f"{scale:g}" for scale in scales)
            raise ConfigurationError(f"optimizer: the optimizers of a list take one loss_scale; received {shown}")
        self.loss_scale = scales[0]  # `TrainStep` reads it
        trained = {id(parameter) for parameter in self.parameters}
        for place, one in enumerate(optimizers):
            for parameter in parameters_of(one):
                if id(parameter) not in trained:  # make names such as "learning_rate" unique
                    name = re.sub(r"^group_\d+\.", "", parameter.name)  # from another Trainer of these optimizers
                    parameter.name = f"group_{place}.{name}"
        ends = np.cumsum([len(one.parameters) for one in optimizers]).tolist()
        self.spans = tuple(zip([0, *ends[:-1]], ends, strict=True))
        self.optimizers = nn.CellList(optimizers, auto_prefix=False)
        self.global_step = optimizers[0].global_step

    @property
    def learning_rate(self) -> tuple[Any, ...]:
        """Learning rates or schedules of all parameter groups."""
        return tuple(rate for one in self.optimizers for rate in _rates(one))

    def get_lr(self):
        """Return the learning rate of the first optimizer; graph code."""
        return self.optimizers[0].get_lr()

    def construct(self, gradients):
        """Update the parameters of every optimizer."""
        done = ()
        for place, (start, stop) in enumerate(self.spans):
            done += (self.optimizers[place](gradients[start:stop]),)  # MindSpore removes calls whose result is not used
        return done


def dense_parameters(network: nn.Cell) -> list[Parameter]:
    """Return the trainable parameters, or a placeholder if all are in sparse tables."""
    return trainable_parameters(network) or [Parameter(Tensor(np.zeros(1, np.float32)), name=PLACEHOLDER)]


def make_optimizer(optimizer: Any, network: nn.Cell) -> nn.Cell | None:
    """Build the optimizer of a user's argument.

    Args:
        optimizer: an optimizer or None, returned unchanged; a list of `nn` optimizers over different parameters; the
            case-insensitive name of a class of `mindspore.nn` ("adam"), alone or with arguments
            (("adam", {"learning_rate": 1e-3})); a function of the trainable parameters that returns an optimizer; or,
            for a network whose parameters are all in sparse tables, a row optimizer.
        network: the network to train. If all its parameters are in sparse tables, the optimizer is built with a
            placeholder parameter, and the tables use its update rule.

    Raises:
        ConfigurationError: the name is unknown, or a row optimizer was given for a network with dense parameters.
    """
    if optimizer is None or (isinstance(optimizer, nn.Cell) and not isinstance(optimizer, RowOptimizer)):
        return optimizer
    if not isinstance(network, nn.Cell):
        return None  # `check_network` reports the error
    dense = trainable_parameters(network)
    parameters = dense_parameters(network)
    if isinstance(optimizer, RowOptimizer):
        if dense:
            names = ", ".join(parameter.name for parameter in dense[:3])
            raise ConfigurationError(
                f"optimizer: {type(optimizer).__name__} updates rows of tables, and the network has dense parameters "
                f"({names}{', ...' if len(dense) > 3 else ''}): give their optimizer here and the row optimizer to "
                "Embedding(optimizer=...)"
            )
        made = nn.SGD(parameters, 1e-3 if optimizer.lr is None else optimizer.lr)
        object.__setattr__(made, "row_optimizer", optimizer)
        return made
    match optimizer:
        case str() as name:
            return _by_name(name)(parameters)
        case (str() as name, Mapping() as arguments) if isinstance(optimizer, tuple):
            return _by_name(name)(parameters, **arguments)
        case list() | tuple():
            return OptimizerGroups(list(optimizer))
    return optimizer(parameters) if callable(optimizer) else optimizer


def _by_name(name: str) -> Any:
    known = {
        key.lower(): kind
        for key, kind in vars(nn).items()
        if isinstance(kind, type) and issubclass(kind, nn.Optimizer) and kind is not nn.Optimizer
    }
    return known[choice("optimizer, by name,", name.strip().lower().replace("_", ""), sorted(known))]


def get_learning_rate(optimizer: nn.Cell | None) -> float | None:
    """Return the next learning rate of the first parameter group; None if unknown.

    A schedule is evaluated at the optimizer's step counter. After the end of a list of rates, it is the last of them.
    Copies one number from the device.
    """
    rate = next(iter(_rates(optimizer)), None)
    if optimizer is not None and isinstance(rate, nn.Cell):
        step, length = optimizer.global_step, _length(rate)
        rate = rate(step if length is None else ops.minimum(step, length - 1))
    return None if rate is None else float(rate.asnumpy().reshape(-1)[0] if hasattr(rate, "asnumpy") else rate)


def constant_rates(optimizer: nn.Cell | None) -> list[float]:
    """Return the rate of every parameter group; empty if one follows a schedule."""
    rates = _rates(optimizer)
    return [float(rate.asnumpy()) for rate in rates] if all(isinstance(rate, Parameter) for rate in rates) else []


def set_learning_rate(optimizer: nn.Cell | None, value: float | Sequence[float]) -> None:
    """Set the rate of every parameter group, or one rate for each; refuse schedules."""
    rates = _rates(optimizer)
    if not rates or not all(isinstance(rate, Parameter) for rate in rates):
        raise ConfigurationError(
            f"learning_rate = {value!r}: {type(optimizer).__name__} has no constant learning rate to set "
            "(it follows a schedule, or there is no optimizer)"
        )
    values = value if isinstance(value, Sequence) else [value] * len(rates)
    for rate, each in zip(rates, values, strict=True):
        # Not `set_data`: a compiled step that contains a branch would keep using the old value.
        ops.assign(rate, Tensor(float(each), rate.dtype))


def why_out_of_rates(optimizer: nn.Cell | None) -> str:
    """Return a text for errors if a list of rates has ended, else an empty one."""
    lengths = [length for rate in _rates(optimizer) if (length := _length(rate)) is not None]
    if optimizer is None or not lengths or int(optimizer.global_step.asnumpy()[0]) < min(lengths):
        return ""
    return f"the optimizer's list of {min(lengths)} learning rates has ended; it needs one rate for each update"


def _length(rate: Any) -> int | None:
    """Return the number of rates of a list given to an optimizer, or None."""
    rates = getattr(rate, "learning_rate", None)
    if not isinstance(rates, Parameter) or not type(rate).__module__.startswith("mindspore."):
        return None
    return len(rates) if rates.ndim == 1 else None


def _rates(optimizer: nn.Cell | None) -> list[Any]:
    groups = getattr(optimizer, "param_groups", None)
    if groups and isinstance(groups[0], dict) and "lr" in groups[0]:
        return [group["lr"] for group in groups]
    rate = getattr(optimizer, "learning_rate", None)
    return list(rate) if isinstance(rate, tuple | list | nn.CellList) else [rate]
