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
its rows and id map, and by how much the memory of the process has grown.

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

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

ROWS, FIELDS, IDS, DIM, WIDTH = 1024, 39, 100_000, 16, 400
MILLION = 1_000_000
CASES = ("dense", "ids", "memory", "traffic", "rows", "ddp", "simulate")
LAWS = ("uniform", "zipf")
TRAFFIC_CALLS, TRAFFIC_STEPS = 3, 10  # of each call


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
            count_traffic(Path(given.worker), given.ids)
        if "rows" in given.cases:
            for count in given.ids:
                keep_rows(Path(given.worker), count)
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
        parts.append(traffic(folder, counts))
    if "memory" in cases:
        parts.append(memory(folder, counts))
    if "rows" in cases:
        parts.append(rows_kept(folder))
    return "\n\n".join(parts)


def memory(folder: Path, counts: list[int]) -> str:
    """Return what each process keeps of a table of a million ids."""
    lines = [
        "| processes | ids per process | MB of rows | MB of id map | together, of one process |",
        "|---:|" + "---:|" * 4,
    ]
    whole = 0.0
    for count in counts:
        found = [json.loads((folder / f"memory_{count}_{rank}.json").read_text()) for rank in range(count)]
        most = max(found, key=lambda one: one["rows"] + one["map"])
        together = most["rows"] + most["map"]
        whole = whole or together
        cells = [str(count), f"{most['ids']:,}", f"{most['rows'] / 1e6:.1f}", f"{most['map'] / 1e6:.1f}"]
        lines.append(f"| {' | '.join([*cells, f'{together / whole:.2f}'])} |")
    return "\n".join(lines)


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
    from trainer.distributed.world import World

    sent = {"bytes": 0, "messages": 0}

    def counted(method):
        def run(self, kind, array):
            sent["bytes"] += array.nbytes
            sent["messages"] += 1
            return method(self, kind, array)

        return run

    World._run = counted(World._run)  # the collectives of MindSpore; the group counts its own messages
    group = join()
    for case in cases:
        if case == "memory":
            keep_a_million(folder, group)
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


def traffic(folder: Path, counts: list[int]) -> str:
    """Return what each process sends for its rows, counted in three ways."""
    lines = [
        f"{ROWS} rows of {FIELDS} ids per step over all processes, {DIM} numbers a row, {TRAFFIC_STEPS} steps a call",
        "",
        "| ids | processes | distinct ids of a process and step | KB of rows, formula | KB of rows, sent | messages | "
        "KB on the wire, all | of formula | torch with gloo, KB on the wire |",
        "|---|" + "---:|" * 8,
    ]
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("traffic_*.json"))]
    for one in sorted(found, key=lambda one: (one["law"], one["ids"], one["processes"])):
        cells = [f"{one['ids']:,} {one['law']}", str(one["processes"]), f"{one['distinct']:,.0f}"]
        cells += [f"{one[name] / 1e3:,.0f}" for name in ("formula", "sent")]
        share = f"{one['wire'] / one['formula']:.2f}" if one["formula"] else "-"
        cells += [f"{one['messages']:.1f}", f"{one['wire'] / 1e3:,.0f}", share]
        peer = folder / f"torch_{one['law']}_{one['ids']}_{one['processes']}.json"
        cells.append(f"{json.loads(peer.read_text())['wire'] / 1e3:,.0f}" if peer.exists() else "-")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def on_the_wire() -> int:
    """Return the bytes that the loopback device of this network namespace has carried."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.strip().startswith("lo:"))


def draw_ids(law: str, count: int) -> np.ndarray:
    """Return the ids of the case `traffic`, int64 [rows, FIELDS], from `count` ids by a law of LAWS."""
    rng = np.random.default_rng(0)
    shape = (TRAFFIC_CALLS * TRAFFIC_STEPS * ROWS, FIELDS)
    weights = np.arange(1, count + 1) ** -1.1 if law == "zipf" else np.ones(count)
    return np.searchsorted(np.cumsum(weights / weights.sum()), rng.random(shape)).clip(0, count - 1)


def row_bytes(ids: np.ndarray, size: int) -> tuple[float, float]:
    """Return (distinct ids of a process and step, bytes of rows that it sends in a step by the formula).

    Args:
        ids: int64 [calls, steps, processes, ids], as they are trained.
        size: processes.
    """
    own = np.mean([len(np.unique(part)) for part in ids.reshape(-1, ids.shape[-1])])
    of_call = np.mean([len(np.unique(call[:, rank])) for call in ids for rank in range(size)])
    elsewhere = (size - 1) / size
    # Weights one way and gradients the other; a row's mention in the list of its step; an id and its row's number.
    return own, elsewhere * (own * (2 * 4 * DIM + 4) + of_call * (8 + 4) / ids.shape[1])


def count_traffic(folder: Path, id_counts: list[int]) -> None:
    """Train on ids of each kind and write down what travelled."""
    from mindspore import nn

    from trainer import Trainer
    from trainer.distributed.group import join
    from trainer.embedding import Embedding

    class Network(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.ids = Embedding(DIM, mode="sparse", name="ids")
            self.head = nn.Dense(DIM, 1)

        def construct(self, x):
            return self.head(self.ids(x).sum(axis=1))

    group = join()
    for law in LAWS:
        for count in id_counts:
            ids = draw_ids(law, count)
            labels = np.random.default_rng(1).random((len(ids), 1)) < 0.3
            arrays = {"x": ids, "y": labels.astype(np.float32)}
            network = Network()
            trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.05), seed=1)
            options = {"epochs": 1, "batch_size": ROWS // group.size, "shuffle": False, "callbacks": []}
            trainer.fit(arrays, sink_size=TRAFFIC_STEPS, **options)  # compiles
            group.wait_for_all()
            before = on_the_wire(), group.bytes_sent, group.messages_sent
            group.wait_for_all()
            trainer.fit(arrays, sink_size=TRAFFIC_STEPS, **options)
            group.wait_for_all()
            after = on_the_wire(), group.bytes_sent, group.messages_sent
            steps = TRAFFIC_CALLS * TRAFFIC_STEPS
            wire, sent, messages = ((b - a) / steps for a, b in zip(before, after, strict=True))
            # Of every step's rows process r takes the r-th part.
            own, formula = row_bytes(ids.reshape(TRAFFIC_CALLS, TRAFFIC_STEPS, group.size, -1), group.size)
            found = {"law": law, "ids": count, "processes": group.size, "distinct": own, "formula": formula}
            found |= {"sent": sent, "messages": messages, "wire": wire / group.size}
            if group.is_main:
                (folder / f"traffic_{law}_{count}_{group.size}.json").write_text(json.dumps(found))


def keep_a_million(folder: Path, group) -> None:
    """Train on a million ids, each seen once, and write down what the table of this process takes."""
    from mindspore import nn

    from trainer import Trainer

    network, _, _ = make("ids", 1)
    optimizer = nn.Adam(network.trainable_params(), 0.001)
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), optimizer, seed=1)
    rows = MILLION // FIELDS
    ids = np.arange(rows * FIELDS).reshape(rows, FIELDS)
    arrays = {"x": ids, "y": (ids[:, :1] % 2).astype(np.float32)}
    trainer.fit(arrays, batch_size=ROWS // group.size, sink_size=8, callbacks=[])
    (table,) = trainer.tables.tables.tables.values()
    found = {"ids": len(table), "rows": table.next_row * table.width * 4, "map": table.map.nbytes}
    (folder / f"memory_{group.size}_{group.rank}.json").write_text(json.dumps(found))


def rows_kept(folder: Path) -> str:
    """Return what each process takes for a table whose ids are all seen once."""
    lines = [
        "| ids | processes | ids per process | MB of rows | MB of id map | MB before | MB the process has grown by |",
        "|---:|" + "---:|" * 6,
    ]
    found = [json.loads(path.read_text()) for path in folder.glob("rows_*_0.json")]
    for one in sorted(found, key=lambda one: (one["total"], one["processes"])):
        cells = [f"{one['total']:,}", str(one["processes"]), f"{one['ids']:,}"]
        cells += [f"{one[name] / 1e6:,.0f}" for name in ("rows", "map", "before", "grown")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def resident() -> int:
    """Return the bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def keep_rows(folder: Path, count: int) -> None:
    """Train on `count` ids, each seen once, 64 a row, and write down what this process takes."""
    from mindspore import nn

    from trainer import Trainer
    from trainer.distributed.group import join
    from trainer.embedding import Embedding

    class Network(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.ids = Embedding(DIM, mode="sparse", name="ids")
            self.head = nn.Dense(DIM, 1)

        def construct(self, x):
            return self.head(self.ids(x).sum(axis=1))

    group, network = join(), Network()
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 0.001), seed=1)
    rows = count // 64 // ROWS * ROWS

    def arrays(first: int, last: int) -> dict[str, np.ndarray]:
        return {
            "x": np.arange(64 * first, 64 * last).reshape(-1, 64),
            "y": np.zeros((last - first, 1), np.float32),
        }

    options = {"batch_size": ROWS // group.size, "sink_size": 8, "shuffle": False, "callbacks": []}
    trainer.fit(arrays(0, 16 * ROWS), 1, **options)  # compiles; these ids come again
    before = resident()
    for first in range(0, rows, 16 * ROWS):  # so that the data take no memory worth counting
        trainer.fit(arrays(first, min(rows, first + 16 * ROWS)), 1, **options)
    (table,) = trainer.tables.tables.tables.values()
    found = {"total": 64 * rows, "processes": group.size, "ids": len(table), "map": table.map.nbytes}
    found |= {"rows": table.next_row * table.width * 4, "before": before, "grown": resident() - before}
    (folder / f"rows_{count}_{group.size}_{group.rank}.json").write_text(json.dumps(found))


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
