"""SIGTERM and SIGINT during a run: the first asks for a clean stop, the second exits at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

HANDLED = (signal.SIGTERM, signal.SIGINT)


class StopOnSignal:
    """Context manager: calls `stop(name)` on the first signal, leaves the process on the second.

    Both signals are handled because MindSpore turns a SIGINT that arrives inside a graph into SIGTERM. Outside the
    main thread Python cannot install handlers, and nothing is changed.

    Attributes:
        received: number of the signal received first, or None.
    """

    def __init__(self, stop: Callable[[str], None]) -> None:
        self._stop = stop
        self._before: dict[int, Any] = {}
        self.received: int | None = None

    def __enter__(self) -> StopOnSignal:
        if threading.current_thread() is threading.main_thread():
            for number in HANDLED:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            os._exit(128 + number)
        self.received = number
        self._stop(signal.Signals(number).name)

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._before.clear()

    def leave(self) -> None:
        """Raise what the signal would have raised: KeyboardInterrupt, or SystemExit(143) for SIGTERM."""
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt
        if self.received is not None:
            raise SystemExit(128 + self.received)
