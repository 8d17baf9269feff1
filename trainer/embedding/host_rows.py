"""A row group inside the training graph on CPU: kernels called from it read the host tables and train them in place.

Nothing is packed, loaded or written back. The graph sees the distinct rows of a step and gives their gradients; what
happens in between (loss scale, skipped steps, clipping, accumulation) is the same graph code as for dense parameters.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable

import numpy as np
from mindspore import Parameter, Tensor, ops
from mindspore import dtype as mstype

from .layers import hide
from .row_gradients import ReadRows, RowGradients
from .row_optimizers import RowAdagrad, RowAdam, RowFTRL, RowOptimizer, RowSGD
from .row_store import RowStore
from .sparse_plan import TablePlan
from .working_set import GroupProgram


def find_kernel(optimizer: RowOptimizer) -> tuple[Callable[..., None], np.ndarray] | None:
    """Return (update kernel, its numbers) of a row optimizer; None for one of the user's own.

    The first number is the learning rate, which is not known yet.
    """
    from . import kernels

    kind = type(optimizer)
    if kind is RowSGD:
        kernel, numbers = kernels.update_sgd, []
    elif kind is RowAdagrad:
        kernel, numbers = (kernels.update_adagrad_row_wise if optimizer.row_wise else kernels.update_adagrad), []
    elif kind is RowAdam:
        kernel, numbers = kernels.update_adam, [1.0 - optimizer.beta1, 1.0 - optimizer.beta2, optimizer.eps]
    elif kind is RowFTRL:
        kernel, numbers = kernels.update_ftrl, [-optimizer.lr_power, optimizer.l1, 2.0 * optimizer.l2]
    else:
        return None
    return kernel.ready(), np.array([0, *numbers], np.float32)


class HostRows:
    """The rows of a group's tables, as the graph's thread reads and changes them.

    Args:
        stores: where the rows of each table are, all of one width.
        dim: columns of a weight.
        kernel: update kernel and its numbers.
    """

    def __init__(self, stores: dict[int, RowStore], dim: int, kernel: tuple[Callable[..., None], np.ndarray]) -> None:
        from . import kernels

        self._slot = {index: slot for slot, index in enumerate(stores)}
        self._row_bits = kernels.ROW_BITS
        self._read = kernels.read_rows.ready()
        self._apply, self._numbers = kernel
        self._stores = list(stores.values())
        self._width = self._stores[0].width
        self._dim = dim
        self._codes = np.full(1, -1, np.int64)

    def choose(self, parts: list[TablePlan], size: int) -> None:
        """Let positions mean the rows of `parts`, of which there are at most `size` - 1, from now on."""
        codes = np.full(size, -1, np.int64)
        for part in parts:
            code = np.int64(self._slot[part.table]) << self._row_bits
            codes[part.start : part.start + len(part.rows)] = part.rows | code
        self._codes = codes

    @contextlib.contextmanager
    def _held(self):
        """Keep the rows where they are; yields the address of each store."""
        with contextlib.ExitStack() as stack:
            for store in self._stores:
                stack.enter_context(store.lock)
            yield np.array([store.address for store in self._stores], np.int64)

    def read(self, positions: np.ndarray) -> np.ndarray:
        """Return the weights at `positions`, int32 [n]: float32 [n, dim], zeros at position 0."""
        out = np.empty((len(positions), self._dim), np.float32)
        with self._held() as bases:
            self._read(bases, self._codes, positions, self._width, out, self._dim, self._numbers)
        return out

    def update(self, gradients: np.ndarray, positions: np.ndarray, rate: np.float32) -> None:
        """Apply the row optimizer to the rows at `positions`, all different but for 0, which is none."""
        with self._held() as bases:
            if any(store.is_frozen for store in self._stores):
                self._preserve(positions)
            self._numbers[0] = rate
            self._apply(bases, self._codes, positions, self._width, gradients, self._width, self._numbers)

    def _preserve(self, positions: np.ndarray) -> None:
        """Let snapshots being written copy the rows at `positions` first."""
        codes = self._codes[positions]
        codes = codes[codes >= 0]
        slots, rows = codes >> self._row_bits, (codes & ((1 << self._row_bits) - 1)).astype(np.int32)
        for slot in np.unique(slots):
            self._stores[slot].preserve(rows[slots == slot])


class HostGroupProgram(GroupProgram):
    """A `GroupProgram` whose rows stay in the host tables; see the module's text."""

    in_graph = False

    def make(self) -> None:
        """Make the operators that call the kernels."""
        rows = HostRows(self.stores(), self.dim, find_kernel(self.optimizer))
        hide(self, "host_rows", rows)
        # Assigned by every update and read by the next read, so that they happen in this order.
        token = Parameter(Tensor(np.zeros(1, np.float32)), name=f"embedding.{self.name}.token", requires_grad=False)
        hide(self, "token", token)
        # MindSpore keeps the functions for good; they must not keep the tables.
        reference, dim = weakref.ref(rows), self.dim

        def read(positions, token):
            return reference().read(positions)

        def update(gradients, positions, rate, token):
            reference().update(gradients, positions, rate[0])
            return token + np.float32(1)

        self.read = ops.Custom(
            read,
            out_shape=lambda positions, token: (positions[0], dim),
            out_dtype=lambda positions, token: mstype.float32,
            func_type="pyfunc",
        )
        self.apply_update = ops.Custom(
            update,
            out_shape=lambda gradients, positions, rate, token: (1,),
            out_dtype=lambda gradients, positions, rate, token: mstype.float32,
            func_type="pyfunc",
        )

    def stores(self) -> dict[int, RowStore]:
        """Return where the rows are that the kernels read and train."""
        return {index: table.store for index, table in self.tables.items()}

    @property
    def differentiated(self) -> Parameter:
        """The token of the window's reader, where the network reads through it."""
        return self.rows if self.reader is None else self.window.token

    def use_reader(self) -> None:
        """Let the network's cells read through `row_gradients.ReadRows`."""
        hide(self, "reader", ReadRows(RowGradients(self.dim), self.dim))

    def make_room(self, step_size: int) -> None:
        """Provide for the gradients of so many rows."""
        if self.reader is not None:
            self.reader.sums.begin(step_size)

    def load(self, parts: list[TablePlan], size: int) -> None:
        """Say which rows the chunk's positions mean."""
        self.host_rows.choose(parts, size)
        for part in parts if self.trainable else ():
            self.tables[part.table].start()

    def write_back(self, parts: list[TablePlan]) -> None:
        """Confirm that the chunk was trained."""
        for part in parts:
            self.tables[part.table].commit(None)

    def begin(self, positions, step_map):
        """Put the rows at `positions` (int32 [n]) of the chunk before the network; return what `update` needs."""
        ops.assign(self.rows, self.read(positions, self.token))
        if self.indirect:
            ops.assign(self.step_map, step_map)
        return positions

    def gradient(self, positions, found):
        """Return the gradient of the rows at `positions`, given that of `differentiated`."""
        return found if self.reader is None else self.reader.collect(found, positions)

    def update(self, positions, packed, gradient, lr):
        """Apply one optimizer step to the rows at `positions`."""
        step, rate = self.next_step(lr)
        rate = ops.reshape(self.optimizer.rate(rate, step), (1,))
        ops.assign(self.token, self.apply_update(gradient, positions, rate, self.token))
