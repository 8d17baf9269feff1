"""A cell in place of another whose output is cast.

Relies on ``Cell.__getattr__`` finding child cells, and on a name in ``construct`` standing for a function of its
module.
"""

from __future__ import annotations

from typing import Any

from mindspore import dtype as mstype
from mindspore import nn, ops


class CastOutput(nn.Cell):
    """A cell whose output is cast; transparent for attribute access and parameter names."""

    def __init__(self, cell: nn.Cell, dtype: Any) -> None:
        super().__init__(auto_prefix=False)
        self.cast_cell = cell
        self.cast_dtype = dtype

    def construct(self, *args):
        """Return what the cell returns, floating-point tensors cast."""
        outputs = self.cast_cell(*args)
        return _cast(outputs, self.cast_dtype)

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
