"""Handwritten digits: the 1,797 images of 8 x 8 pixels from scikit-learn.

E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998.
"""

from __future__ import annotations

import numpy as np

from trainer.errors import ConfigurationError, did_you_mean

SPLITS = ("train", "test")


def digits(split: str = "train", hold_out: float = 0.25) -> dict[str, np.ndarray]:
    """Return one part of the digits; the split is fixed.

    Args:
        split: "train" or "test".
        hold_out: share of the rows that form "test".

    Returns:
        image: float32 [rows, 1, 8, 8], ink from 0 to 1; label: int32 [rows], 0 to 9.

    Raises:
        ConfigurationError: an invalid argument, or scikit-learn is missing.
    """
    if split not in SPLITS:
        raise ConfigurationError(f"split takes 'train' or 'test'; received {split!r}{did_you_mean(split, SPLITS)}")
    if not 0 < hold_out < 1:
        raise ConfigurationError(f"hold_out takes a number between 0 and 1; received {hold_out!r}")
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ConfigurationError(
            "the digits come with scikit-learn: pip install 'mindspore-trainer[examples]'"
        ) from error
    bundle = load_digits()
    rows = np.random.default_rng(0).permutation(len(bundle.target))
    cut = len(rows) - round(len(rows) * hold_out)
    rows = rows[:cut] if split == "train" else rows[cut:]
    images = (bundle.images[rows, None] / 16.0).astype(np.float32)
    return {"image": images, "label": bundle.target[rows].astype(np.int32)}
