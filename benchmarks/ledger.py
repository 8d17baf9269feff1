"""A diary of every row a run trains on, kept outside its snapshots, to find out afterwards what became of each row.

The run to be watched has `Ledger` among its callbacks. Each process writes a file of its own; `surviving` puts them
together as the snapshots did: what a process trained after the snapshot its successor went on from never happened.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from callbacks import Callback

if TYPE_CHECKING:
    from trainer.trainer import Trainer

BEGIN, CHUNK = 1, 2
STARTING, STEPPING, EVALUATING = b"s", b"t", b"e"
PHASE = struct.Struct("<cq")
_BASE = 1 << 20


class Ledger(Callback):
    """Writes down the rows of every chunk after it was trained on, and shows a driver what the run is doing.

    Args:
        folder: where the files go; made when missing.
        key: columns of whole numbers below 2**20 that together name a row; at most three.
    """

    def __init__(self, folder: str | os.PathLike[str], key: Sequence[str] = ("user", "item")) -> None:
        self.folder = Path(folder)
        self.key = tuple(key)
        self._file = self._phase = self._step = -1

    def setup(self, trainer: Trainer) -> None:
        """Open the file of this process; those of several ranks lie in folders of their own."""
        if trainer.group.size > 1 and self.folder.name != f"rank_{trainer.group.rank}":
            self.folder /= f"rank_{trainer.group.rank}"
        self.folder.mkdir(parents=True, exist_ok=True)
        number = len(list(self.folder.glob("*.ledger")))
        self._file = os.open(self.folder / f"{number:06d}.ledger", os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND)
        self._phase = os.open(self.folder / "phase", os.O_CREAT | os.O_WRONLY)

    def on_train_begin(self, trainer: Trainer) -> None:
        """Note the step this process goes on from."""
        self._step = trainer.state.progress.global_step
        self._write(BEGIN, self._step, 0, [])

    def on_train_step_begin(self, trainer: Trainer) -> None:
        """Show that a step is under way."""
        self._show(STEPPING, trainer)

    def on_train_step_end(self, trainer: Trainer) -> None:
        """Note the rows of the chunk."""
        self._step = trainer.state.progress.global_step
        self._write(CHUNK, self._step, trainer.state.outputs.chunk.num_steps, self.rows_of(trainer))

    def rows_of(self, trainer: Trainer) -> np.ndarray:
        """Return the names of the chunk's rows, int64 [N]."""
        chunk = trainer.state.outputs.chunk
        rows = np.zeros(chunk.num_samples, np.int64)
        for name in self.key:
            rows = rows * _BASE + chunk.rows(chunk.names.index(name))[: chunk.num_samples]
        return rows

    def on_eval_begin(self, trainer: Trainer) -> None:
        """Show that an evaluation is under way."""
        self._show(EVALUATING, trainer)

    def on_exception(self, trainer: Trainer) -> None:
        """Note the rows of a chunk that was trained on when something else failed."""
        if self._file >= 0 and trainer.state.progress.global_step > self._step >= 0:
            self.on_train_step_end(trainer)

    def on_save_checkpoint(self, trainer: Trainer) -> None:
        """Note how long background snapshots have held the steps at most in this process, in seconds."""
        with open(self.folder / "holds", "a", encoding="ascii") as file:
            file.write(f"{max(trainer.saver.hold_seconds, default=0.0)}\n")

    def teardown(self, trainer: Trainer) -> None:
        """Close the files."""
        for file in (self._file, self._phase):
            if file >= 0:
                os.close(file)
        self._file = self._phase = -1

    def _write(self, kind: int, step: int, steps: int, rows: Sequence[int] | np.ndarray) -> None:
        # One write call: a kill leaves the whole entry or none of it.
        os.write(self._file, np.array([kind, step, steps, len(rows), *rows], np.int64).tobytes())

    def _show(self, phase: bytes, trainer: Trainer) -> None:
        os.pwrite(self._phase, PHASE.pack(phase, trainer.state.progress.global_step), 0)


@dataclass
class History:
    """What came of a run over all its processes.

    Attributes:
        steps: the number of every step that counts, in the order they were done, int64.
        rows: the rows of the steps that count, in order, int64.
        learned_at: for each of them the last step of the chunk that it was in, int64.
        redone: steps that were trained, lost with their process and trained again by its successor.
        resumed_from: the step each process went on from.
    """

    steps: np.ndarray
    rows: np.ndarray
    learned_at: np.ndarray
    redone: int
    resumed_from: list[int]

    @property
    def lost_steps(self) -> int:
        """Steps that are missing between the first and the last."""
        return int(self.steps.max(initial=0)) - len(np.unique(self.steps))

    @property
    def repeated_steps(self) -> int:
        """Steps that count more than once."""
        return len(self.steps) - len(np.unique(self.steps))


def surviving(folder: str | os.PathLike[str]) -> History:
    """Return the history that the last snapshot holds: each process takes back what its predecessors did beyond it."""
    chunks: list[tuple[int, int, np.ndarray]] = []
    resumed_from: list[int] = []
    redone = 0
    for path in sorted(Path(folder).glob("*.ledger")):
        content = np.frombuffer(path.read_bytes()[: path.stat().st_size // 8 * 8], np.int64)
        place = 0
        while place + 4 <= len(content) and place + 4 + content[place + 3] <= len(content):
            kind, step, steps, count = (int(value) for value in content[place : place + 4])
            rows = content[place + 4 : place + 4 + count]
            place += 4 + count
            if kind == BEGIN:
                resumed_from.append(step)
                redone += sum(taken for last, taken, _ in chunks if last > step)
                chunks = [chunk for chunk in chunks if chunk[0] <= step]
            else:
                chunks.append((step, steps, rows))
    numbers = [np.arange(last - taken + 1, last + 1) for last, taken, _ in chunks]
    empty = np.zeros(0, np.int64)
    return History(
        np.concatenate([empty, *numbers]),
        np.concatenate([empty, *(rows for _, _, rows in chunks)]),
        np.concatenate([empty, *(np.full(len(rows), last) for last, _, rows in chunks)]),
        redone,
        resumed_from,
    )


def read_phase(folder: str | os.PathLike[str]) -> tuple[bytes, int]:
    """Return what the run is doing (`STARTING`, `STEPPING` or `EVALUATING`) and the steps it has done."""
    try:
        content = (Path(folder) / "phase").read_bytes()
    except FileNotFoundError:
        return STARTING, -1
    return PHASE.unpack(content) if len(content) == PHASE.size else (STARTING, -1)


def longest_hold(folder: str | os.PathLike[str]) -> float:
    """Return the longest time in seconds for which a background snapshot held the steps; NaN where there was none."""
    try:
        lines = (Path(folder) / "holds").read_text("ascii").split("\n")[:-1]
    except FileNotFoundError:
        return float("nan")
    return max(map(float, lines), default=float("nan"))
