"""Follow an input through a network that runs operator by operator.

This module relies on the following behaviour of MindSpore: an eager network calls overridden methods of a subclass of
Tensor, and operators return plain tensors. An `if` or `while` on a tensor calls `Tensor.__bool__`. A cell reads its
mode by the name `training`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import CodeType, EllipsisType, FunctionType
from typing import Any

from mindspore import Tensor, nn

from .cell_structure import cells_and_names

# No cell of these packages changes ids in training only.
_PACKAGES = ("mindspore", "trainer", "callbacks", "builtins", "abc", "typing")


class TracedInput(Tensor):
    """Marks a network's input, or the same part of every row of an input."""

    def __getitem__(self, index: Any) -> Tensor:
        """Return a part; it is marked if it has all rows and the indices are constant."""
        part = super().__getitem__(index)
        indices = index if isinstance(index, tuple) else (index,)
        # A bool is a mask. A slice of the rows would take another share of a larger batch.
        constant = all(i is None or type(i) in (int, slice, EllipsisType) for i in indices)
        axes = sum(type(i) in (int, slice) for i in indices)
        all_rows = indices[:1] == (slice(None),) or (indices[:1] == (Ellipsis,) and axes < self.ndim)
        # MindSpore returns the input itself for a slice that takes all of this batch.
        return TracedInput(part) if constant and all_rows else Tensor(part)


@contextlib.contextmanager
def record_branches() -> Iterator[list[Tensor]]:
    """Yield a list that collects the tensors used as conditions inside the block."""
    conditions: list[Tensor] = []
    original = Tensor.__bool__

    def record(tensor: Tensor) -> bool:
        conditions.append(tensor)
        return bool(original(tensor))

    Tensor.__bool__ = record
    try:
        yield conditions
    finally:
        Tensor.__bool__ = original


def differs_in_training(network: nn.Cell) -> bool:
    """Return whether the code of a user's cell reads a flag `training`."""
    kinds = {kind for _, cell in cells_and_names(network) for kind in type(cell).__mro__}
    user_kinds = [kind for kind in kinds if kind.__module__.partition(".")[0] not in _PACKAGES]
    methods = [value for kind in user_kinds for value in vars(kind).values() if isinstance(value, FunctionType)]
    return any(_mentions_training(method.__code__) for method in methods)


def _mentions_training(code: CodeType) -> bool:
    nested = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return "training" in code.co_names or "training" in code.co_consts or any(map(_mentions_training, nested))
