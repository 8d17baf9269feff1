"""Writing snapshots while training goes on: the step loop is held only for the copy of the tensors."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CheckpointError
from .frozen import Frozen
from .snapshot_writer import Contents, TensorGroups, prepare, store


class BackgroundWriter:
    """Writes snapshots in a thread, at most one at a time.

    The tensors are copied into buffers that are kept from one snapshot to the next, so their memory is held as long as
    the writer. Touching fresh memory is what makes a copy slow: 1 GB took 2.5 s into new and 0.06 s into kept buffers.

    Attributes:
        hold_seconds: for each of the newest 1000 snapshots, how long `submit` held its caller, waiting for the write
            before included.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._durable: deque[Path] = deque()  # appended to by the thread, taken from by the caller's
        self._buffers: dict[tuple[str, str], np.ndarray] = {}
        self.hold_seconds: deque[float] = deque(maxlen=1000)

    @property
    def has_news(self) -> bool:
        """Whether `check` has anything to report."""
        return bool(self._durable) or self._failure is not None

    @property
    def has_failed(self) -> bool:
        """Whether the last write has failed and was not reported yet."""
        return self._failure is not None

    def submit(
        self,
        root: str | os.PathLike[str],
        step: int,
        tensors: TensorGroups,
        state: Mapping[str, Any],
        **options: Any,
    ) -> None:
        """Copy the tensors, encode the state and start writing; waits first while a write is in flight.

        Arguments as in `trainer.checkpoint.write`. On return the tensors and the state may change.

        Raises:
            CheckpointError: the write before this one failed (this one is then not started), or something given cannot
                be stored.
        """
        started = time.perf_counter()
        self.wait()
        copied = self._copied(tensors)
        contents = prepare(step, copied, state, **options)
        # Not a daemon: an interpreter that exits finishes the write instead of leaving half of it.
        self._thread = threading.Thread(target=self._write, args=(Path(root), contents), name="snapshot-writer")
        self._thread.start()
        self.hold_seconds.append(time.perf_counter() - started)

    def check(self) -> list[Path]:
        """Return the snapshots that became durable since the last call; never waits. Call it at every step.

        Raises:
            CheckpointError: the last write failed. Raised once for each failure.
        """
        if self._failure is not None:
            failure, self._failure = self._failure, None
            if isinstance(failure, CheckpointError):
                raise failure
            raise CheckpointError(f"writing a snapshot in the background failed: {failure!r}") from failure
        return [self._durable.popleft() for _ in range(len(self._durable))]

    def wait(self) -> None:
        """Wait until no write is in flight.

        Raises:
            CheckpointError: the last write failed.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            self.check()

    def close(self) -> None:
        """Wait for the write in flight and give the buffers back. The writer may be used again.

        Raises:
            CheckpointError: the last write failed.
        """
        try:
            self.wait()
        finally:
            self._buffers.clear()

    def _write(self, root: Path, contents: Contents) -> None:
        try:
            self._durable.append(store(root, contents))
        except BaseException as error:
            self._failure = error

    def _copied(self, tensors: TensorGroups) -> dict[str, dict[str, np.ndarray]]:
        copies: dict[str, dict[str, np.ndarray]] = {}
        buffers: dict[tuple[str, str], np.ndarray] = {}
        for group, arrays in tensors.items():
            copies[group] = {}
            for name, value in arrays.items():
                if isinstance(value, Frozen):  # cannot change any more; becomes an array in the writing thread
                    copies[group][name] = value
                    continue
                array = np.asarray(value)
                buffer = self._buffers.get((group, name))
                if buffer is None or buffer.shape != array.shape or buffer.dtype != array.dtype:
                    buffer = np.empty(array.shape, array.dtype)
                np.copyto(buffer, array)
                buffers[group, name] = copies[group][name] = buffer
        self._buffers = buffers  # those of names that are gone are given back
        return copies
