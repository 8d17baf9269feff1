"""Time and memory of sparse tables against `mindspore.Model` and PyTorch, in one run, windows interleaved.

    python benchmarks/embedding.py [--rows 100000 10000000] [--windows 5] [--torch /path/to/python]

Every contender is a process of its own that trains a window of steps when told to, so that all of them meet the
same weather on a shared machine; ratios are those of the medians, with the spread of the windows. Wide & Deep shape:
39 ids a row, dimension 16, three layers of 400, batch 1024, Adam. PyTorch 2.13 is measured when the interpreter of an
environment that has it is named.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

BATCH, FIELDS, DIM, HIDDEN, LAYERS = 1024, 39, 16, 400, 3
STEPS, PER_CALL = 64, 8
SPREAD = np.int64(982_451_653)


def batches(rows: int, ids: str, count: int, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return (numbers int64 [batch, fields] below `rows`, labels float32 [batch]) `count` times."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        shape = (BATCH, FIELDS)
        numbers = rng.integers(0, rows, shape) if ids == "uniform" else rng.zipf(1.2, shape) % rows
        made.append((numbers.astype(np.int64), (rng.random(BATCH) < 0.3).astype(np.float32)))
    return made


class Clock:
    """Time from the end of the first call of a window to the end of its last, over the steps in between."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, int]] = []

    def mark(self, steps: int) -> None:
        self.marks.append((time.perf_counter(), steps))

    def milliseconds(self) -> float:
        steps = sum(steps for _, steps in self.marks[1:])
        result = (self.marks[-1][0] - self.marks[0][0]) / steps * 1e3
        self.marks = []
        return result


def ours(rows: int, ids: str):
    """`Trainer.fit` on raw ids, table filled with `rows` of them first."""
    from mindspore import nn

    from callbacks import Callback
    from trainer import Trainer
    from trainer.embedding import Embedding

    class Marks(Callback):
        def on_train_step_end(self, trainer):
            clock.mark(trainer.state.outputs.chunk.num_steps)

    clock = Clock()
    network = wide_and_deep(Embedding(DIM, name="all"))
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 1e-3))
    data = [(numbers * SPREAD, labels) for numbers, labels in batches(rows, ids, STEPS)]

    def window(steps=STEPS, offset=0):
        source = [(numbers + offset, labels) for numbers, labels in data[:steps]]
        trainer.fit(lambda: source, callbacks=[Marks()], sink_size=PER_CALL)
        return clock.milliseconds()

    window(2 * PER_CALL, offset=1)
    table = network.embedding.host_table()
    for start in range(0, rows, 1 << 16):
        numbers = np.arange(start, min(rows, start + (1 << 16)))
        table.put(numbers * SPREAD, np.zeros((len(numbers), DIM), np.float32))
    window()
    return window


def wide_and_deep(embedding):
    """Return the network around any embedding cell."""
    from mindspore import nn

    class WideAndDeep(nn.Cell):
        def __init__(self):
            super().__init__()
            self.embedding = embedding
            layers = []
            for index in range(LAYERS):
                layers += [nn.Dense(HIDDEN if index else FIELDS * DIM, HIDDEN), nn.ReLU()]
            self.deep = nn.SequentialCell(*layers, nn.Dense(HIDDEN, 1))

        def construct(self, ids):
            return self.deep(self.embedding(ids).reshape(ids.shape[0], -1)).reshape(-1)

    return WideAndDeep()


def model(rows: int, ids: str):
    """`mindspore.Model.train`, `nn.Embedding` and `nn.Adam`, numbers instead of ids."""
    import mindspore as ms
    from mindspore import nn

    class Marks(ms.train.Callback):
        def on_train_step_end(self, run_context):
            clock.mark(1)

    clock = Clock()
    ms.set_context(mode=ms.GRAPH_MODE)
    network = wide_and_deep(nn.Embedding(rows, DIM))
    trained = ms.train.Model(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 1e-3))
    data = [(numbers.astype(np.int32), labels) for numbers, labels in batches(rows, ids, STEPS // 2)]
    dataset = ms.dataset.GeneratorDataset(data, ["ids", "label"], shuffle=False)

    def window():
        trained.train(1, dataset, callbacks=[Marks()], dataset_sink_mode=False)
        return clock.milliseconds()

    window()
    return window


def pytorch(rows: int, ids: str):
    """A hand-written loop with `nn.Embedding(sparse=True)`, SparseAdam for it and Adam for the rest."""
    import torch
    from torch import nn

    embedding = nn.Embedding(rows, DIM, sparse=True)
    layers = []
    for index in range(LAYERS):
        layers += [nn.Linear(HIDDEN if index else FIELDS * DIM, HIDDEN), nn.ReLU()]
    deep = nn.Sequential(*layers, nn.Linear(HIDDEN, 1))
    optimizers = [
        torch.optim.SparseAdam(embedding.parameters(), 1e-3),
        torch.optim.Adam(deep.parameters(), 1e-3),
    ]
    loss_fn = nn.BCEWithLogitsLoss()
    data = batches(rows, ids, STEPS // 2)
    clock = Clock()

    def window():
        for numbers, labels in data:
            output = deep(embedding(torch.from_numpy(numbers)).reshape(len(labels), -1)).reshape(-1)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss_fn(output, torch.from_numpy(labels)).backward()
            for optimizer in optimizers:
                optimizer.step()
            clock.mark(1)
        return clock.milliseconds()

    window()
    return window


KINDS = {"ours": ours, "model": model, "torch": pytorch}


def work(kind: str, rows: int, ids: str) -> None:
    """Be a contender: answer every line on standard input with a line of JSON."""
    window = KINDS[kind](rows, ids)
    answer: dict[str, float] = {"ready": 1}
    while True:
        answer["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print("\x1e" + json.dumps(answer), flush=True)
        if not sys.stdin.readline():
            return
        answer = {"ms": window()}


class Contender:
    """A process that trains windows on demand."""

    def __init__(self, kind: str, rows: int, ids: str, python: str) -> None:
        self.kind, self.rows, self.ids = kind, rows, ids
        self.times: list[float] = []
        self.peak = 0.0
        command = [python, __file__, "--work", kind, str(rows), ids]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._answer()

    def _answer(self) -> dict[str, float]:
        for line in self.process.stdout:
            if line.startswith("\x1e"):
                answer = json.loads(line[1:])
                self.peak = answer["peak"]
                return answer
        raise RuntimeError(f"{self.kind} with {self.rows} rows and {self.ids} ids ended early")

    def run(self) -> None:
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.times.append(self._answer()["ms"])

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()

    @property
    def median(self) -> float:
        return float(np.median(self.times))


def spread(one: Contender, other: Contender) -> str:
    """Return the ratio of the medians with the range over windows taken next to each other."""
    pairs = np.array(one.times) / np.array(other.times)
    return f"{one.median / other.median:.3f} ({pairs.min():.2f} to {pairs.max():.2f})"


def report(contenders: list[Contender]) -> None:
    """Print one line a contender and the ratios the goals speak of."""
    print("| contender | rows | ids | ms per step | fastest | peak GB | bound GB |\n|---|---|---|---|---|---|---|")
    for one in contenders:
        bound = f"{(one.rows * 3 * DIM * 4 * 1.25 + 1e9) / 1e9:.2f}" if one.kind == "ours" else ""
        print(
            f"| {one.kind} | {one.rows:,} | {one.ids} | {one.median:.1f} | {min(one.times):.1f} | {one.peak / 1e9:.2f} "
            f"| {bound} |"
        )
    print("\n| ratio of times | goal | median (windows) |\n|---|---|---|")
    mine = {(one.rows, one.ids): one for one in contenders if one.kind == "ours"}
    for ids, goal in (("zipf", "<= 1.03"), ("uniform", "<= 1.10")):
        sizes = sorted(rows for rows, kind in mine if kind == ids)
        for rows in sizes[1:]:
            text = spread(mine[rows, ids], mine[sizes[0], ids])
            print(f"| {ids} ids, {rows:,} to {sizes[0]:,} rows | {goal} | {text} |")
    for one in contenders:
        if one.kind != "ours" and (one.rows, one.ids) in mine:
            goal = {"model": "<= 0.357", "torch": "<= 0.714"}[one.kind]
            text = spread(mine[one.rows, one.ids], one)
            print(f"| ours to {one.kind}, {one.rows:,} rows, {one.ids} ids | {goal} | {text} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 10_000_000], help="sizes of our table")
    parser.add_argument("--peers", type=int, nargs="*", default=[5_000_000], help="sizes the peers are measured at")
    parser.add_argument("--ids", nargs="+", default=["zipf", "uniform"], choices=["zipf", "uniform"])
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--torch", help="Python interpreter of an environment with torch==2.13.0")
    parser.add_argument("--work", nargs=3, metavar=("KIND", "ROWS", "IDS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        kind, rows, ids = arguments.work
        work(kind, int(rows), ids)
        return
    planned = [("ours", rows, ids) for ids in arguments.ids for rows in sorted({*arguments.rows, *arguments.peers})]
    planned += [("model", rows, "uniform") for rows in arguments.peers]
    if arguments.torch:
        planned += [("torch", rows, "uniform") for rows in arguments.peers]
    import lifetime  # beside this script

    with lifetime.guarded("embedding-"):
        measure(planned, arguments.windows, arguments.torch)


def measure(planned: list[tuple[str, int, str]], windows: int, torch: str | None) -> None:
    """Let contenders of (kind, rows, ids) work in turn, window by window, and report."""
    contenders = []
    try:
        for kind, rows, ids in planned:
            python = torch if kind == "torch" else sys.executable
            contenders.append(Contender(kind, rows, ids, python))
            print(f"{Path(__file__).stem}: {kind}, {rows:,} rows, {ids} ids: ready", file=sys.stderr, flush=True)
        for window in range(windows):
            for one in contenders if window % 2 == 0 else contenders[::-1]:
                one.run()
        report(contenders)
    finally:
        for one in contenders:
            one.close()


if __name__ == "__main__":
    main()
