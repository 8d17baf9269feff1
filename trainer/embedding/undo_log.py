"""What plans ahead of training changed in a table, kept until they are trained, so that it can be taken back."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Evicted:
    """Rows taken from their ids, and all that is needed to give them back."""

    ids: np.ndarray
    rows: np.ndarray
    values: np.ndarray
    dirty: dict[str, np.ndarray]
    meta: dict[str, np.ndarray]


@dataclass
class UndoRecord:
    """What one plan changed."""

    start_step: int
    steps: int
    numbering: object = None  # the table's before it
    rows: np.ndarray | None = None
    allocated: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)  # rows, their ids
    evicted: list[Evicted] = field(default_factory=list)
    cells: list[np.ndarray] = field(default_factory=list)
    meta: dict[str, np.ndarray] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    next_row: int = 0
    last_sweep: float = 0.0
    started: bool = False  # its rows are being trained in place

    def count(self, name: str, amount: int) -> None:
        """Add to a counter that becomes valid with the commit."""
        if amount:
            self.counters[name] = self.counters.get(name, 0) + int(amount)
