"""Read the launcher's environment variables, without importing MindSpore."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigurationError

SCHEDULER, WORKER = "MS_SCHED", "MS_WORKER"
RUN_NOTE_VARIABLE = "TRAINER_RUN_NOTE"  # file that rank 0 writes the path of its run folder to
RESTART_VARIABLE = "TRAINER_RESTART"  # number of restarts of the job so far
RESUME_VARIABLE = "TRAINER_RESUME"  # run folder that a restarted job resumes

STAGE_VARIABLE = "TRAINER_STAGE"  # file in which a process keeps its stage


@dataclass
class Stage:
    """Progress of a process through collective calls, in a file for the supervisor."""

    calls: int = 0  # begun: joining the group, then each verb
    state: str = "done"  # of the last call: "inside", "done", or "left" by an exception

    @classmethod
    def read(cls, path: Path) -> Stage | None:
        """Return the stage in a process's file; None before it joins the group."""
        try:
            calls, state = path.read_text("ascii").split()
        except (OSError, ValueError):  # missing, or being written
            return None
        return cls(int(calls), state)

    @contextlib.contextmanager
    def track_call(self) -> Iterator[None]:
        """Record the beginning and the end of a call."""
        self.calls += 1
        self._write("inside")
        try:
            yield
        except BaseException:
            self._write("left")
            raise
        self._write("done")

    def _write(self, state: str) -> None:
        path = os.environ.get(STAGE_VARIABLE)
        if path:
            Path(path).write_text(f"{self.calls} {state}", "ascii")

    def left_early(self, other: Stage | None) -> bool:
        """Return whether a process that ended here leaves `other` inside a call."""
        if other is None or other.state != "inside":
            return False
        return other.calls > self.calls or (other.calls == self.calls and self.state != "done")


STAGE = Stage()


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


def is_launched(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a launcher started this process, even as the only worker."""
    return environment.get("MS_ROLE") in (SCHEDULER, WORKER) and "MS_SCHED_HOST" in environment


def communication_error(count: int, reason: object) -> ConfigurationError:
    """Return the error for launched processes that cannot connect."""
    return ConfigurationError(
        f"this process is one of {count} started by a launcher, and they cannot meet ({reason}), so each would train a "
        "network of its own; start them with `trainer launch` or msrun"
    )


SILENCE_SECONDS = 10  # until the kernel drops the connection to an unresponsive machine


def enable_keepalive(connection: socket.socket) -> None:
    """Enable keepalive probes, which end a connection to an unresponsive machine."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * SILENCE_SECONDS)


def own_address() -> str:
    """Return this machine's address on the route to the scheduler."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ["MS_SCHED_HOST"], int(os.environ["MS_SCHED_PORT"])))  # sends nothing
        return probe.getsockname()[0]
