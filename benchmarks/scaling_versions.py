"""Measure how long training waits for published versions of tables on several processes.

    python benchmarks/scaling_versions.py [--processes 1 2] [--ids 1000000]

The table of `scaling_snapshots` sees every id once. `Publish` writes a first version, which also exports the network
and is not counted. Then a million ids are trained once more and their changes published, and once more with all rows.
The time of `Publish.publish` is what training waits, and "durable" is when `current.json` names the version.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.scaling_snapshots import build
from benchmarks.scaling_tables import (
    MILLION,
    PER_ROW,
    memory_of_process,
    run_worker,
    start_peak,
    train_each_id_once,
)

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
                run_worker(__file__, scratch, ids, count)
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
    ids = train_each_id_once(trainer, group, count)
    publish = Publish(folder / "served", batch=8, compact=1, on_error="raise")
    publish.setup(trainer)
    seen = trainer.first_batch({"x": np.arange(8 * PER_ROW).reshape(8, PER_ROW)}, 8)
    publish.publish(trainer, seen)
    costs: dict[str, object] = {"ids": ids}
    for case in CASES:
        publish.wait()
        train_each_id_once(trainer, group, MILLION)
        group.wait_for_all()
        before, started = start_peak(), time.perf_counter()
        publish.publish(trainer, seen)
        waits = time.perf_counter() - started
        publish.wait()
        durable = time.perf_counter() - started
        newest = max(publish.root.glob("v_*"), default=folder)
        size = sum(file.stat().st_size for file in newest.iterdir() if file.is_file())
        costs[case] = [waits, durable, memory_of_process("VmHWM") - before, size]
    publish.teardown(trainer)
    if group.is_main:
        (folder / "costs.json").write_text(json.dumps(costs))
    group.wait_for_all()


if __name__ == "__main__":
    sys.exit(main())
