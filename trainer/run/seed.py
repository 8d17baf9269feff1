"""Seeds: checked and set. What a snapshot holds of the generators is `trainer.checkpoint.generators`'."""

from __future__ import annotations

import random

import mindspore
import numpy as np


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and MindSpore (which also seeds its datasets)."""
    random.seed(seed)
    np.random.seed(seed)
    mindspore.set_seed(seed)
