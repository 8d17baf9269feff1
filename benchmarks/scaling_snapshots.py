"""Measure how long training waits for snapshots of tables on several processes.

    python benchmarks/scaling_snapshots.py [--processes 1 2] [--ids 1000000]

A table of 16 numbers with Adam's two columns beside each sees every id once. Then a snapshot is written in the
background: the time of `Trainer.save` is what training waits, and "durable" is when it is on the disk for good. As many
other processes load it: how long that takes, what rank 0's memory grows by at most, and what its rows and id map take.
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

from benchmarks.scaling_tables import (
    PER_ROW,
    ROWS,
    make_network,
    memory_of_process,
    run_worker,
    start_peak,
    train_each_id_once,
)


def main() -> int:
    """Measure, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--ids", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--worker", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--load", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        (load if given.load else measure)(Path(given.worker), given.ids[0])
        return 0
    heads = ["ids", "processes", "training waits", "durable after", "rank 0 grows by", "bytes", "loaded after"]
    heads += ["rank 0 grows by, at most", "its rows and map"]
    print(f"| {' | '.join(heads)} |\n|" + "---:|" * len(heads))
    for ids in given.ids:
        for count in given.processes:
            with tempfile.TemporaryDirectory() as scratch:
                run_worker(__file__, scratch, ids, count)
                run_worker(__file__, scratch, ids, count, "--load")
                found = json.loads((Path(scratch) / "found.json").read_text())
            cells = [f"{found['ids']:,}", str(count), f"{1000 * found['waits']:,.0f} ms", f"{found['durable']:.2f} s"]
            cells += [f"{found[name] / 1e6:,.0f} MB" for name in ("grown", "bytes")]
            cells += [f"{found['loaded']:.2f} s", *(f"{found[name] / 1e6:,.0f} MB" for name in ("load_grown", "kept"))]
            print(f"| {' | '.join(cells)} |", flush=True)
    return 0


def build():
    """Return a trainer of the table."""
    from mindspore import nn

    from trainer import Trainer

    network = make_network()
    return Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 0.001), seed=1)


def load(folder: Path, count: int) -> None:
    """Load the snapshot, and note the cost on rank 0."""
    from trainer.distributed.group import join

    group, trainer = join(), build()
    arrays = {"x": np.zeros((2 * ROWS, PER_ROW), np.int64), "y": np.zeros((2 * ROWS, 1), np.float32)}
    trainer.fit(arrays, 1, batch_size=ROWS // group.size, shuffle=False, callbacks=[])  # finds the table
    group.wait_for_all()
    before, started = start_peak(), time.perf_counter()
    trainer.load(folder / "snapshots")
    loaded, grown = time.perf_counter() - started, memory_of_process("VmHWM") - before
    if group.is_main:
        (table,) = trainer.tables.tables.tables.values()
        found = json.loads((folder / "found.json").read_text())
        found |= {"loaded": loaded, "load_grown": grown, "kept": table.next_row * table.width * 4 + table.map.nbytes}
        (folder / "found.json").write_text(json.dumps(found))


def measure(folder: Path, count: int) -> None:
    """Train on `count` ids, each seen once, save, and note the cost on rank 0."""
    from trainer.distributed.group import join

    group, trainer = join(), build()
    ids = train_each_id_once(trainer, group, count)
    group.wait_for_all()
    before, started = start_peak(), time.perf_counter()
    path = trainer.save(folder / "snapshots", background=True)
    waits = time.perf_counter() - started
    trainer.saver.wait()
    durable = time.perf_counter() - started
    if group.is_main:
        size = sum(file.stat().st_size for file in path.iterdir())
        found = {"ids": ids, "waits": waits, "durable": durable, "bytes": size}
        found["grown"] = memory_of_process("VmHWM") - before
        (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    sys.exit(main())
