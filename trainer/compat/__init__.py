"""MindSpore's names: `Model` and `RecModel` over the verbs of `Trainer`."""
