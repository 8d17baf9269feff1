"""Send bytes between all processes, over one TCP connection per pair.

MindSpore has no AlltoAll on CPU. A device that has one would use it behind `AllToAll.exchange`.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import selectors
import socket
import time
from collections.abc import Sequence
from typing import Any

from ..errors import TrainerError
from .group import Group, Sent
from .launched import enable_keepalive, own_address

CONNECT_SECONDS = 60.0
DEADLINE_SECONDS = 1800.0  # limit for one process to compile longer than another
TIMEOUT_VARIABLE = "MS_CPU_COMM_OP_TIMEOUT"  # of MindSpore's own collectives; `trainer launch` sets it
_HEAD_BYTES = 8  # size of each number in the head of a message
_HANDSHAKE_SECONDS = 5.0
_KEEPALIVE_PROBES = 4


def _introduced(connection: socket.socket, word: bytes) -> int:
    """Return the rank of a new connection, or -1 if it sends a wrong token."""
    connection.settimeout(_HANDSHAKE_SECONDS)
    head = b""
    try:
        while len(head) < len(word) + _HEAD_BYTES:
            part = connection.recv(len(word) + _HEAD_BYTES - len(head))
            if not part:
                return -1
            head += part
    except OSError:
        return -1
    if not hmac.compare_digest(head[: len(word)], word):
        return -1
    return int.from_bytes(head[len(word) :], "little")


class AllToAll:
    """Exchange of messages between all processes, which call it equally often.

    One thread at a time may exchange. Threads that run beside each other need connections of their own.

    Args:
        group: the processes; all of them create the exchange together, on the thread that runs graphs.
        deadline: time limit of an exchange in seconds; None takes `MS_CPU_COMM_OP_TIMEOUT`, or half an hour.
        address: address of this machine for the others; None takes the one that reaches the scheduler.
        sent: counts what it sends; None starts from zero.

    Attributes:
        sent: see above.
        is_open: whether another exchange may follow.

    Raises:
        TrainerError: the processes do not reach each other.
    """

    def __init__(
        self, group: Group, deadline: float | None = None, address: str | None = None, sent: Sent | None = None
    ) -> None:
        self.rank, self.size = group.rank, group.size
        self.deadline = float(os.environ.get(TIMEOUT_VARIABLE, DEADLINE_SECONDS)) if deadline is None else deadline
        self.sent = Sent() if sent is None else sent
        self._connections: dict[int, socket.socket] = {}
        self._wake_up, self._woken = socket.socketpair()
        with socket.create_server(("", 0), backlog=group.size) as listener:
            own = [address or own_address(), listener.getsockname()[1], secrets.token_hex(8)]
            addresses = group.gather_json(own)
            problem = self._connect(listener, addresses)
        for peer, given in enumerate(group.gather_json(problem)):
            if given is not None:
                self.close()
                raise TrainerError(f"rank {peer} does not reach the others: {given}")
        self.is_open, self._number = True, 0
        for connection in self._connections.values():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            enable_keepalive(connection)
            # A compiling process reads nothing for minutes; with this timeout its full buffer would end the connection.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)
            connection.setblocking(False)

    def _connect(self, listener: socket.socket, addresses: Sequence[Sequence[Any]]) -> str | None:
        """Connect to lower ranks and accept higher ones; return the problem, or None."""
        word = addresses[0][2].encode()
        peer = self.rank
        try:
            for peer in range(self.rank):
                connection = socket.create_connection(tuple(addresses[peer][:2]), CONNECT_SECONDS)
                connection.sendall(word + self.rank.to_bytes(_HEAD_BYTES, "little"))
                self._connections[peer] = connection
            ends = time.monotonic() + CONNECT_SECONDS
            while len(self._connections) < self.size - 1:
                listener.settimeout(max(0.001, ends - time.monotonic()))
                connection = listener.accept()[0]
                peer = _introduced(connection, word)
                if self.rank < peer < self.size and peer not in self._connections:
                    self._connections[peer] = connection
                else:  # not of this group
                    connection.close()
        except OSError as error:
            missing = sorted(set(range(self.size)) - {self.rank, *self._connections})
            return f"no connection with ranks {missing} ({error})"
        return None

    def exchange(self, parts: Sequence[Any]) -> list[Any]:
        """Send `parts[r]` to each rank r; return the received parts in rank order.

        Args:
            parts: contiguous buffers of any lengths.

        Returns:
            bytearrays, with this rank's own part unchanged.

        Raises:
            TrainerError: a process is gone, the deadline has passed, or another thread has called `interrupt`; the
                message names the ranks.
        """
        if not self.is_open:
            raise TrainerError(f"rank {self.rank} cannot exchange rows: an earlier exchange has failed")
        try:
            return self._exchange(parts)
        except _InterruptedError:  # the others keep waiting: whether they stop too is not decided here
            raise
        except BaseException:  # a partial message may be in flight, which makes the rest unreadable
            self.close()
            raise

    def interrupt(self) -> None:
        """End the exchange that another thread is in, or begins; no exchange follows.

        The connections stay open until `close`, so that the other processes do not fail before they stop as well.
        """
        self.is_open = False
        with contextlib.suppress(OSError):  # closed by a failure
            self._wake_up.send(b".")

    def _exchange(self, parts: Sequence[Any]) -> list[Any]:
        self._number += 1
        received: list[Any] = [b""] * self.size
        received[self.rank] = parts[self.rank]
        unsent: dict[int, list[Any]] = {}
        arriving = {peer: _Arriving() for peer in self._connections}
        # Each process begins with the next rank, to spread the load.
        peers = sorted(self._connections, key=lambda peer: (peer - self.rank) % self.size)
        for peer in peers:
            data = memoryview(parts[peer])
            head = self._number.to_bytes(_HEAD_BYTES, "little") + data.nbytes.to_bytes(_HEAD_BYTES, "little")
            pieces = [memoryview(head), data.cast("B")] if data.nbytes else [memoryview(head)]
            self.sent.bytes += len(head) + data.nbytes
            self.sent.messages += 1
            pieces = self._send(peer, pieces)
            if pieces:
                unsent[peer] = pieces
        ends = time.monotonic() + self.deadline
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ, self.rank)
            for peer in peers:
                selector.register(self._connections[peer], self._events(peer, unsent, arriving), peer)
            while arriving or unsent:
                ready = selector.select(max(0.0, ends - time.monotonic()))
                if not ready and time.monotonic() >= ends:
                    raise TrainerError(
                        f"rank {self.rank} has waited {self.deadline:g} s for ranks {sorted({*arriving, *unsent})}"
                    )
                for key, events in ready:
                    peer = key.data
                    if peer == self.rank:
                        raise _InterruptedError(f"rank {self.rank} was interrupted while it exchanged rows")
                    if events & selectors.EVENT_WRITE and not self._continue_sending(peer, unsent):
                        unsent.pop(peer)
                    if events & selectors.EVENT_READ and peer in arriving and self._receive(peer, arriving[peer]):
                        received[peer] = arriving.pop(peer).content
                    wanted = self._events(peer, unsent, arriving)
                    if not wanted:
                        selector.unregister(key.fileobj)
                    elif wanted != key.events:
                        selector.modify(key.fileobj, wanted, peer)
        return received

    @staticmethod
    def _events(peer: int, unsent: dict[int, list[Any]], arriving: dict[int, _Arriving]) -> int:
        return selectors.EVENT_WRITE * (peer in unsent) | selectors.EVENT_READ * (peer in arriving)

    def _continue_sending(self, peer: int, unsent: dict[int, list[Any]]) -> bool:
        unsent[peer] = self._send(peer, unsent[peer])
        return bool(unsent[peer])

    def _send(self, peer: int, pieces: list[Any]) -> list[Any]:
        """Send without blocking; return the unsent pieces."""
        while pieces:
            try:
                count = self._connections[peer].sendmsg(pieces)
            except BlockingIOError:
                return pieces
            except OSError as error:
                raise TrainerError(f"rank {peer} is gone ({error})") from error
            while pieces and count >= len(pieces[0]):
                count -= len(pieces[0])
                pieces = pieces[1:]
            if pieces and count:
                pieces = [pieces[0][count:], *pieces[1:]]
        return pieces

    def _receive(self, peer: int, message: _Arriving) -> bool:
        """Receive the available bytes of one message; return whether it is complete."""
        while not message.complete:
            try:
                count = self._connections[peer].recv_into(message.rest)
            except BlockingIOError:
                return False
            except OSError as error:
                raise TrainerError(f"rank {peer} is gone ({error})") from error
            if count == 0:
                raise TrainerError(f"rank {peer} is gone: it has closed the connection")
            message.advance(count)
            if message.number not in (None, self._number):
                raise TrainerError(
                    f"rank {peer} is at its exchange {message.number}, rank {self.rank} at {self._number}: they do not "
                    "take the same steps"
                )
        return True

    def close(self) -> None:
        """Close the connections; no exchange follows."""
        self.is_open = False
        for connection in (*self._connections.values(), self._wake_up, self._woken):
            connection.close()


class _InterruptedError(TrainerError):
    """Another thread has called `AllToAll.interrupt`."""


class Channel:
    """All-to-all connections of one thread, opened again after an interruption.

    Args:
        group: the processes.

    Attributes:
        seconds: time spent in exchanges so far, waiting for other processes included.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self.seconds = 0.0
        self._sent = Sent()
        self._exchange: AllToAll | None = None
        group.track(self._sent)

    @property
    def is_open(self) -> bool:
        """Whether this process needs no new connections."""
        return self._exchange is not None and self._exchange.is_open

    def open(self) -> None:
        """Open new connections; a collective call on the thread that runs graphs."""
        if self._exchange is not None:
            self._exchange.close()
        self._exchange = AllToAll(self._group, sent=self._sent)

    def all_to_all(self, parts: Sequence[Any]) -> list[Any]:
        """Send `parts[r]` to each rank r; see `AllToAll.exchange`."""
        if self._exchange is None:
            raise TrainerError(f"rank {self._group.rank} has opened no connections for exchanges of this thread")
        began = time.perf_counter()
        received = self._exchange.exchange(parts)
        self.seconds += time.perf_counter() - began
        return received

    def interrupt(self) -> None:
        """End the exchange that another thread is in; see `AllToAll.interrupt`."""
        if self._exchange is not None:
            self._exchange.interrupt()


class _Arriving:
    """A partly received message.

    Attributes:
        number: number of its exchange, counted from 1; None until the head is known.
        content: its bytes, once the head is known.
        rest: buffer for the next bytes.
        complete: whether all bytes have arrived.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._head: bytearray | None = bytearray(2 * _HEAD_BYTES)
        self.content = bytearray()
        self.rest = memoryview(self._head)
        self.complete = False

    def advance(self, count: int) -> None:
        """Record that `count` bytes were written to `rest`."""
        self.rest = self.rest[count:]
        if len(self.rest):
            return
        if self._head is not None:
            self.number = int.from_bytes(self._head[:_HEAD_BYTES], "little")
            length = int.from_bytes(self._head[_HEAD_BYTES:], "little")
            self._head, self.content = None, bytearray(length)
            self.rest = memoryview(self.content)
            self.complete = length == 0
        else:
            self.complete = True
