"""Measure how long training waits for published versions of tables on several processes.

    python benchmarks/scaling_versions.py [--processes 1 2] [--ids 1000000]

The table of `scaling_snapshots` sees every id once. `Publish` writes a first version, which also exports the network
and is not counted. Then a million ids are trained once more and their changes published, and once more with all rows.
The time of `Publish.publish` is what training waits, and "durable" is when `current.json` names the version.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.scaling_snapshots import CALL, PER_ROW, ROWS, build, memory  # noqa: E402

CASES = ("changes", "all rows")


def main() -> int:
    """Measure, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--ids", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--worker", metavar="FOLDER", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        measure(Path(given.worker), given.ids[0])
        return 0
    print("| ids | processes | version | training waits | durable after | rank 0 grows by | bytes |")
    print("|---:|---:|---|" + "---:|" * 4)
    for ids in given.ids:
        for count in given.processes:
            with tempfile.TemporaryDirectory() as scratch:
                own = [str(Path(__file__).resolve()), "--worker", scratch, "--ids", str(ids)]
                launch = [sys.executable, "-m", "trainer", "launch", "-n", str(count), "python"]
                command = [*launch, *own] if count > 1 else [sys.executable, *own]
                environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOG_v": "3"}
                done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
                if done.returncode:
                    print(done.stdout + done.stderr, file=sys.stderr)
                    return 1
                costs = json.loads((Path(scratch) / "costs.json").read_text())
            for case in CASES:
                waits, durable, grown, size = costs[case]
                cells = [f"{costs['ids']:,}", str(count), case, f"{1000 * waits:,.0f} ms", f"{durable:.2f} s"]
                print(f"| {' | '.join(cells)} | {grown / 1e6:,.0f} MB | {size / 1e6:,.0f} MB |", flush=True)
    return 0


def measure(folder: Path, count: int) -> None:
    """Train on `count` ids, each seen once, publish, and note the costs on rank 0."""
    from trainer.distributed.group import join
    from trainer.serving import Publish

    group, trainer = join(), build()
    rows = max(CALL * ROWS, count // PER_ROW // ROWS * ROWS)

    def train(first: int) -> np.ndarray:  # a call, so that the data take no memory worth counting
        last = min(rows, first + CALL * ROWS)
        ids = np.arange(PER_ROW * first, PER_ROW * last).reshape(-1, PER_ROW)
        arrays = {"x": ids, "y": np.zeros((last - first, 1), np.float32)}
        trainer.fit(arrays, 1, batch_size=ROWS // group.size, sink_size=8, shuffle=False, callbacks=[])
        return ids

    for first in range(0, rows, CALL * ROWS):
        ids = train(first)
    publish = Publish(folder / "served", batch=8, compact=1, on_error="raise")
    publish.setup(trainer)
    seen = trainer.first_batch({"x": ids}, 8)
    publish.publish(trainer, seen)
    costs: dict[str, object] = {"ids": PER_ROW * rows}
    for case in CASES:
        publish.wait()
        train(0)
        group.wait_for_all()
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts here
        before, started = memory("VmRSS"), time.perf_counter()
        publish.publish(trainer, seen)
        waits = time.perf_counter() - started
        publish.wait()
        durable = time.perf_counter() - started
        newest = max(publish.root.glob("v_*"), default=folder)
        size = sum(file.stat().st_size for file in newest.iterdir() if file.is_file())
        costs[case] = [waits, durable, memory("VmHWM") - before, size]
    publish.teardown(trainer)
    if group.is_main:
        (folder / "costs.json").write_text(json.dumps(costs))
    group.wait_for_all()


if __name__ == "__main__":
    sys.exit(main())
