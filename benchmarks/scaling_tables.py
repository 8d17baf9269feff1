"""The cases of `benchmarks/scaling.py` about sparse tables: bytes on the wire, memory of tables and of calls."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

ROWS, FIELDS, PER_ROW, DIM = 1024, 39, 64, 16  # rows of a step; ids of a row, in `rows` PER_ROW; numbers of an id
MILLION = 1_000_000
ROOT = Path(__file__).resolve().parents[1]
LAWS = ("uniform", "zipf")
TRAFFIC_CALLS, TRAFFIC_STEPS = 3, 10  # of each call


def make_network():
    """Return rows of an embedding, summed, under a small head."""
    from mindspore import nn

    from trainer.embedding import Embedding

    class Network(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.ids = Embedding(DIM, mode="sparse", name="ids")
            self.head = nn.Dense(DIM, 1)

        def construct(self, x):
            return self.head(self.ids(x).sum(axis=1))

    return Network()


def train_each_id_once(trainer, group, count: int) -> int:
    """Train on about `count` ids, each seen once; return how many.

    The arrays come in parts, so that the data take no memory worth counting.
    """
    part = 16 * ROWS
    rows = max(part, count // PER_ROW // ROWS * ROWS)
    options = {"batch_size": ROWS // group.size, "sink_size": 8, "shuffle": False, "callbacks": []}
    for start in range(0, rows, part):
        last = min(rows, start + part)
        ids = np.arange(PER_ROW * start, PER_ROW * last).reshape(-1, PER_ROW)
        trainer.fit({"x": ids, "y": np.zeros((last - start, 1), np.float32)}, 1, **options)
    return PER_ROW * rows


def run_worker(script: str, folder: str, ids: int, processes: int, *more: str) -> None:
    """Run a benchmark's ``--worker FOLDER --ids IDS``, on several processes as a job.

    Raises:
        SystemExit: it failed; its output is printed.
    """
    own = [str(Path(script).resolve()), "--worker", folder, "--ids", str(ids), *more]
    launch = ["-m", "trainer", "launch", "-n", str(processes), "python"] if processes > 1 else []
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOG_v": "3"}
    done = subprocess.run([sys.executable, *launch, *own], env=environment, capture_output=True, text=True)
    if done.returncode:
        print(done.stdout + done.stderr, file=sys.stderr)
        raise SystemExit(1)


def memory_of_process(key: str) -> int:
    """Return the VmRSS of this process in bytes, or VmHWM, its peak."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024


def start_peak() -> int:
    """Give unused memory back, let the peak of this process start here, and return its VmRSS in bytes."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return memory_of_process("VmRSS")


# -- bytes on the wire -----------------------------------------------------------------------------------------------


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

    group = join()
    for law in LAWS:
        for count in id_counts:
            ids = draw_ids(law, count)
            labels = np.random.default_rng(1).random((len(ids), 1)) < 0.3
            arrays = {"x": ids, "y": labels.astype(np.float32)}
            network = make_network()
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


def traffic(folder: Path) -> str:
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


# -- memory ----------------------------------------------------------------------------------------------------------


def keep_a_million(folder: Path, group) -> None:
    """Train on a million ids, each seen once, and write down what the table of this process takes."""
    from mindspore import nn

    from benchmarks.scaling import make
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


def keep_rows(folder: Path, count: int) -> None:
    """Train on `count` ids, each seen once, 64 a row, and write down what this process takes."""
    from mindspore import nn

    from trainer import Trainer
    from trainer.distributed.group import join

    group, network = join(), make_network()
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 0.001), seed=1)
    train_each_id_once(trainer, group, 1)  # compiles; these ids come again
    before = memory_of_process("VmRSS")
    total = train_each_id_once(trainer, group, count)
    grown = memory_of_process("VmRSS") - before
    group.wait_for_all()
    started = start_peak()
    train_each_id_once(trainer, group, 1)  # two calls on ids that are in the table
    call = memory_of_process("VmHWM") - started
    (table,) = trainer.tables.tables.tables.values()
    found = {"total": total, "processes": group.size, "ids": len(table), "map": table.map.nbytes}
    found |= {"rows": table.next_row * table.width * 4, "before": before, "grown": grown, "call": call}
    (folder / f"rows_{count}_{group.size}_{group.rank}.json").write_text(json.dumps(found))


def rows_kept(folder: Path) -> str:
    """Return what each process takes for a table whose ids are all seen once."""
    lines = [
        "| ids | processes | ids per process | MB of rows | MB of id map | MB before | MB the process has grown by | "
        "MB of a call |",
        "|---:|" + "---:|" * 7,
    ]
    found = [json.loads(path.read_text()) for path in folder.glob("rows_*_0.json")]
    for one in sorted(found, key=lambda one: (one["total"], one["processes"])):
        cells = [f"{one['total']:,}", str(one["processes"]), f"{one['ids']:,}"]
        cells += [f"{one[name] / 1e6:,.0f}" for name in ("rows", "map", "before", "grown", "call")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
