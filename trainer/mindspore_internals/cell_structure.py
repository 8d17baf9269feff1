"""Read and change the structure of cells after their construction.

This module relies on the following behaviour of MindSpore:
- A Cell keeps its children in `_cells` and its parameters in `_params`, two dictionaries in its `__dict__`. A value
  written directly to `__dict__` is an attribute, in graphs too, but is not registered as a child or parameter.
- Cells and the parser of graphs look up a method in the instance before the class. Calling a cell runs `construct`.
- `nn.TrainOneStepWithLossScaleCell` calls only its `get_overflow_status` to decide whether to skip an update.
- The normalisation cells of `nn` and `mint` name their moving statistics as listed in `moving_statistics`.
- `mindspore.amp.auto_mixed_precision` and `build_train_network` store their level in `_amp_level` and wrap cells in
  `_OutputTo16` or `_OutputTo32`; `Cell.to_float` sets the flags `fp16` and `bf16`. If these names change,
  `user_conversion` misses such a conversion.

A user's cell may have an attribute with the name of a method, as in `self.trainable_params =
network.trainable_params()`. This module therefore calls the methods of the class `nn.Cell`, not of the instance.
"""

from __future__ import annotations

import contextlib
import copy
import types
from collections.abc import Callable, Iterable, Iterator

from mindspore import Parameter, Tensor, amp, nn, ops

from . import device


def cells_and_names(root: nn.Cell) -> Iterator[tuple[str, nn.Cell]]:
    """Yield (path, cell) for `root` and every cell below it."""
    return nn.Cell.cells_and_names(root)


def children_of(cell: nn.Cell) -> dict[str, nn.Cell]:
    """Return the direct children of a cell by name; one cell may have several names."""
    return {name: child for name, child in vars(cell)["_cells"].items() if child is not None}


def parameters_of(root: nn.Cell) -> list[Parameter]:
    """Return all parameters of a network."""
    return [parameter for _, parameter in nn.Cell.parameters_and_names(root)]


def trainable_parameters(root: nn.Cell) -> list[Parameter]:
    """Return the parameters of a network that are trained."""
    return [parameter for parameter in parameters_of(root) if parameter.requires_grad]


def replace_child(parent: nn.Cell, name: str, cell: nn.Cell) -> None:
    """Replace the child `name` of `parent` by `cell`; keep parameter names."""
    parent._cells[name] = cell  # MindSpore's amp does the same; no public setter keeps parameter names
    if isinstance(parent, nn.SequentialCell):
        parent.cell_list = list(children_of(parent).values())


def hide(cell: nn.Cell, name: str, value: object) -> None:
    """Set an attribute of `cell` without registering or renaming its value."""
    vars(cell)[name] = value


def copy_cell(cell: nn.Cell) -> nn.Cell:
    """Return a shallow copy of a cell, with its own attributes."""
    result = copy.copy(cell)
    object.__setattr__(result, "__dict__", dict(vars(cell)))  # `copy.copy` shares it
    for registry in ("_cells", "_params"):
        hide(result, registry, copy.copy(vars(cell)[registry]))
    return result


def share_parameters(cell: nn.Cell, other: nn.Cell) -> None:
    """Replace the parameters of `cell` by those of `other` with equal attribute names."""
    parameters = vars(cell)["_params"]
    shared = vars(other)["_params"]
    parameters.update({name: parameter for name, parameter in shared.items() if name in parameters})


@contextlib.contextmanager
def patched_overflow_status(step: nn.Cell | None) -> Iterator[None]:
    """Give `nn.TrainOneStepWithLossScaleCell` an overflow check that has a kernel."""
    kind = nn.TrainOneStepWithLossScaleCell
    needs_patch = (
        isinstance(step, kind)
        and not device.current().has_overflow_status
        and type(step).get_overflow_status is kind.get_overflow_status
        and "get_overflow_status" not in vars(step)
    )
    if not needs_patch:
        yield
        return
    hide(step, "get_overflow_status", types.MethodType(_overflow_status, step))
    try:
        yield
    finally:
        del vars(step)["get_overflow_status"]


def _overflow_status(self, status, gradients):
    return ops.logical_not(amp.all_finite(gradients))


@contextlib.contextmanager
def zeros_for_any_id(cells: Iterable[nn.Cell]) -> Iterator[None]:
    """Make MindSpore's embeddings in `cells` return zeros for any id, in eager runs."""
    kinds = (nn.Embedding, nn.EmbeddingLookup)
    lookups = [cell for cell in cells if isinstance(cell, kinds) and "construct" not in vars(cell)]
    for cell in lookups:
        hide(cell, "construct", _zeros_from(cell.embedding_table))
    try:
        yield
    finally:
        for cell in lookups:
            del vars(cell)["construct"]


def _zeros_from(table: Parameter) -> Callable[[Tensor], Tensor]:
    return lambda ids: ops.zeros((*ids.shape, table.shape[-1]), table.dtype)


def moving_statistics(network: nn.Cell) -> list[Parameter]:
    """Return the moving statistics of normalisation cells."""
    names = ("moving_mean", "moving_variance", "running_mean", "running_var", "num_batches_tracked")
    values = [getattr(cell, name, None) for _, cell in cells_and_names(network) for name in names]
    return list({id(value): value for value in values if isinstance(value, Parameter)}.values())


def user_conversion(network: nn.Cell) -> str | None:
    """Describe how a user converted `network` to low precision, or return None."""
    level = getattr(network, "_amp_level", None)
    if level:
        return f"by mindspore.amp to {level}"
    for name, cell in cells_and_names(network):
        if any(getattr(cell, flag, False) for flag in ("fp16", "bf16")):
            return f"cell {name or type(cell).__name__!r} has to_float(float16 or bfloat16)"
        if type(cell).__name__ in ("_OutputTo16", "_OutputTo32"):
            return f"cell {name!r} is a mindspore.amp wrapper"
    return None
