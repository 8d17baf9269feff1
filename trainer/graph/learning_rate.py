"""Read and set the learning rate of any MindSpore optimizer from the host."""

from __future__ import annotations

from typing import Any

from mindspore import Parameter, Tensor, nn, ops

from ..errors import ConfigurationError


def get_learning_rate(optimizer: nn.Cell | None) -> float | None:
    """Return the learning rate of the next update (of the first parameter group), or None when there is none to see.

    A schedule is evaluated at the optimizer's own step counter, with one host copy.
    """
    if optimizer is None:
        return None
    groups = getattr(optimizer, "param_groups", None)
    if groups and isinstance(groups[0], dict) and "lr" in groups[0]:
        return _number(groups[0]["lr"])
    rate = getattr(optimizer, "learning_rate", None)
    if isinstance(rate, tuple | list):
        rate = rate[0] if rate else None
    if isinstance(rate, nn.Cell):
        rate = rate(optimizer.global_step)
    return None if rate is None else _number(rate)


def set_learning_rate(optimizer: nn.Cell | None, value: float) -> None:
    """Set a constant learning rate, of every parameter group.

    Raises:
        ConfigurationError: no optimizer, or its rate follows a schedule.
    """
    rates: list[Any] = []
    groups = getattr(optimizer, "param_groups", None)
    if groups and isinstance(groups[0], dict) and "lr" in groups[0]:
        rates = [group["lr"] for group in groups]
    else:
        rate = getattr(optimizer, "learning_rate", None)
        rates = list(rate) if isinstance(rate, tuple | list) else [rate]
    if not rates or not all(isinstance(rate, Parameter) for rate in rates):
        raise ConfigurationError(
            f"learning_rate = {value!r}: {type(optimizer).__name__} has no constant learning rate to set "
            "(it follows a schedule, or there is no optimizer)"
        )
    for rate in rates:
        # A compiled step with a branch in it goes on with the old value after `set_data`; it sees an assignment.
        ops.assign(rate, Tensor(float(value), rate.dtype))


def _number(rate: Any) -> float:
    return float(rate.asnumpy().reshape(-1)[0]) if hasattr(rate, "asnumpy") else float(rate)
