"""Where processes wait for each other as long as it takes: under `msrun` a collective gives up after 30 seconds.

Every process holds one TCP connection to rank 0, opened when it is first needed.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket

from ..errors import TrainerError
from .group import Group
from .keepalive import notice_silence

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 10.0


class Barrier:
    """All processes of a group make one together, and pass it together.

    Args:
        group: the processes.
    """

    def __init__(self, group: Group) -> None:
        self._connections: list[socket.socket] = []
        listener = None
        if group.is_main:
            listener = socket.create_server(("", 0), backlog=group.size)
            listener.settimeout(CONNECT_SECONDS)
        port = 0 if listener is None else listener.getsockname()[1]
        host, port, word = group.gather_json([_own_address(), port, secrets.token_hex(8)])[0]
        try:
            if listener is not None:
                with listener:
                    while len(self._connections) < group.size - 1:
                        self._take(listener.accept()[0], word.encode())
            else:
                self._connections = [socket.create_connection((host, port), CONNECT_SECONDS)]
                self._connections[0].sendall(word.encode())
        except OSError as error:
            missing = f"is not reached by {group.size - 1 - len(self._connections)} of the others"
            what = missing if group.is_main else "does not reach rank 0"
            logger.warning("rank %d %s at %s:%d (%s)", group.rank, what, host, port, error)
        for connection in self._connections:
            connection.settimeout(None)
            notice_silence(connection)
        complete = len(self._connections) == (group.size - 1 if group.is_main else 1)
        self.works = not group.any(not complete)
        if not self.works:
            self.close()
        self._is_main = group.is_main

    def _take(self, connection: socket.socket, word: bytes) -> None:
        """Keep a connection that begins with the word; others are not the group's."""
        connection.settimeout(CONNECT_SECONDS)
        if connection.recv(len(word), socket.MSG_WAITALL) == word:
            self._connections.append(connection)
        else:
            connection.close()

    def wait(self) -> None:
        """Return when all processes have called this; at once where they could not be connected.

        Raises:
            TrainerError: one of them is gone.
        """
        if not self.works:
            return
        try:
            if not self._is_main:
                self._connections[0].sendall(b".")
            for connection in self._connections:
                if not connection.recv(1):
                    raise TrainerError("a process that the others wait for is gone")
            if self._is_main:
                for connection in self._connections:
                    connection.sendall(b".")
        except OSError as error:
            raise TrainerError(f"a process that the others wait for is gone ({error})") from error

    def close(self) -> None:
        """Leave the others to themselves."""
        for connection in self._connections:
            connection.close()


def _own_address() -> str:
    """Return the address of this machine by which it reaches the scheduler's, and so the other processes reach it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ["MS_SCHED_HOST"], int(os.environ["MS_SCHED_PORT"])))  # sends nothing
        return probe.getsockname()[0]
