"""The demonstration's picture: AUC over event time of the model that learned on and of the one that did not."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from trainer.errors import ConfigurationError

WINDOW = 2500


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of pairs in the right order, ties counted half (Mann and Whitney, 1947)."""
    _, ranks, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ends = counts.cumsum()
    rank = (ends - (counts - 1) / 2)[ranks]
    positive = labels > 0
    good, bad = positive.sum(), (~positive).sum()
    return float((rank[positive].sum() - good * (good + 1) / 2) / (good * bad))


def moving_auc(scores: np.ndarray, labels: np.ndarray, window: int = WINDOW) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers of rows, and the AUC of the `window` rows before each."""
    ends = np.arange(min(window, len(labels)), len(labels) + 1, 250)
    values = [auc(scores[max(0, end - window) : end], labels[max(0, end - window) : end]) for end in ends]
    return ends, np.array(values)


def draw(
    path: Path,
    times: np.ndarray,
    labels: np.ndarray,
    learning: np.ndarray,
    frozen: np.ndarray,
    versions: Sequence[int],
    marks: Sequence[tuple[int, str]],
) -> None:
    """Draw both curves over event time, with published versions as ticks and marked moments as lines.

    Args:
        path: the SVG to write.
        times: event time of every visit, seconds since 1970.
        labels: whether it was liked.
        learning, frozen: what the served model answered, and what the first version says.
        versions: the version that answered.
        marks: number of a visit, and what happened then.
    """
    try:
        import matplotlib
    except ImportError:
        raise ConfigurationError("the picture needs matplotlib: pip install 'mindspore-trainer[examples]'") from None
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "shop"
    import matplotlib.pyplot as plt

    dates = [datetime.fromtimestamp(time, timezone.utc) for time in times]
    figure, axes = plt.subplots(figsize=(9, 4.2))
    for scores, name, color in ((learning, "learns while it serves", "#0b6e4f"), (frozen, "frozen", "#9a9a9a")):
        ends, values = moving_auc(scores, labels)
        label = f"{name}: {auc(scores, labels):.3f}"
        axes.plot([dates[end - 1] for end in ends], values, label=label, color=color, linewidth=2)
    low, high = axes.get_ylim()
    new = np.flatnonzero(np.diff(versions)) + 1
    axes.vlines([dates[n] for n in new], low, low + 0.03 * (high - low), color="#0b6e4f", linewidth=0.7)
    axes.text(0.005, 0.04, "published versions", transform=axes.transAxes, fontsize=8, color="#0b6e4f")
    for place, (number, text) in enumerate(marks):
        date = dates[min(number, len(dates) - 1)]
        axes.axvline(date, color="#b3261e", linewidth=1, linestyle="--")
        axes.annotate(
            text,
            (date, high - (0.04 + 0.07 * (place % 3)) * (high - low)),
            xytext=(4, 0),
            textcoords="offset points",
            fontsize=8,
            color="#b3261e",
        )
    axes.set_ylim(low, high)
    axes.set_ylabel(f"AUC of the last {min(WINDOW, len(labels)):,} visits")
    axes.set_xlabel("when the ratings of MovieLens-100K were given")
    axes.legend(loc="lower right", frameon=False, title="AUC of all visits")
    axes.spines[["top", "right"]].set_visible(False)
    figure.autofmt_xdate(rotation=0, ha="center")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
