"""Sparse tables: embeddings of raw ids at a cost independent of the vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from callbacks.lazy_names import declared_imports, lazy_names

if TYPE_CHECKING:
    from .layers.embedding import Embedding as Embedding
    from .layers.embedding_group import EmbeddingBag as EmbeddingBag
    from .layers.embedding_group import EmbeddingGroup as EmbeddingGroup
    from .layers.network_tables import SparseTables as SparseTables
    from .layers.row_optimizer import RowOptimizer as RowOptimizer
    from .layers.row_optimizers import RowAdagrad as RowAdagrad
    from .layers.row_optimizers import RowAdam as RowAdam
    from .layers.row_optimizers import RowFTRL as RowFTRL
    from .layers.row_optimizers import RowSGD as RowSGD
    from .tables.spec import Eviction as Eviction
    from .tables.spec import MinSightings as MinSightings
    from .tables.spec import Probability as Probability

_HOMES = declared_imports(__file__)
__all__ = sorted(_HOMES)

__getattr__, __dir__ = lazy_names(__name__, _HOMES, fallback=".layers.row_optimizers")
