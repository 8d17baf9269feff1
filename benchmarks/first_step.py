"""What `benchmarks.cases.startup` starts: a process that trains its first steps and says so.

python benchmarks/first_step.py NAME           builds a contender of case (a) and trains one step
python benchmarks/first_step.py stream FOLDER  builds the network of case raw_way and trains on every row of FOLDER
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("GLOG_v", "3")
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.cases import mlp, raw_way

EARLY_ROWS = 100_000


def train_on_stream(folder: Path) -> dict[str, float]:
    """Return seconds to the first step, and the rate of the first rows in percent of the later rate."""
    from callbacks import Callback
    from trainer.run import online  # noqa: F401 (imported with the verb otherwise)

    seen: list[tuple[float, int]] = []

    class Clock(Callback):
        def on_train_step_end(self, trainer) -> None:
            seen.append((time.perf_counter(), trainer.state.progress.samples_seen))

    began = time.perf_counter()
    trained = raw_way.Ours.of(folder)
    called = time.perf_counter()
    trained.train(folder, [Clock()])
    early = next(i for i, (_, rows) in enumerate(seen) if rows >= EARLY_ROWS)
    (first, first_rows), (half, half_rows), (last, last_rows) = seen[0], seen[early], seen[-1]
    later = (last_rows - half_rows) / (last - half)
    return {
        "first_step": first - called,
        "first_step_with_building": first - began,
        "early": 100 * half_rows / (half - called) / later,
        "early_after_first_step": 100 * (half_rows - first_rows) / (half - first) / later,
    }


if __name__ == "__main__":
    if sys.argv[1] == "stream":
        print("\n" + json.dumps(train_on_stream(Path(sys.argv[2]))), flush=True)
    else:
        mlp.make(sys.argv[1], {"steps": 1}).epoch()
        print("\nstepped", flush=True)
