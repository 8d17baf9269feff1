"""Exchange rows with a parameter through shared memory, if the device allows it.

This module relies on `Parameter.asnumpy()` on CPU: it returns a writable view of the memory that operators and graphs
use, as long as the parameter keeps its shape. `views_are_live` tests this once. If the test fails, values are copied by
`ops.assign` and `asnumpy`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np
from mindspore import Parameter, Tensor, ops

from . import device, public_only, warn_of_fallback
from .compilation import compile_lock


def views_are_live() -> bool:
    """Return whether `asnumpy()` returns the memory that operators use."""
    return device.current().shares_memory and not public_only() and try_view()


@functools.cache
def try_view() -> bool:
    """Check that a view and an operator see each other's writes to a parameter.

    Takes 1 to 10 ms once per process, mostly for MindSpore's first run of the operator.
    """
    with compile_lock:  # operators fail while another thread compiles
        parameter = Parameter(Tensor(np.zeros(8, np.float32)), requires_grad=False)
        view = parameter.asnumpy()
        if view.flags.writeable:
            view[:] = 1.0
            ops.assign_add(parameter, Tensor(np.full(8, 2.0, np.float32)))
            parameter.asnumpy()  # waits for the operator
    live = bool((view == 3.0).all())
    if not live:
        warn_of_fallback(
            "Parameter.asnumpy() does not share memory with the parameter",
            "rows of embedding tables are copied twice more in each call, loaded parameters once more",
        )
    return live


class HostMirror:
    """A parameter [n, ...] and a host array with the same values.

    With live views (see `views_are_live`), both are the same memory; otherwise `push` and `pull` copy the values.

    Args:
        parameter: the parameter; `array` changes its size n.
        in_branch: whether programs use the parameter in a branch. A compiled branch keeps using its memory, so each
            size keeps its own memory.
    """

    def __init__(self, parameter: Parameter, *, in_branch: bool = False) -> None:
        self.parameter = parameter
        self.live = views_are_live()
        self._array: np.ndarray | None = None
        self._in_branch = in_branch
        self._tensor_of_size: dict[int, Tensor] = {}

    def array(self, size: int) -> np.ndarray:
        """Return the host array [size, ...]; resize the parameter if necessary."""
        if self.parameter.shape[0] != size:
            self.parameter.set_data(self._values(size), slice_shape=True)
            self._array = None
        if self._array is None:
            self._array = self.parameter.asnumpy()
            if not self.live:
                self._array = np.array(self._array)
        return self._array

    def _values(self, size: int) -> Tensor:
        if size in self._tensor_of_size:
            return self._tensor_of_size[size]
        values = ops.zeros((size, *self.parameter.shape[1:]), self.parameter.dtype)
        if self._in_branch:
            self._tensor_of_size[size] = values
        return values

    def push(self) -> None:
        """Make the values of the host array visible to the graph."""
        if not self.live:
            # Not `set_data`, after which a compiled branch would keep the old value.
            ops.assign(self.parameter, Tensor(self._array))

    def pull(self) -> np.ndarray:
        """Return the host array, with the values that the graph has written."""
        assert self._array is not None  # set by `array`
        if not self.live:
            self._array[...] = self.parameter.asnumpy()
        return self._array


def addresses_of(parameters: Iterable[Parameter]) -> list[int]:
    """Return where the values of parameters are in memory.

    `Parameter.set_data` gives a parameter other memory. A compiled program that contains a branch or a loop reads the
    new value and writes to the old memory, so that a training has no effect.
    """
    return [parameter.data_ptr() for parameter in parameters]


def overwrite(parameter: Parameter, value: np.ndarray) -> None:
    """Set the value of `parameter`, visible to compiled graphs too."""
    view = parameter.asnumpy() if views_are_live() else None
    # If the address changes between calls, `asnumpy` returns copies, and a value written to a copy would be lost.
    if view is not None and view.flags.writeable and _address(view) == _address(parameter.asnumpy()):
        view[...] = value
    else:  # not `set_data`: a compiled step that contains a branch would keep using the old value
        ops.assign(parameter, Tensor(np.array(value), parameter.dtype))


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]
