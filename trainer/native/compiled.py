"""Compiles loops to machine code, cached across processes where possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba.extending import intrinsic

_LINE = 64  # bytes of a cache line


def kept(compiler: Callable[..., Any], signature: Any, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that compiles a function and caches the code if possible."""

    def compile_it(function: Callable[..., Any]) -> Any:
        try:
            return compiler(signature, cache=True, **options)(function)
        except (RuntimeError, OSError):  # no folder to keep the code in, or one that cannot be used
            return compiler(signature, **options)(function)

    return compile_it


class Kernel:
    """A function compiled for fixed argument types when it is first needed.

    Numba caches the machine code next to the source, in the user's cache folder or in ``NUMBA_CACHE_DIR``. Where none
    of them can be written, it lives as long as the process. NaN and infinities keep their
    meaning: no fast arithmetic.

    With `nogil` it runs without the interpreter's lock. Short functions should keep it: a thread that takes it
    meanwhile returns it late.
    """

    def __init__(self, function: Callable[..., Any], signature: Any, nogil: bool = True) -> None:
        self._function = function
        self._signature = signature
        self._nogil = nogil
        self._compiled: Callable[..., Any] | None = None

    def ready(self) -> Callable[..., Any]:
        """Return the compiled function."""
        if self._compiled is None:
            self._compiled = kept(numba.njit, [self._signature], nogil=self._nogil, error_model="numpy")(self._function)
        return self._compiled


def compiled(signature: Any, nogil: bool = True) -> Callable[[Callable[..., Any]], Kernel]:
    """Return a decorator that makes a function a `Kernel`."""
    return lambda function: Kernel(function, signature, nogil)


# Called by kernels, so they are compiled into them. An array among the arguments costs counting its references at every
# call, which takes longer than finding a row: they are handed what `pointer_to` returns instead.
inlined = numba.njit(nogil=True, error_model="numpy", inline="always")


@intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Load the cache line at `address` (int64) asynchronously; any address is valid.

    Random rows cost a cache miss each. Prefetching some tens of rows ahead overlaps the misses; reading a value of each
    row ahead overlaps them three to five times less well.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", (pointer,), kind)
        to_read, second_level_cache, data = number(0), number(2), number(1)
        builder.call(function, [builder.inttoptr(arguments[0], pointer), to_read, second_level_cache, data])
        return context.get_dummy_value()

    return numba.types.void(numba.types.int64), generate


@inlined
def prefetch_lines(address: int, size: int) -> None:
    """Have the processor load every cache line of the `size` bytes at `address`."""
    for offset in range(0, size, _LINE):
        prefetch(address + offset)  # type: ignore[call-arg]
    prefetch(address + size - 1)  # type: ignore[call-arg]


def _reinterpreted(source: Any, target: Any) -> Any:
    """Return an intrinsic that reinterprets the bits of `source` as `target`."""

    @intrinsic
    def reinterpreted(typing_context: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], context.get_value_type(target))

        return target(source), generate

    return reinterpreted


bits_of = _reinterpreted(numba.types.float32, numba.types.uint32)
float_of = _reinterpreted(numba.types.uint32, numba.types.float32)


def pointer_to(element: Any) -> Any:
    """Return an intrinsic: address (int64) -> pointer to numbers of type `element`.

    The memory must belong to an argument of the kernel: Numba may free an array that the kernel allocated after the
    last use of its name.
    """

    @intrinsic
    def pointer(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return numba.types.CPointer(element)(numba.types.int64), generate  # type: ignore[no-untyped-call]

    return pointer
