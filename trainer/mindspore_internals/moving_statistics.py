"""The parameters of a network that a forward changes by itself.

Relies on the names that MindSpore's normalisation cells, and `mint`'s, give their moving statistics.
"""

from __future__ import annotations

from mindspore import Parameter, nn


def moving_statistics(network: nn.Cell) -> list[Parameter]:
    """Return the parameters a training forward changes by itself: the moving statistics of normalisation cells."""
    names = ("moving_mean", "moving_variance", "running_mean", "running_var", "num_batches_tracked")
    found: dict[int, Parameter] = {}
    for _, cell in network.cells_and_names():
        for name in names:
            value = getattr(cell, name, None)
            if isinstance(value, Parameter):
                found[id(value)] = value
    return list(found.values())
