"""Training and inference mode of cells for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from mindspore import nn

from ..mindspore_internals.cell_structure import cells_and_names


@contextlib.contextmanager
def modes_put_back(*roots: nn.Cell) -> Iterator[None]:
    """Put the modes of all cells back as they were."""
    cells = [cell for root in roots for _, cell in cells_and_names(root)]
    modes = [cell.training for cell in cells]
    try:
        yield
    finally:
        # parents first, so that a child that differs from its parent gets its own mode last
        for cell, mode in zip(cells, modes, strict=True):
            if cell.training != mode:
                cell.set_train(mode)
