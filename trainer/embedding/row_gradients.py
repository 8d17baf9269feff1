"""The gradient of a step's rows on CPU, added up in one call however many cells read them.

MindSpore takes the gradient of every `gather` as an array of all rows and adds these arrays: with a cell for each of 26
tables of one store that is most of a step, and it grows with the square of their number. Here each cell hands on the
gradient of what it read and the places it read from, as the gradients of two parameters of its own, and one kernel
adds them up.
"""

from __future__ import annotations

import inspect

import numpy as np
from mindspore import dtype as mstype
from mindspore import nn, ops

# Added to places, which travel as float32: 0 shows that a cell read nothing, twice as much that it read twice.
MARK = 1 << 23


class ReadRows(nn.Cell):
    """Rows by their places, for a `RowGradients`.

    Args:
        dim: length of a row.

    Inputs:
        rows: float32 [n, dim], n <= `MARK`; no gradient is taken of it.
        places: int32 of any shape.
        gradient_token: float32; its gradient is that of the output, [places.size, dim].
        places_token: float32; its gradient is `places` + `MARK`, [places.size].

    Outputs:
        Tensor [*places.shape, dim].
    """

    def __init__(self, dim: int) -> None:
        super().__init__(auto_prefix=False)
        self.dim = dim

    def construct(self, rows, places, gradient_token, places_token):
        """Return the rows; see the class for shapes."""
        return ops.gather(rows, places, 0)

    def bprop(self, rows, places, gradient_token, places_token, out, dout):
        """Hand on the gradient and where it belongs; return nothing for the rows themselves."""
        marks = ops.cast(ops.cast(ops.reshape(places, (-1,)), mstype.int32) + MARK, mstype.float32)
        gradient = ops.reshape(ops.cast(dout, mstype.float32), (-1, self.dim))
        return ops.zeros_like(rows), ops.zeros_like(places), gradient, marks


class RowGradients(nn.Cell):
    """The gradient of a step's rows.

    Args:
        dim: length of a row.
        cells: how many may read.

    Inputs:
        positions: int32 [n]; only its length matters.
        found: gradients of the tokens of all cells that may read: gradient_token, places_token, and so on.

    Outputs:
        Tensor float32 [n, dim].

    Raises:
        RuntimeError: a cell read twice in one step, which the run of the network on sample rows did not show.
    """

    def __init__(self, dim: int, cells: int) -> None:
        from . import kernels

        super().__init__(auto_prefix=False)
        add_rows = kernels.add_rows.ready()

        def total(positions, *found):
            sums = np.zeros((len(positions), dim), np.float32)
            for gradients, marks in zip(found[::2], found[1::2], strict=True):
                if add_rows(marks, gradients, sums, MARK) < 0:
                    raise RuntimeError(
                        "an Embedding cell read ids twice in one step and once when the network was tried on sample "
                        "rows; give each reading a cell of its own: Embedding(..., table=the_other)"
                    )
            return sums

        # MindSpore asks how many inputs there are
        inputs = [inspect.Parameter(f"input{i}", inspect.Parameter.POSITIONAL_ONLY) for i in range(1 + 2 * cells)]
        total.__signature__ = inspect.Signature(inputs)
        self.total = ops.Custom(
            total,
            out_shape=lambda positions, *found: (positions[0], dim),
            out_dtype=lambda positions, *found: mstype.float32,
            func_type="pyfunc",
        )

    def construct(self, positions, found):
        """Return the sums; see the class for shapes."""
        return self.total(positions, *found)
