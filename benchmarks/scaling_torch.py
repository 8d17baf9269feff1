"""The rows of `benchmarks/scaling.py --cases traffic`, exchanged by PyTorch's all-to-all over gloo.

    python benchmarks/scaling_torch.py FOLDER PROCESSES IDS [IDS ...]

It runs in the peers' environment. In each step a process sends the distinct ids of its batch to their owners, receives
their rows and sends gradients back, as sharded tables do: three calls of `all_to_all_single` and one for the counts.
Nothing is trained. The loopback device of this network namespace counts the bytes.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import numpy as np
import torch
from torch import distributed, multiprocessing

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.scaling_tables import DIM, LAWS, TRAFFIC_CALLS, TRAFFIC_STEPS, draw_ids, on_the_wire


def exchange(part: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
    """Send each process its rows of `part`; return those that all have sent here."""
    out = torch.empty((sum(received), *part.shape[1:]), dtype=part.dtype)
    distributed.all_to_all_single(out, part, received, sent)
    return out


def train(ids: np.ndarray, size: int) -> None:
    """Exchange what the steps of `ids`, int64 [steps, n], need."""
    for step in ids:
        keys = torch.from_numpy(np.unique(step))
        owners = keys % size
        order = torch.argsort(owners, stable=True)
        counts = torch.bincount(owners, minlength=size)
        asked = exchange(counts, [1] * size, [1] * size)
        sent, received = counts.tolist(), asked.tolist()
        wanted = exchange(keys[order], sent, received)
        rows = exchange(torch.zeros((len(wanted), DIM)), received, sent)
        exchange(rows, sent, received)


def work(rank: int, size: int, port: int, folder: str, id_counts: list[int]) -> None:
    """Exchange ids of each kind and write down what travelled."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    distributed.init_process_group("gloo", rank=rank, world_size=size)
    steps = TRAFFIC_CALLS * TRAFFIC_STEPS
    for law in LAWS:
        for count in id_counts:
            own = draw_ids(law, count).reshape(steps, size, -1)[:, rank]
            train(own[:2], size)  # connects
            distributed.barrier()
            before = on_the_wire()
            distributed.barrier()
            train(own, size)
            distributed.barrier()
            if rank == 0:
                wire = (on_the_wire() - before) / steps / size
                (Path(folder) / f"torch_{law}_{count}_{size}.json").write_text(json.dumps({"wire": wire}))
            distributed.barrier()
    distributed.destroy_process_group()


def main() -> None:
    """Start the processes."""
    folder, size, *id_counts = sys.argv[1:]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    multiprocessing.spawn(work, (int(size), port, folder, list(map(int, id_counts))), int(size))


if __name__ == "__main__":
    main()
