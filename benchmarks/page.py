"""The page of benchmarks, docs/benchmarks.md: one table, with a column of ratios for a second kind of processor."""

from __future__ import annotations

import re
from pathlib import Path

BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"
_RATIO = "ratio of times"
_MEASURED = re.compile(r"Measured (.+?) on (.+?)(?:, load [\d.]+ to [\d.]+)?; Python")
Rows = list[list[str]]


def refresh(text: str, path: Path) -> None:
    """Write the table of a measurement into the page.

    If the page holds a table of another processor, its ratios become a column of the new table, where both have the
    same line. A table of the same processor is replaced, and that column is kept.

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
    header, rows = _table(old)
    other = [name for name in header if name.startswith("on ")]
    column, name = (other[0], other[0]) if other else (None, "")
    if earlier[1] != told[1]:
        column = next((name for name in header if name.startswith(_RATIO)), None)
        name = f"on {earlier[1]}, {earlier[0]}"
    if column is None:
        return text
    place = header.index(column)
    ratios = {_line(header, row): row[place].partition(" ")[0] for row in rows}
    lines, inside = [], False
    for line in text.splitlines():
        cells = _cells(line)
        if cells and any(cell.startswith(_RATIO) for cell in cells):
            inside, new_header = True, cells
            cells = [*cells[:-1], name, cells[-1]]
        elif inside and cells:
            own = "---" if set(cells) <= {"---"} else ratios.get(_line(new_header, cells), "")
            cells = [*cells[:-1], own, cells[-1]]
        else:
            inside = False
        lines.append(f"| {' | '.join(cells)} |" if inside else line)
    return "\n".join(lines)


def _place(text: str) -> tuple[str, str] | None:
    """Return when and on which processor a table was measured."""
    found = _MEASURED.match(text)
    return None if found is None else (found[1], found[2])


def _table(text: str) -> tuple[list[str], Rows]:
    """Return the header and the rows of the table of ratios."""
    header: list[str] = []
    rows: Rows = []
    for line in text.splitlines():
        cells = _cells(line)
        if not header and any(cell.startswith(_RATIO) for cell in cells):
            header = cells
        elif header and not cells:
            break
        elif header and not set(cells) <= {"---"}:
            rows.append(cells)
    return header, rows


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []


def _line(header: list[str], row: list[str]) -> tuple[str, ...]:
    """Return what a line compares: the case and the names of both contenders."""
    cells = dict(zip(header, row, strict=False))
    case = re.sub(r" \(noisy: .*\)$", "", cells.get("case", ""))
    return (case, *(cells.get(name, "").rpartition(": ")[0] for name in ("ours", "other")))
