"""How many programs a cell has been compiled to."""

from __future__ import annotations

from mindspore import nn


def count_programs(cell: nn.Cell) -> int:
    """Return the number of programs `cell` has been compiled to, one for every combination of shapes and modes.

    Relies on `Cell.compile_cache`, the set of keys of compiled programs that every `Cell` has had since 2.0.
    """
    return len(getattr(cell, "compile_cache", ()))
