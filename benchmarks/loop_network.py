"""The model of benchmarks/closed_loop.py, whose answers tell its inputs, and the diary of what it was trained on."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np
from mindspore import nn, ops

from benchmarks.ledger import Ledger

if TYPE_CHECKING:
    from trainer.trainer import Trainer


def named(row: int, inputs: np.ndarray) -> int:
    """Return an int64 of the row's number and the CRC-32 of its inputs, float32."""
    return int(row) << 32 | zlib.crc32(np.ascontiguousarray(inputs, np.float32).tobytes())


class Echo(nn.Cell):
    """A logistic regression that returns what it was given, too.

    Inputs:
        numbers: float32 [N, 2], the first of them the number of the row. ids: int64 [N, 3], below 2**24.

    Outputs:
        float32 [N, 6]: the logit and the inputs, bit for bit.
    """

    rows_are_independent = True

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(4, 1)

    def construct(self, numbers, ids):
        """Return logit and inputs; see the class."""
        ids = ids.astype(numbers.dtype)
        logit = self.dense(ops.concat((ids, numbers[:, 1:]), 1) * 0.05)
        return ops.concat((logit, numbers, ids), 1)


class LogitLoss(nn.Cell):
    """The cross entropy of the first output."""

    denominator = "rows"

    def __init__(self) -> None:
        super().__init__()
        self.loss = nn.BCEWithLogitsLoss()

    def construct(self, outputs, label):
        """Return the mean over the rows."""
        return self.loss(outputs[:, 0], label)


BOUGHT = 1 << 62  # added to the name of a row that was learned as bought


class InputLedger(Ledger):
    """A ledger whose rows are named by their numbers, their inputs and their labels."""

    def rows_of(self, trainer: Trainer) -> np.ndarray:
        """Return the names of the chunk's rows, int64 [N]."""
        chunk = trainer.state.outputs.chunk
        ids, numbers = (chunk.rows(chunk.names.index(name))[: chunk.num_samples] for name in ("ids", "numbers"))
        labels = chunk.rows(chunk.names.index("bought"))[: chunk.num_samples]
        inputs = np.concatenate([numbers, ids.astype(np.float32)], 1)
        names = np.array([named(row[0], row) for row in inputs], np.int64)
        return names + np.where(labels > 0, BOUGHT, 0)
