"""Embedding cells, row optimizers, and graph code that reads and updates tables."""
