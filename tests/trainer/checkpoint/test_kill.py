"""kill -9 at random moments of writing, replacing and pruning: nothing reported durable is ever lost or changed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from trainer import checkpoint

pytestmark = pytest.mark.process

KILLS = int(os.environ.get("TRAINER_TEST_KILLS", "20"))
ROOT = Path(__file__).parents[3]


def contents(seed: int) -> dict[str, dict[str, np.ndarray]]:
    generator = np.random.default_rng(seed)
    return {
        "model": {"weight": generator.normal(size=(1500, 16)), "bias": generator.integers(0, 9, 5)},
        "optimizer": {"moment": generator.normal(size=20_000).astype(np.float32)},
    }


def write_for_ever(root: Path, seed: int, report: int) -> None:
    """Write snapshots, every third one a replacement of the same step, reporting each once it is durable."""
    while True:
        seed += 1
        path = checkpoint.write(root, seed // 3, contents(seed), {"seed": seed})
        os.write(report, f"{seed}\n".encode())
        checkpoint.set_pointer(root, "last", path.name)
        checkpoint.prune(root, [], trust=[path.name])


def drive(root: Path, kills: int) -> None:
    """Fork a writer, kill it, check what it left; as often as asked. A process of its own, which has no threads."""
    clock = random.Random(20)
    durable = 0
    moments: Counter[str] = Counter()
    for _ in range(kills):
        receive, send = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(receive)
            write_for_ever(root, durable, send)
        os.close(send)
        with os.fdopen(receive) as reports:
            first = int(reports.readline())  # at least one is durable, so that every round goes on
            time.sleep(clock.uniform(0, 0.03))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            durable = max([first, *map(int, reports.read().split())])
        for name in os.listdir(root):
            moments[name.rsplit(".", 1)[-1] if name.startswith(".") else "-"] += 1
        snapshot = checkpoint.find(root)
        found = snapshot.state["seed"]
        assert durable <= found <= durable + 1, f"reported durable: {durable}, found: {found}"
        assert snapshot.step == found // 3
        for group, arrays in contents(found).items():
            for name, array in arrays.items():
                np.testing.assert_array_equal(snapshot.tensors(group)[name], array)
        durable = found
    write_last = checkpoint.write(root, durable, contents(0), {"seed": 0})
    checkpoint.prune(root, [], trust=[write_last.name])
    left = [
        name
        for name in os.listdir(root)
        if name not in ("last", write_last.name, checkpoint.read_pointer(root, "last"))
    ]
    print(json.dumps({"kills": kills, "written": durable, "left": left, "moments": moments}))


def test_kill_9(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, __file__, tmp_path, str(KILLS)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60 + KILLS)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["kills"] == KILLS
    assert report["left"] == [], "temporaries of killed writers are removed"
    assert report["moments"].get("tmp", 0) > 0, "some kills hit a write"


if __name__ == "__main__":
    drive(Path(sys.argv[1]), int(sys.argv[2]))
