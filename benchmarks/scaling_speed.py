"""Time per step of `benchmarks/scaling.py --cases ddp`: ours beside PyTorch's DistributedDataParallel, in turns.

    python benchmarks/scaling_speed.py FILE STEPS REPEATS (core | all)

is one process of ours: it trains the dense network and, as rank 0, writes the milliseconds of a step to FILE. `core`
gives each process one core of the machine; `all` is what users have, where one process uses both of two cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import peers
from benchmarks.scaling import ROWS, make, take_core

COUNTS = (1, 2)
REPEATS = 4


def compare(folder: Path, rounds: int, steps: int) -> str:
    """Measure ours and PyTorch's in turns, 1 and 2 processes; return a Markdown table."""
    lines = [
        f"{os.cpu_count()} cores; {ROWS} rows per step over all processes; ms per step, median of {rounds} rounds, and "
        "the fastest and slowest round",
        "",
        "| each process has | trained by | 1 process | 2 processes | speed-up | by rounds |",
        "|---|---|" + "---:|" * 4,
    ]
    for cores in ("core", "all"):
        found: dict[tuple[str, int], list[float]] = {}
        for number in range(rounds):
            for name in ("trainer", "DDP") if number % 2 == 0 else ("DDP", "trainer"):
                for count in COUNTS:
                    found.setdefault((name, count), []).append(run(folder, name, count, steps, cores))
        for name in ("trainer", "DDP"):
            one, two = found[name, 1], found[name, 2]
            cells = ["one core" if cores == "core" else "by default", name]
            cells += [f"{median(times):.1f} ({min(times):.1f}-{max(times):.1f})" for times in (one, two)]
            cells.append(f"{median(one) / median(two):.2f}")
            cells.append(", ".join(f"{a / b:.2f}" for a, b in zip(one, two, strict=True)))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def run(folder: Path, name: str, count: int, steps: int, cores: str) -> float:
    """Run one job; return the median of the milliseconds of a step."""
    file = folder / "times.json"
    file.unlink(missing_ok=True)
    given = [str(steps), str(REPEATS), cores]
    if name == "DDP":
        command = [str(peers.python()), str(Path(__file__).with_name("scaling_ddp.py")), str(file), str(count), *given]
    else:
        launch = [sys.executable, "-m", "trainer", "launch", "-n", str(count), "python"]
        command = [*(launch if count > 1 else [sys.executable]), str(Path(__file__).resolve()), str(file), *given]
    environment = {**os.environ, "PYTHONPATH": sys.path[0], "GLOG_v": "3"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return median(json.loads(file.read_text()))


def main() -> None:
    """Train as one of the processes."""
    file, steps, repeats, cores = sys.argv[1:]
    if cores == "core":
        take_core(int(os.environ.get("MS_NODE_ID", "0")))  # before MindSpore starts its threads

    from mindspore import nn

    from trainer import Trainer
    from trainer.distributed.group import join

    group = join()
    network, optimizer, arrays = make("dense", ROWS * int(steps))
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), optimizer, seed=1)
    options = {"epochs": 1, "batch_size": ROWS // group.size, "shuffle": False, "callbacks": []}
    times = []
    for _ in range(int(repeats) + 1):  # the first one compiles
        group.wait_for_all()
        began = time.perf_counter()
        trainer.fit(arrays, **options)
        times.append((time.perf_counter() - began) / int(steps) * 1e3)
    if group.is_main:
        Path(file).write_text(json.dumps(times[1:]))


if __name__ == "__main__":
    main()
