"""What came of the cases of `faults`: outcomes, their counts by call and error, and the table of them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.fault_calls import ERRORS, Plan
from benchmarks.fault_sources import ROWS

Key = tuple[str, str]
Tallies = dict[Key, "Tally"]


@dataclass
class Outcome:
    """What came of one case."""

    plan: Plan
    named: str = ""
    stuck: str = ""
    lost: int = 0
    repeated: int = 0
    altered: str = ""

    def count(self, rows: Counter[int], times: int) -> None:
        """Note what is missing where every row should have come `times` times."""
        self.lost = sum(max(0, times - rows[number]) for number in range(ROWS))
        self.repeated = sum(max(0, count - times) for count in rows.values())

    @property
    def silent(self) -> bool:
        """Whether something is different and nothing told of it."""
        return not self.named and bool(self.altered or self.lost or self.repeated)


@dataclass
class Tally:
    """Outcomes of one kind of call and error."""

    cases: int = 0
    named: int = 0
    lost: int = 0
    repeated: int = 0
    silent: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, source: str, outcome: Outcome) -> None:
        """Count a case."""
        self.cases += 1
        self.named += bool(outcome.named)
        self.lost += outcome.lost
        self.repeated += outcome.repeated
        self.silent += outcome.silent
        if outcome.lost or outcome.repeated or outcome.silent or outcome.stuck:
            self.failures.append(f"{source}: {outcome}")

    def join(self, other: Tally) -> None:
        """Add the cases of another source."""
        for name in ("cases", "named", "lost", "repeated", "silent", "failures"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def key_of(plan: Plan) -> Key:
    """Return under which call and error a case is counted."""
    return (plan.kind, plan.error) if plan.second is None else ("pair", "any")


def write_tallies(path: Path, options: dict[str, Any], tallies: Tallies) -> None:
    """Write tallies with the options that they were counted under."""
    path.parent.mkdir(parents=True, exist_ok=True)
    counts = [[*key, asdict(tally)] for key, tally in tallies.items()]
    path.write_text(json.dumps({"options": options, "tallies": counts}))


def read_tallies(path: Path, options: dict[str, Any]) -> Tallies:
    """Return what `write_tallies` wrote.

    Raises:
        SystemExit: they were counted under other options.
    """
    content = json.loads(path.read_text())
    if content["options"] != options:
        raise SystemExit(f"{path} was counted with {content['options']}, not with {options}: choose another folder")
    return {(kind, error): Tally(**counts) for kind, error, counts in content["tallies"]}


def table(tallies: Tallies) -> str:
    """Return a table of calls and failures."""
    lines = [
        "| call | error | cases | named | without effect | rows lost | rows repeated | silent |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    order = [*ERRORS, "pair"]
    for (kind, error), t in sorted(tallies.items(), key=lambda item: (order.index(item[0][0]), item[0][1])):
        counts = (t.cases, t.named, t.cases - t.named - t.silent, t.lost, t.repeated, t.silent)
        lines.append(f"| {kind} | {error} | " + " | ".join(f"{count:,}" for count in counts) + " |")
    return "\n".join(lines)
