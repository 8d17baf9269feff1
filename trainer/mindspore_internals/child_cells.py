"""Changing cells that are already built, past what `Cell.__setattr__` makes of an assignment.

Relied on: a Cell keeps its children in `_cells` and its parameters in `_params`, both dictionaries in its `__dict__`;
what is written to `__dict__` directly is found by attribute access, in graphs too, and registered nowhere.
"""

from __future__ import annotations

import copy

from mindspore import nn


def replace_child(parent: nn.Cell, name: str, cell: nn.Cell) -> None:
    """Put `cell` in place of the child `name` of `parent`, without renaming parameters."""
    parent._cells[name] = cell  # the registry MindSpore's own amp writes; there is no public setter that keeps names
    if isinstance(parent, nn.SequentialCell):
        parent.cell_list = list(parent.cells())


def hide(cell: nn.Cell, name: str, value: object) -> None:
    """Set an attribute of `cell` without registering a Parameter or Cell, nor renaming it."""
    vars(cell)[name] = value


def copy_cell(cell: nn.Cell) -> nn.Cell:
    """Return a cell of the same class with the same children and parameters, whose attributes can be changed alone."""
    twin = copy.copy(cell)
    object.__setattr__(twin, "__dict__", dict(vars(cell)))  # a copied cell shares it
    for registry in ("_cells", "_params"):
        hide(twin, registry, copy.copy(vars(cell)[registry]))
    return twin


def share_parameters(cell: nn.Cell, other: nn.Cell) -> None:
    """Let `cell` use the parameters of `other` in place of its own of the same attribute names."""
    own = vars(cell)["_params"]
    own.update({name: parameter for name, parameter in vars(other)["_params"].items() if name in own})
