"""Snapshots: taking them from a trainer, on disk, and putting them back.

`snapshot_writer` writes, `snapshot` reads one, `catalog` knows the folder of all; `capture` and `saver` stand between
them and a trainer. When to write and what to keep is decided by callbacks.
"""

from ..errors import (
    CheckpointDamagedError,
    CheckpointError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
)
from .catalog import Entry, available, find, prune, read_pointer, set_pointer
from .snapshot import Snapshot, read
from .snapshot_writer import Contents, prepare, step_name, store, write

__all__ = [
    "CheckpointDamagedError",
    "CheckpointError",
    "CheckpointMismatchError",
    "CheckpointNotFoundError",
    "Contents",
    "Entry",
    "Snapshot",
    "available",
    "find",
    "prepare",
    "prune",
    "read",
    "read_pointer",
    "set_pointer",
    "step_name",
    "store",
    "write",
]
