"""The dense network of `benchmarks/scaling.py` in PyTorch, trained by DistributedDataParallel over gloo.

    python benchmarks/scaling_ddp.py FILE PROCESSES STEPS REPEATS (core | all)

It runs in the peers' environment and writes the milliseconds of a step to FILE, one number for each repetition of
STEPS steps. `core` gives each process one core and one thread; `all` divides the machine's cores by threads alone.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path

import torch
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.scaling import FIELDS, ROWS, WIDTH, take_core


def train(rank: int, size: int, steps: int, repeats: int) -> list[float]:
    """Train on generated rows, those of this process; return the milliseconds of a step, by repetition."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs in (FIELDS, WIDTH, WIDTH):
        layers += [nn.Linear(inputs, WIDTH), nn.ReLU()]
    network: nn.Module = nn.Sequential(*layers, nn.Linear(WIDTH, 1))
    network = DistributedDataParallel(network) if size > 1 else network
    optimizer = torch.optim.SGD(network.parameters(), 0.05)
    loss_of = nn.BCEWithLogitsLoss()
    x, y = torch.randn(ROWS * steps, FIELDS), (torch.rand(ROWS * steps, 1) < 0.3).float()
    own = ROWS // size
    times = []
    for _ in range(repeats + 1):  # the first one warms up
        if size > 1:
            distributed.barrier()
        began = time.perf_counter()
        for step in range(steps):
            first = step * ROWS + rank * own
            optimizer.zero_grad()
            loss_of(network(x[first : first + own]), y[first : first + own]).backward()
            optimizer.step()
        times.append((time.perf_counter() - began) / steps * 1e3)
    return times[1:]


def work(rank: int, size: int, port: int, file: str, steps: int, repeats: int, cores: str) -> None:
    """Train as one of the processes; rank 0 writes the times."""
    if cores == "core":
        take_core(rank)
    torch.set_num_threads(1 if cores == "core" else max(1, (os.cpu_count() or 1) // size))
    if size > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
        distributed.init_process_group("gloo", rank=rank, world_size=size)
    times = train(rank, size, steps, repeats)
    if rank == 0:
        Path(file).write_text(json.dumps(times))
    if size > 1:
        distributed.barrier()
        os._exit(0)  # gloo's threads may abort a process that ends while another one still holds the group


def main() -> None:
    """Start the processes."""
    file, size, steps, repeats, cores = sys.argv[1:]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    multiprocessing.spawn(work, (int(size), port, file, int(steps), int(repeats), cores), int(size))


if __name__ == "__main__":
    main()
