"""Stores the rows of a version; each process of a job stores its own rows.

If tables are divided among processes, rank r writes ``rows.<r>.safetensors`` to the version's folder on a background
thread. In a version with all rows it may also write ``full.<r>.safetensors``. `trainer.checkpoint.parts` explains how
the ranks wait for each other. Rank 0 lists the parts in the manifest, which then has format version 2, and renames the
folder.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checkpoint import tensor_file
from ..checkpoint.manifest import TENSOR_SUFFIX, FolderWriter
from ..checkpoint.parts import Parts, WriterThread, open_parts, write_part
from ..errors import CheckpointError, ConfigurationError
from .packed_rows import pack_tables
from .published import FULL, ROWS

if TYPE_CHECKING:
    from callbacks.callback import Trainer


@dataclass(frozen=True)
class VersionRows:
    """One process's rows of a version."""

    files: Mapping[str, Mapping[str, Any]]  # arrays of each file, computed when read
    parts: Parts | None = None  # folder that all processes write to; None if rank 0 has all rows

    def compute(self) -> None:
        """Read the rows; until then, the tables keep copies of rows that change."""
        for arrays in self.files.values():
            for array in arrays.values():
                np.asarray(array)

    # -- rank 0 ---------------------------------------------------------------------------------------------------

    def folder(self, final: Path) -> FolderWriter:
        """Return the writer of the version's folder, which all processes may share."""
        shared = None if self.parts is None else self.parts.folder
        return shared or FolderWriter(final)

    def write(self, folder: FolderWriter) -> dict[str, Any]:
        """Write rank 0's rows and wait for the other ranks; return manifest entries.

        Raises:
            CheckpointError: a process failed to write its part, or ended before it did.
            OSError: a file cannot be written.
        """
        if self.parts is None:
            for name, arrays in self.files.items():
                folder.write(name + TENSOR_SUFFIX, tensor_file.blocks(arrays))
            return {}
        groups = [(replace(self.parts, group=name), arrays) for name, arrays in self.files.items()]
        for group, arrays in groups:
            folder.write(group.part_group(0) + TENSOR_SUFFIX, tensor_file.blocks(arrays))
        collected = [group.collect() for group, _ in groups]
        return {**collected[0], "parts": {name: count for entry in collected for name, count in entry["parts"].items()}}

    def close(self) -> None:
        """Remove the temporary folder unless it was renamed."""
        if self.parts is not None:
            assert self.parts.folder is not None
            self.parts.folder.close()


def write_own_rows(rows: VersionRows, rank: int) -> None:
    """Write the rows of a rank other than 0; failures are reported to rank 0."""
    assert rows.parts is not None
    with contextlib.suppress(Exception):  # `write_part` reads the rows again and reports the error
        rows.compute()
    for name, arrays in rows.files.items():
        if not write_part(replace(rows.parts, group=name), rank, arrays):
            return


@contextlib.contextmanager
def shared_errors(root: Path) -> Iterator[None]:
    """Convert errors to types that rank 0 can send to the other processes."""
    try:
        yield
    except (CheckpointError, ConfigurationError):
        raise
    except Exception as error:
        raise CheckpointError(f"publishing to {root} failed: {error!r}") from error


class RowSource:
    """Reads the rows of each version from a job's tables."""

    def __init__(self, rows: str) -> None:
        self._rows = rows
        self._writer = WriterThread()
        self._can_share_folder = True

    def start(self) -> None:
        """Start a run, whose processes may be able to write to the same folder again."""
        self._can_share_folder = True

    def take(self, trainer: Trainer, consumer: str, final: Path, *, full: bool, compact: bool) -> VersionRows:
        """Return the rows of a version; ranks other than 0 start writing their rows.

        The rows have the values at the time of the call and are read while training continues. All processes that
        train tables must call this together.

        Args:
            trainer: Trainer with the tables.
            consumer: name under which tables track changes.
            final: final path of the version's folder; only rank 0's value is used.
            full: take all rows instead of those that changed since the consumer's last version.
            compact: also take all rows, for a second file.

        Raises:
            CheckpointError: rank 0 cannot create the folder.
        """
        tables = trainer.tables
        if tables is None:
            return VersionRows({ROWS: {}})
        parts = None
        if tables.is_divided and self._can_share_folder:
            parts = open_parts(trainer.group, final, ROWS, "version")
            self._can_share_folder = parts is not None  # `open_parts` has logged a warning; do not try again
        options: dict[str, Any] = {"weights_only": True, **({} if parts is None else {"own_rows": True})}
        taken = {ROWS: tables.tables.take(consumer, full=full, **options)}
        if compact:
            taken[FULL] = tables.tables.take(f"{consumer}.full", full=True, **options)
        rows = VersionRows({name: pack_tables(saved, self._rows) for name, saved in taken.items()}, parts)
        if parts is not None and not trainer.group.is_main:
            self._writer.run(write_own_rows, rows, trainer.group.rank)
        return rows

    def wait(self) -> None:
        """Wait until this process's part is written; rank 0 reports failures."""
        self._writer.wait()
