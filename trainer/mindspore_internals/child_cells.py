"""Changing a network that is already built."""

from __future__ import annotations

from mindspore import nn


def replace_child(parent: nn.Cell, name: str, cell: nn.Cell) -> None:
    """Put `cell` in place of the child `name` of `parent`, without renaming parameters."""
    parent._cells[name] = cell  # the registry MindSpore's own amp writes; there is no public setter that keeps names
    if isinstance(parent, nn.SequentialCell):
        parent.cell_list = list(parent.cells())
