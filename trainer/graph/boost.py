"""Boost levels O1 and O2, made of plain operators that every device has.

O1 centralizes gradients (Yong et al. 2020) and freezes the leading layers in a share of the calls: these calls compute
no gradients for the frozen layers and do not update them. O2 also combines the gradients of several processes by Adasum
(Maleki et al. 2021); with one process it equals O1.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mindspore import Parameter, ParameterTuple, mint, nn, ops

from ..checks import choice, is_number, number, refuse, whole
from ..distributed.group import join
from ..errors import ConfigurationError
from ..mindspore_internals.cell_structure import (
    cells_and_names,
    children_of,
    copy_cell,
    hide,
    replace_child,
    share_parameters,
)
from ..state import Stateful

logger = logging.getLogger(__name__)

CENTRALIZATION, FREEZING, ADASUM = "gradient_centralization", "gradient_freezing", "adasum"
# Maximum steps per call with gradient freezing, because all steps of a call freeze the same layers.
MAX_FROZEN_STEPS = 8
_CENTRALIZED = (nn.Dense, nn.Conv1d, nn.Conv2d, nn.Conv3d, mint.nn.Linear, mint.nn.Conv2d, mint.nn.Conv3d)


@dataclass(frozen=True)
class BoostConfig:
    """The settings of a boost level.

    Attributes:
        gradient_centralization: subtract from the gradient of each dense or convolution weight its mean over the
            weight's inputs.
        gradient_freezing: freeze leading layers in some calls.
        freeze_share: share of the calls that freeze layers, in [0, 1).
        freeze_depths: shares of the trained parameters to freeze, each in (0, 1) and rounded down to whole layers; a
            call that freezes layers picks one of them at random.
        freeze_after: optimizer steps before a call may freeze layers.
        adasum: combine gradients of several processes by Adasum (O2).

    Raises:
        ConfigurationError: a number is out of range.
    """

    gradient_centralization: bool = True
    gradient_freezing: bool = True
    freeze_share: float = 0.7
    freeze_depths: tuple[float, ...] = (0.6,)
    freeze_after: int = 0
    adasum: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "freeze_depths", tuple(self.freeze_depths))
        number("freeze_share", self.freeze_share, minimum=0, below=1)
        if not self.freeze_depths or not all(is_number(depth) and 0 < depth < 1 for depth in self.freeze_depths):
            refuse("freeze_depths", "numbers in (0, 1)", self.freeze_depths)
        whole("freeze_after", self.freeze_after, 0)


def make_config(config: BoostConfig | Mapping[str, Any] | None) -> BoostConfig:
    """Return the `BoostConfig` of a user's argument."""
    if config is None:
        return BoostConfig()
    if isinstance(config, BoostConfig):
        return config
    if not isinstance(config, Mapping):
        refuse("boost_config", "a BoostConfig or a dict", config)
    for name in config:
        choice("a field of boost_config", name, [known.name for known in dataclasses.fields(BoostConfig)])
    return BoostConfig(**config)


@dataclass(frozen=True)
class Boost:
    """The parts of a boost level that are active in one trainer."""

    parts: tuple[str, ...] = ()  # names of the active parts; a part switched off later stays, with the reason
    centralized: tuple[bool, ...] = ()  # whether to centralize the gradient of each trained parameter; empty if none
    freezing: Freezing | None = field(default=None, compare=False)
    combine: nn.Cell | None = None  # combines the processes' gradients instead of averaging them

    def transform(self, first: int = 0) -> Callable[..., Any] | None:
        """Return the gradient transform for `parameters[first:]`, or None."""
        flags = self.centralized[first:]
        return Centralize(flags) if any(flags) else None

    def without_freezing(self, reason: str) -> Boost:
        """Return a copy without gradient freezing; log the reason if it was on."""
        if self.freezing is None:
            return self
        logger.info("boost: gradient freezing is off: %s", reason)
        parts = tuple(f"{part} (off: {reason})" if part == FREEZING else part for part in self.parts)
        return dataclasses.replace(self, parts=parts, freezing=None)


def make_boost(
    level: str,
    config: BoostConfig | Mapping[str, Any] | None,
    network: nn.Cell,
    optimizer: nn.Cell | None,
    seed: int,
) -> Boost:
    """Check the boost arguments of a trainer and return the active parts."""
    config = make_config(config)
    if choice("boost_level", level, ("O0", "O1", "O2")) == "O0":
        return Boost()
    if optimizer is None:
        raise ConfigurationError(
            f"boost_level={level!r}: without an optimizer the network is a whole training step; pass network, loss_fn "
            "and optimizer instead"
        )
    parameters = list(optimizer.parameters)
    centralized = centralized_flags(network, parameters) if config.gradient_centralization else ()
    depths = layer_boundaries(parameters, config.freeze_depths) if config.gradient_freezing else ()
    freezing = None
    if depths and config.freeze_share > 0:
        for depth in depths:
            slice_optimizer(optimizer, depth)  # raise now rather than at the first frozen step
        freezing = Freezing(seed, config.freeze_share, depths, config.freeze_after)
    processes = join().size
    combine = level == "O2" and config.adasum and processes > 1
    on = {CENTRALIZATION: any(centralized), FREEZING: freezing is not None, ADASUM: combine}
    boost = Boost(
        tuple(name for name, is_on in on.items() if is_on),
        centralized if any(centralized) else (),
        freezing,
        Adasum(processes) if combine else None,
    )
    lines = [f"centralizes the gradients of {sum(centralized)} weights"] if any(centralized) else []
    if freezing is not None:
        names = ", ".join(parameters[depth].name for depth in depths)
        lines.append(f"freezes what comes before {names} in {config.freeze_share:.0%} of the calls")
    if level == "O2":
        lines.append(f"adasum over {processes} processes" if combine else "adasum is off (one process)")
    logger.info("boost %s: %s", level, "; ".join(lines) or "nothing to do for this network")
    return boost


# -- gradient centralization ------------------------------------------------------------------------------------------


class Centralize(nn.Cell):
    """Subtract the mean over all axes but the first (Yong et al. 2020, equation 1)."""

    def __init__(self, flags: Sequence[bool]) -> None:
        super().__init__(auto_prefix=False)
        self.flags = tuple(flags)

    def construct(self, gradients):
        """Return the tuple of gradients, the flagged gradients centralized."""
        centred = ()
        for index, gradient in enumerate(gradients):
            if self.flags[index]:
                axes = tuple(range(1, gradient.ndim))
                gradient = gradient - ops.mean(gradient, axes, True)
            centred += (gradient,)
        return centred


def centralized_flags(network: nn.Cell, parameters: Sequence[Parameter]) -> tuple[bool, ...]:
    """Flag the dense and convolution weights that have more than one input."""
    weights = {
        id(cell.weight)
        for _, cell in cells_and_names(network)
        if isinstance(cell, _CENTRALIZED) and int(np.prod(cell.weight.shape[1:])) > 1
    }
    return tuple(id(parameter) in weights for parameter in parameters)


# -- gradient freezing ------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Freezing(Stateful):
    """Chooses how many leading parameters a call freezes, from seed and step only.

    All steps of a call freeze the same layers. Calls that continue an accumulation keep its depth, which is the only
    state.
    """

    seed: int
    share: float
    depths: tuple[int, ...]
    after: int = 0
    _held: int | None = field(default=None, init=False)

    def depth(self, step: int) -> int:
        """Return how many leading parameters to freeze in a call that begins at `step`."""
        if step < self.after:
            return 0
        share, choice = np.random.SeedSequence([self.seed, step]).generate_state(2, np.uint32)
        return self.depths[int(choice) % len(self.depths)] if share < self.share * 2**32 else 0

    def next(self, step: int, ends_inside_accumulation: bool) -> int:
        """Return the depth of the next call; keep it while an accumulation is open."""
        depth = self.depth(step) if self._held is None else self._held
        self._held = depth if ends_inside_accumulation else None
        return depth

    def state_dict(self) -> dict[str, Any]:
        """Return the depth of the open accumulation."""
        return {"json": {"held": self._held}, "arrays": {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self._held = state["json"]["held"]


def layer_boundaries(parameters: Sequence[Parameter], shares: Sequence[float]) -> tuple[int, ...]:
    """Convert shares of the parameters to counts of parameters, in whole layers.

    Parameters of the same layer have equal names up to the last dot. Counts are sorted and unique; a share smaller than
    the first layer is left out.
    """
    layers = [parameter.name.rpartition(".")[0] for parameter in parameters]
    starts = [start for start in range(1, len(layers)) if layers[start] != layers[start - 1]]
    depths = {max((start for start in starts if start <= share * len(layers)), default=0) for share in shares}
    return tuple(sorted(depths - {0}))


def slice_optimizer(optimizer: nn.Cell, first: int) -> nn.Cell:
    """Return a view of `optimizer` for `parameters[first:]` that shares its state.

    The view is a shallow copy. Every tuple with one entry per parameter (moments, decay flags, group rates) is sliced.

    Raises:
        ConfigurationError: the optimizer is not built like the optimizers of `mindspore.nn`.
    """
    count = len(optimizer.parameters)
    if not isinstance(optimizer, nn.Optimizer) or not isinstance(optimizer.parameters, ParameterTuple):
        raise ConfigurationError(
            f"boost: gradient freezing cannot divide {type(optimizer).__module__}.{type(optimizer).__name__}; use an "
            "nn optimizer such as nn.Adam, or boost_config={'gradient_freezing': False}"
        )
    part = copy_cell(optimizer)
    for name, value in list(vars(optimizer).items()):
        if isinstance(value, ParameterTuple) and len(value) == count:
            hide(part, name, ParameterTuple(value[first:]))
        elif isinstance(value, tuple) and len(value) == count and _is_per_parameter(name, value):
            hide(part, name, value[first:])
    for name, cell in children_of(optimizer).items():
        if isinstance(cell, nn.CellList) and len(cell) == count:
            replace_child(part, name, nn.CellList(list(cell)[first:], auto_prefix=False))
    hide(part, "param_length", count - first)
    return part


def _is_per_parameter(name: str, value: tuple[Any, ...]) -> bool:
    return name == "weight_decay" or all(isinstance(item, bool | Parameter | ops.Primitive) for item in value)


def share_state(step: nn.Cell, whole: nn.Cell, first: int) -> None:
    """Make `step`, which trains `parameters[first:]`, share the state of `whole`."""
    share_parameters(step, whole)
    # `hide`, because `setattr` would register the parameters of `whole` in a second cell, with duplicate names
    hide(step, "saved", tuple(whole.saved))
    if whole.accumulate > 1:
        hide(step, "gradient_sum", tuple(whole.gradient_sum)[first:])


# -- adasum -----------------------------------------------------------------------------------------------------------


class Adasum(nn.Cell):
    """Combine gradients of all processes by Adasum (Maleki et al. 2021, algorithm 1).

    Adasum averages parallel gradients and adds orthogonal gradients (equation 4). Every process gathers all gradients
    and combines them in the same order, so results are bit-identical on all processes.
    """

    def __init__(self, processes: int) -> None:
        super().__init__(auto_prefix=False)
        if processes < 2 or processes & (processes - 1):
            raise ConfigurationError(
                f"boost: adasum combines a power of two of processes; there are {processes}; use "
                "boost_config={'adasum': False}"
            )
        self.processes = processes
        self.gather = ops.AllGather()

    def construct(self, gradients):
        """Return the tuple of combined gradients."""
        combined = ()
        for gradient in gradients:
            flat = ops.reshape(gradient, (1, -1))
            combined += (ops.reshape(adasum(self.gather(flat)), gradient.shape),)
        return combined


def adasum(gradients):
    """Return the Adasum, [P], of the rows of `gradients` [N, P]; N is a power of two."""
    while gradients.shape[0] > 1:
        even, odd = gradients[0::2], gradients[1::2]
        dot = ops.sum(even * odd, 1, True)
        of_even, of_odd = ops.sum(even * even, 1, True), ops.sum(odd * odd, 1, True)
        # if one norm is zero, so is the dot product
        one, zero = ops.ones_like(dot), ops.zeros_like(dot)
        even_weight = one - ops.select(of_even > 0, dot / (2 * ops.maximum(of_even, 1e-30 * one)), zero)
        odd_weight = one - ops.select(of_odd > 0, dot / (2 * ops.maximum(of_odd, 1e-30 * one)), zero)
        gradients = even_weight * even + odd_weight * odd
    return gradients[0]
