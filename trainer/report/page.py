"""Builds the report page: sections of figures and tables as self-contained HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any
from urllib.parse import quote

from callbacks.output import without_equal_losses

from ..checks import require
from . import figures, headline
from .run_data import RunData, Series, SweepData

PROFILE_ROWS = 12
_SLICE = "/"  # "auc/site=3" is the AUC of a slice
_ICON = (  # embedded, because a browser would otherwise request an icon from the server
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">'
    '<path d="M2 3q3 9 12 10" fill="none" stroke="#3b82f6" stroke-width="2.5" stroke-linecap="round"/></svg>'
)
_SIZE_TEXT = re.compile(r"[\d.,]+ [kMGT]?B")
_USAGE = "Drag to zoom or pan, hover for values. With the focus on a figure: arrow keys, + and -, 0 to reset."


def page(
    runs: Sequence[RunData], title: str, refresh_seconds: int | None = None, sweep: SweepData | None = None
) -> str:
    """Return a report that overlays `runs`, as HTML that needs no network.

    Args:
        runs: one or more runs with distinct names.
        title: title of the page.
        refresh_seconds: interval at which a browser reloads the page; None for no reload.
        sweep: the sweep whose best trials are `runs`, or None.

    Raises:
        ConfigurationError: Bokeh is not installed.
    """
    require("bokeh", "a report needs Bokeh", "report")
    candidates = [] if sweep is None else [("Sweep", _sweep_section(sweep))]
    candidates += [(name, make(runs)) for name, make in _SECTIONS.items()]
    sections = [(name, contents) for name, parts in candidates if (contents := [part for part in parts if part])]
    library, script, divs = _embed([part for _, parts in sections for part in parts if not isinstance(part, str)])
    body = []
    for i, (name, parts) in enumerate(sections):
        charts = [_figure_html(next(divs), part) for part in parts if not isinstance(part, str)]
        grid = f'<div class="figures">{"".join(charts)}</div>' if charts else ""
        tables = "".join(part for part in parts if isinstance(part, str))
        body.append(f'<section aria-labelledby="s{i}"><h2 id="s{i}">{name}</h2>{grid}{tables}</section>')
    links = "".join(f'<li><a href="#s{i}">{name}</a></li>' for i, (name, _) in enumerate(sections))
    refresh = "" if refresh_seconds is None else f'<meta http-equiv="refresh" content="{refresh_seconds}">'
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">{refresh}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<link rel="icon" href="data:image/svg+xml,{quote(_ICON)}">'
        f"<title>{html.escape(title)}</title><style>{_read_asset('page.css')}</style>{library}</head>"
        f'<body><a class="skip" href="#s0">Skip to the runs</a><header><h1>{html.escape(title)}</h1></header>'
        f'<nav aria-label="Sections"><ul>{links}</ul></nav><main><p class="note">{_USAGE}</p>{"".join(body)}</main>'
        f"{script}</body></html>\n"
    )


def _read_asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _embed(plots: Sequence[Any]) -> tuple[str, str, Iterator[str]]:
    """Return Bokeh's library, the plots' scripts and an HTML element for each plot."""
    if not plots:
        return "", "", iter(())
    from bokeh.embed import components
    from bokeh.resources import Resources

    script, divs = components(plots)
    library = Resources(mode="inline", components=["bokeh"], minified=True).render_js()
    return library, f"{script}<script>{_read_asset('page.js')}</script>", iter(divs)


def _figure_html(div: str, plot: Any) -> str:
    name = html.escape(plot.title.text)
    # The title is HTML above the figure: Bokeh's title starts right of the axis labels and is cut off if they are wide.
    return f'<figure tabindex="0" role="group" aria-label="{name}"><figcaption>{name}</figcaption>{div}</figure>'


# -- tables ------------------------------------------------------------------------------------------------------------


def _table(caption: str, titles: Sequence[str], rows: Iterable[Sequence], highlighted: Callable | None = None) -> str:
    """Return an HTML table; numbers are right-aligned, names may wrap after a dot."""
    rows = [list(row) for row in rows]
    if not rows:
        return ""
    numbers = [all(_is_number(row[i]) for row in rows) for i in range(len(titles))]
    kinds = [' class="number"' if number else "" for number in numbers]
    columns = zip(titles, kinds, strict=True)
    header = "".join(f'<th scope="col"{kind}>{html.escape(title)}</th>' for title, kind in columns)
    body = ""
    for row in rows:
        texts = [html.escape(_format(cell)) for cell in row]
        texts[0] = re.sub(r"\.(?=[a-z])", ".<wbr>", texts[0])
        cells = "".join(f"<td{kind}>{text}</td>" for text, kind in zip(texts, kinds, strict=True))
        body += f"<tr class='differs'>{cells}</tr>" if highlighted and highlighted(row) else f"<tr>{cells}</tr>"
    caption = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    table = f"<table>{caption}<thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" tabindex="0">{table}</div>'


def _table_by_run(runs: Sequence[RunData], caption: str, headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table; the run's name is the first column if there are several runs."""
    if len(runs) == 1:
        return _table(caption, headings, [row[1:] for row in rows])
    return _table(caption, ["run", *headings], rows)


def _is_number(cell: Any) -> bool:
    return isinstance(cell, int | float) or cell in ("", None) or bool(_SIZE_TEXT.fullmatch(str(cell)))


def _collapsible(summary: str, table: str) -> str:
    return f"<details><summary>{html.escape(summary)}</summary>{table}</details>" if table else ""


def _format(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _side_by_side(caption: str, title: str, runs: Sequence[RunData], columns: Sequence[Mapping[str, Any]]) -> str:
    """Return a table with a column per run; rows that differ come first, highlighted."""
    names = dict.fromkeys(name for values in columns for name in values)
    rows = [[name, *(values.get(name) for values in columns)] for name in names]

    def differs(row: Sequence[Any]) -> bool:
        return len(runs) > 1 and len({_format(value) for value in row[1:]}) > 1

    rows.sort(key=differs, reverse=True)
    return _table(caption, [title, *(run.name for run in runs)], rows, differs)


# -- sections: each function returns the figures and tables of a section; empty ones are left out of the page ----------


def _sweep_section(sweep: SweepData) -> list[Any]:
    rows = [[name, state, *values, value] for name, state, values, value in sweep.rows]
    table = _table("The best first", ["trial", "state", *sweep.paths, sweep.monitor], rows)
    return [figures.parallel_coordinates(sweep), table]


def _runs_section(runs: Sequence[RunData]) -> list[Any]:
    cards = ""
    for index, run in enumerate(runs):
        facts = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>" for name, text in run.facts)
        shown = "".join(
            f"<div><b>{html.escape(value)}</b><span>{html.escape(name)}</span></div>"
            for name, value in headline.numbers(run)
        )
        warning = headline.warning(run)
        cards += (
            f'<div class="run" style="border-left-color:{figures.color_of(index)}"><h3>{html.escape(run.name)}</h3>'
            f'<div class="numbers">{shown}</div>{f"<p>{html.escape(warning)}</p>" if warning else ""}'
            f"<dl><dt>state</dt><dd>{html.escape(run.state)}</dd>{facts}</dl></div>"
        )
    return [f'<div class="runs">{cards}</div>']


def _results_section(runs: Sequence[RunData]) -> list[Any]:
    finals = [{name: value for name, value in run.results.items() if _SLICE not in name} for run in runs]
    best = [
        [run.name, name, best["value"], best["step"], best["snapshot"] or "none kept"]
        for run in runs
        for name, best in run.best.items()
        if _SLICE not in name
    ]
    return [
        _side_by_side("Last values", "result", runs, finals),
        *map(_baseline_table, runs),
        _table_by_run(runs, "Best values", ["metric", "best", "at step", "in snapshot"], best),
    ]


def _baseline_table(run: RunData) -> str:
    """Return a table that compares a run with the plain models."""
    results = {"this run": run.baseline.get("model", {}), **run.baseline.get("plain", {})}
    names = list(results["this run"])
    rows = [[model, *(values.get(name) for name in names)] for model, values in results.items()] if names else []
    return _table(
        f"{run.name} beside plain models", ["model", *names], rows, lambda row: row[0] == run.baseline["best"]
    )


def _names(runs: Sequence[RunData], group: str) -> list[str]:
    names = dict.fromkeys(name for run in runs for name in run.record.series)
    return [name for name in names if name.startswith(f"{group}/") and _SLICE not in name.removeprefix(f"{group}/")]


def _curves_section(runs: Sequence[RunData]) -> list[Any]:
    plots = [figures.lines("Loss", runs, ["train/loss", "epoch/loss", "val/loss"])]
    shown = [name for name in _without_repeated_losses(runs, _names(runs, "val")) if name != "val/loss"]
    plots += [figures.lines(headline.in_words(name), runs, [name]) for name in shown]
    shown_elsewhere = {"train/loss", "train/samples_per_second", "train/data_wait"}
    others = [name for name in _names(runs, "train") if name not in shown_elsewhere]
    return plots + [figures.lines(headline.in_words(name), runs, [name], unless_flat=True) for name in others]


def _without_repeated_losses(runs: Sequence[RunData], names: Sequence[str]) -> list[str]:
    """Return `names` without each log loss that equals the loss in all runs."""
    return [name for name in names if not all(_repeats_loss(run.record.series, name) for run in runs)]


def _repeats_loss(series: Mapping[str, Series], name: str) -> bool:
    if name not in series or not name.endswith("log_loss"):
        return name not in series
    log_loss, loss = series[name], series.get(name.removesuffix("log_loss") + "loss", Series())
    pairs = [(a, b) for a, b in zip(log_loss.values, loss.values, strict=False) if a is not None and b is not None]
    equal = all("loss" not in without_equal_losses({"log_loss": a, "loss": b}) for a, b in pairs)
    return log_loss.steps == loss.steps and equal


def _windows_section(runs: Sequence[RunData]) -> list[Any]:
    bases = dict.fromkeys(
        name.removeprefix("window/").removeprefix("decayed_").removeprefix("lifetime_")
        for name in _without_repeated_losses(runs, _names(runs, "window"))
    )
    shown = [base for base in bases if base not in _STREAM_FIGURES and not base.startswith("stream_")]
    shown = [base for base in shown if not base.endswith("rows")]
    horizons = ("window/", "window/decayed_", "window/lifetime_")
    return [
        figures.lines(f"{headline.in_words(base)} by window", runs, [of + base for of in horizons], by_time=True)
        for base in shown
    ]


_STREAM_FIGURES = ("lag", "staleness", "rows_per_second", "queue_depth", "late_rows")


def _predictions_section(runs: Sequence[RunData]) -> list[Any]:
    tasks = dict.fromkeys(task for run in runs for task in run.record.scores)
    return [make(runs, task) for task in tasks for make in (figures.calibration, figures.distribution)]


def _slices_section(runs: Sequence[RunData]) -> list[Any]:
    columns = {}
    for run in runs:
        series = {name.partition("/")[2]: series.values for name, series in run.record.series.items()}
        columns[run.name] = {name: values[-1] for name, values in series.items() if _SLICE in name and values}
    sliced = [run for run in runs if columns[run.name]]
    return [_side_by_side("Newest values", "slice", sliced, [columns[run.name] for run in sliced])]


def _features_section(runs: Sequence[RunData]) -> list[Any]:
    drift = {run.name: dict(run.drift) for run in runs if run.drift}
    drift_plot = figures.bars("Drift between training and test rows", "population stability index", drift, runs)
    importance = {run.name: run.baseline.get("importance", {}) for run in runs}
    means = {run: {name: mean for name, (mean, _) in of.items()} for run, of in importance.items()}
    title = "Loss of quality when a column is shuffled"
    importance_plot = figures.bars(title, "loss of the first metric", means, runs)
    noise = [[run, name, *cost] for run, of in importance.items() for name, cost in of.items()]
    note = '<p class="note">Below 0.1 a column is usually called unchanged, above 0.25 changed.</p>' if drift else ""
    return [
        importance_plot,
        drift_plot,
        note,
        _side_by_side("", "feature", runs, [run.features for run in runs]),
        _table_by_run(runs, title, ["column", "mean", "deviation"], noise),
    ]


def _time_section(runs: Sequence[RunData]) -> list[Any]:
    return [
        figures.lines("Rows a second", runs, ["train/samples_per_second"]),
        figures.lines("Share of time spent waiting for data", runs, ["train/data_wait"], unless_flat=True),
        *(
            figures.lines(headline.in_words(name), runs, [f"window/{name}"], by_time=True, unless_flat=True)
            for name in _STREAM_FIGURES
        ),
        figures.bars("Where the time went", "seconds", {run.name: run.record.seconds for run in runs}, runs),
        figures.bars(
            "The reading thread, parallel to training",
            "seconds",
            {run.name: run.record.seconds_beside for run in runs if any(run.record.seconds_beside.values())},
            runs,
        ),
        *(part for run in runs for part in _profile_tables(run)),
    ]


def _profile_tables(run: RunData) -> list[str]:
    """Return tables of a profiled step: its parts, operators and layers."""
    profile = run.profile
    if not profile:
        return []
    title = f"{run.name}: a step of {profile['milliseconds']:.3f} ms, over {profile['steps']:,} steps"
    parts = sorted(profile["parts"].items(), key=lambda part: -part[1])
    operators, layers = profile["operators"][:PROFILE_ROWS], profile["layers"][:PROFILE_ROWS]
    return [
        _table(title, ["part", "ms per step"], parts),
        _table(f"{run.name}: operators", ["operator", "runs per step", "ms per step"], operators),
        _table(f"{run.name}: layers", ["layer", "ms forward", "ms backward"], layers),
    ]


def _tables_section(runs: Sequence[RunData]) -> list[Any]:
    plots = [
        figures.tables("Rows of sparse tables", runs, "rows"),
        figures.tables("Memory of sparse tables, MB", runs, "bytes", 1e6),
        figures.tables("Ids admitted", runs, "admitted"),
        figures.tables("Rows evicted", runs, "evicted"),
    ]
    newest = [(run.name, *item) for run in runs if run.record.tables for item in run.record.tables[-1][1].items()]
    counters = ("rows", "admitted", "evicted", "expired", "overflowed", "refused")
    headings = [heading for heading in counters if any(table.get(heading) for _, _, table in newest)]
    rows = [
        [run, name, headline.size(table.get("bytes", 0)), *(table.get(heading, 0) for heading in headings)]
        for run, name, table in newest
    ]
    zero = ", ".join(heading for heading in counters if heading not in headings)
    note = f'<p class="note">0 in every table: {zero}</p>' if zero and newest else ""
    return [*plots, _table_by_run(runs, "", ["table", "memory", *headings], rows), note]


def _snapshots_section(runs: Sequence[RunData]) -> list[Any]:
    rows = [[run.name, name, headline.size(count), *rest] for run in runs for name, count, *rest in run.snapshots]
    return [_table_by_run(runs, "", ["snapshot", "size", "written", "pointers"], rows)]


def _set_aside_section(runs: Sequence[RunData]) -> list[Any]:
    parts = []
    for run in runs:
        for report in dict.fromkeys(run.record.set_aside):
            parts.append(f"<p>{html.escape(run.name)}: {html.escape(report)}</p>")
        for path, count, reasons, newest in run.set_aside:
            parts.append(_table(f"{run.name}: {count:,} rows in {path}", ["reason", "rows"], reasons.items()))
            shown = html.escape("\n".join(newest))
            parts.append(f'<details><summary>The newest of them</summary><pre class="scroll">{shown}</pre></details>')
    return parts


def _configuration_section(runs: Sequence[RunData]) -> list[Any]:
    def options(run: RunData, defaults: bool) -> dict[str, Any]:
        shown = {path: "null" if value is None else value for path, value in run.config.items()}
        return {path: value for path, value in shown.items() if (path in run.defaults) == defaults}

    set_options, default_options = ([options(run, defaults) for run in runs] for defaults in (False, True))
    defaults = _side_by_side("", "option", runs, default_options)
    chosen = _side_by_side("What was chosen", "option", runs, set_options)
    chosen = chosen if len(runs) != 1 else _collapsible(f"{len(set_options[0])} options that were chosen", chosen)
    return [chosen, _collapsible("Options with their default values", defaults)]


def _environment_section(runs: Sequence[RunData]) -> list[Any]:
    return [_collapsible("Versions and machine", _side_by_side("", "", runs, [run.environment for run in runs]))]


_SECTIONS = {
    "Runs": _runs_section,
    "Curves": _curves_section,
    "Windows": _windows_section,
    "Predictions": _predictions_section,
    "Results": _results_section,
    "Slices": _slices_section,
    "Features": _features_section,
    "Time": _time_section,
    "Sparse tables": _tables_section,
    "Snapshots": _snapshots_section,
    "Rows set aside": _set_aside_section,
    "Configuration": _configuration_section,
    "Environment": _environment_section,
}
