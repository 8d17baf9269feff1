"""Memory that Trainers leave behind when they are dropped, beside MindSpore's own training cells.

    python benchmarks/trainers.py --count 50

Each kind makes, uses and drops `--count` objects in a process of its own, with a network of its own each time: what a
notebook does whose cells are run again and again. Shown is how much more is resident afterwards than after the first
`--warm` of them, divided by the objects made since.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))


def resident() -> float:
    """Return the resident memory of this process in MB, with what the allocator holds in reserve given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _parts() -> tuple[Any, ...]:
    import numpy as np
    from mindspore import nn

    network = nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 1))
    optimizer = nn.Adam(network.trainable_params(), 0.01)
    x, y = np.ones((64, 8), np.float32), np.ones((64, 1), np.float32)
    return network, nn.MSELoss(), optimizer, x, y


def trainer_fit() -> None:
    """`Trainer.fit`."""
    from trainer import Trainer

    network, loss, optimizer, x, y = _parts()
    Trainer(network, loss, optimizer).fit({"x": x, "label": y}, 1, callbacks=[], batch_size=32, sink_size=1)


def model_train() -> None:
    """`mindspore.Model.train`."""
    import mindspore as ms
    import mindspore.dataset as ds

    ms.set_context(mode=ms.GRAPH_MODE)  # as the Trainer does; PyNative, the default, compiles nothing to keep
    network, loss, optimizer, x, y = _parts()
    ms.Model(network, loss, optimizer).train(
        1, ds.NumpySlicesDataset((x, y), ["x", "y"]).batch(32), dataset_sink_mode=False
    )


def one_step_cell() -> None:
    """`nn.TrainOneStepCell`."""
    import mindspore as ms
    from mindspore import nn

    ms.set_context(mode=ms.GRAPH_MODE)
    network, loss, optimizer, x, y = _parts()
    step = nn.TrainOneStepCell(nn.WithLossCell(network, loss), optimizer).set_train()
    for first in (0, 32):
        step(ms.Tensor(x[first : first + 32]), ms.Tensor(y[first : first + 32]))


KINDS: dict[str, Callable[[], None]] = {"Trainer": trainer_fit, "Model": model_train, "TrainOneStepCell": one_step_cell}


def growth(kind: str, count: int, warm: int) -> float:
    """Return MB for each object of a kind made and dropped in this process."""
    for _ in range(warm):
        KINDS[kind]()
    before = resident()
    for _ in range(count - warm):
        KINDS[kind]()
    return (resident() - before) / (count - warm)


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table; return 1 if a Trainer leaves more than MindSpore's own training cell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--warm", type=int, default=10, help="made before the first look at the memory")
    parser.add_argument("--kind", choices=KINDS, help="this one alone, in this process")
    given = parser.parse_args(argv)
    if given.kind:
        print(growth(given.kind, given.count, given.warm))
        return 0
    options = ["--count", str(given.count), "--warm", str(given.warm)]
    found = {}
    print(f"| made and dropped, {given.count} times | MB for each after the first {given.warm} |\n| --- | --- |")
    for kind, work in KINDS.items():
        ended = subprocess.run(
            [sys.executable, __file__, "--kind", kind, *options], stdout=subprocess.PIPE, text=True, check=True
        )
        found[kind] = float(ended.stdout.split()[-1])
        print(f"| {(work.__doc__ or kind).rstrip('.')} | {found[kind]:.2f} |", flush=True)
    return int(found["Trainer"] > max(found["Model"], found["TrainOneStepCell"]))


if __name__ == "__main__":
    sys.exit(main())
