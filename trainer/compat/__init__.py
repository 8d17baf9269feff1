"""MindSpore's `Model` and `RecModel`, implemented with `Trainer`."""
