"""Connect the supervisors of a job on several machines.

Each supervisor has one TCP connection to that of machine 0, at the address of ``--master``. Messages are lines of JSON.
Machine 0 forwards the messages of each machine to the others. A broken connection counts as a failed machine.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import ConfigurationError, TrainerError
from .launched import enable_keepalive

if TYPE_CHECKING:
    from .launch import Job

MEETING_SECONDS = 300.0
ANSWER_SECONDS = 10.0  # for the listener at the address to identify itself as machine 0
LONGEST_MESSAGE = 1 << 20  # bytes
ESCAPED_BYTES = 12  # of a character in JSON, at most


class Verdict(NamedTuple):
    """Decision of machine 0 after an attempt."""

    code: int  # exit code of the job, that of the process that failed first
    again: bool = False  # whether to restart all processes
    run_folder: str | None = None  # the folder that rank 0 writes to, if known


class _Link:
    """A connection to another supervisor."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.open = True
        self.buffered: list[dict[str, Any]] = []  # messages received while waiting for another
        self._rest = b""
        connection.settimeout(ANSWER_SECONDS)
        enable_keepalive(connection)

    def send(self, message: dict[str, Any]) -> None:
        """Send a message; mark the connection closed if that fails."""
        try:
            self.connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.open = False

    def received(self) -> list[dict[str, Any]]:
        """Return the messages that have arrived.

        Raises:
            ValueError: the data is not a message of a supervisor.
        """
        while self.open and select.select([self.connection], [], [], 0)[0]:
            try:
                data = self.connection.recv(1 << 16)
            except OSError:
                data = b""
            self._rest += data
            self.open = bool(data)
            if len(self._rest) > LONGEST_MESSAGE:
                raise ValueError("too long")
        *lines, self._rest = self._rest.split(b"\n")
        messages = [json.loads(line) for line in lines]
        if not all(isinstance(message, dict) and isinstance(message.get("kind"), str) for message in messages):
            raise ValueError("no message")
        messages, self.buffered = self.buffered + messages, []
        return messages

    def is_connected(self) -> bool:
        """Return whether the other end is still open; buffer its messages."""
        try:
            self.buffered = self.received()
        except ValueError:
            self.open = False
        return self.open

    def close(self) -> None:
        self.open = False
        self.connection.close()


class Machines:
    """Connections to the supervisors of the other machines; none for a single one.

    `say` prints a message for the user; `stopped` returns whether a stop signal has arrived.
    """

    def __init__(self, job: Job, say: Callable[[str], None], stopped: Callable[[], bool]) -> None:
        self.job, self._say, self._stopped = job, say, stopped
        self.host, port = ("127.0.0.1", "0") if job.master is None else job.master.rsplit(":", 1)
        self._port = int(port)
        self.address = self.host  # of this machine, as seen by the others
        self.lost = False  # whether a machine has disconnected without a message
        self._links: dict[int, _Link] = {}  # of machine 0: all others; of another one: machine 0
        self._start: dict[str, Any] | None = None
        self.codes: dict[int, int] = {}  # exit codes of the machines whose processes have ended; known on machine 0
        self.verdict: Verdict | None = None  # the decision of machine 0; known on the others

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *raised: object) -> None:
        for link in self._links.values():
            link.close()

    # -- meeting -------------------------------------------------------------------------------------------------------

    def connect(self) -> bool:
        """Connect all supervisors; return False if a signal interrupts the wait.

        Raises:
            ConfigurationError: the address is not machine 0's, or the machines were started with different options.
            TrainerError: a machine did not connect in time.
        """
        if self.job.nodes == 1:
            return True
        deadline = time.monotonic() + self.job.meeting_seconds
        return self._receive(deadline) if self.job.node_rank == 0 else self._join(deadline)

    def _receive(self, deadline: float) -> bool:
        waiting: list[_Link] = []
        with self._listen() as listener:
            self._say(f"waiting for {self.job.nodes - 1} more machines at {self.job.master}")
            while len(self._links) < self.job.nodes - 1:
                if self._stopped():
                    return False
                if time.monotonic() > deadline:
                    missing = sorted({*range(1, self.job.nodes)} - {*self._links})
                    raise TrainerError(
                        f"launch: machines {missing} have not come to {self.job.master} in "
                        f"{self.job.meeting_seconds:g} seconds; start `trainer launch --nodes {self.job.nodes} "
                        "--node-rank I` with the same --master there"
                    )
                if select.select([listener, *(link.connection for link in waiting)], [], [], 0.2)[0]:
                    if select.select([listener], [], [], 0)[0]:
                        waiting.append(_Link(listener.accept()[0]))
                    self._drop_lost()
                    waiting = [link for link in waiting if not self._handshake(link)]
        for link in waiting:
            link.close()
        return True

    def _drop_lost(self) -> None:
        """Drop machines that disconnected before the start; they may connect again."""
        for machine, link in list(self._links.items()):
            if not link.is_connected():
                self._links.pop(machine).close()
                self._say(f"machine {machine} has left")

    def _listen(self) -> socket.socket:
        try:
            self.host = self.address = socket.gethostbyname(self.host)
            if self.host.startswith("127.") and not self.job.master.startswith("127."):
                raise ConfigurationError(
                    f"launch: --master {self.job.master} means {self.host} on this machine, which no other one "
                    "reaches; give the address that the others reach it by"
                )
            return socket.create_server((self.host, self._port))
        except OSError as error:
            raise ConfigurationError(
                f"launch: --master {self.job.master} is to be an address and a free port of machine 0, which is this "
                f"one ({error.strerror or error})"
            ) from error

    def _handshake(self, link: _Link) -> bool:
        """Accept or refuse a machine; return whether the handshake is complete."""
        try:
            messages = link.received()
        except ValueError:  # a port scanner, for example
            messages = []
            link.open = False
        if not messages:
            return not link.open
        hello = messages[0]
        machine = hello.get("machine")
        ours = self._hello()
        differing = [name for name, value in ours.items() if name != "machine" and hello.get(name) != value]
        if differing:
            name = differing[0]
            reason = f"{name} is {hello.get(name)!r} there and {ours[name]!r} on machine 0"
        elif machine not in range(1, self.job.nodes) or machine in self._links:
            reason = f"--node-rank {machine} has come already"
        else:
            link.send({"kind": "welcome"})
            self._links[machine] = link
            self._say(f"machine {machine} has come from {link.connection.getpeername()[0]}")
            return True
        link.send({"kind": "refused", "reason": reason})
        link.close()
        return True

    def _hello(self) -> dict[str, Any]:
        job = self.job
        return {
            "kind": "hello",
            "machine": job.node_rank,
            "--nodes": job.nodes,
            "-n": job.processes,
            "--max-restarts": job.max_restarts,
        }

    def _join(self, deadline: float) -> bool:
        announced, reason = False, "no answer"
        while not self._stopped():
            try:
                address = socket.gethostbyname(self.host)  # MindSpore supports IPv4 only
                link = _Link(socket.create_connection((address, self._port), timeout=ANSWER_SECONDS / 2))
            except OSError as error:
                reason = error.strerror or str(error)
            else:
                if self._is_accepted(link, min(deadline, time.monotonic() + ANSWER_SECONDS)):
                    self.host, self.address = link.connection.getpeername()[0], link.connection.getsockname()[0]
                    self._links[0] = link
                    return True
            if time.monotonic() > deadline:
                raise TrainerError(
                    f"launch: machine 0 was not met at --master {self.job.master} in {self.job.meeting_seconds:g} "
                    f"seconds ({reason}); is that its address, and does `trainer launch --node-rank 0` run there?"
                )
            if not announced:
                announced = True
                self._say(f"machine 0 is not at {self.job.master} yet ({reason}); trying again")
            time.sleep(0.3)
        return False

    def _is_accepted(self, link: _Link, deadline: float) -> bool:
        """Return whether machine 0 accepted this one; False if it disconnected.

        Raises:
            ConfigurationError: it refused, or the other end is no supervisor.
        """
        link.send(self._hello())
        while link.open and time.monotonic() < deadline and not self._stopped():
            select.select([link.connection], [], [], 0.2)
            try:
                answers = link.received()
            except ValueError:
                break
            if answers and answers[0]["kind"] == "refused":
                raise ConfigurationError(f"launch: machine 0 refused this one: {answers[0].get('reason')}")
            if answers:
                link.buffered = answers[1:]
                return True
        left = not link.open
        link.close()
        if left or self._stopped():
            return False
        raise ConfigurationError(f"launch: what answers at --master {self.job.master} is no `trainer launch`")

    # -- one attempt ---------------------------------------------------------------------------------------------------

    def begin(self, run_folder: str | None) -> tuple[int, str | None]:
        """Return machine 0's choice of scheduler port and run folder to resume.

        Raises:
            TrainerError: machine 0 is gone.
        """
        self.codes, self.verdict = {}, None
        if self.job.node_rank == 0:
            alone = self.job.nodes == 1 and self._port  # no machine has connected to the port
            port = alone or free_port(self.host)
            self.broadcast("start", port=port, run_folder=run_folder)
            return port, run_folder
        while self._start is None:
            select.select([self._links[0].connection], [], [], 0.2)
            self.receive()
            if self.lost:
                raise TrainerError("launch: machine 0 has gone before the job began")
        start, self._start = self._start, None
        return start["port"], start["run_folder"]

    def send_failure(self, text: str, code: int) -> None:
        """Report a failed process of this machine to the others."""
        tail = text[-(LONGEST_MESSAGE // ESCAPED_BYTES - 100) :]
        self.broadcast("failed", machine=self.job.node_rank, text=tail, code=code)

    def broadcast(self, kind: str, exclude: int | None = None, /, **content: Any) -> None:
        """Send a message to the connected supervisors."""
        for machine, link in self._links.items():
            if link.open and machine != exclude:
                link.send({"kind": kind, **content})

    def receive(self) -> list[dict[str, Any]]:
        """Return the ``failed`` and ``signal`` messages of other machines."""
        received = []
        for machine, link in self._links.items():
            if not link.open:
                continue
            try:
                messages = link.received()
            except ValueError:
                link.open, messages = False, []
            if not link.open and not (machine == 0 and any(message["kind"] == "over" for message in messages)):
                self.lost = True
                text = f"the supervisor of machine {machine} is gone, or its network"
                messages.append({"kind": "failed", "machine": machine, "text": text, "code": 1})
            for message in messages:
                if message["kind"] == "ended":
                    self.codes[machine] = message["code"]
                elif message["kind"] == "start":
                    self._start = message
                elif message["kind"] == "over":
                    self.verdict = Verdict(message["code"], message["again"], message["run_folder"])
                else:
                    received.append(message)
                    if self.job.node_rank == 0:
                        self.broadcast(message["kind"], machine, **message)
        return received

    @property
    def is_decided(self) -> bool:
        """Whether all messages that end an attempt have arrived."""
        if self.job.node_rank != 0:
            return self.verdict is not None or self.lost
        return all(machine in self.codes or not link.open for machine, link in self._links.items())


def free_port(host: str) -> int:
    """Return a free port on this machine's address `host`."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]
