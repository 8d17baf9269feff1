"""The page of benchmarks, docs/benchmarks.md, with a column for a second kind of processor."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"
_VALUES = ("ratio of times", "measured")  # titles of the columns that differ by processor
_QUARTILES = re.compile(r" \([\d.,]+ to [\d.,]+\)")
_MEASURED = re.compile(r"Measured (.+?) on (.+?)(?:, load [\d.]+ to [\d.]+)?; Python")
Rows = list[list[str]]


def refresh(text: str, path: Path) -> None:
    """Write the table of a measurement into the page.

    If the page holds tables of another processor, their medians become a column of the new ones, where both have the
    same line. Tables of the same processor are replaced, and that column is kept.

    Args:
        text: the Markdown of a measurement.

    Raises:
        ValueError: the page has no markers.
    """
    content = path.read_text("utf-8")
    before, begin, rest = content.partition(BEGIN)
    old, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{path} has no {BEGIN} ... {END} to put the table between")
    path.write_text(f"{before}{BEGIN}\n{_with_other_processor(text, old.strip())}\n{END}{after}", "utf-8")


def _with_other_processor(text: str, old: str) -> str:
    told, earlier = _place(text), _place(old)
    if not earlier:
        return text
    name, values = "", defaultdict[tuple[str, ...], list[str]](list)  # a line's values, in the order of the page
    for header, rows in _tables(old):
        own, other = _column(header, _VALUES), _column(header, "on ")
        place = other if earlier[1] == told[1] else own
        if place is None:
            continue
        name = header[place] if place == other else f"on {earlier[1]}, {earlier[0]}"
        for row in rows:
            values[_line(header, row)].append(_QUARTILES.sub("", row[place]))
    if not name:
        return text
    lines, header = [], list[str]()
    for line in text.splitlines():
        cells = _cells(line)
        if not header and _column(cells, _VALUES) is not None:
            header, added = cells, name
        elif header and cells:
            found = values[_line(header, cells)]
            added = "---" if set(cells) <= {"---"} else found.pop(0) if found else ""
        else:
            header = []
        lines.append(f"| {' | '.join([*cells[:-1], added, cells[-1]])} |" if header else line)
    return "\n".join(lines)


def _place(text: str) -> tuple[str, str] | None:
    """Return when and on which processor a table was measured."""
    found = _MEASURED.match(text)
    return None if found is None else (found[1], found[2])


def _tables(text: str) -> Iterator[tuple[list[str], Rows]]:
    """Yield header and rows of the tables of ratios and of single measurements."""
    header, rows = list[str](), Rows()
    for line in [*text.splitlines(), ""]:
        cells = _cells(line)
        if not header and _column(cells, _VALUES) is not None:
            header, rows = cells, []
        elif header and cells and not set(cells) <= {"---"}:
            rows.append(cells)
        elif header and not cells:
            yield header, rows
            header = []


def _column(header: list[str], title: str | tuple[str, ...]) -> int | None:
    return next((place for place, name in enumerate(header) if name.startswith(title)), None)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []


def _line(header: list[str], row: list[str]) -> tuple[str, ...]:
    """Return what a line compares: the case and the names of both contenders."""
    cells = dict(zip(header, row, strict=False))
    case = re.sub(r" \(noisy: .*\)$", "", cells.get("case", ""))
    return (case, *(cells.get(name, "").rpartition(": ")[0] for name in ("ours", "other")))
