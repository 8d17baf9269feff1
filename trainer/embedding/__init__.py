"""Sparse tables: embeddings for ids nobody has to number, at a cost that does not grow with the vocabulary."""

from trainer.embedding.admission import MinSightings, Probability
from trainer.embedding.bag import EmbeddingBag
from trainer.embedding.cells import Embedding
from trainer.embedding.eviction import Eviction
from trainer.embedding.optimizers import RowAdagrad, RowAdam, RowFTRL, RowOptimizer, RowSGD
from trainer.embedding.tables import SparseTables

__all__ = [
    "Embedding",
    "EmbeddingBag",
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
