"""Sparse tables: embeddings for ids nobody has to number, at a cost that does not grow with the vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..hooks import lazy_names

if TYPE_CHECKING:
    from .admission import MinSightings as MinSightings
    from .admission import Probability as Probability
    from .bag import EmbeddingBag as EmbeddingBag
    from .embedding_group import EmbeddingGroup as EmbeddingGroup
    from .eviction import Eviction as Eviction
    from .layers import Embedding as Embedding
    from .row_optimizers import RowAdagrad as RowAdagrad
    from .row_optimizers import RowAdam as RowAdam
    from .row_optimizers import RowFTRL as RowFTRL
    from .row_optimizers import RowOptimizer as RowOptimizer
    from .row_optimizers import RowSGD as RowSGD
    from .tables import SparseTables as SparseTables

_HOMES = {
    "Embedding": ".layers",
    "EmbeddingBag": ".bag",
    "EmbeddingGroup": ".embedding_group",
    "Eviction": ".eviction",
    "MinSightings": ".admission",
    "Probability": ".admission",
    "RowAdagrad": ".row_optimizers",
    "RowAdam": ".row_optimizers",
    "RowFTRL": ".row_optimizers",
    "RowOptimizer": ".row_optimizers",
    "RowSGD": ".row_optimizers",
    "SparseTables": ".tables",
}
__all__ = sorted(_HOMES)

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
