"""Time and processor time of a window."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def timed(work: Callable[[], Any], steps: int, **extra: float) -> dict[str, float]:
    """Return what `work` took for `steps` steps.

    "seconds" is wall time; "thread_us" and "process_us" are processor time a step of this thread and of all threads.
    """
    thread, process, wall = time.thread_time(), time.process_time(), time.perf_counter()
    work()
    seconds = time.perf_counter() - wall
    per_step = 1e6 / steps
    return {
        "seconds": seconds,
        "steps": steps,
        "thread_us": (time.thread_time() - thread) * per_step,
        "process_us": (time.process_time() - process) * per_step,
        **extra,
    }
