"""How to tell that a network has been converted to low precision by somebody else.

Relied on: `mindspore.amp.auto_mixed_precision` and `build_train_network` note their level in `_amp_level` and wrap
cells in `_OutputTo16` or `_OutputTo32`; `Cell.to_float` sets the flags `fp16` and `bf16`. Where a MindSpore does none
of this, a second conversion is not noticed.
"""

from __future__ import annotations

from mindspore import nn


def foreign_conversion(network: nn.Cell) -> str | None:
    """Return in words how `network` was converted to low precision, or None where nothing tells of it."""
    level = getattr(network, "_amp_level", None)
    if level:
        return f"by mindspore.amp to {level}"
    for name, cell in network.cells_and_names():
        if any(getattr(cell, flag, False) for flag in ("fp16", "bf16")):
            return f"cell {name or type(cell).__name__!r} has to_float(float16 or bfloat16)"
        if type(cell).__name__ in ("_OutputTo16", "_OutputTo32"):
            return f"cell {name!r} is a mindspore.amp wrapper"
    return None
