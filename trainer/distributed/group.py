"""`Group`: the processes of a job and their collectives on NumPy arrays.

The processes exchange their addresses with MindSpore's AllGather, and then use their own connections (`all_to_all`).
Every message names its purpose: the verb, which is the method that the user has called (such as `fit`), and the
collective. On CPU, MindSpore's collectives do not suffice: AllReduce, AllGather and Broadcast work only inside graphs
and need a program for each message size, and there is no AlltoAll. On other devices, `exchange` sums gradients with
MindSpore's AllReduce.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import CheckpointError, ConfigurationError, TrainerError
from .all_to_all import AllToAll, Traffic
from .launched import is_launched, process_count

logger = logging.getLogger(__name__)

_FRAME_BYTES = 4096  # maximum length of the JSON that `AddressExchange` gathers


class Group:
    """Group of a single process, whose collectives return their own input."""

    rank = 0
    size = 1
    bytes_sent = 0  # to other processes, including connections passed to `track`
    messages_sent = 0
    verb = "a call between verbs"

    @contextlib.contextmanager
    def inside(self, verb: str) -> Iterator[None]:
        """Set the verb of the collectives called in the block, for error messages."""
        before, self.verb = self.verb, verb
        try:
            yield
        finally:
            self.verb = before

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes files for all processes."""
        return self.rank == 0

    def gather(self, array: np.ndarray) -> np.ndarray:
        """Stack the arrays of all processes, equal in shape and dtype: [size, ...]."""
        return array[None]

    def gather_bytes(self, message: bytes) -> list[bytes]:
        """Return the messages of all processes, of any lengths, in rank order."""
        return [message]

    def all_to_all(self, parts: Sequence[Any], *, in_graph: bool = False) -> list[Any]:
        """Send `parts[r]` to each rank r; return the received parts.

        Args:
            parts: see `AllToAll.exchange`.
            in_graph: whether an operator of a running graph makes the call, on one of MindSpore's threads; otherwise
                the thread that runs graphs makes it.
        """
        return list(parts)

    def connect(self) -> None:
        """Open the connections; a collective call on the thread that runs graphs."""

    def track(self, sent: Traffic) -> None:
        """Include another thread's counter in `bytes_sent` and `messages_sent`."""

    def broadcast(self, array: np.ndarray) -> np.ndarray:
        """Return the array of rank 0; all pass the same shape and dtype."""
        return array

    def wait_for_all(self) -> None:
        """Block until all processes call this, without the time limit of a collective."""

    # -- derived collectives -------------------------------------------------------------------------------------------

    def total(self, array: np.ndarray) -> np.ndarray:
        """Return the sum over processes, added in rank order in the array's dtype."""
        return array if self.size == 1 else self.gather(array).sum(0, dtype=array.dtype)

    def from_main(self, make: Callable[[], Any]) -> Any:
        """Call `make` on rank 0; return its JSON-able result on all processes.

        Raises:
            ConfigurationError, CheckpointError: on all processes, if rank 0 raises it; other errors stay on rank 0.
        """
        if self.size == 1:
            return make()
        value, failure = None, None
        if self.is_main:
            try:
                value = make()
            except (ConfigurationError, CheckpointError) as error:
                failure = [isinstance(error, ConfigurationError), str(error)]
        value, failure = self.gather_json([value, failure])[0]
        if failure is not None:
            is_configuration, message = failure
            raise ConfigurationError(message) if is_configuration else CheckpointError(message)
        return value

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is true on any process."""
        return flag if self.size == 1 else bool(self.gather(np.array([flag], np.int64)).any())

    def gather_json(self, value: Any) -> list[Any]:
        """Return the JSON-able values of all processes in rank order."""
        if self.size == 1:
            return [value]
        return [json.loads(message) for message in self.gather_bytes(json.dumps(value).encode())]

    def gather_rows(self, array: np.ndarray) -> list[np.ndarray]:
        """Return the arrays of all ranks, which may differ in the length of axis 0."""
        if self.size == 1:
            return [array]
        shape, dtype = array.shape[1:], array.dtype
        parts = self.gather_bytes(np.ascontiguousarray(array).tobytes())
        return [np.frombuffer(part, dtype).reshape(-1, *shape) for part in parts]

    def check_same(self, what: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Check that named arrays are the same on all processes, bit for bit.

        Raises:
            ConfigurationError: they differ; the message names the first.
        """
        if self.size == 1:
            return
        sums = {name: [zlib.crc32(np.ascontiguousarray(array).data), array.shape] for name, array in arrays.items()}
        first, *others = self.gather_json(sums)
        for rank, other in enumerate(others, 1):
            differing = sorted(name for name in {*first, *other} if first.get(name) != other.get(name))
            if differing:
                raise ConfigurationError(
                    f"{what}: {len(differing)} of {len(first)} differ between rank 0 and rank {rank}, the first "
                    f"is {differing[0]!r}; all processes must build the same network"
                )


SINGLE = Group()


class World(Group):
    """Group of launched processes; all of them call its methods in the same order."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._thread = threading.get_ident()
        self._connections: AllToAll | None = None
        self._tracked: list[Traffic] = []

    def gather(self, array: np.ndarray) -> np.ndarray:  # noqa: D102 - `Group` documents the collectives
        parts = self._send_to_all(np.ascontiguousarray(array), f"gather {array.dtype.str} {[*array.shape]}")
        return np.stack([np.frombuffer(part, array.dtype).reshape(array.shape) for part in parts])

    def gather_bytes(self, message: bytes) -> list[bytes]:  # noqa: D102
        return [bytes(part) for part in self._send_to_all(message, "gather bytes")]

    def broadcast(self, array: np.ndarray) -> np.ndarray:  # noqa: D102
        message = np.ascontiguousarray(array) if self.is_main else b""
        received = self._send_to_all(message, f"broadcast {array.dtype.str} {[*array.shape]}")[0]
        return np.frombuffer(received, array.dtype).reshape(array.shape).copy()

    def all_to_all(self, parts: Sequence[Any], *, in_graph: bool = False) -> list[Any]:  # noqa: D102
        if not in_graph:
            self.connect()
        return self._exchange(parts, "all to all")

    def wait_for_all(self) -> None:  # noqa: D102
        self.connect()
        self._exchange([b""] * self.size, "wait", deadline=math.inf)

    def track(self, sent: Traffic) -> None:  # noqa: D102
        self._tracked.append(sent)

    def connect(self) -> None:  # noqa: D102
        if threading.get_ident() != self._thread:  # messages of two threads would mix
            raise TrainerError("collectives must be called on the thread that runs graphs; this is another thread")
        if self._connections is None:
            self._connections = AllToAll(AddressExchange(self.rank, self.size))
            self.track(self._connections.sent)

    def _send_to_all(self, message: Any, collective: str) -> list[Any]:
        self.connect()
        return self._exchange([message] * self.size, collective)

    def _exchange(self, parts: Sequence[Any], collective: str, **options: Any) -> list[Any]:
        assert self._connections is not None, "a collective of the graph thread connects"
        received = self._connections.exchange(parts, purpose=f"{self.verb}: {collective}", **options)
        self.bytes_sent = sum([sent.bytes for sent in self._tracked])
        self.messages_sent = sum([sent.messages for sent in self._tracked])
        return received


class AddressExchange:
    """Gathers JSON with MindSpore's AllGather, before the processes are connected."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def gather_json(self, value: Any) -> list[Any]:
        """Return the JSON-able values of all processes in rank order."""
        from .introduction import gather

        message = json.dumps(value).encode()
        frame = np.zeros(_FRAME_BYTES, np.uint8)
        frame[: len(message)] = np.frombuffer(message, np.uint8)
        frames = gather(frame.view(np.int32)).view(np.uint8).reshape(self.size, -1)
        return [json.loads(part.tobytes().rstrip(b"\0")) for part in frames]


_world: Group | None = None


def join() -> Group:
    """Return this process's group; start MindSpore's communication if launched.

    The scheduler process, which `msrun` starts with the same command, never returns from this call.

    Raises:
        ConfigurationError: a launcher started several processes, and they cannot connect.
    """
    global _world
    if _world is not None:
        return _world
    count = process_count()
    if not is_launched():
        if count == 1:
            return SINGLE
        if "MS_ROLE" in os.environ:
            raise _connection_error(count, "MS_SCHED_HOST and MS_SCHED_PORT are not set")
    from mindspore import communication

    if not communication.GlobalComm.INITED:
        try:
            communication.init()
        except (RuntimeError, ValueError) as error:
            raise _connection_error(count, error) from error
    rank, size = int(communication.get_rank()), int(communication.get_group_size())
    if size == 1:
        return SINGLE
    _world = World(rank, size)
    logger.info("rank %d of %d processes", rank, size)
    return _world


def _connection_error(count: int, reason: object) -> ConfigurationError:
    """Return the error for launched processes that cannot connect."""
    return ConfigurationError(
        f"this process is one of {count} started by a launcher, and they cannot join ({reason}), so each would train "
        "its own network; start them with `trainer launch` or msrun"
    )
