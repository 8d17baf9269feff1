"""Simulates what many ranks spend on exchanges in a step, from constants measured here, and checks it here.

    python benchmarks/scaling.py --cases simulate

Processes of this machine, each in a network namespace of its own behind a link of limited rate (Linux, as root, with
`ip` and `tc`), exchange what a training step exchanges, by the code that trains: `AllToAll` and `DenseSum`. Two
processes on links without a limit, and small messages of up to eight, give the constants; all other measurements are
compared with the simulation. Then come 8, 64 and 512 ranks.

The simulation: a rank sends its messages one after the other, to the next rank first; a message takes processor time
per message and per byte, and leaves when those before it have left its link; it enters the receiver's link when those
that came before have been received, and then takes the receiver's time. Where ranks share cores, the processor time
grows by ranks per core. Assumed: a switch that is never the bottleneck, TCP at the rate of the link at once, and ranks
that begin together.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from trainer.distributed.all_to_all import AllToAll
from trainer.distributed.dense_sum import DIRECT_BYTES, DenseSum
from trainer.distributed.group import Group

COUNTS = (2, 4, 8)
RATES = (None, 1000, 100)  # Mbit/s of a link
DENSE, ROWS_OF_STEP, DIM = 337_203, 39_000, 16  # float32 numbers of the MLP's gradients; rows that a rank reads
PAYLOAD = 1448 / 1514  # of the bytes of an Ethernet frame
TINY = 16
CALL = 20  # steps


@dataclass(frozen=True)
class Constants:
    """Seconds: of an exchange, of each message, of each byte sent and received, of each byte that is added up."""

    exchange: float
    message: float
    byte: float
    add: float


class FileGroup(Group):
    """Processes that meet in a folder.

    Args:
        rank: number of this process.
        size: processes.
        folder: one that all of them see, empty at first.
    """

    def __init__(self, rank: int, size: int, folder: Path) -> None:
        self.rank, self.size, self._folder, self._turns = rank, size, folder, itertools.count()
        self.connections: AllToAll | None = None

    def gather_json(self, value: Any) -> list[Any]:
        turn = next(self._turns)
        own = self._folder / f"{turn}_{self.rank}"
        own.with_suffix(".new").write_text(json.dumps(value))
        own.with_suffix(".new").rename(own)
        files = [self._folder / f"{turn}_{rank}" for rank in range(self.size)]
        while not all(file.exists() for file in files):
            time.sleep(0.002)
        return [json.loads(file.read_text()) for file in files]

    def all_to_all(self, parts: Any, *, in_graph: bool = False) -> list[Any]:
        return self.connections.exchange(parts, keep=not in_graph)


def work(rank: int, size: int, folder: str, address: str) -> None:
    """Exchange as one of the processes; rank 0 writes the seconds of each kind of exchange."""
    group = FileGroup(rank, size, Path(folder))
    group.connections = AllToAll(group, 60.0, address)
    values, rows = np.ones(DENSE, np.float32), np.zeros((ROWS_OF_STEP // size, DIM), np.float32)
    dense = DenseSum(group)
    kinds = {
        "small": (lambda: group.all_to_all([b"x" * TINY] * size), 300),
        "rows": (lambda: group.all_to_all([rows] * size), 12),
        "dense": (lambda: dense.add(values), 12),
    }
    found = {}
    for name, (run, repeats) in kinds.items():
        times = []
        for _ in range(repeats):
            group.all_to_all([b""] * size)  # all begin together
            began = time.perf_counter()
            run()
            times.append(time.perf_counter() - began)
        found[name] = median(times)
    whole = group.gather_json(found)
    if rank == 0:
        means = {name: max(one[name] for one in whole) for name in found}
        (Path(folder) / "found.json").write_text(json.dumps(means))
    group.gather_json(None)


@contextlib.contextmanager
def links(size: int, rate: int | None) -> Iterator[list[str]]:
    """Give the names of `size` namespaces whose links, of `rate` Mbit/s both ways, meet in a bridge."""
    names = [f"trainer-{os.getpid()}-{number}" for number in range(size + 1)]
    switch = names[-1]

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True)

    def limit(namespace: str, device: str) -> None:
        if rate is not None:
            command = ["tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", f"{rate}mbit"]
            burst = max(16_000, rate * 125)  # bytes: a millisecond of it
            command += ["burst", str(burst), "latency", "400ms"]
            subprocess.run(["ip", "netns", "exec", namespace, *command], check=True)

    made: list[str] = []
    try:
        for name in names:
            ip("netns", "add", name)
            made.append(name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge", "up")
        for number, name in enumerate(names[:-1]):
            port = f"port{number}"
            ip("-n", name, "link", "add", "link0", "type", "veth", "peer", "name", port, "netns", switch)
            ip("-n", name, "addr", "add", f"10.77.0.{number + 1}/24", "dev", "link0")
            ip("-n", name, "link", "set", "link0", "up")
            ip("-n", switch, "link", "set", port, "master", "bridge", "up")
            limit(name, "link0")
            limit(switch, port)
        yield names[:-1]
    finally:
        for name in made:
            ip("netns", "del", name)


def measure(size: int, rate: int | None) -> dict[str, float]:
    """Return the seconds of each kind of exchange between `size` processes."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder, links(size, rate) as names:
        own = [sys.executable, str(Path(__file__).resolve())]
        jobs = [
            subprocess.Popen(
                ["ip", "netns", "exec", name, *own, str(rank), str(size), folder, f"10.77.0.{rank + 1}"],
                env=environment,
            )
            for rank, name in enumerate(names)
        ]
        codes = [job.wait(300) for job in jobs]
        if any(codes):
            raise RuntimeError(f"processes of {size} ended with the exit codes {codes}")
        return json.loads((Path(folder) / "found.json").read_text())


def exchange(start: np.ndarray, length: float, constants: Constants, rate: float, load: float = 1.0) -> np.ndarray:
    """Return when each rank has ended an exchange of `length` bytes between each two of them.

    Args:
        start: when each rank begins, seconds [ranks].
        length: bytes of a message.
        constants: see `Constants`.
        rate: bytes per second of each link.
        load: ranks per core, at least 1.
    """
    size = len(start)
    ranks = np.arange(size)
    processor = start + load * constants.exchange
    out, into = start.copy(), start.copy()  # when each link is free, in both directions
    each = load * (constants.message + constants.byte * length) / 2  # one half is the sender's
    on_link = length / rate
    arrived = []
    for turn in range(1, size):
        processor = processor + each
        out = np.maximum(out, processor) + on_link
        to = (ranks + turn) % size
        into[to] = np.maximum(into[to], out - on_link) + on_link
        arrived.append(into.copy())
    for times in arrived:  # a rank receives when it has sent
        processor = np.maximum(processor, times) + each
    return processor


def dense_sum(start: np.ndarray, numbers: int, constants: Constants, rate: float, load: float = 1.0) -> np.ndarray:
    """Return when each rank has ended a `DenseSum` of float32 `numbers`."""
    size, total = len(start), 4 * numbers
    if size == 2 or total <= DIRECT_BYTES:
        return exchange(start, total, constants, rate, load) + load * constants.add * total * (size - 1)
    summed = exchange(start, total / size, constants, rate, load) + load * constants.add * total * (size - 1) / size
    return exchange(summed, total / size, constants, rate, load)


def simulated(kind: str, size: int, constants: Constants, rate: float, load: float = 1.0) -> float:
    """Return the seconds that a kind of exchange of `work` takes."""
    start = np.zeros(size)
    if kind == "dense":
        return float(dense_sum(start, DENSE, constants, rate, load).max())
    length = TINY if kind == "small" else ROWS_OF_STEP // size * DIM * 4
    return float(exchange(start, length, constants, rate, load).max())


def fit(found: dict[tuple[int, int | None], dict[str, float]], cores: int) -> Constants:
    """Return the constants that explain two processes, and small messages of all counts, on links without a limit."""
    loads = [max(1.0, size / cores) for size in COUNTS]
    terms = np.array([[load, load * (size - 1)] for size, load in zip(COUNTS, loads, strict=True)])
    small = np.array([found[size, None]["small"] for size in COUNTS])
    weights = 1 / small  # relative errors count
    whole, message = np.linalg.lstsq(terms * weights[:, None], small * weights, rcond=None)[0].clip(0)
    two = found[2, None]
    byte = max(0.0, two["rows"] - two["small"]) / (ROWS_OF_STEP // 2 * DIM * 4)
    add = max(0.0, two["dense"] - two["small"] - byte * 4 * DENSE) / (4 * DENSE)
    return Constants(float(whole), float(message), byte, add)


def distinct(draws: int, ids: int) -> float:
    """Return the distinct ones that are expected among `draws` uniform draws from `ids`."""
    return ids * -np.expm1(draws * np.log1p(-1 / ids))


def step(size: int, numbers: int, ids: int | None, constants: Constants, rate: float) -> tuple[float, float]:
    """Return the seconds of the exchanges of a step of 1,024 rows a rank, and the MB that a rank sends for it.

    Args:
        size: ranks.
        numbers: float32 numbers of the dense gradients.
        ids: of how many 39 of each row are drawn; None: no tables.
        constants: see `Constants`.
        rate: bytes per second of each link.
    """
    time_of, sent = np.zeros(size), 2 * (size - 1) / size * 4 * numbers
    of_call = 0.0
    if ids is not None:
        own, call = distinct(39 * 1024, ids), distinct(39 * 1024 * CALL, ids)
        sent += (size - 1) / size * (2 * 4 * DIM * own + 4 * own + 12 * call / CALL)
        for _ in range(2):  # weights, and gradients
            time_of = exchange(time_of, 4 * DIM * own / size, constants, rate)
        for length in (8 * call, 4 * call, 4 * own * CALL):
            of_call += float(exchange(np.zeros(size), length / size, constants, rate).max()) / CALL
    return float(dense_sum(time_of, numbers, constants, rate).max()) + of_call, sent / 1e6


def report() -> str:
    """Measure, simulate and compare; return Markdown."""
    cores = len(os.sched_getaffinity(0))
    found = {(size, rate): measure(size, rate) for rate in RATES for size in COUNTS}
    constants = fit(found, cores)
    lines = [
        f"{cores} cores. An exchange takes {constants.exchange * 1e6:.0f} us, each of its messages "
        f"{constants.message * 1e6:.1f} us, a byte {constants.byte * 1e9:.2f} ns, adding one up "
        f"{constants.add * 1e9:.2f} ns.",
        "",
        "| exchange | processes | Mbit/s of a link | ms, measured | ms, simulated | error |",
        "|---|" + "---:|" * 5,
    ]
    for (size, rate), times in found.items():
        speed = PAYLOAD * (rate * 125e3 if rate is not None else float("inf"))
        for kind in ("small", "rows", "dense"):
            if rate is None and (size == 2 or kind == "small"):
                continue  # what the constants come from
            seconds = simulated(kind, size, constants, speed, max(1.0, size / cores))
            cells = [kind, str(size), "-" if rate is None else f"{rate:,}", f"{times[kind] * 1e3:.2f}"]
            lines.append(f"| {' | '.join([*cells, f'{seconds * 1e3:.2f}', f'{seconds / times[kind] - 1:+.0%}'])} |")
    lines += [
        "",
        "| network, 1,024 rows a rank | ranks | MB per step that a rank sends | ms at 10 Gbit/s | ms at 100 Gbit/s |",
        "|---|" + "---:|" * 4,
    ]
    networks = [("MLP", 337_201, None), ("39 ids of 10^5", 571_201, 10**5), ("39 ids of 10^7", 571_201, 10**7)]
    for (name, numbers, ids), size in itertools.product(networks, (8, 64, 512)):
        (slow, sent), (fast, _) = (
            step(size, numbers, ids, constants, PAYLOAD * gigabits * 125e6) for gigabits in (10, 100)
        )
        lines.append(f"| {name} | {size} | {sent:.1f} | {slow * 1e3:.1f} | {fast * 1e3:.1f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    work(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
