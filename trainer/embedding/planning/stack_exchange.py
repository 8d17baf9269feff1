"""What the kernels of one stack exchange with other processes in a call."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(slots=True)
class StackExchange:
    """What one stack's kernels send and receive in each stretch of a call.

    A stretch is a step where gradients are not accumulated.

    Rows owned here have positions of their own, from 1; those of the default rows of the tables come first.

    Attributes:
        stretches: the stretch of each micro-batch, ascending from 0, int64.
        sent: for each stretch and rank, the positions in the stretch of the rows which that rank owns, or of bags of
            which it owns some, int32.
        requested: for each stretch, the positions of the owned rows that the ranks read, in their order, int32.
        ends: for each stretch, where the vectors of each rank end, int64 [size]: the rows in `requested`, or `groups`.
        indices: for each stretch and entry of `requested`, its index among the stretch's distinct rows, from 1, int32.
        tables: table of each owned row, int32 [rows]; entry 0 is not a row.
        rows: its row there, int32 [rows].
        step_rows: for each stretch, the positions of its distinct owned rows, int32.
        groups: where bags are pooled: for each stretch and entry of `requested`, the vector that its row is added to,
            ascending from 0, int32; otherwise empty, and each row is a vector.
        scales: where bags are pooled: for each stretch, what the sum of the vectors of each position is multiplied by,
            float32.
    """

    stretches: np.ndarray
    sent: list[list[np.ndarray]]
    requested: list[np.ndarray]
    ends: list[np.ndarray]
    indices: list[np.ndarray]
    tables: np.ndarray
    rows: np.ndarray
    step_rows: list[np.ndarray]
    groups: list[np.ndarray] = field(default_factory=list)
    scales: list[np.ndarray] = field(default_factory=list)
