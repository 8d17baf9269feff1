"""What a launcher told this process: MindSpore's documented environment variables, read without importing anything."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from ..errors import ConfigurationError

SCHEDULER, WORKER = "MS_SCHED", "MS_WORKER"
RUN_NOTE_VARIABLE = "TRAINER_RUN_NOTE"  # file that rank 0 writes the path of its run folder to
RESTART_VARIABLE = "TRAINER_RESTART"  # how often the supervisor has started the job again


def process_count(environment: Mapping[str, str] = os.environ) -> int:
    """Return how many processes the job has by msrun's, a rank table's or MPI's variables or MindSpore, or 1."""
    names = ["MS_WORKER_NUM"] if "MS_ROLE" in environment else []
    for name in (*names, "RANK_SIZE", "OMPI_COMM_WORLD_SIZE"):
        value = environment.get(name, "")
        if value.isdecimal() and int(value) > 1:
            return int(value)
    communication = sys.modules.get("mindspore.communication")
    if communication is not None and getattr(communication.GlobalComm, "INITED", False):
        return int(communication.get_group_size())
    return 1


def is_launched(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether msrun or `trainer launch` started this process as part of a job, of one worker even."""
    return environment.get("MS_ROLE") in (SCHEDULER, WORKER) and "MS_SCHED_HOST" in environment


def refuse_replicas() -> None:
    """Refuse to train as one of several processes that do not exchange their gradients.

    Raises:
        ConfigurationError: a launcher started more than one process.
    """
    count = process_count()
    if count > 1:
        raise ConfigurationError(
            f"this process is one of {count} started by a launcher, and training on several processes is not supported "
            "yet: each would train a network of its own; start the script without msrun or mpirun"
        )
