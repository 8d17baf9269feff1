"""Sparse tables: embeddings for ids nobody has to number, at a cost that does not grow with the vocabulary."""

from .admission import MinSightings, Probability
from .bag import EmbeddingBag
from .embedding_group import EmbeddingGroup
from .eviction import Eviction
from .layers import Embedding
from .row_optimizers import RowAdagrad, RowAdam, RowFTRL, RowOptimizer, RowSGD
from .tables import SparseTables

__all__ = [
    "Embedding",
    "EmbeddingBag",
    "EmbeddingGroup",
    "Eviction",
    "MinSightings",
    "Probability",
    "RowAdagrad",
    "RowAdam",
    "RowFTRL",
    "RowOptimizer",
    "RowSGD",
    "SparseTables",
]
