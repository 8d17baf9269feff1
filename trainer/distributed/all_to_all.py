"""Send bytes between all processes, over one TCP connection per pair.

MindSpore has no AlltoAll on CPU. Each message names the purpose of its exchange, so processes that are in different
calls raise an error that says so.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import TrainerError

CONNECT_SECONDS = 20.0  # shorter than the time limit of the collective in which the other processes wait
DEADLINE_SECONDS = 1800.0  # time limit of an exchange; long, because one process may compile longer than another
TIMEOUT_VARIABLE = "MS_CPU_COMM_OP_TIMEOUT"  # MindSpore's own collectives read it; `trainer launch` sets it
_RANK_BYTES = 8  # a connection begins with the rank, in this many bytes
_PURPOSE_BYTES = 48
_HEADER = struct.Struct(f"<2Q{_PURPOSE_BYTES}s")  # number of the exchange, message length in bytes, purpose
_MISMATCH_SECONDS = 5.0  # time to learn the purposes of all processes, once one of them differs
_MAX_PIECES = 1000  # buffers per system call, whose limit is 1,024
_HANDSHAKE_SECONDS = 5.0
_KEEPALIVE_PROBES = 4
_MAX_SELECT_SECONDS = 3600.0  # seconds; a deadline may be infinite


@dataclass(slots=True)
class Traffic:
    """Counts the bytes (headers included) and messages that connections send."""

    bytes: int = 0
    messages: int = 0


class Processes(Protocol):
    """The processes that open connections together."""

    rank: int
    size: int

    def gather_json(self, value: Any) -> list[Any]:
        """Return the values of all processes in rank order."""
        ...


def _accept_handshake(connection: socket.socket, token: bytes) -> int:
    """Receive the token and the rank of a new connection; return -1 for a wrong token."""
    connection.settimeout(_HANDSHAKE_SECONDS)
    header, length = b"", len(token) + _RANK_BYTES
    with contextlib.suppress(OSError):
        while len(header) < length and (part := connection.recv(length - len(header))):
            header += part
    complete = len(header) == length and hmac.compare_digest(header[: len(token)], token)
    return int.from_bytes(header[len(token) :], "little") if complete else -1


def _own_address() -> str:
    """Return this machine's address on the route to the scheduler."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ["MS_SCHED_HOST"], int(os.environ["MS_SCHED_PORT"])))  # sends nothing
        return probe.getsockname()[0]


class AllToAll:
    """Exchanges messages between processes, which must make the same calls.

    One thread at a time may exchange. Threads that run in parallel need their own connections.

    Args:
        group: the processes; all of them create the exchange together, on the thread that runs graphs.
        deadline: time limit of an exchange in seconds; None takes `MS_CPU_COMM_OP_TIMEOUT`, or half an hour.
        address: address of this machine for the others; None takes the one that reaches the scheduler.
        sent: counter of bytes and messages, also an attribute; None creates a new one.

    Attributes:
        is_open: whether another exchange may follow.

    Raises:
        TrainerError: the processes cannot connect to each other.
    """

    def __init__(
        self, group: Processes, deadline: float | None = None, address: str | None = None, sent: Traffic | None = None
    ) -> None:
        self.rank, self.size = group.rank, group.size
        self.deadline = float(os.environ.get(TIMEOUT_VARIABLE, DEADLINE_SECONDS)) if deadline is None else deadline
        self.sent = Traffic() if sent is None else sent
        self._connections: dict[int, socket.socket] = {}
        self._wake_up, self._woken = socket.socketpair()
        with socket.create_server(("", 0), backlog=group.size) as listener:
            listening_at = [address or _own_address(), listener.getsockname()[1], secrets.token_hex(8)]
            addresses = group.gather_json(listening_at)
            problem = self._connect(listener, addresses)
        for peer, reason in enumerate(group.gather_json(problem)):
            if reason is not None:
                self.close()
                raise TrainerError(f"rank {peer} cannot connect to the others: {reason}")
        self.is_open, self._number = True, 0
        self._purpose, self._purposes = b"", dict[int, bytes]()  # current purpose of this rank, and of others
        for connection in self._connections.values():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Probes detect a machine that has lost power. TCP_USER_TIMEOUT would end the connection to a process that
            # compiles, because such a process reads nothing for minutes.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 3)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)
            connection.setblocking(False)

    def _connect(self, listener: socket.socket, addresses: Sequence[Sequence[Any]]) -> str | None:
        """Connect to lower ranks and accept higher ones; return the problem, or None."""
        token = addresses[0][2].encode()
        try:
            for peer in range(self.rank):
                connection = socket.create_connection(tuple(addresses[peer][:2]), CONNECT_SECONDS)
                connection.sendall(token + self.rank.to_bytes(_RANK_BYTES, "little"))
                self._connections[peer] = connection
            end_time = time.monotonic() + CONNECT_SECONDS
            while len(self._connections) < self.size - 1:
                listener.settimeout(max(0.001, end_time - time.monotonic()))
                connection = listener.accept()[0]
                peer = _accept_handshake(connection, token)
                if self.rank < peer < self.size and peer not in self._connections:
                    self._connections[peer] = connection
                else:  # a connection from outside this group
                    connection.close()
        except OSError as error:
            missing = sorted(set(range(self.size)) - {self.rank, *self._connections})
            return f"no connection with ranks {missing} ({error})"
        return None

    def exchange(self, parts: Sequence[Any], *, purpose: str = "", deadline: float | None = None) -> list[Any]:
        """Send `parts[r]` to each rank r; return the received parts in rank order.

        Args:
            parts: one part per rank: a contiguous buffer of any length, or a list of buffers to send one after another.
                Several ranks may get the same object.
            purpose: purpose of the exchange, the same on all processes.
            deadline: time limit in seconds; by default that of the connections.

        Returns:
            buffers; this rank's own part is returned as it is.

        Raises:
            TrainerError: a process has ended or is in an exchange for another purpose, the deadline has passed, or
                another thread has called `interrupt`; the message names the ranks.
        """
        if not self.is_open:
            raise TrainerError(f"rank {self.rank} cannot exchange rows: an earlier exchange has failed")
        try:
            received = self._exchange(parts, purpose, self.deadline if deadline is None else deadline)
            mismatch = self._mismatch()
        except _InterruptedError:  # leaves the connections open; see `interrupt`
            raise
        except BaseException as error:  # a partial message may be in flight, so later ones cannot be read
            self.close()
            mismatch = self._mismatch()
            if mismatch and isinstance(error, TrainerError):  # a process in another call has ended
                raise TrainerError(mismatch) from None
            raise
        if mismatch:
            self.is_open = False  # stays connected, so that the others can receive this process's purpose
            raise TrainerError(mismatch)
        return received

    def interrupt(self) -> None:
        """End another thread's current or next exchange; no other exchange is possible.

        The connections stay open until `close`, so that the other processes do not fail before they stop too.
        """
        self.is_open = False
        with contextlib.suppress(OSError):  # closed by a failure
            self._wake_up.send(b".")

    def _exchange(self, parts: Sequence[Any], purpose: str, deadline: float) -> list[Any]:
        self._number += 1
        self._purpose = purpose.encode()[:_PURPOSE_BYTES].ljust(_PURPOSE_BYTES, b"\0")
        self._purposes = {}
        received: list[Any] = [b""] * self.size
        received[self.rank] = parts[self.rank]
        # Each process begins with the next rank, which spreads the load.
        peers = sorted(self._connections, key=lambda peer: (peer - self.rank) % self.size)
        unsent = self._begin_sending(parts, peers)
        incoming = {peer: _IncomingMessage() for peer in peers}
        for peer in peers:
            if self._receive(peer, incoming[peer]):
                received[peer] = incoming.pop(peer).content
        if incoming or unsent:
            self._wait_for_messages(received, unsent, incoming, deadline)
        return received

    def _mismatch(self) -> str:
        """Describe which ranks exchange for which purpose; empty if all agree."""
        if all(purpose == self._purpose for purpose in self._purposes.values()):
            return ""
        ranks: dict[str, list[int]] = {}
        for rank, purpose in sorted({**self._purposes, self.rank: self._purpose}.items()):
            ranks.setdefault(purpose.rstrip(b"\0").decode(errors="replace"), []).append(rank)
        where = "; ".join(f"ranks {members} are in {purpose}" for purpose, members in ranks.items())
        return (
            f"the processes are in different calls: {where}. All must call the same methods in the same order, on the "
            "same data or on their own rows (sharded=True)"
        )

    def _begin_sending(self, parts: Sequence[Any], peers: Sequence[int]) -> dict[int, list[Any]]:
        """Send what can be sent without blocking; return the unsent pieces of each rank."""
        unsent: dict[int, list[Any]] = {}
        for peer in peers:
            part = parts[peer]
            views = [memoryview(piece) for piece in (part if isinstance(part, list | tuple) else [part])]
            pieces = [view.cast("B") for view in views if view.nbytes]
            length = sum(piece.nbytes for piece in pieces)
            header = _HEADER.pack(self._number, length, self._purpose)
            self.sent.bytes += len(header) + length
            self.sent.messages += 1
            remaining = self._send(peer, [memoryview(header), *pieces])
            if remaining:
                unsent[peer] = remaining
        return unsent

    def _wait_for_messages(
        self, received: list[Any], unsent: dict[int, list[Any]], incoming: dict[int, _IncomingMessage], deadline: float
    ) -> None:
        """Wait until all messages have arrived, or all mismatched purposes are known."""
        end_time, agree = time.monotonic() + deadline, True
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ, self.rank)
            for peer in {*unsent, *incoming}:
                selector.register(self._connections[peer], self._events(peer, unsent, incoming), peer)
            while incoming or unsent:
                if agree and any(purpose != self._purpose for purpose in self._purposes.values()):
                    agree, end_time = False, min(end_time, time.monotonic() + _MISMATCH_SECONDS)
                if not agree and (len(self._purposes) == self.size - 1 or time.monotonic() >= end_time):
                    return
                ready = selector.select(min(max(0.0, end_time - time.monotonic()), _MAX_SELECT_SECONDS))
                if not ready and time.monotonic() >= end_time:
                    if not agree:
                        return
                    raise TrainerError(
                        f"rank {self.rank} has waited {deadline:g} s for ranks {sorted({*incoming, *unsent})}"
                    )
                for key, events in ready:
                    peer = key.data
                    if peer == self.rank:
                        raise _InterruptedError(f"rank {self.rank} was interrupted while it exchanged rows")
                    if events & selectors.EVENT_WRITE:
                        unsent[peer] = self._send(peer, unsent[peer])
                        if not unsent[peer]:
                            unsent.pop(peer)
                    if events & selectors.EVENT_READ and peer in incoming and self._receive(peer, incoming[peer]):
                        received[peer] = incoming.pop(peer).content
                    events_needed = self._events(peer, unsent, incoming)
                    if not events_needed:
                        selector.unregister(key.fileobj)
                    elif events_needed != key.events:
                        selector.modify(key.fileobj, events_needed, peer)

    @staticmethod
    def _events(peer: int, unsent: dict[int, list[Any]], incoming: dict[int, _IncomingMessage]) -> int:
        return selectors.EVENT_WRITE * (peer in unsent) | selectors.EVENT_READ * (peer in incoming)

    def _send(self, peer: int, pieces: list[Any]) -> list[Any]:
        """Send without blocking; return the unsent pieces."""
        while pieces:
            try:
                count = self._connections[peer].sendmsg(pieces[:_MAX_PIECES])
            except BlockingIOError:
                return pieces
            except OSError as error:
                raise TrainerError(f"rank {peer} has ended ({error})") from error
            while pieces and count >= len(pieces[0]):
                count -= len(pieces[0])
                pieces = pieces[1:]
            if pieces and count:
                pieces = [pieces[0][count:], *pieces[1:]]
        return pieces

    def _receive(self, peer: int, message: _IncomingMessage) -> bool:
        """Receive the available bytes of one message; return whether it is complete."""
        while not message.complete:
            try:
                count = self._connections[peer].recv_into(message.rest)
            except BlockingIOError:
                return False
            except OSError as error:
                raise TrainerError(f"rank {peer} has ended ({error})") from error
            if count == 0:
                raise TrainerError(f"rank {peer} has ended: it closed the connection")
            message.advance(count)
            if message.number is not None:
                self._purposes[peer] = message.purpose
                if message.purpose != self._purpose:
                    return False
            if message.number not in (None, self._number):
                raise TrainerError(
                    f"rank {peer} is at its exchange {message.number}, rank {self.rank} at {self._number}: they do not "
                    "take the same steps"
                )
        return True

    def close(self) -> None:
        """Close the connections; no other exchange is possible."""
        self.is_open = False
        for connection in (*self._connections.values(), self._wake_up, self._woken):
            connection.close()


class _InterruptedError(TrainerError):
    """Another thread has called `AllToAll.interrupt`."""


class Channel:
    """All-to-all connections of one thread; `open` replaces interrupted ones.

    Attributes:
        seconds: time spent in exchanges so far, including waiting for other processes.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self.seconds = 0.0
        self._sent = Traffic()
        self._exchange: AllToAll | None = None
        group.track(self._sent)

    @property
    def is_open(self) -> bool:
        """Whether the connections can be used; otherwise call `open`."""
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
        received = self._exchange.exchange(parts, purpose="preparing ids of tables")
        self.seconds += time.perf_counter() - began
        return received

    def interrupt(self) -> None:
        """End the exchange that another thread is in; see `AllToAll.interrupt`."""
        if self._exchange is not None:
            self._exchange.interrupt()


class _IncomingMessage:
    """A partly received message, with the fields of its `_HEADER`."""

    def __init__(self) -> None:
        self.number: int | None = None  # None until the header has been received
        self.purpose = b""
        self.content: Any = b""
        self.rest = memoryview(bytearray(_HEADER.size))  # buffer for the next bytes
        self._header = self.rest

    @property
    def complete(self) -> bool:
        """Whether all bytes have been received."""
        return self.number is not None and not len(self.rest)

    def advance(self, count: int) -> None:
        """Record that `count` bytes were written to `rest`."""
        self.rest = self.rest[count:]
        if self.number is None and not len(self.rest):
            self.number, length, self.purpose = _HEADER.unpack(self._header)
            self.content = bytearray(length)  # not bytes, because kernels take writable arrays
            self.rest = memoryview(self.content)
