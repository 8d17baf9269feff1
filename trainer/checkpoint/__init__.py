"""Snapshots: taking them from a trainer, on disk, and putting them back.

`store` writes, `snapshot` reads one, `catalog` knows the folder of all; `capture` and `saver` stand between them and a
trainer. When to write and what to keep is decided by callbacks.
"""

from trainer.checkpoint.catalog import Entry, available, find, point, pointed, prune
from trainer.checkpoint.snapshot import Snapshot, read
from trainer.checkpoint.store import Contents, prepare, step_name, store, write
from trainer.errors import (
    CheckpointDamagedError,
    CheckpointError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
)

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
    "point",
    "pointed",
    "prepare",
    "prune",
    "read",
    "step_name",
    "store",
    "write",
]
