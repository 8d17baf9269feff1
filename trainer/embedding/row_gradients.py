"""The gradient of a step's rows on CPU, added up in one place however many cells read them.

MindSpore takes the gradient of every `gather` as an array of all rows and adds these arrays: with a cell for each of 26
tables of one store that is most of a step, and it grows with the square of their number. Here each cell's read adds its
own gradient to one array, and hands on a token, so that the array is read after the last of them.
"""

from __future__ import annotations

import threading
import weakref

import numpy as np
from mindspore import dtype as mstype
from mindspore import nn, ops

from ..mindspore_internals.child_cells import hide


class RowGradients:
    """The sums of one step, float32 [rows, dim].

    Args:
        dim: length of a row.
    """

    def __init__(self, dim: int) -> None:
        from . import kernels

        self._add = kernels.add_rows.ready()
        self._sums = np.zeros((0, dim), np.float32)
        self._used = False
        # operators of one graph may run on several threads
        self._lock = threading.Lock()

    def begin(self, rows: int) -> None:
        """Make room for so many rows; whatever a step that failed has left is forgotten."""
        if self._used or len(self._sums) != rows:
            self._sums = np.zeros((rows, self._sums.shape[1]), np.float32)
            self._used = False

    def add(self, places: np.ndarray, gradients: np.ndarray) -> None:
        """Add `gradients`, float32 [n, dim], to the rows at `places`, int32 [n]."""
        with self._lock:
            self._used = True
            self._add(places, gradients, self._sums)

    def take(self) -> np.ndarray:
        """Return the sums and begin anew."""
        sums = self._sums
        self._sums, self._used = np.zeros_like(sums), False
        return sums


class ReadRows(nn.Cell):
    """Rows by their places, the gradients of which go to a `RowGradients`.

    Args:
        sums: where they go.
        dim: length of a row.

    Inputs:
        rows: float32 [n, dim]; no gradient is taken of it.
        places: int32 of any shape.
        token: float32 [1]; its gradient stands for that of the rows, see `collect`.

    Outputs:
        Tensor [*places.shape, dim].
    """

    def __init__(self, sums: RowGradients, dim: int) -> None:
        super().__init__(auto_prefix=False)
        self.dim = dim
        hide(self, "sums", sums)
        # MindSpore keeps the functions for good; they must not keep the sums.
        reference = weakref.ref(sums)

        def add(places, gradients):
            reference().add(places, gradients)
            return np.ones(1, np.float32)

        def take(token, positions):
            return reference().take()

        self.add = ops.Custom(
            add,
            out_shape=lambda places, gradients: (1,),
            out_dtype=lambda places, gradients: mstype.float32,
            func_type="pyfunc",
        )
        self.take = ops.Custom(
            take,
            out_shape=lambda token, positions: (positions[0], dim),
            out_dtype=lambda token, positions: mstype.float32,
            func_type="pyfunc",
        )

    def construct(self, rows, places, token):
        """Return the rows; see the class for shapes."""
        return ops.gather(rows, places, 0)

    def bprop(self, rows, places, token, out, dout):
        """Add the gradient up; return nothing for the rows themselves."""
        flat = ops.reshape(ops.cast(places, mstype.int32), (-1,))
        done = self.add(flat, ops.reshape(ops.cast(dout, mstype.float32), (-1, self.dim)))
        return ops.zeros_like(rows), ops.zeros_like(places), done

    def collect(self, token, positions):
        """Return the gradient of the rows of a step, [n, dim], from that of the token; `positions` are int32 [n]."""
        return self.take(token, positions)
