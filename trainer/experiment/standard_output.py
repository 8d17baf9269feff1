"""Standard output of a command that records write failures."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any


class RecordedOutput:
    """Standard output that remembers its latest failure, such as a full disk or a closed pipe.

    The exceptions are not enough: callbacks swallow them, and a failure may occur as late as the last flush.

    Attributes:
        lost: the latest failure, or None.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.lost: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write `text`."""
        with self._recording():
            return self._stream.write(text)

    def flush(self) -> None:
        """Flush the buffer."""
        with self._recording():
            self._stream.flush()

    @contextlib.contextmanager
    def _recording(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.lost = error
            raise


@contextlib.contextmanager
def recorded_output() -> Iterator[RecordedOutput]:
    """Record failures of `sys.stdout`; after a failure this process prints nothing more."""
    stream = sys.stdout
    output = RecordedOutput(stream)
    if stream is not None:  # None in a process without stdout
        sys.stdout = output  # type: ignore[assignment]
    try:
        yield output
    finally:
        # the interpreter flushes stdout on exit; a failure there would make the exit code 120
        sys.stdout = stream if output.lost is None else open(os.devnull, "w")  # noqa: SIM115
