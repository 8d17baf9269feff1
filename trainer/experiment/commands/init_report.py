"""Format the console report of `trainer init`: columns, features, model."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from .column_summary import ColumnSummary
from .proposal import Proposal
from .table_summary import TableSummary

WIDTH = 80
_MAX_NAME, _MAX_KIND, _CLASSES_SHOWN = 22, 16, 6
_DELIMITERS = {"\t": "tab", ",": "','", ";": "';'", "|": "'|'"}


def format_report(table: TableSummary, proposal: Proposal) -> str:
    """Describe the columns, the split and the model in lines of at most `WIDTH`."""
    about = f"{table.path}: {'' if table.complete else 'about '}{table.rows:,} rows, {len(table.columns)} columns"
    if not table.complete:
        about += f", the first {table.columns[0].rows:,} looked at"
    lines = _wrap(about + _csv_options(table))
    if table.set_aside is not None:
        lines += _wrap(table.set_aside)
    rows = list(_rows(table, proposal))
    widths = [min(limit, max(len(row[index]) for row in rows)) for index, limit in enumerate((_MAX_NAME, _MAX_KIND))]
    for name, kind, description in rows:
        indent = f"  {_truncated(name, widths[0]):<{widths[0]}}  {kind:<{widths[1]}}  "
        lines += textwrap.wrap(
            description, WIDTH, initial_indent=indent, subsequent_indent=" " * len(indent), break_on_hyphens=False
        ) or [indent.rstrip()]
    lines += _wrap(f"rows: {_row_split(proposal)}")
    reason = f": {proposal.reason}" if proposal.reason else ""
    lines += _wrap(f"model: {proposal.model}{reason}; `trainer models` lists others")
    return "\n".join(lines)


def _csv_options(table: TableSummary) -> str:
    """Describe the options of a CSV file that differ from their defaults."""
    declared: Mapping[str, Any] = {} if table.csv is None else table.csv.declaration()
    words = {
        "delimiter": lambda sign: f"fields end with {_DELIMITERS.get(sign, repr(sign))}",
        "encoding": lambda name: f"{name} text",
        "decimal": lambda sign: f"{sign!r} is the decimal sign",
        "thousands": lambda sign: f"{sign!r} between thousands",
        "strip": lambda _: "spaces around fields are dropped",
        "missing": lambda words: f"{', '.join(map(repr, words))} where a value is missing",
    }
    return "".join(f"; {words[name](value)}" for name, value in declared.items())


def _rows(table: TableSummary, proposal: Proposal) -> Iterator[tuple[str, str, str]]:
    """Yield (column, its use, description) in the order of the table."""
    features = {}
    for (arguments, about), name in zip(proposal.features, _feature_columns(table, proposal), strict=True):
        features[name] = ("left out", about.partition(": ")[2]) if arguments is None else (_kind(arguments), about)
    for column in table.columns:
        kind, about = features.get(column.name, ("label", ""))
        if column.name in proposal.labels:
            kind, about = "label", _label(column, proposal)
        elif column.name == proposal.event_time:
            about += _order(column.day_first) + ("" if kind == "left out" else ", divides the rows")
        elif column.kind == "time":
            about += _order(column.day_first)
        yield " ".join(column.name.split()), kind, about


def _feature_columns(table: TableSummary, proposal: Proposal) -> list[str]:
    """Return the column names that belong to the entries of `proposal.features`."""
    both = proposal.model == "two_tower"
    return [column.name for column in table.columns if both or column.name not in proposal.labels]


def _kind(arguments: Mapping[str, Any]) -> str:
    kind = {"numeric": "number", "categorical": "category"}.get(arguments["kind"], arguments["kind"])
    separator = arguments.get("separator")
    return kind if separator is None else f"{kind} by {'spaces' if separator == ' ' else repr(separator)}"


def _order(day_first: bool | None) -> str:
    return "" if day_first is None else ", day before month" if day_first else ", month before day"


def _label(column: ColumnSummary, proposal: Proposal) -> str:
    missing = f", {column.missing:,} rows without it are left out" if column.missing else ""
    if not proposal.binary and not proposal.classes:
        return column.describe() + missing
    counts = sorted(column.values.items(), key=lambda item: -item[1])
    total = max(1, sum(column.values.values()))
    shares = [f"{value} {count / total:.1%}" for value, count in counts[:_CLASSES_SHOWN]]
    shown = ", ".join(shares) + (", ..." if len(counts) > _CLASSES_SHOWN else "")
    positive = proposal.classes[-1] if proposal.classes else 1
    predicted = f"; predicted is the probability of {positive}" if proposal.binary else ""
    return f"{len(counts)} classes: {shown}{predicted}{missing}"


def _row_split(proposal: Proposal) -> str:
    if proposal.event_time is None:
        return "80 % drawn at random to train on, 10 % to validate, 10 % to test: no column of times divides them"
    return (
        f"ordered by {proposal.event_time}: the oldest 80 % to train on, 10 % to validate, the newest 10 % to test, as "
        "a model predicts what comes later"
    )


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _truncated(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."
