"""Pictures of binary scores (ROC, calibration) as PNG, by matplotlib."""

from __future__ import annotations

import functools
import io
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any


@functools.cache
def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def roc(table: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    """Return false and true positive rates for thresholds from 1 down to 0."""
    negatives, positives = table["above"]["negatives"], table["above"]["positives"]
    return [n / (negatives[0] or 1.0) for n in negatives[::-1]], [p / (positives[0] or 1.0) for p in positives[::-1]]


def roc_picture(table: Mapping[str, Any], title: str) -> bytes:
    """Draw the ROC curve as PNG."""
    x, y = roc(table)
    return _draw(title, "false positive rate", "true positive rate", [0.0, *x], [0.0, *y], 1.0)


def calibration_picture(table: Mapping[str, Any], title: str) -> bytes:
    """Draw the share of positives over the mean prediction of groups of rows as PNG."""
    x, y = table["predicted"], table["observed"]
    return _draw(title, "mean prediction", "share of positives", x, y, max(*x, *y, 1e-9))


def _draw(title: str, x_label: str, y_label: str, x: Sequence[float], y: Sequence[float], end: float) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.0, 3.6), dpi=100, layout="tight")  # without pyplot: nothing global is changed
    axes = figure.add_subplot(title=title, xlabel=x_label, ylabel=y_label)
    axes.plot([0, end], [0, end], linestyle=":", color="gray")
    axes.plot(x, y, marker="." if len(x) < 50 else None)
    axes.grid(alpha=0.3)
    data = io.BytesIO()
    FigureCanvasAgg(figure).print_png(data)
    return data.getvalue()
