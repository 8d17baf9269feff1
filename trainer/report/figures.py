"""Bokeh figures: lines over steps or event time, calibration curves and bars."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .headline import legend_label
from .run_data import RunData, Series, SweepData

COLORS = ("#3b82f6", "#f59e0b", "#10b981", "#ef4444", "#a855f7", "#14b8a6", "#ec4899", "#84cc16")
MAX_TABLE_CURVES = 12
DASHES = ("solid", "dashed", "dotted", "dotdash")
HEIGHT = 300
LEGEND_ROW = 30
NEUTRAL = "#7a7f87"  # readable on light and dark pages without scripts


def color_of(index: int) -> str:
    """Return the color of the run with this index."""
    return COLORS[index % len(COLORS)]


def _figure(title: str, x: str, y: str = "", **options: Any) -> Any:
    from bokeh.plotting import figure

    plot: Any = figure(
        title=title,
        height=HEIGHT,
        sizing_mode="stretch_width",
        min_width=200,
        tools="pan,box_zoom,wheel_zoom,reset,save",
        active_scroll=None,
        background_fill_alpha=0,
        border_fill_alpha=0,
        outline_line_color=None,
        x_axis_label=x,
        y_axis_label=y,
        **options,
    )
    plot.toolbar.logo = None
    plot.toolbar.autohide = True
    for axis in plot.axis:
        axis.axis_label_text_color = axis.major_label_text_color = NEUTRAL
        axis.axis_line_color = axis.major_tick_line_color = NEUTRAL
        axis.axis_label_text_font_style = "normal"
        axis.major_label_text_font_size = "12px"
    plot.grid.grid_line_color = NEUTRAL
    plot.grid.grid_line_alpha = 0.25
    plot.title.visible = False  # the page shows it as HTML
    return plot


def _finish(plot: Any) -> Any:
    from bokeh.models import BasicTickFormatter, DataRange1d, NumeralTickFormatter

    for axis in plot.axis:  # show 20k instead of 2.000e+4
        if isinstance(axis.formatter, BasicTickFormatter):
            axis.formatter = NumeralTickFormatter(format="0.[0000]a")
            axis.ticker.num_minor_ticks = 0
    if isinstance(plot.y_range, DataRange1d):
        # By default, Bokeh's y axis spans 2 for a constant line; a learning rate of 0.001 would look like 0.
        shown = [renderer.data_source.data["y"] for renderer in plot.renderers if renderer.name == "data"]
        heights = [abs(y) for column in shown for y in column if y is not None and math.isfinite(y)]
        plot.y_range.default_span = max(heights, default=0.0) or 2.0
    for legend in plot.legend:
        legend.update(background_fill_alpha=0, border_line_alpha=0, spacing=10, padding=2)
        legend.update(label_text_color=NEUTRAL, label_text_font_size="11px")
        legend.update(click_policy="hide", orientation="horizontal", ncols=2, location="left")
        plot.add_layout(legend, "below")
        plot.tags = [plot.height, LEGEND_ROW]  # page.js updates the height when the number of legend rows changes
        plot.height += LEGEND_ROW * max(0, (len(legend.items) + 1) // 2 - 1)
    return plot


def lines(
    title: str, runs: Sequence[RunData], names: Sequence[str], by_time: bool = False, unless_flat: bool = False
) -> Any | None:
    """Plot series of several runs, with a color per run and a dash style per name.

    Args:
        title: title of the figure.
        runs: the runs to plot.
        names: names of series in `Record.series`; missing series are skipped.
        by_time: use the event time as x axis, if all series have event times; else the step.
        unless_flat: return None if all series are constant, such as a constant learning rate.

    Returns:
        The figure, or None if there are no values.
    """
    names = [name for name in names if any(name in run.record.series for run in runs)]
    curves = [
        (index, run, name, run.record.series[name])
        for index, run in enumerate(runs)
        for name in names
        if _has_values(run.record.series.get(name))
    ]
    if not curves or (unless_flat and all(len(set(series.values)) == 1 for *_, series in curves)):
        return None
    by_time = by_time and all(any(series.times) for _, _, _, series in curves)
    plot = _figure(title, "event time (UTC)" if by_time else "step", **({"x_axis_type": "datetime"} if by_time else {}))
    rows = [_points(series, by_time) for _, _, _, series in curves]
    show_points = max(len(row["x"]) for row in rows) <= 60
    for (index, run, name, _), row in zip(curves, rows, strict=True):
        number, series_label = names.index(name), legend_label(name) if len(names) > 1 else ""
        label = " ".join(filter(None, (run.name if len(runs) > 1 else "", series_label)))
        color = color_of(index if len(runs) > 1 else number)
        _draw(plot, row, color, DASHES[number % len(DASHES)], label, show_points, fallback=name)
    _hover(plot, [("", "@label"), ("step", "@step{0,0}"), ("value", "@y{0.[000000]}")])
    return _finish(plot)


def _has_values(series: Series | None) -> bool:
    return series is not None and any(value is not None for value in series.values)


def _points(series: Series, by_time: bool) -> dict[str, list[Any]]:
    kept = [
        (time * 1000.0 if by_time and time is not None else step, value, step)
        for step, value, time in zip(series.steps, series.values, series.times, strict=True)
        if value is not None and (time is not None or not by_time)
    ]
    x, y, step = zip(*kept, strict=True) if kept else ((), (), ())
    return {"x": list(x), "y": list(y), "step": list(step)}


def _draw(plot: Any, row: Mapping, color: str, dash: str, label: str, show_points: bool, fallback: str = "") -> None:
    from bokeh.models import ColumnDataSource

    source = ColumnDataSource({**row, "label": [label or fallback] * len(row["x"])})
    legend = {"legend_label": label} if label else {}
    plot.line("x", "y", source=source, color=color, line_dash=dash, line_width=1.8, name="data", **legend)
    if show_points:
        plot.scatter("x", "y", source=source, color=color, size=5, **legend)


def _hover(plot: Any, tooltips: Sequence[tuple[str, str]]) -> None:
    from bokeh.models import HoverTool

    shown = [renderer for renderer in plot.renderers if renderer.name == "data"]
    plot.add_tools(HoverTool(tooltips=list(tooltips), renderers=shown, mode="mouse", line_policy="nearest"))


def _scored(runs: Sequence[RunData], task: str) -> list[tuple[int, str, Mapping[str, Any]]]:
    """Return (index, name, score table) of scored runs; a single run has the name ""."""
    tables = [run.record.scores.get(task) for run in runs]
    names = [run.name if len(runs) > 1 else "" for run in runs]
    return [(index, name, table) for index, (name, table) in enumerate(zip(names, tables, strict=True)) if table]


def calibration(runs: Sequence[RunData], task: str) -> Any | None:
    """Plot the share of positives over the mean prediction, with a line per run."""
    scored = _scored(runs, task)
    if not scored:
        return None
    plot = _figure(f"Calibration {task}".strip(), "mean prediction", "share of positives")
    for index, name, table in scored:
        row = {"x": table["predicted"], "y": table["observed"], "weight": table["weight"]}
        _draw(plot, row, color_of(index), "solid", name, show_points=True, fallback="Calibration")
    ends = [0.0, max(max(table["predicted"]) for _, _, table in scored)]
    plot.line(ends, ends, color=NEUTRAL, line_dash="dotted")
    _hover(plot, [("", "@label"), ("predicted", "@x{0.0000}"), ("observed", "@y{0.0000}"), ("rows", "@weight{0,0}")])
    return _finish(plot)


def distribution(runs: Sequence[RunData], task: str) -> Any | None:
    """Plot the distribution of predictions, with a line per run and class."""
    scored = _scored(runs, task)
    if not scored:
        return None
    plot = _figure(f"Distribution of predictions {task}".strip(), "prediction", "share of the class")
    for number, (kind, dash) in enumerate((("positives", "solid"), ("negatives", "dashed"))):
        for index, name, table in scored:
            counts, total = table[kind], sum(table[kind]) or 1.0
            centers = [(low + high) / 2 for low, high in itertools.pairwise(table["edges"])]
            row = {"x": centers, "y": [count / total for count in counts], "weight": counts}
            color = color_of(index if len(runs) > 1 else number)
            _draw(plot, row, color, dash, f"{name} {kind}".strip(), show_points=False)
    _hover(plot, [("", "@label"), ("prediction", "@x{0.0000}"), ("share", "@y{0.0000}"), ("rows", "@weight{0,0}")])
    return _finish(plot)


def tables(title: str, runs: Sequence[RunData], field: str, unit: float = 1) -> Any | None:
    """Plot a statistic of each sparse table over steps.

    With more than `MAX_TABLE_CURVES` tables, each run has a single curve, the sum over its tables, because a longer
    legend would hide the figure.

    Args:
        title: title of the figure.
        runs: the runs to plot.
        field: name of the statistic, such as "rows" or "admitted".
        unit: values are divided by this.

    Returns:
        The figure, or None if all values are constant. The page's HTML table shows constant values.
    """
    names = [list(run.record.tables[-1][1]) if run.record.tables else [] for run in runs]
    summed = sum(map(len, names)) > MAX_TABLE_CURVES
    curves: list[tuple[Any, ...]] = []
    for index, run in enumerate(runs):
        groups = {f"{len(names[index])} tables": names[index]} if summed else {name: [name] for name in names[index]}
        for number, (name, members) in enumerate(groups.items()):
            points = [
                (step, sum(statistics[member].get(field, 0) for member in members if member in statistics) / unit)
                for step, statistics in run.record.tables
                if any(member in statistics for member in members)
            ]
            steps, values = [step for step, _ in points], [value for _, value in points]
            label = f"{run.name} {name}" if len(runs) > 1 else name
            style = color_of(index if len(runs) > 1 else number), DASHES[number % len(DASHES) if len(runs) > 1 else 0]
            curves.append(({"x": steps, "y": values, "step": steps}, *style, label, len(points) < 60))
    if all(len(set(row["y"])) <= 1 for row, *_ in curves):
        return None
    plot = _figure(f"{title}: all together" if summed else title, "step")
    for curve in curves:
        _draw(plot, *curve)
    _hover(plot, [("", "@label"), ("step", "@step{0,0}"), ("value", "@y{0,0}")])
    return _finish(plot)


def parallel_coordinates(sweep: SweepData) -> Any | None:
    """Plot each trial as a line through one axis per varied setting; the best is red."""
    from bokeh.models import ColumnDataSource

    trials = [(name, [*values, metric]) for name, _, values, metric in sweep.rows if metric is not None]
    if not trials:
        return None
    axes = [*sweep.paths, sweep.monitor]
    scales = [_scale(values) for values in zip(*(values for _, values in trials), strict=True)]
    plot = _figure("Values of the trials", "", y_range=(-0.12, 1.12))
    plot.xgrid.grid_line_alpha = 0.8
    plot.yaxis.visible = plot.ygrid.visible = False
    plot.xaxis.ticker = list(range(len(axes)))
    plot.xaxis.major_label_overrides = {number: name.rpartition(".")[2] for number, name in enumerate(axes)}
    for rank, (name, values) in reversed(list(enumerate(trials))):
        heights = [height(value) for (height, _), value in zip(scales, values, strict=True)]
        text = f"trial {name}: " + ", ".join(f"{k} {v}" for k, v in zip(axes, values, strict=True))
        data = {"x": list(range(len(axes))), "y": heights, "label": [text] * len(axes)}
        color = _rank_color(rank / max(1, len(trials) - 1))
        width = 3.0 if rank == 0 else 1.4
        plot.line("x", "y", source=ColumnDataSource(data), color=color, line_width=width, name="data")
    for number, (_, ticks) in enumerate(scales):
        outside = {0.0: -0.05, 1.0: 1.05}  # move the end labels away from the lines
        heights = [outside.get(y, y) for y, _ in ticks]
        labels = {"x": [number] * len(ticks), "y": heights, "text": [text for _, text in ticks]}
        text_style = {"text_font_size": "11px", "text_color": NEUTRAL, "text_baseline": "middle", "x_offset": 5}
        plot.text("x", "y", "text", source=ColumnDataSource(labels), **text_style)
    _hover(plot, [("", "@label")])
    return _finish(plot)


def _scale(values: Sequence[Any]) -> tuple[Callable[[Any], float], list[tuple[float, str]]]:
    """Return a function from value to axis height (0 to 1), and (height, text) labels."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        low, high = min(values), max(values)
        logs = low > 0 and high / low >= 100
        ends = (math.log(low), math.log(high)) if logs else (low, high)
        width = (ends[1] - ends[0]) or 1.0
        labels = [(0.0, f"{low:.4g}")] + ([(1.0, f"{high:.4g}")] if high > low else [])
        return lambda value: ((math.log(value) if logs else value) - ends[0]) / width, labels
    kinds = sorted({str(value) for value in values})
    heights = {kind: number / max(1, len(kinds) - 1) for number, kind in enumerate(kinds)}
    return lambda value: heights[str(value)], [(height, kind) for kind, height in heights.items()]


def _rank_color(share: float) -> str:
    """Return a color between red (share 0) and blue (share 1)."""
    ends = ((239, 68, 68), (59, 130, 246))
    return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in zip(*ends, strict=True))


def bars(title: str, x: str, values: Mapping[str, Mapping[str, float]], runs: Sequence[RunData]) -> Any | None:
    """Plot a horizontal bar per category and run.

    Args:
        title: title of the figure.
        x: label of the x axis.
        values: length of each bar by the run's name and category.
        runs: the runs to plot.
    """
    from bokeh.models import ColumnDataSource, FactorRange

    categories = list(dict.fromkeys(name for of_run in values.values() for name in of_run))
    if not categories:
        return None

    def category(name: str, run: RunData) -> str:
        return f"{name} · {run.name}" if len(runs) > 1 else name

    ordered = [category(name, run) for name in categories for run in runs if name in values.get(run.name, {})]
    plot = _figure(title, x, y_range=FactorRange(factors=ordered[::-1]))
    plot.height = max(160, 26 * len(ordered) + 90)
    for index, run in enumerate(runs):
        of_run = values.get(run.name, {})
        keys = [category(name, run) for name in of_run]
        row = {"y": keys, "x": list(of_run.values()), "label": keys}
        plot.hbar("y", right="x", height=0.7, source=ColumnDataSource(row), color=color_of(index), name="data")
    _hover(plot, [("", "@label"), (x, "@x{0,0.[000]}")])
    return _finish(plot)
