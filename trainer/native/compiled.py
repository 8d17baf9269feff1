"""Compile loops to machine code, which is cached across processes if possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba.extending import intrinsic

_LINE = 64  # bytes of a cache line


def cached(compiler: Callable[..., Any], signature: Any, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that compiles a function and caches the code if possible."""

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            return compiler(signature, cache=True, **options)(function)
        except (RuntimeError, OSError):  # the cache folder is missing or not writable
            return compiler(signature, **options)(function)

    return decorate


class Kernel:
    """A function compiled for fixed argument types when it is first needed.

    Numba caches the machine code next to the source, in the user's cache folder or in ``NUMBA_CACHE_DIR``. If it cannot
    write to any of them, each process compiles the function again. Fast math is off, so NaN and infinities are exact.

    With `nogil` the function runs without the GIL. A short function should keep the GIL: getting it back from another
    thread may take much longer than the function.
    """

    def __init__(self, function: Callable[..., Any], signature: Any, nogil: bool = True) -> None:
        self._function = function
        self._signature = signature
        self._nogil = nogil
        self._compiled: Callable[..., Any] | None = None

    def ready(self) -> Callable[..., Any]:
        """Return the compiled function."""
        if self._compiled is None:
            self._compiled = cached(numba.njit, [self._signature], nogil=self._nogil, error_model="numpy")(
                self._function
            )
        return self._compiled


def compiled(signature: Any, nogil: bool = True) -> Callable[[Callable[..., Any]], Kernel]:
    """Return a decorator that makes a function a `Kernel`."""
    return lambda function: Kernel(function, signature, nogil)


# Decorator for functions that Numba inlines into the kernels that call them. Pass pointers (`pointer_to`) instead of
# arrays: counting an array's references at every call takes longer than finding a row.
inlined = numba.njit(nogil=True, error_model="numpy", inline="always")


@intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Load the cache line at `address` (int64) asynchronously; any address is valid.

    Each random row costs a cache miss. Prefetching some tens of rows ahead overlaps the misses, and reads rows three to
    five times as fast as loading one value of each row ahead of its use.
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
    """Prefetch every cache line of the `size` bytes at `address`."""
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
    """Return an intrinsic that turns an int64 address into a pointer to `element`.

    The memory must belong to an argument of the kernel. Numba may free an array that the kernel allocates after the
    last use of its name, even if a pointer to it is still in use.
    """

    @intrinsic
    def pointer(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return numba.types.CPointer(element)(numba.types.int64), generate  # type: ignore[no-untyped-call]

    return pointer
