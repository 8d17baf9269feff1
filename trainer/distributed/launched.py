"""Read the launcher's environment variables, without importing MindSpore."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

SCHEDULER, WORKER = "MS_SCHED", "MS_WORKER"
RUN_NOTE_VARIABLE = "TRAINER_RUN_NOTE"  # file to which rank 0 writes the path of its run folder
RESTART_VARIABLE = "TRAINER_RESTART"  # number of restarts of the job so far
RESUME_VARIABLE = "TRAINER_RESUME"  # run folder that a restarted job resumes


def is_restarted() -> bool:
    """Return whether the supervisor restarted this process after a failure."""
    return os.environ.get(RESTART_VARIABLE, "0") != "0"


def process_count(environment: Mapping[str, str] = os.environ) -> int:
    """Return the job's process count, from the environment or MindSpore."""
    names = ["MS_WORKER_NUM"] if "MS_ROLE" in environment else []
    for name in (*names, "RANK_SIZE", "OMPI_COMM_WORLD_SIZE"):
        value = environment.get(name, "")
        if value.isdecimal() and int(value) > 1:
            return int(value)
    communication = sys.modules.get("mindspore.communication")
    if communication is not None and getattr(communication.GlobalComm, "INITED", False):
        return int(communication.get_group_size())
    return 1


def note_run_folder(run_dir: Path) -> None:
    """Write the path of the run folder for the supervisor, if there is one."""
    note = os.environ.get(RUN_NOTE_VARIABLE)
    if note:
        Path(note).write_text(str(run_dir.absolute()), "utf-8")


def folder_to_resume() -> str | None:
    """Return the run folder that this restarted process is to resume, or None."""
    return os.environ.get(RESUME_VARIABLE)


def is_launched() -> bool:
    """Return whether a launcher started this process, even as the only worker."""
    return os.environ.get("MS_ROLE") in (SCHEDULER, WORKER) and "MS_SCHED_HOST" in os.environ
