"""Contenders side by side: each a process of its own that works when told to, window by window in turn.

On a shared machine the weather changes from second to second, and absolute times say little. So every contender does
a window of work, then the next one, round after round; what is reported is the ratio of windows that lie side by side:
its median over the rounds and the quartiles.

Two processes of the same commit differ as well, by where their memory lies, for as long as they live. Where a few
percent matter (`--against`), every contender is started several times, and the range of the ratios of these processes
is the noise.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
OURS, PEERS, EARLIER = "ours", "peers", "earlier"
EARLIER_SUFFIX = ", earlier"
EARLIER_VARIABLE = "BENCHMARK_EARLIER_CHECKOUT"  # told to a worker that measures the trainer of another commit
MARK = "\x1e"
PATIENCE = 1800.0
# A contender whose own windows differ by more (quartiles, of the median) was disturbed.
NOISY = 0.15
# Largest ratio of times to another commit's that does not count as slower.
SLOWER = 1.03
QUALITY = "* 0.0001 of AUC"  # unit of differences in quality; values near 0 have no ratio
# Largest relative differences of two loss curves that count as the same computation: rounding grows step by step.
EARLY, AGREE_EARLY, AGREE_LATE = 10, 5e-3, 2e-2


@dataclass(frozen=True)
class Ratio:
    """A comparison.

    Attributes:
        ours: name of the contender above the line.
        other: name of the contender below it.
        goal: largest value wanted, or None.
        plus: microseconds a step that `ours` may take besides (goals such as "the raw loop + 20 us").
    """

    ours: str
    other: str
    goal: float | None = None
    plus: float = 0.0


@dataclass(frozen=True)
class Group:
    """Contenders that do the same work.

    Attributes:
        case: letter of the case.
        title: what is done.
        module: name of the module in `benchmarks.cases` that makes the contenders.
        contenders: name -> `OURS`, `PEERS` or `EARLIER`, the environment it needs.
        options: handed to whoever makes a contender.
        ratios: what is compared.
        same: sets of contenders whose losses must agree.
        unit: of the figures: "us/step", "rows/s", "ms" or "s"; any other is that of a window's "value".
        goals: smallest value wanted, by contender, where there is no peer.
        most: largest value wanted, likewise.
        programs: largest number of compiled programs wanted, likewise.
        windows: rounds, or None for as many as are asked for; for work that takes long.
        earlier: checkout of the commit that `EARLIER` contenders are of.
    """

    case: str
    title: str
    module: str
    contenders: dict[str, str]
    options: dict[str, Any] = field(default_factory=dict)
    ratios: tuple[Ratio, ...] = ()
    same: tuple[tuple[str, ...], ...] = ()
    unit: str = "us/step"
    goals: dict[str, float] = field(default_factory=dict)
    most: dict[str, float] = field(default_factory=dict)
    programs: dict[str, float] = field(default_factory=dict)
    windows: int | None = None
    earlier: Path | None = None


def against(group: Group, checkout: Path) -> Group | None:
    """Return our own contenders of a group beside themselves at another commit.

    None for a group without any of ours, and for one of differences in quality.

    Args:
        group: what is measured otherwise against peers.
        checkout: folder of the other commit.
    """
    judged = [ratio.ours for ratio in group.ratios] + list(group.goals) + list(group.most)
    names = [name for name in dict.fromkeys(judged) if group.contenders.get(name) == OURS]
    pairs = [(name, name + EARLIER_SUFFIX) for name in names]
    if not pairs or group.unit == QUALITY:
        return None
    contenders = {name: environment for now, then in pairs for name, environment in ((now, OURS), (then, EARLIER))}
    ratios = tuple(Ratio(now, then, SLOWER) for now, then in pairs)
    return replace(
        group, contenders=contenders, ratios=ratios, same=tuple(pairs) if group.same else (), earlier=checkout
    )


class ContenderError(RuntimeError):
    """A contender could not be made or ended early."""


class Contender:
    """A process that works on demand.

    Args:
        group: what it belongs to.
        name: which contender it is.
        python: the interpreter to run it.
        log: file for what it prints.
    """

    def __init__(self, group: Group, name: str, python: Path, log: Path) -> None:
        self.name, self.log = name, log
        self.windows: list[dict[str, float]] = []
        own_name = name.removesuffix(EARLIER_SUFFIX)
        command = [str(python), "-m", "benchmarks.worker", group.module, own_name, json.dumps(group.options)]
        environment = dict(os.environ)
        if group.contenders[name] == EARLIER:
            environment[EARLIER_VARIABLE] = str(group.earlier)
        self._errors = open(log, "ab")  # noqa: SIM115 (open as long as the process)
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def ask(self, what: str) -> Any:
        """Return the answer to "ready" (the device), "losses" or "window".

        Raises:
            ContenderError: it has ended instead.
        """
        self._signal("SIGCONT")
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(what + "\n")
            self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith(MARK):
                # Runtimes keep threads awake that wait for work; whoever rests is stopped, or it slows the others down.
                self._signal("SIGSTOP")
                return json.loads(line[1:])
        tail = self.log.read_text("utf-8", "replace").splitlines()[-12:]
        raise ContenderError(f"{self.name} ended early:\n" + "\n".join(tail))

    def _signal(self, name: str) -> None:
        if hasattr(signal, name) and self._process.poll() is None:
            self._process.send_signal(getattr(signal, name))

    def close(self) -> None:
        """Let it end."""
        self._signal("SIGCONT")
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()


@dataclass
class Measured:
    """What came of a group.

    Attributes:
        group: what was measured.
        values: contender -> one value per window, in the group's unit.
        extra: contender -> further figures, medians over the windows.
        agreement: largest relative difference of losses that should be the same; NaN where there is nothing to compare.
        load: the machine's load before and after, mean of a minute; None where it is not told.
        problems: contenders that could not take part, and losses that differ.
        processes: how often every contender was started; its windows are in the order of the processes.
        devices: contender -> what it computed on.
    """

    group: Group
    values: dict[str, list[float]] = field(default_factory=dict)
    extra: dict[str, dict[str, float]] = field(default_factory=dict)
    agreement: float = float("nan")
    load: tuple[float, float] | None = None
    problems: list[str] = field(default_factory=list)
    processes: int = 1
    devices: dict[str, str] = field(default_factory=dict)

    @property
    def noisy(self) -> dict[str, float]:
        """Contenders whose own windows lie further apart than `NOISY` allows, with the spread of each."""
        found = {}
        for name, values in self.values.items():
            if len(values) > 1:
                low, middle, high = np.percentile(values, [25, 50, 75])
                if (high - low) / middle > NOISY:
                    found[name] = float((high - low) / middle)
        return found

    def ratio(self, ratio: Ratio) -> tuple[float, float, float] | None:
        """Return the median of the paired ratios of times and their quartiles; None when one side is missing.

        Of several processes, the median of their medians, with the least and the largest of these.
        """
        if not (self.values.get(ratio.ours) and self.values.get(ratio.other)):
            return None
        ours, other = np.array(self.values[ratio.ours]), np.array(self.values[ratio.other])
        count = min(len(ours), len(other))
        pairs = ours[:count] / other[:count]
        if self.group.unit == "rows/s":
            pairs = 1 / pairs
        ends = [25, 50, 75]
        if self.processes > 1:
            pairs, ends = [np.median(part) for part in np.array_split(pairs, self.processes)], [0, 50, 100]
        low, middle, high = np.percentile(pairs, ends)
        return float(middle), float(low), float(high)

    def met(self, ratio: Ratio) -> bool | None:
        """Return whether the goal of a ratio is met; None when there is none, or nothing was measured.

        Of several processes, whether any of them meets it: what all miss is beyond the noise between processes.
        """
        found = self.ratio(ratio)
        if found is None or (ratio.goal is None and not ratio.plus):
            return None
        if ratio.plus:
            ours, other = (np.median(self.values[name]) for name in (ratio.ours, ratio.other))
            return bool(ours <= other + ratio.plus)
        return found[1 if self.processes > 1 else 0] <= ratio.goal

    def met_alone(self, name: str) -> tuple[str, bool] | None:
        """Return a contender's own goals in words and whether its medians meet them; None when it has none."""
        values, group = self.values.get(name), self.group
        if not values:
            return None
        middle, words, met = float(np.median(values)), [], True
        if name in group.goals:
            words.append(f">= {group.goals[name]:,.10g}")
            met = met and middle >= group.goals[name]
        if name in group.most:
            words.append(f"<= {group.most[name]:,.10g}")
            met = met and middle <= group.most[name]
        if name in group.programs:
            words.append(f"<= {group.programs[name]:,.0f} programs")
            met = met and self.extra[name]["programs"] <= group.programs[name]
        return (", ".join(words), met) if words else None

    def to_dict(self) -> dict[str, Any]:
        """Return everything in plain form."""
        return {
            "case": self.group.case,
            "title": self.group.title,
            "unit": self.group.unit,
            "values": self.values,
            "extra": self.extra,
            "agreement": self.agreement,
            "noisy": self.noisy,
            "load": self.load,
            "problems": self.problems,
            "goals": self.group.goals,
            "most": self.group.most,
            "programs": self.group.programs,
            "processes": self.processes,
            "devices": self.devices,
            "ratios": [
                {"ours": r.ours, "other": r.other, "goal": r.goal, "plus": r.plus, "found": self.ratio(r)}
                for r in self.group.ratios
            ],
        }


def run(
    group: Group, windows: int, interpreters: dict[str, Path], folder: Path, check: bool = True, processes: int = 1
) -> Measured:
    """Measure a group: start every contender, check that they compute the same, then let them work in turn.

    Args:
        group: what to measure.
        windows: rounds, where the group has no number of its own.
        interpreters: environment -> interpreter; contenders without one are left out.
        folder: for the contenders' logs.
        check: whether to compare losses first.
        processes: how often to start every contender, each time with as many rounds.
    """
    measured = Measured(group, processes=processes)
    before = load()
    for turn in range(processes):
        _run_once(measured, group.windows or windows, interpreters, folder, check, turn)
    after = load()
    measured.load = None if before is None or after is None else (before, after)
    return measured


def _run_once(
    measured: Measured, windows: int, interpreters: dict[str, Path], folder: Path, check: bool, turn: int
) -> None:
    group = measured.group
    with contextlib.ExitStack() as stack:
        contenders: list[Contender] = []
        # Whoever starts first, or works first in most rounds, is slower by some percent: they take turns at that.
        for name, environment in list(group.contenders.items())[:: 1 if turn % 2 == 0 else -1]:
            if environment not in interpreters:
                measured.problems.append(f"{name}: left out, its environment is missing")
                continue
            contender = Contender(
                group, name, interpreters[environment], folder / f"{group.module}-{len(contenders)}.log"
            )
            stack.callback(contender.close)
            with _noting(measured, contender, contenders):
                measured.devices[name] = contender.ask("ready")
                contenders.append(contender)
        if check and group.same:
            losses = {}
            for contender in [c for c in contenders if any(c.name in names for names in group.same)]:
                with _noting(measured, contender, contenders):
                    losses[contender.name] = contender.ask("losses")
            compare(measured, losses)
        for number in range(windows):
            # back and forth, so that nobody is always measured right after the same neighbour
            for contender in list(contenders if number % 2 == 0 else contenders[::-1]):
                with _noting(measured, contender, contenders):
                    contender.windows.append(contender.ask("window"))
        for contender in contenders:
            collect(measured, contender)


def load() -> float | None:
    """Return how many processes wanted to run in the last minute, or None where that is not told."""
    return round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None


@contextlib.contextmanager
def _noting(measured: Measured, contender: Contender, contenders: list[Contender]) -> Iterator[None]:
    try:
        yield
    except ContenderError as error:
        measured.problems.append(str(error))
        print(error, file=sys.stderr)
        if contender in contenders:
            contenders.remove(contender)


def compare(measured: Measured, losses: dict[str, Sequence[float]]) -> None:
    """Note how far losses differ that should be the same."""
    worst = []
    for names in measured.group.same:
        curves = {name: np.array(losses[name]) for name in names if name in losses}
        if len(curves) < 2:
            continue
        leader, first = next(iter(curves.items()))
        for name, curve in list(curves.items())[1:]:
            apart = np.abs(curve - first) / np.maximum(np.abs(first), 1e-3)
            worst.append(float(apart.max()))
            if not (apart[:EARLY].max() <= AGREE_EARLY and apart.max() <= AGREE_LATE):
                measured.problems.append(f"the losses of {name} and {leader} differ by up to {apart.max():.2%}")
    measured.agreement = max(worst, default=float("nan"))


def collect(measured: Measured, contender: Contender) -> None:
    """Take over a contender's windows: a value each, and the medians of everything else it told."""
    unit = measured.group.unit
    values = []
    for window in contender.windows:
        if unit == "us/step":
            values.append(window["seconds"] / window["steps"] * 1e6)
        elif unit == "rows/s":
            values.append(window["rows"] / window["seconds"])
        elif unit in ("ms", "s"):
            values.append(window["seconds"] * (1e3 if unit == "ms" else 1.0))
        else:
            values.append(window["value"])
    measured.values.setdefault(contender.name, []).extend(values)
    names = {name for window in contender.windows for name in window} - {"seconds", "steps", "rows", "value"}
    medians = {name: [window[name] for window in contender.windows if name in window] for name in sorted(names)}
    measured.extra[contender.name] = {name: float(np.median(found)) for name, found in medians.items()}
