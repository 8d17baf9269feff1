"""Find the embedding cells of a network without importing table code."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from mindspore import mint, nn

from ...errors import ConfigurationError
from ...mindspore_internals.cell_structure import cells_and_names

if TYPE_CHECKING:
    from .embedding import Embedding


def embedding_cells(network: nn.Cell) -> list[Embedding]:
    """Return all embedding cells of a network."""
    layers = sys.modules.get(f"{__package__}.embedding")
    if layers is None:  # not imported, so no such cell exists
        return []
    return [cell for _, cell in cells_and_names(network) if isinstance(cell, layers.Embedding)]


def reads_ids(network: nn.Cell) -> bool:
    """Return whether a network contains this package's or MindSpore's embeddings."""
    kinds = (nn.Embedding, nn.EmbeddingLookup, mint.nn.Embedding)
    return bool(embedding_cells(network)) or any(isinstance(cell, kinds) for _, cell in cells_and_names(network))


def head_cells(cells: Iterable[Embedding]) -> list[Embedding]:
    """Return the first cell of each table."""
    heads: dict[int, Embedding] = {}
    for cell in cells:
        heads.setdefault(id(cell.spec), cell)
    return list(heads.values())


def name_by_path(network: nn.Cell, cells: Iterable[Embedding]) -> None:
    """Name each unnamed table after the attribute path of its first cell."""
    paths = {id(cell): path for path, cell in cells_and_names(network)}
    for cell in cells:
        if cell.is_unnamed and not cell.is_dense and cell.host.table is None:
            cell.spec.name = paths[id(cell)] or cell.spec.name


def check_files(heads: Iterable[Embedding]) -> None:
    """Refuse two tables that would keep their rows in one file."""
    names: dict[Path, str] = {}
    for cell in heads:
        path, name = cell.spec.path, cell.spec.name
        if path is not None and (other := names.setdefault(Path(path).resolve(), name)) != name:
            raise ConfigurationError(
                f"tables {other!r} and {name!r} have the same path={path!r}, and would overwrite each other's rows: "
                "give each table its own file"
            )


def describe_dense(network: nn.Cell) -> str:
    """Describe the dense tables of a network and their sizes; empty if it has none."""
    dense = {id(cell.spec): cell for cell in embedding_cells(network) if cell.is_dense}
    return ", ".join(f"{cell.spec.name} ({len(cell.weight):,} rows)" for cell in dense.values())


def check_trainable(network: nn.Cell, optimizer: nn.Cell | None) -> None:
    """Check that a network with sparse tables has an optimizer.

    Raises:
        ConfigurationError: without an optimizer, the Trainer builds no step that updates the rows.
    """
    sparse = [cell for cell in embedding_cells(network) if not cell.is_dense]
    if sparse and optimizer is None:
        raise ConfigurationError(
            f"the network holds {len(sparse)} sparse Embedding cells, whose rows only the trainer's own step can "
            "update; pass network, loss_fn and optimizer, or build them with mode='dense'"
        )
