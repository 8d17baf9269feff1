"""The processes that train together: collectives on NumPy arrays over MindSpore's own communication.

On CPU MindSpore has AllReduce (sums of floats), AllGather and Broadcast over all processes, inside graphs only; what is
here runs one small graph for each. A device with AlltoAll and ReduceScatter would use them behind the same functions.

Under `msrun` a collective gives up after 30 seconds, so processes that may wait longer meet at a `Barrier`: each holds
one TCP connection to rank 0, opened when it is first needed.
"""

# ruff: noqa: D102 - `Group` describes the methods of `World`

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import socket
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from mindspore import Tensor, communication, nn, ops

from ..errors import CheckpointError, ConfigurationError, TrainerError
from ..mindspore_internals.compilation import gc_frozen
from ..native.padded_sizes import bucket
from .launched import STAGE, cannot_meet, is_launched, notice_silence, process_count

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 10.0
SMALLEST_FRAME = 256  # bytes; messages of unequal length travel in frames of few sizes, each size being a program


class Group:
    """One process alone: every collective returns what it was given, and nothing is imported or built.

    Attributes:
        rank: number of this process, 0 to `size` - 1.
        size: processes.
    """

    rank = 0
    size = 1

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes what only one may write."""
        return self.rank == 0

    def gather(self, array: np.ndarray) -> np.ndarray:
        """Return the arrays of all processes, equal in shape and dtype, stacked in the order of ranks: [size, ...]."""
        return array[None]

    def gather_bytes(self, message: bytes) -> list[bytes]:
        """Return the messages of all processes, of any lengths, in the order of ranks."""
        return [message]

    def broadcast(self, array: np.ndarray) -> np.ndarray:
        """Return the array of rank 0; the others give one of the same shape and dtype."""
        return array

    def wait_for_all(self) -> None:
        """Return when all processes have called this, however long that takes; a collective may give up after 30 s."""

    # -- what follows from these ---------------------------------------------------------------------------------------

    def total(self, array: np.ndarray) -> np.ndarray:
        """Return the sum over processes, added in the order of ranks in the array's own dtype: exact and the same."""
        return array if self.size == 1 else self.gather(array).sum(0, dtype=array.dtype)

    def from_main(self, make: Callable[[], Any]) -> Any:
        """Return what `make` returns on rank 0, where alone it is called; JSON-able.

        Raises:
            ConfigurationError, CheckpointError: on all processes, when rank 0 raises one; what else it raises stays on
                rank 0.
        """
        if self.size == 1:
            return make()
        value, refused = None, None
        if self.is_main:
            try:
                value = make()
            except (ConfigurationError, CheckpointError) as error:
                refused = [isinstance(error, ConfigurationError), str(error)]
        value, refused = self.gather_json([value, refused])[0]
        if refused is not None:
            of_configuration, message = refused
            raise ConfigurationError(message) if of_configuration else CheckpointError(message)
        return value

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is true on any process."""
        return flag if self.size == 1 else bool(self.gather(np.array([flag], np.int64)).any())

    def gather_json(self, value: Any) -> list[Any]:
        """Return the JSON-able values of all processes in the order of ranks."""
        if self.size == 1:
            return [value]
        return [json.loads(message) for message in self.gather_bytes(json.dumps(value).encode())]

    def gather_rows(self, array: np.ndarray) -> list[np.ndarray]:
        """Return the arrays of all processes, which differ in the length of axis 0 alone, in the order of ranks."""
        if self.size == 1:
            return [array]
        shape, dtype = array.shape[1:], array.dtype
        parts = self.gather_bytes(np.ascontiguousarray(array).tobytes())
        return [np.frombuffer(part, dtype).reshape(-1, *shape) for part in parts]

    def gather_known(self, array: np.ndarray, lengths: Sequence[int]) -> list[np.ndarray]:
        """Return the one-dimensional arrays of all processes, whose `lengths` all know, in the order of ranks.

        What travels is as long as the longest, rounded up to one of 16 sizes an octave, each being a program. With
        AlltoAll, whoever needs a part would be sent that part alone.
        """
        if self.size == 1:
            return [array]
        longest = max(lengths)
        if longest == 0:
            return [array[:0]] * self.size
        frame = np.zeros(bucket(longest, 16, least=SMALLEST_FRAME // 4), array.dtype)
        frame[: len(array)] = array
        return [part[:length] for part, length in zip(self.gather(frame), lengths, strict=True)]

    def check_same(self, what: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Check that named arrays are the same on all processes, bit for bit.

        Raises:
            ConfigurationError: they differ; the message names one that does.
        """
        if self.size == 1:
            return
        sums = {name: [zlib.crc32(np.ascontiguousarray(array)), list(array.shape)] for name, array in arrays.items()}
        found = self.gather_json(sums)
        for rank, other in enumerate(found):
            differing = sorted(name for name in {*found[0], *other} if found[0].get(name) != other.get(name))
            if differing:
                raise ConfigurationError(
                    f"{what}: {len(differing)} of {len(found[0])} differ between rank 0 and rank {rank}, the first is "
                    f"{differing[0]!r}; all processes must build the same network"
                )


SINGLE = Group()


class World(Group):
    """All processes of a job started by a launcher. Its methods are called by all of them, in the same order."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._thread = threading.get_ident()
        self._cells: dict[type[nn.Cell], nn.Cell] = {}
        self._programs: set[tuple[Any, ...]] = set()
        self._barrier: Barrier | None = None

    def wait_for_all(self) -> None:
        if self._barrier is None:
            self._barrier = Barrier(self)
        self._barrier.wait()

    def _run(self, kind: type[nn.Cell], array: np.ndarray) -> np.ndarray:
        if threading.get_ident() != self._thread:
            raise TrainerError("collectives belong to the thread that runs graphs; this is another one")
        if kind not in self._cells:
            self._cells[kind] = kind()
        program = (kind, array.shape, array.dtype)
        with contextlib.nullcontext() if program in self._programs else gc_frozen():
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

    def broadcast(self, array: np.ndarray) -> np.ndarray:
        words, length = _as_words(array)
        received = self._run(Broadcast, words)
        return received.view(np.uint8)[:length].copy().view(array.dtype).reshape(array.shape)


def _as_words(array: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the array's bytes as int32 words, which travel whatever the dtype is, and their number in bytes."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    words = np.zeros(-(-max(1, data.size) // 4), np.int32)
    words.view(np.uint8)[: data.size] = data
    return words, data.size


_world: World | None = None


def join() -> Group:
    """Return the group this process belongs to; the first call of a launched process starts MindSpore's communication.

    A scheduler process, which `msrun` starts with the same command as the others, stays in this call to its end.

    Raises:
        ConfigurationError: a launcher started several processes, and they cannot meet.
    """
    global _world
    if _world is not None:
        return _world
    count = process_count()
    if not is_launched():
        if count == 1:
            return SINGLE
        if "MS_ROLE" in os.environ:
            raise cannot_meet(count, "MS_SCHED_HOST and MS_SCHED_PORT are not set")
    if not communication.GlobalComm.INITED:
        try:
            with STAGE.of_a_call():
                communication.init()
        except (RuntimeError, ValueError) as error:
            raise cannot_meet(count, error) from error
    rank, size = int(communication.get_rank()), int(communication.get_group_size())
    if size == 1:
        return SINGLE
    _world = World(rank, size)
    logger.info("rank %d of %d processes", rank, size)
    return _world


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


class Gather(nn.Cell):
    """AllGather along axis 0; built only where there is more than one process."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.all_gather = ops.AllGather()

    def construct(self, array):
        """Return the arrays of all ranks one after the other."""
        return self.all_gather(array)


class Broadcast(nn.Cell):
    """Broadcast from rank 0."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.from_main = ops.Broadcast(0)

    def construct(self, array):
        """Return the array of rank 0."""
        return self.from_main((array,))[0]
