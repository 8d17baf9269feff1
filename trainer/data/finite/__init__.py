"""Finite data: arrays, datasets, Parquet folders, divided among processes."""
