"""The same training on 1, 2 and 4 processes of this machine: speed, what they send and keep, how far results differ.

    python benchmarks/scaling.py [--processes 1 2 4] [--steps 60]
    python benchmarks/scaling.py --cases traffic --processes 2 4 8 --ids 10000 1000000

Networks on generated data, 1,024 rows per step over all processes: an MLP (39 numbers, 400-400-400-1); raw ids (39 a
row of 100,000, dim 16) under the same MLP; and, for the memory it takes, a table that sees a million ids once each,
with Adam's two columns beside each weight. More processes than cores only show that results agree and what travels; the
speed of several machines is estimated in docs/scaling.md.

The case `traffic` is not among the default ones: rows of an embedding under a small head, drawn from as many ids as
given, uniformly or by Zipf's law. Each job runs in a network namespace of its own (Linux, as root), whose counters give
the bytes on the wire; beside them stand the bytes that `trainer` handed over and those of the formula. With `--torch`,
or an interpreter in BENCHMARK_PEERS (`benchmarks/peers.py`), PyTorch's all-to-all over gloo sends the same rows.

The case `rows` measures what a process takes for a table with Adam's columns, whose ids (`--ids`) are each seen once:
its rows and id map, by how much the memory of the process has grown, and what it has more at the peak of a call.

The case `ddp`, by itself, measures 1 and 2 processes in turns with PyTorch's DistributedDataParallel
(`scaling_speed.py`); `simulate`, by itself, what many ranks would spend on exchanges (`scaling_simulation.py`).
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

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import scaling_tables
from benchmarks.scaling_tables import DIM, FIELDS, ROWS

ROOT = Path(__file__).parents[1]
IDS, WIDTH = 100_000, 400
CASES = ("dense", "ids", "memory", "traffic", "rows", "ddp", "simulate")


def main() -> int:
    """Measure, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps that are timed; default: 60")
    parser.add_argument("--activation", choices=("relu", "tanh"), default="relu", help="of the MLP")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES[:3]))
    parser.add_argument("--ids", type=int, nargs="+", default=[10_000, 1_000_000], help="of the case traffic")
    parser.add_argument("--torch", action="store_true", help="traffic beside PyTorch's, in the peers' environment")
    parser.add_argument("--rounds", type=int, default=3, help="of the case ddp")
    parser.add_argument("--worker", metavar="FOLDER", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        if "traffic" in given.cases:
            scaling_tables.count_traffic(Path(given.worker), given.ids)
        if "rows" in given.cases:
            for count in given.ids:
                scaling_tables.keep_rows(Path(given.worker), count)
        cases = [case for case in given.cases if case not in ("traffic", "rows")]
        if cases:
            work(Path(given.worker), given.steps, cases, given.activation)
        return 0
    if given.cases in (["ddp"], ["simulate"]):
        print(report_alone(given.cases[0], given.rounds, given.steps))
        return 0
    from benchmarks import peers

    with tempfile.TemporaryDirectory() as scratch:
        for count in given.processes:
            own = [str(Path(__file__).resolve()), "--worker", scratch, "--steps", str(given.steps)]
            launch = [sys.executable, "-m", "trainer", "launch", "-n", str(count)]
            own += ["--activation", given.activation, "--cases", *given.cases, "--ids", *map(str, given.ids)]
            command = [*launch, "python", *own] if count > 1 else [sys.executable, *own]
            commands = [command]
            if "traffic" in given.cases:
                if count > 1 and (given.torch or peers.VARIABLE in os.environ):
                    peer = str(Path(__file__).with_name("scaling_torch.py"))
                    commands.append([str(peers.python()), peer, scratch, str(count), *map(str, given.ids)])
                alone = ["unshare", "-n", "sh", "-c", 'ip link set lo up; exec "$@"', "sh"]
                commands = [[*alone, *command] for command in commands]
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOG_v": "3"}
            for command in commands:
                done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
                if done.returncode:
                    print(done.stdout + done.stderr, file=sys.stderr)
                    return 1
        print(table(Path(scratch), given.processes, given.cases))
    return 0


def report_alone(case: str, rounds: int, steps: int) -> str:
    """Return the report of a case that takes no others beside it."""
    from benchmarks import scaling_simulation, scaling_speed

    if case == "simulate":
        return scaling_simulation.report()
    with tempfile.TemporaryDirectory() as scratch:
        return scaling_speed.compare(Path(scratch), rounds, steps)


def table(folder: Path, counts: list[int], cases: list[str]) -> str:
    """Return what was measured as Markdown."""
    timed = [case for case in cases if case in ("dense", "ids")]
    parts = [speeds(folder, counts, timed)] if timed else []
    if "traffic" in cases:
        parts.append(scaling_tables.traffic(folder))
    if "memory" in cases:
        parts.append(scaling_tables.memory(folder, counts))
    if "rows" in cases:
        parts.append(scaling_tables.rows_kept(folder))
    return "\n\n".join(parts)


def speeds(folder: Path, counts: list[int], cases: list[str]) -> str:
    """Return speed, messages, bytes and differences."""
    lines = [
        f"{os.cpu_count()} cores; {ROWS} rows per step over all processes",
        "",
        "| network | processes | samples/s | messages per step | MB per step and process | largest difference |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for case in cases:
        alone = dict(np.load(folder / f"{case}_{counts[0]}.npz"))
        for count in counts:
            found = json.loads((folder / f"{case}_{count}.json").read_text())
            values = np.load(folder / f"{case}_{count}.npz")
            apart = max(float(np.abs(values[name] - alone[name]).max()) for name in alone)
            cells = [case, str(count), f"{found['samples']:,.0f}", f"{found['messages']:.2f}"]
            cells += [f"{found['bytes'] / 1e6:.2f}", "-" if count == counts[0] else f"{apart:.1e}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def work(folder: Path, steps: int, cases: list[str], activation: str) -> None:
    """Train and write down what one process, rank 0, has seen."""
    from trainer import Trainer
    from trainer.distributed.group import join

    sent = {"bytes": 0, "messages": 0}
    group = join()
    for case in cases:
        if case == "memory":
            scaling_tables.keep_a_million(folder, group)
            continue
        network, optimizer, arrays = make(case, ROWS * steps, activation)
        from mindspore import nn

        trainer = Trainer(network, nn.BCEWithLogitsLoss(), optimizer, seed=1)
        options = {"epochs": 1, "batch_size": ROWS // group.size, "shuffle": False, "callbacks": []}
        trainer.fit(arrays, **options)  # compiles
        sent.update(bytes=-group.bytes_sent, messages=-group.messages_sent)
        began = time.perf_counter()
        trainer.fit(arrays, **options)
        seconds = time.perf_counter() - began
        if group.size > 1:
            sent["bytes"] += group.bytes_sent
            sent["messages"] += group.messages_sent
        if group.is_main:
            found = {"samples": ROWS * steps / seconds, **{name: value / steps for name, value in sent.items()}}
            (folder / f"{case}_{group.size}.json").write_text(json.dumps(found))
            values = {parameter.name: parameter.asnumpy() for parameter in network.trainable_params()}
            np.savez(folder / f"{case}_{group.size}.npz", **values)


def take_core(number: int) -> None:
    """Leave this process one of the machine's cores; its threads started later have that one too."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})


def make(case: str, rows: int, activation: str = "relu"):
    """Return network, optimizer and arrays of a case, the same on every process."""
    from mindspore import Tensor, nn, ops

    from trainer.embedding import Embedding

    rng = np.random.default_rng(0)

    def dense(inputs: int, outputs: int) -> nn.Dense:
        weight = rng.normal(0, inputs**-0.5, (outputs, inputs)).astype(np.float32)
        return nn.Dense(inputs, outputs, weight_init=Tensor(weight), bias_init="zeros")

    active = {"relu": nn.ReLU, "tanh": nn.Tanh}[activation]

    class Network(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.ids = Embedding(DIM, mode="sparse", name="ids") if case == "ids" else None
            self.first = dense(FIELDS * DIM if case == "ids" else FIELDS, WIDTH)
            self.layers = nn.SequentialCell(
                active(), dense(WIDTH, WIDTH), active(), dense(WIDTH, WIDTH), active(), dense(WIDTH, 1)
            )

        def construct(self, x):
            if self.ids is not None:
                x = ops.reshape(self.ids(x), (x.shape[0], FIELDS * DIM))
            return self.layers(self.first(x))

    network = Network()
    x = rng.integers(0, IDS, (rows, FIELDS)) if case == "ids" else rng.normal(size=(rows, FIELDS)).astype(np.float32)
    y = (rng.random((rows, 1)) < 0.3).astype(np.float32)
    return network, nn.SGD(network.trainable_params(), 0.05), {"x": x, "y": y}


if __name__ == "__main__":
    sys.exit(main())
