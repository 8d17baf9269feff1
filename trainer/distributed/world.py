"""Run collectives on NumPy arrays over MindSpore's communication.

On CPU MindSpore has AllReduce (sums of floats), AllGather and Broadcast over all processes, inside graphs only; each
collective here runs a small graph. A device with AlltoAll and ReduceScatter would use them behind the same functions.

Under `msrun` a collective fails after 30 seconds, so processes that may wait longer first call `wait_for_all`, an
exchange without a time limit on connections of its own. They are opened at the first use, as are those of `all_to_all`.
"""

# ruff: noqa: D102 - `Group` documents the methods of `World`

from __future__ import annotations

import contextlib
import functools
import logging
import math
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

logger = logging.getLogger(__name__)


class World(Group):
    """Group of launched processes; all of them call its methods in the same order."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._thread = threading.get_ident()
        self._cells: dict[type[nn.Cell], nn.Cell] = {}
        self._programs: set[tuple[Any, ...]] = set()
        self._all_to_all: AllToAll | None = None
        self._tracked: list[Sent] = []

    @functools.cached_property
    def _barrier(self) -> AllToAll | None:
        return open_barrier(self)

    def wait_for_all(self) -> None:
        if self._barrier is not None:
            self._barrier.exchange([b""] * self.size)

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


def open_barrier(group: Group) -> AllToAll | None:
    """Return connections without a time limit; warn and return None if they fail.

    A collective call.
    """
    try:
        return AllToAll(group, deadline=math.inf)
    except TrainerError as error:
        logger.warning("processes wait for each other no longer than a collective does: %s", error)
        return None


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
