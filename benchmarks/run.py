"""Measure this trainer side by side with what a user would pick instead.

    python benchmarks/run.py                       all cases; about 45 minutes on two quiet cores
    python benchmarks/run.py --cases loop --quick  small sizes, few windows: to see that it works
    python benchmarks/run.py --cases mlp --against v0.1.0   ours at this commit beside ours at another, nothing else
    python benchmarks/run.py --readme              write the table of the last measurement into docs/benchmarks.md

Every case first checks that all sides compute the same losses from the same first weights and data. Then they work
in turn, window by window; ratios are of windows side by side, as median and quartiles; with `--against`, as median and
range of several pairs of processes, and what all of them miss is missed. Lower is better for ours, except where a unit
says rows/s. Results go to runs/benchmarks: results.json, table.md, ratios.png. The peers' environment is
built in the user's cache folder on first use.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import lifetime, measure, page, peers  # noqa: E402
from benchmarks.measure import EARLIER, OURS, PEERS, Group, Measured, Ratio  # noqa: E402

CASES = (
    *(
        "criteo",
        "many_tables",
        "wide_deep",
        "adagrad",
        "vocabulary",
        "row_types",
        "mapped",
        "reading",
        "sizes",
        "pipeline",
        "online",
    ),
    *("features", "linear", "models", "evaluation", "mlp", "lenet", "startup", "checkpoint", "loop", "serving"),
)
OUTPUT = ROOT / "runs" / "benchmarks"
PAGE = ROOT / "docs" / "benchmarks.md"
PACKAGES = ("mindspore", "numpy", "torch", "fbgemm_gpu-cpu", "lightning", "keras", "vowpalwabbit")
SCRIPT = (
    "import importlib.metadata as m, json; "
    "print(json.dumps({d.metadata['Name']: d.version for d in m.distributions() if d.metadata['Name']}))"
)


def groups_of(case: str, quick: bool) -> list[Group]:
    """Return the groups of a case."""
    return importlib.import_module(f"benchmarks.cases.{case}").groups(quick)


def measure_all(
    cases: Sequence[str],
    quick: bool,
    windows: int,
    only: str | None,
    earlier: Path | None = None,
    processes: int = 1,
) -> dict[str, Any]:
    """Measure and return everything in plain form; with a checkout of another commit, ours beside that one's."""
    interpreters = {OURS: Path(sys.executable), EARLIER: Path(sys.executable)}
    chosen = [group for case in cases for group in groups_of(case, quick) if not only or only in group.title]
    if earlier is not None:
        chosen = [pair for group in chosen if (pair := measure.against(group, earlier)) is not None]
    if any(PEERS in group.contenders.values() for group in chosen):
        try:
            interpreters[PEERS] = peers.python()
        except RuntimeError as error:
            print(f"peers are left out: {error}", file=sys.stderr)
    results = []
    with lifetime.guarded("bench-") as folder:
        for group in chosen:
            began = time.monotonic()
            measured = measure.run(group, windows, interpreters, folder, processes=processes)
            results.append(measured.to_dict())
            print(f"{group.case}: {group.title} ({time.monotonic() - began:.0f} s)", flush=True)
            for line in lines_of(measured):
                print("  " + line, flush=True)
    return {"date": date.today().isoformat(), "quick": quick, "machine": machine(interpreters), "results": results}


@contextlib.contextmanager
def checkout(commit: str | None) -> Iterator[Path | None]:
    """Yield a folder with the files of a commit of this repository, or None for None.

    Raises:
        SystemExit: git does not know the commit.
    """
    if commit is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True)
        if archive.returncode:
            raise SystemExit(f"--against {commit}: {archive.stderr.decode().strip()}")
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        yield Path(folder)


def machine(interpreters: dict[str, Path]) -> dict[str, Any]:
    """Return processor, cores, load and versions."""
    versions: dict[str, str] = {}
    for interpreter in dict.fromkeys(interpreters.values()):
        done = subprocess.run([str(interpreter), "-c", SCRIPT], capture_output=True, text=True)
        found = json.loads(done.stdout) if done.returncode == 0 else {}
        versions = {**{name.lower(): version for name, version in found.items()}, **versions}
    processor = platform.processor() or platform.machine()
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
        told = {line.split(":")[0].strip(): line.split(":")[1].strip() for line in text.splitlines() if ":" in line}
        kinds = {"avx512f": "AVX-512", "avx2": "AVX2"}
        kind = next((name for flag, name in kinds.items() if flag in told.get("flags", "").split()), "no AVX2")
        processor = f"{told['model name']} with {kind}"
    except (OSError, KeyError):
        pass
    return {
        "commit": commit(),
        "processor": processor,
        "cores": os.cpu_count(),
        "load": measure.load(),
        "python": platform.python_version(),
        "versions": {name: versions[name] for name in PACKAGES if name in versions},
    }


def commit() -> str:
    """Return the commit that is measured, with "-dirty" behind it where files differ from it; "" outside of git."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip()


def lines_of(measured: Measured) -> list[str]:
    """Return what a terminal shows of a group."""
    lines = [
        f"{name:28} {measured.devices.get(name, ''):4} {number(values, measured.group.unit)}"
        for name, values in measured.values.items()
    ]
    if not np.isnan(measured.agreement):
        lines.append(f"losses agree within {measured.agreement:.2%}")
    for ratio in measured.group.ratios:
        found = measured.ratio(ratio)
        if found:
            verdict = {True: "met", False: "MISSED", None: ""}[measured.met(ratio)]
            lines.append(f"{ratio.ours} / {ratio.other}: {spread(found)}  {goal_text(ratio)} {verdict}".rstrip())
    for name in measured.values:
        if goal := measured.met_alone(name):
            lines.append(f"{name}: goal {goal[0]} {measured.group.unit} {'met' if goal[1] else 'MISSED'}")
        if "programs" in (extra := measured.extra.get(name, {})):
            lines.append(f"{name}: {extra['programs']:.0f} programs")
    if measured.load is not None:
        lines.append(f"load before {measured.load[0]:.1f}, after {measured.load[1]:.1f}")
    lines += [f"NOISY: windows of {name} differ by {apart:.0%}" for name, apart in measured.noisy.items()]
    return lines + [f"PROBLEM: {problem}" for problem in measured.problems]


def number(values: Sequence[float], unit: str, quartiles: bool = True) -> str:
    """Return the median, with the quartiles behind it."""
    if not values:
        return "-"
    low, middle, high = np.percentile(values, [25, 50, 75])
    digits = 0 if unit == "rows/s" or middle >= 1000 else 1 if middle >= 10 else 2
    ends = f" ({low:,.{digits}f} to {high:,.{digits}f})" if quartiles else ""
    return f"{middle:,.{digits}f}{ends} {unit}"


def spread(found: Sequence[float]) -> str:
    """Return a ratio with its quartiles."""
    middle, low, high = found
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def goal_text(ratio: Ratio) -> str:
    """Return the goal in words."""
    if ratio.plus:
        return f"goal: + {ratio.plus:.0f} us at most"
    return "" if ratio.goal is None else f"goal: <= {ratio.goal:g}"


def table(report: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    info = report["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in info["versions"].items())
    place = f"{info['cores']} cores of {info['processor']}"
    made = f" at {info['commit']}" if info.get("commit") else ""
    loads = [load for result in report["results"] for load in result.get("load") or ()]
    if loads:
        place += f", load {min(loads):.1f} to {max(loads):.1f}"
    lines = [f"Measured {report['date']}{made} on {place}; Python {info['python']}, {versions}."]
    if report["quick"]:
        lines.append("**Small sizes and few windows: this shows that the benchmark works, not how fast anything is.**")
    several = max((result["processes"] for result in report["results"]), default=1)
    ends = f"range of {several} pairs of processes" if several > 1 else "quartiles"
    lines += ["", f"| case | ours | other | ratio of times ({ends}) | goal |", f"|{' --- |' * 5}"]
    for result in report["results"]:
        group = rebuilt(result)
        for ratio in group.group.ratios:
            found = group.ratio(ratio)
            if found:
                verdict = {True: ", met", False: ", missed", None: ""}[group.met(ratio)]
                ours, other = (
                    f"{name}: {number(group.values[name], result['unit'], quartiles=False)}"
                    for name in (ratio.ours, ratio.other)
                )
                goal = goal_text(ratio).removeprefix("goal: ") + verdict
                title = result["title"] + _marks(group, ratio.ours, ratio.other)
                lines.append(f"| {title} | {ours} | {other} | {spread(found)} | {goal} |")
    return "\n".join([*lines, *_alone(report["results"])])


def _alone(results: Sequence[dict[str, Any]]) -> list[str]:
    """Return the table of what stands by itself: contenders with goals of their own, or that nothing is compared to."""
    lines = []
    for result in results:
        measured = rebuilt(result)
        for name, values in result["values"].items():
            goal = measured.met_alone(name)
            if not values or (result["ratios"] and not goal):
                continue
            extra = result["extra"].get(name, {})
            shown = number(values, result["unit"])
            if "programs" in extra:
                shown += f", {extra['programs']:.0f} programs"
            if not goal and result["unit"] == "s" and "programs" not in extra:
                shown = "; ".join(f"{key} {value:.4g}" for key, value in extra.items()) or shown
            verdict = "" if not goal else f"{goal[0]}, {'met' if goal[1] else 'missed'}"
            title = result["title"] if len(result["values"]) == 1 else f"{name}: {result['title']}"
            lines.append(f"| {title}{_marks(measured, name)} | {shown} | {verdict} |")
    return ["", "| case | measured | goal |", "| --- | --- | --- |", *lines] if lines else []


def _marks(measured: Measured, *names: str) -> str:
    """Return the marks of a line: its device unless that is the CPU, and contenders disturbed while they worked."""
    devices = {measured.devices.get(name, "CPU") for name in names}
    noisy = [name for name in names if name in measured.noisy]
    marks = ["" if devices == {"CPU"} else f" (on {', '.join(sorted(devices))})"]
    return "".join([*marks, f" (noisy: {', '.join(noisy)})" if noisy else ""])


def rebuilt(result: dict[str, Any]) -> Measured:
    """Return the `Measured` behind its plain form."""
    ratios = tuple(Ratio(r["ours"], r["other"], r["goal"], r["plus"]) for r in result["ratios"])
    goals = {kind: result.get(kind, {}) for kind in ("goals", "most", "programs")}
    group = Group(result["case"], result["title"], "", {}, ratios=ratios, unit=result["unit"], **goals)
    kept = {kind: result[kind] for kind in ("values", "extra", "agreement", "problems", "processes")}
    return Measured(group, **kept, devices=result.get("devices", {}))


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw all ratios with their quartiles, goals beside them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows = []
    for result in report["results"]:
        group = rebuilt(result)
        for ratio in group.group.ratios:
            if found := group.ratio(ratio):
                rows.append((f"{result['title']}: {ratio.ours} / {ratio.other}", found, ratio.goal))
    if not rows:
        return
    figure, axes = plt.subplots(figsize=(11, 0.8 + 0.18 * len(rows)), dpi=120)
    for place, (_, (middle, low, high), goal) in enumerate(reversed(rows)):
        color = "tab:gray" if goal is None else "tab:green" if middle <= goal else "tab:red"
        axes.errorbar(middle, place, xerr=[[middle - low], [high - middle]], fmt="o", color=color, markersize=4)
        if goal is not None:
            axes.plot(goal, place, "|", color="black", markersize=9)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in reversed(rows)], fontsize=6)
    axes.axvline(1.0, color="lightgray", linewidth=1)
    axes.set_xscale("log")
    axes.margins(y=0.01)
    axes.set_xlabel("time of ours / time of the other (median and quartiles; | goal)", loc="right")
    figure.tight_layout()
    figure.savefig(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, draw; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--quick", action="store_true", help="small sizes and three windows")
    parser.add_argument("--windows", type=int, help="rounds; default 5, or 3 with --quick")
    parser.add_argument("--processes", type=int, help="starts of every contender; default 1, or 3 with --against")
    parser.add_argument("--only", help="groups whose title contains this text")
    parser.add_argument("--against", metavar="COMMIT", help="measure ours beside ours at this commit, and no peer")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of results.json, table.md, ratios.png")
    parser.add_argument("--readme", action="store_true", help="write the last table into docs/benchmarks.md")
    given = parser.parse_args(argv)
    if given.readme:
        try:
            page.refresh((given.output / "table.md").read_text("utf-8").strip(), PAGE)
        except (OSError, ValueError) as error:
            print(error, file=sys.stderr)
            return 2
        return 0
    windows = given.windows or (3 if given.quick else 5)
    processes = given.processes or (3 if given.against and not given.quick else 1)
    with checkout(given.against) as earlier:
        report = measure_all(given.cases, given.quick, windows, given.only, earlier, processes)
    given.output.mkdir(parents=True, exist_ok=True)
    (given.output / "results.json").write_text(json.dumps(report, indent=1), "utf-8")
    (given.output / "table.md").write_text(table(report) + "\n", "utf-8")
    draw(report, given.output / "ratios.png")
    print(f"\n{table(report)}\n\nresults, table and picture in {given.output}")
    return 1 if any(result["problems"] for result in report["results"]) else 0


if __name__ == "__main__":
    sys.exit(main())
