"""Which cells of a network read tables; nothing of tables is imported for a network that has none."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from mindspore import nn

from ..errors import ConfigurationError

if TYPE_CHECKING:
    from .layers import Embedding


def embedding_cells(network: nn.Cell) -> list[Embedding]:
    """Return all embedding cells of a network."""
    layers = sys.modules.get(f"{__package__}.layers")
    if layers is None:  # then nobody has made such a cell
        return []
    return [cell for _, cell in network.cells_and_names() if isinstance(cell, layers.Embedding)]


def check_trainable(network: nn.Cell, optimizer: nn.Cell | None) -> None:
    """Check that sparse tables can be trained: only the trainer's own step brings their rows before the graph.

    Raises:
        ConfigurationError: there is no optimizer.
    """
    sparse = [cell for cell in embedding_cells(network) if not cell.is_dense]
    if sparse and optimizer is None:
        raise ConfigurationError(
            f"the network holds {len(sparse)} sparse Embedding cells, whose rows only the trainer's own step can "
            "update; pass network, loss_fn and optimizer, or build them with mode='dense'"
        )
