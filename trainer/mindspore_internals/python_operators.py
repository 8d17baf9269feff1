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
from typing import Any

import numpy as np
from mindspore import dtype as mstype
from mindspore import ops


def operator(method: Callable[..., np.ndarray], out_shape: Callable[..., tuple[int, ...]]) -> ops.Custom:
    """Return an operator that calls a method; float32 results of `out_shape(*shapes)`."""
    return _custom(method, inspect.signature(method), out_shape, mstype.float32)


def operator_of_shapes(
    method: Callable[..., Any], inputs: int, out_shape: Callable[..., Any], outputs: int | None = None
) -> ops.Custom:
    """Return an operator of so many inputs; float32 results of `out_shape(*shapes)`.

    They are a tuple of so many `outputs` if that is given.
    """
    dtype = mstype.float32 if outputs is None else (mstype.float32,) * outputs
    return _custom(method, _signature_of(inputs), out_shape, dtype)


def operator_of_many(method: Callable[..., tuple[np.ndarray, ...]], inputs: int, outputs: int) -> ops.Custom:
    """Return an operator of several float32 outputs, with the first inputs' shapes."""
    return operator_of_shapes(method, inputs, lambda *shapes: shapes[:outputs], outputs)


def _signature_of(inputs: int) -> inspect.Signature:
    names = [inspect.Parameter(f"array{number}", inspect.Parameter.POSITIONAL_ONLY) for number in range(inputs)]
    return inspect.Signature(names)


def _custom(method: Callable[..., Any], signature: inspect.Signature, out_shape: Any, out_dtype: Any) -> ops.Custom:
    # MindSpore never releases the function; it must not keep tables alive. A `WeakMethod` takes twice as long.
    owner, function = weakref.ref(method.__self__), method.__func__  # type: ignore[attr-defined]

    def call(*arrays):
        return function(owner(), *arrays)  # the caller of the graph keeps the owner alive

    vars(call)["__signature__"] = signature  # the operator takes its number of inputs from it
    return ops.Custom(call, out_shape=out_shape, out_dtype=out_dtype, func_type="pyfunc")
