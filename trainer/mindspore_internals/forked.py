"""Whether graphs can run in this process.

Relied on: MindSpore runs graphs on threads of its own, which a fork does not copy, and does not start others. A graph
in a child forked after the first one waits for them for ever (2.10). Where a MindSpore starts them again, this refuses
what would work.
"""

from __future__ import annotations

import os

from ..errors import ConfigurationError

_process: int | None = None


def check_not_forked() -> None:
    """Note that this process runs graphs, and check that it can.

    Raises:
        ConfigurationError: it was forked from one that had run some.
    """
    global _process
    _process = _process or os.getpid()
    if _process != os.getpid():
        raise ConfigurationError(
            f"this process was forked from process {_process}, which has run MindSpore graphs: none can run here. "
            "Start it by multiprocessing's 'spawn' or 'forkserver', or fork before the first graph"
        )
