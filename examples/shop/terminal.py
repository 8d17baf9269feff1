"""Draw a recording of a terminal as an animated SVG, faster than real time."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

SPEED, LINE, LEFT = 8.0, 20, 16


def draw_terminal(path: Path, command: str, lines: Sequence[tuple[float, str]]) -> None:
    """Write the SVG.

    Args:
        path: file to write.
        command: command shown in the first line.
        lines: printed lines, each with the seconds since the start.
    """
    shown = [(0.0, f"$ {command}"), *((seconds, f"{seconds:6.1f} s  {text}") for seconds, text in lines)]
    width, height = 2 * LEFT + round(8.1 * max(len(text) for _, text in shown)), 2 * LEFT + LINE * len(shown)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        "<style>text{font:13px ui-monospace,Menlo,Consolas,monospace;fill:#d7e0da;white-space:pre}"
        ".l{animation:show .01s both}@keyframes show{from{opacity:0}to{opacity:1}}</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#10201a"/>',
    ]
    for number, (seconds, text) in enumerate(shown):
        y = LEFT + LINE * number + 14
        delay = f"animation-delay:{seconds / SPEED:.2f}s"
        parts.append(f'<text class="l" style="{delay}" x="{LEFT}" y="{y}">{html.escape(text)}</text>')
    path.write_text("\n".join([*parts, "</svg>"]), encoding="utf-8")
