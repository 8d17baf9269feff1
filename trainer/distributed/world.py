"""Run collectives on NumPy arrays over MindSpore's communication.

On CPU MindSpore has AllReduce (sums of floats), AllGather and Broadcast over all processes, inside graphs only; each
collective here runs a small graph. A device with AlltoAll and ReduceScatter would use them behind the same functions.

Under `msrun` a collective fails after 30 seconds, so processes that may wait longer first pass a `Barrier`, which has
one TCP connection from each process to rank 0. It is opened at its first use, as are the connections of `AllToAll`.
"""

# ruff: noqa: D102 - `Group` documents the methods of `World`

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from mindspore import Tensor, nn, ops

from ..errors import TrainerError
from ..mindspore_internals.compilation import collection_skipped
from ..native.memory import bucket
from .all_to_all import AllToAll
from .group import SMALLEST_FRAME, Group, Sent
from .launched import enable_keepalive, own_address

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 10.0


class World(Group):
    """Group of launched processes; all of them call its methods in the same order."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._thread = threading.get_ident()
        self._cells: dict[type[nn.Cell], nn.Cell] = {}
        self._programs: set[tuple[Any, ...]] = set()
        self._barrier: Barrier | None = None
        self._all_to_all: AllToAll | None = None
        self._tracked: list[Sent] = []

    def wait_for_all(self) -> None:
        if self._barrier is None:
            self._barrier = Barrier(self)
        self._barrier.wait()

    def _check_thread(self) -> None:
        """Refuse another thread, whose messages would mix with those of the steps."""
        if threading.get_ident() != self._thread:
            raise TrainerError("collectives belong to the thread that runs graphs; this is another one")

    def _run(self, kind: type[nn.Cell], array: np.ndarray) -> np.ndarray:
        self._check_thread()
        if kind not in self._cells:
            self._cells[kind] = kind()
        program = (kind, array.shape, array.dtype)
        with contextlib.nullcontext() if program in self._programs else collection_skipped():
            outputs = self._cells[kind].compile_and_run(Tensor(array))
        self._programs.add(program)
        return np.array(outputs.asnumpy())

    def gather(self, array: np.ndarray) -> np.ndarray:
        words, length = _as_words(array)
        gathered = self._run(Gather, words).reshape(self.size, -1)
        return gathered.view(np.uint8)[:, :length].copy().view(array.dtype).reshape(self.size, *array.shape)

    def gather_bytes(self, message: bytes) -> list[bytes]:
        lengths = self.gather(np.array([len(message)], np.int64))[:, 0]
        longest = int(lengths.max())
        if longest == 0:
            return [b""] * self.size
        frame = np.zeros(bucket(longest, least=SMALLEST_FRAME), np.uint8)
        frame[: len(message)] = np.frombuffer(message, np.uint8)
        frames = self.gather(frame)
        return [frames[rank, :length].tobytes() for rank, length in enumerate(lengths)]

    def all_to_all(self, parts: Sequence[Any], *, in_graph: bool = False) -> list[Any]:
        if not in_graph:
            self.connect()
        received = self._all_to_all.exchange(parts, keep=not in_graph)
        self.bytes_sent = sum([sent.bytes for sent in self._tracked])
        self.messages_sent = sum([sent.messages for sent in self._tracked])
        return received

    def track(self, sent: Sent) -> None:
        self._tracked.append(sent)

    def connect(self) -> None:
        self._check_thread()
        if self._all_to_all is None:
            self._all_to_all = AllToAll(self)
            self.track(self._all_to_all.sent)

    def broadcast(self, array: np.ndarray) -> np.ndarray:
        words, length = _as_words(array)
        received = self._run(Broadcast, words)
        return received.view(np.uint8)[:length].copy().view(array.dtype).reshape(array.shape)


def _as_words(array: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the array's bytes as int32 words, and the number of bytes."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    words = np.zeros(-(-max(1, data.size) // 4), np.int32)
    words.view(np.uint8)[: data.size] = data
    return words, data.size


class Barrier:
    """A barrier over TCP: no process passes before all have arrived.

    Args:
        group: the processes; all of them create the barrier together.
    """

    def __init__(self, group: Group) -> None:
        self._connections: list[socket.socket] = []
        listener = None
        if group.is_main:
            listener = socket.create_server(("", 0), backlog=group.size)
            listener.settimeout(CONNECT_SECONDS)
        port = 0 if listener is None else listener.getsockname()[1]
        host, port, word = group.gather_json([own_address(), port, secrets.token_hex(8)])[0]
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
            enable_keepalive(connection)
        complete = len(self._connections) == (group.size - 1 if group.is_main else 1)
        self.works = not group.any(not complete)
        if not self.works:
            self.close()
        self._is_main = group.is_main

    def _take(self, connection: socket.socket, token: bytes) -> None:
        """Accept a connection that begins with the group's token; close any other."""
        connection.settimeout(CONNECT_SECONDS)
        if connection.recv(len(token), socket.MSG_WAITALL) == token:
            self._connections.append(connection)
        else:
            connection.close()

    def wait(self) -> None:
        """Block until all processes call this; return at once without connections.

        Raises:
            TrainerError: a process is gone.
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
        """Close the connections."""
        for connection in self._connections:
            connection.close()


class Gather(nn.Cell):
    """AllGather along axis 0, for more than one process."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.all_gather = ops.AllGather()

    def construct(self, array: Tensor) -> Tensor:
        """Return the concatenated arrays of all ranks."""
        return self.all_gather(array)


class Broadcast(nn.Cell):
    """Broadcast from rank 0."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.from_main = ops.Broadcast(0)

    def construct(self, array: Tensor) -> Tensor:
        """Return the array of rank 0."""
        return self.from_main((array,))[0]
