"""Sources of finite data: arrays, datasets and Parquet folders, for all processes."""
