"""How far the main lines of `make bench` are from what this machine's memory and arithmetic allow.

    python benchmarks/limits.py [--results runs/benchmarks/results.json]

Measures, on all cores: copying memory, reading random cache lines, a product of matrices (NumPy), writing a file to
disk. A line's limit is the longest of its parts: bytes or random lines moved, floating-point operations. Work that
moves neither, such as parsing text, is not counted. Prints a Markdown table; times are those of `make bench`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # each core multiplies matrices of its own; read when NumPy is imported

import numpy as np

RESULTS = Path(__file__).resolve().parents[1] / "runs" / "benchmarks" / "results.json"
CORES = os.cpu_count() or 1
LINE = 64  # bytes of a cache line


def best(work: Callable[[], object], amount: float, times: int = 5) -> float:
    """Return the largest `amount` per second of several runs."""
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return amount / min(seconds)


def measure_peaks() -> dict[str, float]:
    """Return bytes copied (read and written), random lines, operations and bytes on disk, each per second."""
    rng = np.random.default_rng(0)
    source, target = np.ones((CORES, 1 << 26), np.float32), np.zeros((CORES, 1 << 26), np.float32)
    count = 1 << 20
    picks = rng.integers(0, source[0].size // 16, (CORES, count))
    rows = np.empty((CORES, count, 16), np.float32)
    matrix, products = rng.standard_normal((1024, 1024), np.float32), np.empty((CORES, 1024, 1024), np.float32)
    with ThreadPoolExecutor(CORES) as pool:

        def copy(core: int) -> None:
            np.copyto(target[core], source[core])

        def pick(core: int) -> None:
            np.take(source[core].reshape(-1, 16), picks[core], 0, rows[core], "clip")

        def multiply(core: int) -> None:
            np.matmul(matrix, matrix, products[core])

        peaks = {
            "copy": best(lambda: list(pool.map(copy, range(CORES))), 2 * source.nbytes),
            "lines": best(lambda: list(pool.map(pick, range(CORES))), CORES * count),
            "flops": best(lambda: list(pool.map(multiply, range(CORES))), CORES * 2 * 1024.0**3, 40),
        }
    with tempfile.NamedTemporaryFile() as file:

        def write() -> None:
            file.seek(0)
            file.write(source[0].data)
            os.fsync(file.fileno())

        peaks["disk"] = best(write, source[0].nbytes, 3)
    return peaks


@dataclass(frozen=True)
class Line:
    """A line of `make bench` and what its unit of work moves and computes.

    Attributes:
        title: title of the group, or its beginning.
        contender: whose time it is.
        work: for a step, a row or a whole run, amounts by the name of a peak.
        note: what is counted.
    """

    title: str
    contender: str
    work: dict[str, float]
    note: str


def perceptron(*sizes: int) -> float:
    """Return the operations of training on one row: two a weight, forward and two times backward."""
    return 6.0 * sum(a * b for a, b in itertools.pairwise(sizes))


WIDE_DEEP = perceptron(624, 400, 400, 400, 1)
LINES = (
    Line(
        "Wide & Deep, batch 1,024, 5,000,000 ids",
        "fit, sparse table",
        {"lines": 1024 * 39 * 4 * 2, "flops": 1024 * WIDE_DEEP},
        "rows with Adam's moments, 192 and 12 bytes an id, read and written; perceptron",
    ),
    Line(
        "Wide & Deep, batch 1,024, 10,000 ids",
        "fit, dense table",
        {"copy": 7 * 4 * (10_000 * 17 + WIDE_DEEP / 6), "flops": 1024 * WIDE_DEEP},
        "Adam reads four arrays and writes three; perceptron",
    ),
    Line(
        "Criteo-shaped Parquet, strings",
        "online_train",
        {"copy": 2 * 260.0, "lines": 26 * 2 * 2, "flops": perceptron(221, 64, 32, 1)},
        "a row: 260 bytes of values, 26 table rows of 108 bytes read and written",
    ),
    Line(
        "MLP 32-64-32-1, batch 32",
        "fit, 32 steps per call",
        {"copy": 7 * 4 * perceptron(32, 64, 32, 1) / 6, "flops": 32 * perceptron(32, 64, 32, 1)},
        "Adam's arrays; perceptron",
    ),
    Line("checkpoint of 1 GB", "save", {"disk": 1e9}, "1 GB to disk"),
    Line(
        "online, [64, 32] MLP, batch 1,024: files, CSV", "files, CSV", {"copy": 2 * 340.0}, "a row: 340 bytes of text"
    ),
    Line(
        "online, [64, 32] MLP, batch 1,024: files, JSON lines",
        "files, JSON lines",
        {"copy": 2 * 390.0},
        "a row: 390 bytes of text",
    ),
)


def measured_seconds(results: list[dict], line: Line) -> float | None:
    """Return the median time of the line's unit of work, or None where it was not measured."""
    for result in results:
        values = result["values"].get(line.contender)
        if result["title"].startswith(line.title) and values:
            median, unit = float(np.median(values)), result["unit"]
            return 1 / median if unit == "rows/s" else median * {"us/step": 1e-6, "ms": 1e-3}.get(unit, 1.0)
    return None


def table(peaks: dict[str, float], results: list[dict]) -> str:
    """Return the lines with their limits as Markdown."""
    text = [
        f"{CORES} cores: copying {peaks['copy'] / 1e9:.1f} GB/s (read and written), {peaks['lines'] / 1e6:.0f} million "
        f"random cache lines/s, products of matrices {peaks['flops'] / 1e9:.0f} GFLOP/s, "
        f"disk {peaks['disk'] / 1e6:.0f} MB/s.",
        "",
        "| line | counted | limit | measured | times the limit |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for line in LINES:
        kind, limit = max(
            ((kind, amount / peaks[kind]) for kind, amount in line.work.items()), key=lambda pair: pair[1]
        )
        taken = measured_seconds(results, line)
        shown = ("", "") if taken is None else (_time(taken), f"{taken / limit:.1f}")
        text.append(f"| {line.title} | {line.note} | {_time(limit)}, {kind} | {shown[0]} | {shown[1]} |")
    return "\n".join(text)


def _time(seconds: float) -> str:
    scale, unit = next(((s, u) for s, u in ((1, "s"), (1e-3, "ms"), (1e-6, "us")) if seconds >= s), (1e-6, "us"))
    return f"{seconds / scale:.3g} {unit}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="what `make bench` wrote, on this machine")
    given = parser.parse_args()
    results = json.loads(given.results.read_text("utf-8"))["results"] if given.results.is_file() else []
    print(table(measure_peaks(), results))


if __name__ == "__main__":
    main()
