"""The processes that train together. One process alone needs no MindSpore for it: `world.py` holds the others."""

from __future__ import annotations

import json
import logging
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import CheckpointError, ConfigurationError
from ..native.memory import bucket
from .launched import STAGE, communication_error, is_launched, process_count

logger = logging.getLogger(__name__)

SMALLEST_FRAME = 256  # bytes; messages of unequal length travel in frames of few sizes, each size being a program


class Group:
    """One process alone: every collective returns what it was given, and nothing is imported or built.

    Attributes:
        rank: number of this process, 0 to `size` - 1.
        size: processes.
        bytes_sent: bytes that `all_to_all` has sent to other processes so far.
        messages_sent: messages that `all_to_all` has sent to other processes so far.
    """

    rank = 0
    size = 1
    bytes_sent = 0
    messages_sent = 0

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

    def all_to_all(self, parts: Sequence[Any], *, in_graph: bool = False) -> list[Any]:
        """Send `parts[r]` to rank r for all r; return what each rank sent here; see `AllToAll.exchange`.

        Args:
            parts: see `AllToAll.exchange`.
            in_graph: whether an operator of a running graph calls it, on a thread of MindSpore's; else it has to be
                the thread that runs graphs.
        """
        return list(parts)

    def connect(self) -> None:
        """Open the connections of `all_to_all`, on the thread that runs graphs; all processes call it."""

    def broadcast(self, array: np.ndarray) -> np.ndarray:
        """Return the array of rank 0; the others give one of the same shape and dtype."""
        return array

    def wait_for_all(self) -> None:
        """Block until all processes have called this, without the 30 s time limit of a collective."""

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
        value, error_of_main = None, None
        if self.is_main:
            try:
                value = make()
            except (ConfigurationError, CheckpointError) as error:
                error_of_main = [isinstance(error, ConfigurationError), str(error)]
        value, error_of_main = self.gather_json([value, error_of_main])[0]
        if error_of_main is not None:
            of_configuration, message = error_of_main
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

        What travels is as long as the longest, rounded up to one of 16 sizes an octave, each being a program; see
        `all_to_all` for what single processes need.
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
        sums = {
            name: [zlib.crc32(np.ascontiguousarray(array).data), list(array.shape)] for name, array in arrays.items()
        }
        checksums = self.gather_json(sums)
        for rank, other in enumerate(checksums):
            differing = sorted(name for name in {*checksums[0], *other} if checksums[0].get(name) != other.get(name))
            if differing:
                raise ConfigurationError(
                    f"{what}: {len(differing)} of {len(checksums[0])} differ between rank 0 and rank {rank}, the first "
                    f"is {differing[0]!r}; all processes must build the same network"
                )


SINGLE = Group()


_world: Group | None = None


def join() -> Group:
    """Return the group of this process; its first call in a launched process starts MindSpore's communication.

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
            raise communication_error(count, "MS_SCHED_HOST and MS_SCHED_PORT are not set")
    from mindspore import communication

    from .world import World

    if not communication.GlobalComm.INITED:
        try:
            with STAGE.track_call():
                communication.init()
        except (RuntimeError, ValueError) as error:
            raise communication_error(count, error) from error
    rank, size = int(communication.get_rank()), int(communication.get_group_size())
    if size == 1:
        return SINGLE
    _world = World(rank, size)
    logger.info("rank %d of %d processes", rank, size)
    return _world
