"""The demonstration's chart: AUC over event time of learning and frozen model."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from trainer.errors import ConfigurationError

WINDOW = 2500
GREEN, GREY, RED = "#0b6e4f", "#7a7a7a", "#b3261e"
# In dark mode, invert the lightness and keep the hues.
DARK = "@media (prefers-color-scheme: dark) {svg {filter: invert(0.92) hue-rotate(180deg)}}"


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Return the AUC as the share of correctly ordered pairs; ties count half.

    See H. B. Mann and D. R. Whitney, 1947.
    """
    _, ranks, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ends = counts.cumsum()
    rank = (ends - (counts - 1) / 2)[ranks]
    positive = labels > 0
    good, bad = positive.sum(), (~positive).sum()
    return float((rank[positive].sum() - good * (good + 1) / 2) / (good * bad))


def moving_auc(scores: np.ndarray, labels: np.ndarray, window: int = WINDOW) -> tuple[np.ndarray, np.ndarray]:
    """Return row numbers, and the AUC of the `window` rows before each of them."""
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
    """Draw both curves over event time, with ticks for versions and lines for events.

    Args:
        path: SVG file to write.
        times: event time of every visit, seconds since 1970.
        labels: whether each visit was liked.
        learning: predictions of the served versions.
        frozen: predictions of the first version.
        versions: version that answered each visit.
        marks: events, each as the number of a visit and a text.
    """
    try:
        import matplotlib
    except ImportError:
        raise ConfigurationError("the picture needs matplotlib: pip install 'mindspore-trainer[examples]'") from None
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "shop"
    import matplotlib.pyplot as plt
    from matplotlib.dates import DateFormatter

    dates = [datetime.fromtimestamp(time, timezone.utc) for time in times]
    figure, axes = plt.subplots(figsize=(9, 4.2))
    curves = []
    for scores, name, color in (
        (learning, "learns while\nit serves", GREEN),
        (frozen, "frozen at its\nfirst version", GREY),
    ):
        ends, values = moving_auc(scores, labels)
        curves.append(values)
        axes.plot([dates[end - 1] for end in ends], values, color=color, linewidth=2)
        own = f"{name}\n{auc(scores, labels):.3f} over all"
        # label each curve beside its end: the learning model above, the frozen one below
        above = 1 if scores is learning else -1
        axes.annotate(
            own,
            (1.01, 0.62 + 0.2 * above),
            xycoords="axes fraction",
            color=color,
            fontsize=10,
            weight="bold",
            va="center",
        )
    places = [dates[end - 1] for end in ends]
    axes.fill_between(
        places, *curves, where=curves[0] > curves[1], color=GREEN, alpha=0.12, interpolate=True, linewidth=0
    )
    low, high = axes.get_ylim()
    low -= 0.08 * (high - low)  # room for the versions below both curves
    new = np.flatnonzero(np.diff(versions)) + 1
    axes.vlines([dates[n] for n in new], low, low + 0.03 * (high - low), color=GREEN, linewidth=0.8)
    axes.annotate(
        "each tick is a\nversion published",
        (1.01, 0.02),
        xycoords="axes fraction",
        color=GREEN,
        fontsize=8,
        va="bottom",
    )
    for number, text in marks:
        date = dates[min(number, len(dates) - 1)]
        axes.axvline(date, color=RED, linewidth=1, linestyle="--")
        at = axes.get_xaxis_transform()  # places the text above the axes, clear of the curves
        axes.annotate(text, (date, 1.02), xycoords=at, ha="center", fontsize=9, color=RED, annotation_clip=False)
    axes.set_ylim(low, high)
    axes.set_title(f"AUC of the last {min(WINDOW, len(labels)):,} answers", loc="left", fontsize=11, pad=24)
    axes.xaxis.set_major_formatter(DateFormatter("%d %b %Y"))
    axes.set_xlabel("when the ratings of MovieLens-100K were given")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    svg = path.read_text("utf-8")
    path.write_text(svg.replace("</defs>", f"<style>{DARK}</style></defs>", 1), "utf-8")
