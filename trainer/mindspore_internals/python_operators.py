"""Operators that call Python from a CPU graph.

This module relies on `ops.Custom` with `func_type="pyfunc"`: it calls a Python function with NumPy arrays on one of
MindSpore's threads, also inside the loop of `SunkSteps`. It reads the number of inputs from the function's signature
and never releases the function.

MindSpore assumes that operators have no side effects. To fix the order of calls, each takes a token as an input: a
Parameter with the result of the previous call.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import Any

from mindspore import dtype as mstype
from mindspore import ops


def operator(
    method: Callable[..., Any], out_shape: Callable[..., Any], *, inputs: int | None = None, outputs: int | None = None
) -> ops.Custom:
    """Return an operator that calls a method.

    The result is one float32 array, or a tuple of `outputs` arrays if that is given. `out_shape` takes the shapes of
    the inputs and returns the shape, or the tuple of shapes, of the result. `inputs` is the number of inputs if the
    method's signature does not tell it.
    """
    # MindSpore never releases the function, so the function must not keep its owner alive, which may own large tables.
    # Calling a `WeakMethod` takes twice as long as this.
    owner, function = weakref.ref(method.__self__), method.__func__  # type: ignore[attr-defined]

    def call(*arrays):
        return function(owner(), *arrays)  # the caller of the graph keeps the owner alive

    # The signature gives the operator its number of inputs.
    vars(call)["__signature__"] = inspect.signature(method) if inputs is None else _signature_of(inputs)
    dtype = mstype.float32 if outputs is None else (mstype.float32,) * outputs
    return ops.Custom(call, out_shape=out_shape, out_dtype=dtype, func_type="pyfunc")


def _signature_of(inputs: int) -> inspect.Signature:
    parameters = [inspect.Parameter(f"array{index}", inspect.Parameter.POSITIONAL_ONLY) for index in range(inputs)]
    return inspect.Signature(parameters)
