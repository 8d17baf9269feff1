"""Data that ends: arrays, datasets, Parquet folders, and their division among processes."""
