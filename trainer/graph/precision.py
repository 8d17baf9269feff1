"""Automatic mixed precision: low-precision cells, loss scalers, finiteness checks.

To lower a cell is to let it compute in float16 or bfloat16. O0 lowers nothing. O1 lowers the cells of a white list. O2
lowers all cells but those of a black list, and scales the loss dynamically. O3 lowers all cells and does not scale the
loss. "auto" is O2 on GPU, O3 on Ascend and O0 on CPU. Weights stay float32: a lowered cell casts its weights and inputs
in each forward pass.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mindspore import amp, nn, ops
from mindspore import dtype as mstype

from ..checks import choice, is_number, number, refuse
from ..embedding.layers.embedding_cells import embedding_cells
from ..errors import ConfigurationError
from ..mindspore_internals import device
from ..mindspore_internals.cell_structure import cells_and_names, children_of, hide, replace_child, user_conversion

logger = logging.getLogger(__name__)

WHITE_LIST: tuple[type[nn.Cell], ...] = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.Conv1dTranspose,
    nn.Conv2dTranspose,
    nn.Conv3dTranspose,
    nn.Dense,
    nn.PReLU,
)
BLACK_LIST: tuple[type[nn.Cell], ...] = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm)
RECURRENT = (nn.LSTMCell, nn.GRUCell, nn.RNNCell)  # kept in float32, because lowering would not cast their weights
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_DTYPES = {"float16": mstype.float16, "bfloat16": mstype.bfloat16}
INITIAL_SCALE = 2.0**16
_MARK = "_trainer_amp"


@dataclass(frozen=True)
class Precision:
    """A checked precision setting."""

    level: str  # "O0" to "O3" ("auto" is already resolved)
    dtype: Any
    white_list: tuple[type[nn.Cell], ...]  # cells lowered at O1
    black_list: tuple[type[nn.Cell], ...]  # cells kept in float32 at O2 and O3

    @property
    def lowers(self) -> bool:
        """Whether any cell computes in low precision."""
        return self.level != "O0"


def resolve(
    level: str,
    dtype: Any = "float16",
    keep_batchnorm_fp32: bool | None = None,
    white_list: Sequence[type[nn.Cell]] | None = None,
    black_list: Sequence[type[nn.Cell]] | None = None,
) -> Precision:
    """Check the arguments of a trainer and return its `Precision`."""
    choice("amp_level", level, ("O0", "O1", "O2", "O3", "auto"))
    name = choice("amp_dtype", str(dtype).lower(), _DTYPES)
    current = device.current()
    if level == "auto":
        level = current.auto_level
        logger.info("amp_level='auto' means %s on %s", level, current.name)
    if name == "bfloat16" and not current.has_bfloat16 and level != "O0":
        raise ConfigurationError(
            f"amp_dtype='bfloat16' does not run on {current.name}: MindSpore has no bfloat16 kernels there; "
            "use amp_dtype='float16' or amp_level='O0'"
        )
    if keep_batchnorm_fp32 is False and level in ("O2", "O3") and not current.lowers_batch_norm:
        raise ConfigurationError(
            f"keep_batchnorm_fp32=False: MindSpore's BatchNorm on {current.name} accepts only float32; leave it out"
        )
    black = _cell_classes("black_list", black_list, BLACK_LIST)
    if level == "O3":
        black = _BATCH_NORMS if keep_batchnorm_fp32 or not current.lowers_batch_norm else ()
    elif keep_batchnorm_fp32 is False:
        black = tuple(cls for cls in black if cls not in _BATCH_NORMS)
    return Precision(level, _DTYPES[name], _cell_classes("white_list", white_list, WHITE_LIST), black)


def _cell_classes(name: str, given: Sequence[type[nn.Cell]] | None, default: tuple) -> tuple[type[nn.Cell], ...]:
    if given is None:
        return default
    for cls in given:
        if not (isinstance(cls, type) and issubclass(cls, nn.Cell)):
            refuse(f"amp {name}", "Cell classes such as nn.Dense", cls)
    return tuple(given)


class CastOutput(nn.Cell):
    """Casts a cell's output; has the cell's attributes and parameter names."""

    def __init__(self, cell: nn.Cell, dtype: Any) -> None:
        super().__init__(auto_prefix=False)
        self.cast_cell = cell
        self.cast_dtype = dtype

    def construct(self, *args):
        """Return the cell's outputs, floating-point tensors cast."""
        return _cast(self.cast_cell(*args), self.cast_dtype)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("cast_cell"), name)


def _cast(value, dtype):
    if isinstance(value, tuple):
        return tuple([_cast(item, dtype) for item in value])
    if value.dtype in (mstype.float16, mstype.bfloat16, mstype.float32):
        return ops.cast(value, dtype)
    return value


def recurrent_cells(network: nn.Cell) -> tuple[type[nn.Cell], ...]:
    """Return `RECURRENT` if the network has such cells, else (); log their names."""
    found = {type(cell).__name__ for _, cell in cells_and_names(network) if isinstance(cell, RECURRENT)}
    if found:
        logger.info("%s: kept in float32, which MindSpore cannot lower", ", ".join(sorted(found)))
    return RECURRENT if found else ()


def convert(network: nn.Cell, precision: Precision) -> None:
    """Convert `network` in place; refuse a network converted to another precision."""
    mark = getattr(network, _MARK, None)
    if mark is not None:
        if mark == precision:
            return
        raise ConfigurationError(
            f"amp_level={precision.level!r}: the network was already converted to {mark.level} by another Trainer; "
            "converting it twice would stack casts. Build a fresh network, or use the same amp arguments"
        )
    if not precision.lowers:
        return
    foreign = user_conversion(network)
    if foreign:
        raise ConfigurationError(
            f"amp_level={precision.level!r}: the network was already converted ({foreign}); converting it twice would "
            "stack casts. Pass amp_level='O0' to use it as it is, or build a fresh network"
        )
    kept = recurrent_cells(network)
    if precision.level == "O1":
        _lower_listed(network, precision)
    else:
        network.to_float(precision.dtype)
        _keep_listed(network, (*precision.black_list, *kept), precision.dtype)
        for cell in embedding_cells(network):
            cell.compute_dtype = precision.dtype
    hide(network, _MARK, precision)


def _lower_listed(network: nn.Cell, precision: Precision) -> None:
    for name, cell in list(children_of(network).items()):
        if isinstance(cell, (*RECURRENT, CastOutput)):
            continue
        if isinstance(cell, precision.white_list):
            cell.to_float(precision.dtype)
            replace_child(network, name, CastOutput(cell, mstype.float32))
        else:
            _lower_listed(cell, precision)
    if isinstance(network, precision.white_list):
        network.to_float(precision.dtype)


def _keep_listed(network: nn.Cell, keep: tuple[type[nn.Cell], ...], dtype: Any) -> None:
    for name, cell in list(children_of(network).items()):
        if isinstance(cell, CastOutput):  # of a network that has several names
            continue
        if isinstance(cell, keep):
            cell.to_float(mstype.float32)
            replace_child(network, name, CastOutput(cell, dtype))
        else:
            _keep_listed(cell, keep, dtype)


def make_scaler(loss_scale: Any, precision: Precision) -> amp.LossScaler | None:
    """Return the loss scaler of a trainer's `loss_scale` argument, or None.

    Args:
        loss_scale: None for the level's default (dynamic at O2), a number >= 1 (static), an `amp.LossScaler`, a
            `FixedLossScaleManager` or a `DynamicLossScaleManager`. False switches scaling off at every level.
    """
    if loss_scale is False:
        return None
    if loss_scale is None:
        return amp.DynamicLossScaler(INITIAL_SCALE, 2, 1000) if precision.level == "O2" else None
    if isinstance(loss_scale, amp.LossScaler):
        return loss_scale
    if is_number(loss_scale):
        return amp.StaticLossScaler(number("loss_scale", loss_scale, minimum=1))
    if isinstance(loss_scale, amp.DynamicLossScaleManager):
        return amp.DynamicLossScaler(
            float(loss_scale.get_loss_scale()), int(loss_scale.scale_factor), int(loss_scale.scale_window)
        )
    if isinstance(loss_scale, amp.FixedLossScaleManager):
        return amp.StaticLossScaler(float(loss_scale.get_loss_scale()))
    wanted = "a number >= 1, an amp.LossScaler (StaticLossScaler, DynamicLossScaler or your own)"
    refuse("loss_scale", f"{wanted}, a FixedLossScaleManager or a DynamicLossScaleManager", loss_scale)


def reports_overflow(loss_scale: Any) -> bool:
    """Return whether MindSpore's training cell with this scale reports overflows.

    It returns loss, overflow and scale then, and else the loss alone.
    """
    return not isinstance(loss_scale, amp.FixedLossScaleManager) or loss_scale.get_drop_overflow_update()


class AllFinite(nn.Cell):
    """Checks whether all entries of some tensors are finite.

    Uses `amp.all_finite` only on devices that have a kernel for it; on others it takes as long to compile as a layer.
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.by_tensor = not device.current().has_all_finite
        self.is_finite, self.all, self.both = ops.IsFinite(), ops.ReduceAll(), ops.LogicalAnd()

    def construct(self, tensors, others):
        """Return whether all `tensors` are finite and `others` is true."""
        if not self.by_tensor:
            return self.both(amp.all_finite(tensors), others)
        for tensor in tensors:
            others = self.both(others, self.all(self.is_finite(tensor)))
        return others


class FiniteNorm(nn.Cell):
    """Checks whether the norm of each tensor, and so each entry, is finite in float32.

    A gradient of 3e25 is finite, but its square overflows in optimizers such as Adam, and the weights become NaN one
    step later. A sum of squares is also faster than a test of each entry.
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.half_square, self.is_finite, self.both = ops.L2Loss(), ops.IsFinite(), ops.LogicalAnd()

    def construct(self, tensors, others):
        """Return whether all norms are finite and `others` is true."""
        for tensor in tensors:
            others = self.both(others, self.is_finite(self.half_square(ops.cast(tensor, mstype.float32))))
        return others
