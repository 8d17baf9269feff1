"""`StepProfile`: the time of a step as tables, numbers and a Chrome trace."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .summary import table_html

PREPARING = ("reading", "preparing")
Table = tuple[str, tuple[str, ...], list[list[str]]]  # title, column headers, rows of text
MAX_PARTS = 8  # number of parts with their own row; all others, which are callbacks, share one row


class Span(NamedTuple):
    """The start and end of one piece of work.

    Attributes:
        part: "waiting for data", "reading", "preparing", "program", "validation" or "<callback>.<hook>".
        began, ended: start and end by `time.perf_counter()`.
        thread: identifier of the thread that did the work.
    """

    part: str
    began: float
    ended: float
    thread: int


@dataclass
class Phase:
    """One of the two measurements; times are by `time.perf_counter()`."""

    calls: int = 0
    steps: int = 0
    rows: int = 0
    began: float = 0.0
    ended: float = 0.0


@dataclass
class StepProfile:
    """Time of training steps by part.

    Attributes:
        training_thread: identifier of the training thread.
        phase: the measurement without timing operators; it gives the time of each part.
        operators_phase: the measurement with every operator timed.
        spans: all work during both measurements.
        operators: (kind, layer, whether backward, start by `time.perf_counter()`, seconds) of each run of an operator.
    """

    training_thread: int
    phase: Phase = field(default_factory=Phase)
    operators_phase: Phase = field(default_factory=Phase)
    spans: list[Span] = field(default_factory=list)
    operators: list[tuple[str, str, bool, float, float]] = field(default_factory=list)

    def add_operators(self, times: Iterable[Any], clock: float) -> None:
        """Add operators of the training program; ignore those of a validation.

        Args:
            times: `trainer.mindspore_internals.operator_times.OperatorTimes` of each operator.
            clock: `time.time()` minus `time.perf_counter()`.
        """
        calls = [span for span in self._spans_in(self.operators_phase) if span.part == "program"]
        begins = [span.began for span in calls]
        for operator in times:
            for epoch_time, seconds in operator.runs:
                start = epoch_time - clock
                index = bisect.bisect_right(begins, start) - 1
                if index >= 0 and start <= calls[index].ended:
                    self.operators.append((operator.kind, operator.layer, operator.is_backward, start, seconds))

    def parts(self, phase: Phase | None = None) -> dict[str, float]:
        """Return milliseconds per step by part; their sum is the time of a step.

        Nested work is counted once, for the inner part: reading and preparing on the training thread happen during
        "waiting for data".
        """
        phase = phase or self.phase
        seconds: dict[str, float] = defaultdict(float)
        for span in self._spans_in(phase):
            if span.thread == self.training_thread:
                seconds[span.part.partition(".")[0]] += span.ended - span.began
        inline = sum(seconds.get(part, 0.0) for part in PREPARING)
        if "waiting for data" in seconds:
            seconds["waiting for data"] = max(0.0, seconds["waiting for data"] - inline)
        total = phase.ended - phase.began - seconds.pop("validation", 0.0)
        seconds["the loop itself"] = max(0.0, total - sum(seconds.values()))
        return {part: 1000 * value / max(phase.steps, 1) for part, value in seconds.items()}

    def parts_ahead(self) -> dict[str, float]:
        """Return milliseconds per step by part for work on the reading thread."""
        seconds: dict[str, float] = defaultdict(float)
        for span in self._spans_in(self.phase):
            if span.thread != self.training_thread:
                seconds[span.part] += span.ended - span.began
        return {part: 1000 * value / max(self.phase.steps, 1) for part, value in seconds.items()}

    def _spans_in(self, phase: Phase) -> list[Span]:
        return [span for span in self.spans if phase.began <= span.began and span.ended <= phase.ended]

    def by_kind(self) -> list[tuple[str, float, float]]:
        """Return (operator, runs per step, ms per step) rows, the slowest first."""
        times_by_kind: dict[str, list[float]] = defaultdict(list)
        for kind, _, _, _, seconds in self.operators:
            times_by_kind[kind].append(seconds)
        steps = max(self.operators_phase.steps, 1)
        rows = [(kind, len(times) / steps, 1000 * sum(times) / steps) for kind, times in times_by_kind.items()]
        return sorted(rows, key=lambda row: -row[2])

    def by_layer(self) -> list[tuple[str, float, float]]:
        """Return (layer, ms per step forward, ms per step backward), the slowest first."""
        times: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])  # layer -> [forward, backward]
        for _, layer, is_backward, _, seconds in self.operators:
            times[layer][is_backward] += 1000 * seconds / max(self.operators_phase.steps, 1)
        rows = [(layer, forward, backward) for layer, (forward, backward) in times.items()]
        return sorted(rows, key=lambda row: -row[1] - row[2])

    def milliseconds(self, phase: Phase | None = None) -> float:
        """Return the time of one step in milliseconds, without validations."""
        return sum(self.parts(phase).values())

    def as_dict(self) -> dict[str, Any]:
        """Return the profile as JSON-serialisable values; times are in ms per step."""
        return {
            "steps": self.phase.steps,
            "calls": self.phase.calls,
            "rows": self.phase.rows,
            "milliseconds": self.milliseconds(),
            "parts": self.parts(),
            "ahead": self.parts_ahead(),
            "milliseconds_with_operators": self.milliseconds(self.operators_phase) if self.operators else None,
            "operators": [list(row) for row in self.by_kind()],
            "layers": [list(row) for row in self.by_layer()],
        }

    def _tables(self, most: int) -> list[Table]:
        """Return the tables, with at most `most` operators and layers."""
        phase, whole = self.phase, self.milliseconds() or 1e-9
        title = (
            f"{phase.steps:,} steps in {phase.calls:,} calls, {phase.rows / max(phase.steps, 1):,.0f} rows per step: "
            f"{whole:.3f} ms per step"
        )
        parts = sorted(self.parts().items(), key=lambda part: -part[1])
        rows = [[part, f"{value:.3f}", f"{value / whole:.0%}"] for part, value in parts[:MAX_PARTS]]
        rest = sum(value for _, value in parts[MAX_PARTS:])
        rows += [["other callbacks", f"{rest:.3f}", f"{rest / whole:.0%}"]] if rest else []
        rows += [[f"{part} (reading thread)", f"{value:.3f}", ""] for part, value in self.parts_ahead().items()]
        tables: list[Table] = [(title, ("part", "ms per step", "share"), rows)]
        if self.operators:
            tables += self._operator_tables(most)
        return tables

    def _operator_tables(self, most: int) -> list[Table]:
        kinds, layers = self.by_kind(), self.by_layer()
        total = sum(row[2] for row in kinds) or 1e-9
        measured = self.milliseconds(self.operators_phase)
        program = self.parts(self.operators_phase).get("program", 0.0)
        title = (
            f"operators: {total:.3f} ms of the program's {program:.3f}, over {self.operators_phase.steps:,} steps of "
            f"{measured:.3f} ms with operators timed"
        )
        rows = [[kind, f"{runs:,.4g}", f"{ms:.3f}", f"{ms / total:.0%}"] for kind, runs, ms in kinds[:most]]
        if rest := kinds[most:]:
            runs, ms = sum(row[1] for row in rest), sum(row[2] for row in rest)
            rows.append([f"{len(rest)} others", f"{runs:,.4g}", f"{ms:.3f}", f"{ms / total:.0%}"])
        layer_rows = [[layer, f"{forward:.3f}", f"{backward:.3f}"] for layer, forward, backward in layers[:most]]
        return [
            (title, ("operator", "runs per step", "ms per step", "share"), rows),
            ("layers", ("layer", "ms forward", "ms backward"), layer_rows),
        ]

    def table(self, most: int = 12) -> str:
        """Return the tables as text; at most `most` operators and layers."""
        return "\n\n".join(_as_text(*table) for table in self._tables(most))

    def _repr_html_(self) -> str:
        return "".join(f"<p>{title}</p>{table_html(headers, rows)}" for title, headers, rows in self._tables(12))

    def trace(self) -> dict[str, Any]:
        """Return spans and operators in the trace event format, for Perfetto."""
        start = self.phase.began
        threads = {self.training_thread: 1}
        names = {1: "training thread", 3: "operators"}
        events: list[dict[str, Any]] = []

        def add(name: str, category: str, thread: int, began: float, seconds: float, **args: Any) -> None:
            times = {"ts": round(1e6 * (began - start), 3), "dur": round(1e6 * seconds, 3)}
            events.append({"ph": "X", "name": name, "cat": category, "pid": 1, "tid": thread, **times, "args": args})

        for span in self.spans:
            if span.began >= start:
                thread = threads.get(span.thread, 2)
                names.setdefault(thread, "reading thread")
                category = "callback" if "." in span.part else "step"
                add(span.part, category, thread, span.began, span.ended - span.began)
        for kind, layer, backward, began, seconds in self.operators:
            add(kind, "operator", 3, began, seconds, layer=layer, direction="backward" if backward else "forward")
        if not self.operators:
            del names[3]
        named = [
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": thread, "args": {"name": name}}
            for thread, name in sorted(names.items())
        ]
        process = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "training"}}
        return {"traceEvents": [process, *named, *sorted(events, key=lambda e: e["ts"])], "displayTimeUnit": "ms"}


def _as_text(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in [headers, *rows]) for i in range(len(headers))]
    lines = []
    for name, *numbers in [headers, *rows]:
        cells = [cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *cells]).rstrip())
    return "\n".join([title, *lines])
