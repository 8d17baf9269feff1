"""Operators that call Python from a CPU graph.

Relied on: `ops.Custom` with `func_type="pyfunc"` calls the function with NumPy arrays on a thread of MindSpore's, in
the loop of a sunk call too. It reads the number of inputs from the function's signature and never releases the
function. MindSpore assumes no side effects: where their order matters, each call takes a token, a Parameter that holds
the result of the previous call.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable

import numpy as np
from mindspore import dtype as mstype
from mindspore import ops


def operator(method: Callable[..., np.ndarray], out_shape: Callable[..., tuple[int, ...]]) -> ops.Custom:
    """Return an operator that calls a method; float32 results of `out_shape(*shapes)`."""
    reference = weakref.WeakMethod(method)  # MindSpore never releases the function; it must not keep tables alive

    def call(*arrays):
        return reference()(*arrays)  # type: ignore[misc]  # who runs the graph keeps the object

    vars(call)["__signature__"] = inspect.signature(method)  # the operator takes its number of inputs from it
    return ops.Custom(call, out_shape=out_shape, out_dtype=mstype.float32, func_type="pyfunc")
