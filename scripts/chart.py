"""`chart_svg`: draw curves with axes as SVG, without a plotting library."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

Curve = tuple[Sequence[float], Sequence[float]]  # x and y of the points

COLORS = ("#3b7dd8", "#d9822b", "#2e8b57", "#b0413e", "#7a5aa6")
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 52, 44  # margins in pixels
HEADROOM = 0.06  # free space above and below the curves, as a share of the range of y
TICKS = 5


def chart_svg(
    curves: Mapping[str, Curve],
    title: str,
    x_label: str,
    y_label: str,
    *,
    log_x: bool = False,
    marks: Mapping[str, float] | None = None,
    width: int = 560,
    height: int = 280,
) -> str:
    """Draw curves on the same axes; return the SVG, or "" if there is nothing to draw.

    Args:
        curves: curves by name. Non-finite points and curves of fewer than two points are omitted. A single curve gets
            no legend.
        title: title of the chart.
        x_label, y_label: labels of the axes.
        log_x: whether the x axis is logarithmic; x must then be above 0.
        marks: x positions of vertical lines, by their text.
        width, height: size in pixels.
    """
    drawable = {
        name: [(x, y) for x, y in zip(*curve, strict=True) if math.isfinite(x) and math.isfinite(y)]
        for name, curve in curves.items()
    }
    drawable = {name: points for name, points in drawable.items() if len(points) > 1}
    if not drawable:
        return ""
    points_drawn = [point for points in drawable.values() for point in points]
    scale = math.log10 if log_x else float
    left, right = scale(min(x for x, _ in points_drawn)), scale(max(x for x, _ in points_drawn))
    low, high = min(y for _, y in points_drawn), max(y for _, y in points_drawn)
    if low == high:
        low, high = low - 0.5, high + 0.5
    low, high = low - HEADROOM * (high - low), high + HEADROOM * (high - low)
    inner_width, inner_height = width - LEFT - RIGHT, height - TOP - BOTTOM

    def pixel(x: float, y: float) -> tuple[float, float]:
        x_share, y_share = (scale(x) - left) / ((right - left) or 1), (high - y) / (high - low)
        return LEFT + inner_width * x_share, TOP + inner_height * y_share

    parts = [_text(width / 2, 20, title, "middle", weight="bold")]
    for value in _ticks(low, high):
        position = pixel(points_drawn[0][0], value)[1]
        parts.append(f'<path d="M{LEFT} {position:.1f}h{inner_width}" stroke="#ddd"/>')
        parts.append(_text(LEFT - 6, position + 4, f"{value:g}", "end"))
    for value in _decades(left, right) if log_x else _ticks(left, right):
        position = pixel(value, low)[0]
        parts.append(f'<path d="M{position:.1f} {TOP}v{inner_height}" stroke="#eee"/>')
        parts.append(_text(position, TOP + inner_height + 16, f"{value:g}", "middle"))
    parts.append(_text(LEFT + inner_width / 2, height - 8, x_label, "middle"))
    middle, label = TOP + inner_height / 2, _text(0, 0, y_label, "middle")
    parts.append(f'<g transform="translate(14 {middle:.1f}) rotate(-90)">{label}</g>')
    legend = float(LEFT)
    for number, (name, points) in enumerate(drawable.items()):
        # Later curves are dashed, so that a curve beneath them stays visible.
        style = f'stroke="{COLORS[number % len(COLORS)]}"' + (' stroke-dasharray="7 5"' if number > 2 else "")
        line = " ".join("{:.1f},{:.1f}".format(*pixel(x, y)) for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke-width="1.8" {style}/>')
        if len(drawable) > 1:
            parts.append(f'<path d="M{legend:.0f} 38h18" stroke-width="3" {style}/>')
            parts.append(_text(legend + 24, 42, name, "start"))
            legend += 48 + 7 * len(name)
    for text, x in (marks or {}).items():
        position = pixel(x, low)[0]
        side, shift = ("end", -5) if position > LEFT + inner_width / 2 else ("start", 5)
        parts.append(f'<path d="M{position:.1f} {TOP}v{inner_height}" stroke="#b0413e" stroke-dasharray="4 3"/>')
        parts.append(_text(position + shift, TOP + 12, text, side))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{html.escape(title)}" width="{width}" '
        f'height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" fill="#333">'
        f'<title>{html.escape(title)}</title><rect width="100%" height="100%" rx="6" fill="#fff"/>'
        + "".join(parts)
        + "</svg>"
    )


def _text(x: float, y: float, text: str, anchor: str, weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">{html.escape(text)}</text>'


def _ticks(low: float, high: float) -> list[float]:
    """Return about `TICKS` round values between two values."""
    rough = (high - low) / TICKS
    if rough <= 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _decades(low: float, high: float) -> list[float]:
    """Return at most ten powers of ten between two given logarithms."""
    powers = range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)
    every = max(1, math.ceil(len(powers) / 10))
    return [10.0**power for power in powers[::every]]
