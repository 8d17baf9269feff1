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

import numpy as np
from mindspore import dtype as mstype
from mindspore import ops


def operator(method: Callable[..., np.ndarray], out_shape: Callable[..., tuple[int, ...]]) -> ops.Custom:
    """Return an operator that calls a method and returns a float32 array.

    `out_shape` takes the shapes of the inputs and returns the shape of the result.
    """
    return _custom(method, inspect.signature(method), out_shape, mstype.float32)


def operator_with_inputs(
    method: Callable[..., Any], inputs: int, out_shape: Callable[..., Any], outputs: int | None = None
) -> ops.Custom:
    """Return an operator that calls a method with the given number of inputs.

    The result is one float32 array, or a tuple of `outputs` arrays if that is given. `out_shape` takes the shapes of
    the inputs and returns the shape, or the tuple of shapes, of the result.
    """
    dtype = mstype.float32 if outputs is None else (mstype.float32,) * outputs
    return _custom(method, _signature_of(inputs), out_shape, dtype)


def _signature_of(inputs: int) -> inspect.Signature:
    parameters = [inspect.Parameter(f"array{index}", inspect.Parameter.POSITIONAL_ONLY) for index in range(inputs)]
    return inspect.Signature(parameters)


def _custom(method: Callable[..., Any], signature: inspect.Signature, out_shape: Any, out_dtype: Any) -> ops.Custom:
    # MindSpore never releases the function, so the function must not keep its owner alive, which may own large tables.
    # Calling a `WeakMethod` takes twice as long as this.
    owner, function = weakref.ref(method.__self__), method.__func__  # type: ignore[attr-defined]

    def call(*arrays):
        return function(owner(), *arrays)  # the caller of the graph keeps the owner alive

    vars(call)["__signature__"] = signature  # gives the operator its number of inputs
    return ops.Custom(call, out_shape=out_shape, out_dtype=out_dtype, func_type="pyfunc")
