"""Summaries of a run as text and HTML: metrics, curves, time by part."""

from __future__ import annotations

import html
import math
import textwrap
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trainer.checks import four_digits

from .output import without_equal_losses

if TYPE_CHECKING:
    from .history import History

SHOWN_METRICS = 6
PARTS = ("setting up", "waiting for data", "preparing data", "training", "evaluation", "saving")


class Times:
    """Seconds of a run by part; the remaining time, mostly of callbacks, is "other".

    Data prepared on a background thread takes no time of the run; its time is counted separately, in `ahead`.
    """

    def __init__(self) -> None:
        self.start_time = self._mark = time.perf_counter()
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.ahead = 0.0

    def add(self, part: str) -> None:
        """Count the time since the last mark as `part`."""
        now = time.perf_counter()
        self.seconds[part] += now - self._mark
        self._mark = now

    def skip(self) -> None:
        """Count the time since the last mark as "other"."""
        self._mark = time.perf_counter()

    def separate_preparing(self, preparing: Mapping[str, float]) -> None:
        """Move the time of preparing data on the training thread out of the waiting time."""
        inline = min(preparing["preparing"], self.seconds["waiting for data"])
        self.seconds["waiting for data"] -= inline
        self.seconds["preparing data"] += inline
        self.ahead = preparing["preparing ahead"]

    def describe(self) -> str:
        """Return the total time, and the share of each part of at least 1 %, as text."""
        total = max(time.perf_counter() - self.start_time, 1e-9)
        shares = {**self.seconds, "other": total - sum(self.seconds.values())}
        text = f"{total:,.1f} s: " + ", ".join(
            f"{s / total:.0%} {part}" for part, s in shares.items() if s >= total / 100
        )
        return text + (f"; {self.ahead:,.1f} s of preparing data in parallel" if self.ahead >= total / 100 else "")


def results(history: History) -> list[tuple[str, float, float | None, int | None, str | None]]:
    """Return (metric, last, best, step, snapshot) rows; validation and windows first."""
    best = {name: (best.value, best.step, best.snapshot) for name, best in history.best.items()}
    none = (None, None, None)
    rows = [(name, values[-1], *best.get(name, none)) for name, values in history.history.items() if values]
    return sorted(rows, key=lambda row: (not row[0].startswith(("val_", "window_")), row[2] is None))


def lines(history: History, columns: int) -> list[str]:
    """Return last and best values as lines, wrapped between words to `columns`."""
    ranked = results(history)
    shown = without_equal_losses({name: last for name, last, *_ in ranked})
    ranked = [row for row in ranked if row[0] in shown][:SHOWN_METRICS]
    width = max((len(name) for name, *_ in ranked), default=0)
    text_lines: list[str] = []
    for name, last, best, step, snapshot in ranked:
        text = f"{name:<{width}}  last {four_digits(last)}"
        if best is not None:
            text += f", best {four_digits(best)} at step {step:,}" + (f" in {snapshot}" if snapshot else "")
        text_lines += wrapped(text, columns, indent=width + 2)
    return text_lines


def wrapped(text: str, columns: int, indent: int = 2) -> list[str]:
    """Wrap `text` between words to `columns`; indent all lines except the first."""
    width, indentation = max(columns - 1, 20), " " * min(indent, columns // 3)
    return textwrap.wrap(text, width, subsequent_indent=indentation, break_long_words=False, break_on_hyphens=False)


def curve_svg(steps: Sequence[int], values: Sequence[float], label: str, width: int = 240, height: int = 60) -> str:
    """Draw a curve as SVG; values that are not finite are skipped."""
    points = [(step, value) for step, value in zip(steps, values, strict=True) if math.isfinite(value)]
    if len(points) < 2:
        return ""
    low, high = min(value for _, value in points), max(value for _, value in points)
    first, span = points[0][0], max(points[-1][0] - points[0][0], 1)
    line = " ".join(
        f"{4 + (width - 8) * (step - first) / span:.1f},"
        f"{height - 4 - (height - 8) * (value - low) / ((high - low) or 1):.1f}"
        for step, value in points
    )
    return (
        f'<svg role="img" aria-label="{html.escape(label)}" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}"><title>{html.escape(label)}</title>'
        f'<polyline points="{line}" fill="none" stroke="#3b7dd8" stroke-width="1.5"/></svg>'
    )


def table_html(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return an HTML table; SVG pictures in cells are not escaped."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    text = "" if value is None else four_digits(value) if isinstance(value, float) else str(value)
    return text if text.startswith("<svg") else html.escape(text)


def history_html(history: History) -> str:
    """Return the metrics of a run as an HTML table with a curve for each."""
    header = ["metric", "last", "best", "at step", "snapshot", "curve"]
    rows: list[list[object]] = [
        [*row, curve_svg(history.steps[row[0]], history.history[row[0]], f"{row[0]} over optimizer steps")]
        for row in results(history)
    ]
    curve = history.curve
    # Show the loss curve only if it has more points than the other curves.
    if len(curve) > max(len(values) for values in history.history.values() or [()]):
        picture = curve_svg(curve.steps, curve.values, "loss of single steps")
        rows.append(["loss of single steps", curve.values[-1], None, None, None, picture])
    if all(row[4] is None for row in rows):
        header, rows = [*header[:4], header[5]], [[*row[:4], row[5]] for row in rows]
    epochs = history.epoch
    description = f"epochs {epochs[0]} to {epochs[-1]}" if epochs else "no finished epoch"
    if epochs and epochs[0] > 1:
        description += f" (a second fit continues the count: {epochs[0] - 1} were trained before)"
    ended = f"; ended by {history.stop_reason}" if history.stop_reason else ""
    return f"<div><b>History</b>: {html.escape(description + ended)}" + table_html(header, rows) + "</div>"
