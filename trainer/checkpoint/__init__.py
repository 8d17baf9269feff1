"""Save a trainer's state as snapshots on disk, and restore it.

`snapshot_writer` writes a snapshot, `snapshot` reads it, `catalog` lists a folder of snapshots; `capture` and `saver`
connect them to a trainer. Callbacks decide when to write and which snapshots to keep.
"""

from ..errors import CheckpointDamagedError, CheckpointError, CheckpointMismatchError, CheckpointNotFoundError
from .catalog import Entry, available, find, prune, read_pointer, set_pointer
from .snapshot import Snapshot, read
from .snapshot_writer import step_name, write

__all__ = [
    "CheckpointDamagedError",
    "CheckpointError",
    "CheckpointMismatchError",
    "CheckpointNotFoundError",
    "Entry",
    "Snapshot",
    "available",
    "find",
    "prune",
    "read",
    "read_pointer",
    "set_pointer",
    "step_name",
    "write",
]
