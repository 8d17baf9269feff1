"""The items nearest to a user, from the vectors of two towers."""

from __future__ import annotations

import numpy as np


def top_items(users: np.ndarray, items: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the exact nearest items by inner product.

    Args:
        users: float [U, width].
        items: float [I, width].
        count: items per user, at most I.

    Returns:
        Numbers of the items, int64 [U, count], best first, and their scores, float32 [U, count].
    """
    scores = np.asarray(users, np.float32) @ np.asarray(items, np.float32).T
    count = min(count, scores.shape[1])
    best = np.argpartition(-scores, count - 1, axis=1)[:, :count]
    order = np.argsort(-np.take_along_axis(scores, best, 1), axis=1, kind="stable")
    best = np.take_along_axis(best, order, 1)
    return best, np.take_along_axis(scores, best, 1)
