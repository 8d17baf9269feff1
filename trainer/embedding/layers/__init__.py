"""Embedding cells, row optimizers, and the part of the training graph that reads and updates tables."""
