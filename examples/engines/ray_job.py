"""A job of several processes on Ray, which restarts all of them if one fails.

    pip install "ray[train]"
    python -m examples.engines.ray_job --workers 4 --restarts 3 fit wide_deep.yaml --resume auto

Every Ray worker runs `trainer COMMAND` in a separate process, because only a main thread can handle signals.
The run folder must be on storage that all machines share, or be mirrored (`mirror:` in the experiment).
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
    """Run one rank, and on rank 0 MindSpore's scheduler; RuntimeError if it fails."""
    rank, size = get_context().get_world_rank(), get_context().get_world_size()
    own = ray.util.get_node_ip_address()
    host, port = broadcast_from_rank_zero((own, free_port(own)) if rank == 0 else None)
    job = {"MS_WORKER_NUM": str(size), "MS_SCHED_HOST": host, "MS_SCHED_PORT": str(port), "MS_WORKER_IP": own}
    job["MS_CPU_COMM_OP_TIMEOUT"] = "1800"  # seconds; may be long, because Ray itself detects dead processes
    scheduler = start(SCHEDULER, options["folder"], {**job, "MS_ROLE": "MS_SCHED"}) if rank == 0 else None
    command = [sys.executable, "-m", "trainer", *options["command"]]
    code = start(command, options["folder"], {**job, "MS_ROLE": "MS_WORKER", "MS_NODE_ID": str(rank)}).wait()
    if code:  # the exception makes Ray end the other workers and thereby their processes
        raise RuntimeError(f"rank {rank} ended with exit code {code}")
    if scheduler is not None:
        scheduler.wait()  # it ends when all ranks have finished


def start(command: list[str], folder: str, variables: dict[str, str]) -> subprocess.Popen:
    """Start a process that is killed when this one ends."""
    load = ctypes.CDLL(None)
    environment = {**os.environ, **variables}
    return subprocess.Popen(command, cwd=folder, env=environment, preexec_fn=lambda: load.prctl(1, signal.SIGKILL))


def free_port(host: str) -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def main() -> None:
    """Run the job; the exit code is 1 if it fails more often than `--restarts`."""
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
