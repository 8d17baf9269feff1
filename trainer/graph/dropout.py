"""Stateless dropout in place of MindSpore's, for exact resume."""

from __future__ import annotations

import logging
from typing import Any

from mindspore import nn

from ..checkpoint.capture import DROPOUT_COUNTER
from ..mindspore_internals.cell_structure import cells_and_names, children_of, replace_child
from ..models.stateless_dropout import StatelessDropout, layer_key

logger = logging.getLogger(__name__)

# Number of trailing dimensions that are dropped together: none, or all after the channel.
_WHOLE = {nn.Dropout: 0, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}


def replace_dropout(network: nn.Cell, seed: int) -> list[str]:
    """Replace all `nn.Dropout*` cells by `StatelessDropout`; return their names."""
    replaced: dict[int, StatelessDropout] = {}
    names = []
    parents = [(name, parent) for name, parent in cells_and_names(network)]
    for prefix, parent in parents:
        for name, cell in list(children_of(parent).items()):
            whole = _WHOLE.get(type(cell))
            if whole is None or _keep_prob(cell) == 1:
                continue
            path = f"{prefix}.{name}" if prefix else name
            if id(cell) not in replaced:
                replaced[id(cell)] = StatelessDropout(_keep_prob(cell), layer_key(seed, len(replaced)), whole)
                replaced[id(cell)].forwards.name = f"{path}.{DROPOUT_COUNTER}"
                replaced[id(cell)].set_train(cell.training)
            replace_child(parent, name, replaced[id(cell)])
            names.append(path)
    if names:
        logger.info("exact_resume: stateless dropout in place of %s", ", ".join(names))
    return names


def drops(cell: nn.Cell) -> bool:
    """Return whether a cell is a dropout layer."""
    return type(cell) in _WHOLE or isinstance(cell, StatelessDropout)


def repeatable(network: nn.Cell) -> bool:
    """Return whether no dropout of `network` uses a random state that cannot be saved."""
    return not any(type(cell) in _WHOLE and _keep_prob(cell) != 1 for _, cell in cells_and_names(network))


def _keep_prob(cell: Any) -> float:
    # nn.Dropout stores either p or keep_prob, depending on which argument was passed
    p = getattr(cell, "p", None)
    return float(cell.keep_prob if p is None else 1 - p)
