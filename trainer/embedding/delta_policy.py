"""Which snapshot of tables holds everything and which only what changed since the one before it."""

from __future__ import annotations

from pathlib import Path

from .tables import SparseTables


class DeltaPolicy:
    """Follows the snapshots of one run and decides about the next.

    A delta is worth it while it is small, and only builds on the snapshot taken right before it, in the same folder.
    The number of deltas between full snapshots is bounded, so that restoring is, too.

    Args:
        tables: the tables.
        most_deltas: deltas that may follow a full snapshot.
        most_rows: share of all rows that the deltas since the last full snapshot may hold together.

    Attributes:
        delta: whether the snapshot decided about holds changes only.
        folder: the folder it is written to, or None before the first.
    """

    CONSUMER = "snapshot"

    def __init__(self, tables: SparseTables, most_deltas: int = 8, most_rows: float = 0.5) -> None:
        self.tables = tables
        self.most_deltas = most_deltas
        self.most_rows = most_rows
        self._newest: Path | None = None
        self._deltas = 0
        self._rows = 0
        self._changed = 0
        self.delta = False
        self.folder: Path | None = None

    def base_of(self, path: Path) -> str | None:
        """Return the name of the snapshot that one to be written to `path` builds on; None when it is to be full.

        Called by all processes; rank 0, which writes, decides.
        """
        newest, self.folder = self._newest, path.parent
        self._changed, rows = self.tables.changed(self.CONSUMER), self.tables.rows
        self.delta = self.tables.group.from_main(lambda: self._is_worth_it(newest, path, rows))
        return newest.name if self.delta and newest is not None else None

    def _is_worth_it(self, newest: Path | None, path: Path, rows: int) -> bool:
        return (
            newest is not None
            and bool(self.tables.tables)
            and newest.parent == path.parent
            and newest.name != path.name
            and newest.is_dir()
            and self._deltas < self.most_deltas
            and self._rows + self._changed <= self.most_rows * rows
        )

    def written(self, path: Path) -> None:
        """Note that the snapshot `base_of` decided about is being written to `path`."""
        self._newest = path
        self._deltas = self._deltas + 1 if self.delta else 0
        self._rows = self._rows + self._changed if self.delta else 0

    def broken(self) -> None:
        """Let the next snapshot be full: a write failed, or the tables were restored."""
        self._newest = None
