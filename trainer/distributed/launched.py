"""What a launcher told this process: MindSpore's documented environment variables, read without importing anything."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..errors import ConfigurationError

SCHEDULER, WORKER = "MS_SCHED", "MS_WORKER"
RUN_NOTE_VARIABLE = "TRAINER_RUN_NOTE"  # file that rank 0 writes the path of its run folder to
RESTART_VARIABLE = "TRAINER_RESTART"  # how often the supervisor has started the job again
RESUME_VARIABLE = "TRAINER_RESUME"  # run folder that a job started again goes on with

STAGE_VARIABLE = "TRAINER_STAGE"  # file in which a process keeps its stage


class Stage:
    """How far a process has come in what all processes do together, kept in a file for the supervisor.

    Attributes:
        calls: calls begun: joining the others is the first, each verb one more.
        state: "inside" the last of them, "done" with it, or "left": out of it by an exception.
    """

    def __init__(self, calls: int = 0, state: str = "done") -> None:
        self.calls, self.state = calls, state

    @classmethod
    def read(cls, path: Path) -> Stage | None:
        """Return what a process has written; None before it has joined the others."""
        try:
            calls, state = path.read_text("ascii").split()
        except (OSError, ValueError):  # missing, or being written
            return None
        return cls(int(calls), state)

    @contextlib.contextmanager
    def of_a_call(self) -> Iterator[None]:
        """Note that a call begins, and how it ends."""
        self.calls += 1
        self._note("inside")
        try:
            yield
        except BaseException:
            self._note("left")
            raise
        self._note("done")

    def _note(self, state: str) -> None:
        path = os.environ.get(STAGE_VARIABLE)
        if path:
            Path(path).write_text(f"{self.calls} {state}", "ascii")

    def has_left(self, other: Stage | None) -> bool:
        """Return whether a process that ended at this stage is missing in a call that `other` is inside."""
        if other is None or other.state != "inside":
            return False
        return other.calls > self.calls or (other.calls == self.calls and self.state != "done")


STAGE = Stage()


def is_restarted() -> bool:
    """Return whether the supervisor has started this process again after a failure of the job."""
    return os.environ.get(RESTART_VARIABLE, "0") != "0"


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


def note_run_folder(run_dir: Path) -> None:
    """Tell the supervisor, if there is one, where the run writes to."""
    note = os.environ.get(RUN_NOTE_VARIABLE)
    if note:
        Path(note).write_text(str(run_dir.absolute()), "utf-8")


def folder_to_resume() -> str | None:
    """Return the run folder that the supervisor wants this process, started again, to go on with."""
    return os.environ.get(RESUME_VARIABLE)


def is_launched(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether msrun or `trainer launch` started this process as part of a job, of one worker even."""
    return environment.get("MS_ROLE") in (SCHEDULER, WORKER) and "MS_SCHED_HOST" in environment


def cannot_meet(count: int, reason: object) -> ConfigurationError:
    """Return the error of processes that a launcher started and that cannot exchange their gradients."""
    return ConfigurationError(
        f"this process is one of {count} started by a launcher, and they cannot meet ({reason}), so each would train a "
        "network of its own; start them with `trainer launch` or msrun"
    )


SILENCE_SECONDS = 10  # until the kernel gives up a machine that does not answer


def notice_silence(connection: socket.socket) -> None:
    """Turn on keepalive probes, which end the connection when the other machine does not answer."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * SILENCE_SECONDS)
