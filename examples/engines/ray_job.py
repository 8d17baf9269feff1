"""A job of several processes on Ray: Ray Train places them, and starts all of them again when one has failed.

    pip install "ray[train]"
    python -m examples.engines.ray_job --workers 4 --restarts 3 fit wide_deep.yaml --resume auto

Every worker of Ray runs `trainer COMMAND` as a process of its own, because only a main thread handles signals.
The run folder has to be on storage that all machines share, or mirrored (`mirror:` in the experiment).
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig, get_context
from ray.train.collective import broadcast_from_rank_zero
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

SCHEDULER = [sys.executable, "-c", "from mindspore import communication; communication.init()"]


def run_rank(options: dict) -> None:
    """Run one process of the job; on rank 0 MindSpore's scheduler beside it. Raises RuntimeError when it fails."""
    rank, size = get_context().get_world_rank(), get_context().get_world_size()
    own = ray.util.get_node_ip_address()
    host, port = broadcast_from_rank_zero((own, free_port(own)) if rank == 0 else None)
    job = {"MS_WORKER_NUM": str(size), "MS_SCHED_HOST": host, "MS_SCHED_PORT": str(port), "MS_WORKER_IP": own}
    job["MS_CPU_COMM_OP_TIMEOUT"] = "1800"  # seconds; Ray notices a process that has died
    scheduler = start(SCHEDULER, options["folder"], {**job, "MS_ROLE": "MS_SCHED"}) if rank == 0 else None
    command = [sys.executable, "-m", "trainer", *options["command"]]
    code = start(command, options["folder"], {**job, "MS_ROLE": "MS_WORKER", "MS_NODE_ID": str(rank)}).wait()
    if code:  # Ray ends the other workers, and their processes end with them
        raise RuntimeError(f"rank {rank} ended with exit code {code}")
    if scheduler is not None:
        scheduler.wait()  # it ends after the last process has left


def start(command: list[str], folder: str, variables: dict[str, str]) -> subprocess.Popen:
    """Start a process that is killed when this one ends."""
    load = ctypes.CDLL(None)
    environment = {**os.environ, **variables}
    return subprocess.Popen(command, cwd=folder, env=environment, preexec_fn=lambda: load.prctl(1, signal.SIGKILL))


def free_port(host: str) -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def main() -> None:
    """Run the job; exit code 1 when it failed more often than it is started again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--restarts", type=int, default=3)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="of `trainer`, as: fit CONFIG --resume auto")
    given = parser.parse_args()
    DataParallelTrainer(
        run_rank,
        train_loop_config={"command": given.command, "folder": str(Path.cwd())},
        scaling_config=ScalingConfig(num_workers=given.workers),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=given.restarts)),
    ).fit()


if __name__ == "__main__":
    main()
