"""Pictures of binary scores (ROC, calibration) as PNG, by matplotlib."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any


def roc_picture(table: Mapping[str, Any], title: str) -> bytes:
    """Draw the ROC curve as PNG."""
    counts = [table["above"][kind][::-1] for kind in ("negatives", "positives")]  # thresholds from 1 down to 0
    x, y = ([count / (of_class[-1] or 1.0) for count in of_class] for of_class in counts)
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
