"""Avoid slow CPU kernels, and sums that depend on the number of cores.

Convolutions are slow with AVX-512, and max pooling is slow with AVX2.

Convolutions: with AVX-512, MindSpore's build of oneDNN runs its reference code. With MindSpore 2.10.0 (oneDNN 3.10.1) a
forward pass of 64 channels 3x3 on [64, 64, 16, 16] takes 1,260 to 2,100 ms with AVX-512 and 17 to 19 ms with AVX2.
`limit_for_convolutions` therefore limits oneDNN to AVX2. It relies on `libdnnl.so.3` in MindSpore's `lib` folder, which
is loaded with MindSpore, and on two functions of oneDNN's public C interface, `dnnl_set_max_cpu_isa` and
`dnnl_get_effective_cpu_isa`. Setting the limit fails once oneDNN has run anything. An older oneDNN, `libdnnl.so.2`, was
not measured and is not changed.

Max pooling: for 64 images of 16 channels of 28 x 28, `MaxPool` and its gradient take 10.6 ms with AVX2, 9 ms of it for
the gradient, and 5.0 ms with AVX-512. MindSpore's `AdaptiveMaxPool2D` takes 3.4 to 4.6 ms with either instruction set,
nearly all of it for the forward pass, so `fast_max_pooling` uses it in training only. `AdaptiveMaxPool2D` computes the
same maxima as `MaxPool` if windows do not overlap and leave no remainder. `fast_max_pooling` relies on the attribute
`max_pool` of an `nn.MaxPool2d`.

Sums: oneDNN divides the sum of a convolution's weight gradient among a number of threads that is fixed when the
operator is created, so results depend on the number of cores. `planned_for_one_core` sets one thread. It relies on
MindSpore creating operators during compilation, on the compiling thread, and on oneDNN's public function
`dnnl_threadpool_interop_set_max_concurrency`, which applies to the calling thread. 20 layers and operators with their
gradients were compared on one and two cores (Dense, convolutions, recurrent layers, normalizations, losses, sums,
lookups): only the weight gradients of convolutions, except depthwise convolutions, differ in their bits.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import os
import types
from collections.abc import Iterator
from pathlib import Path

import mindspore
import numpy as np
from mindspore import dtype as mstype
from mindspore import nn, ops

from . import device
from .cell_structure import cells_and_names, hide

logger = logging.getLogger(__name__)

VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
_AVX2, _AVX512_BIT = 0x7, 0x20  # dnnl_cpu_isa_avx2; the bit that every dnnl_cpu_isa_avx512_* has
_SLOW = (
    "the network has convolutions and this CPU has AVX-512, where MindSpore's convolutions are 10 to 100 times slower"
)
_LIMITED = (
    "oneDNN is limited to AVX2 in this process, which may slow large Dense, MaxPool and LSTM layers down (set "
    "ONEDNN_MAX_CPU_ISA to decide yourself)"
)
_TOO_LATE = (
    "it is too late to choose other instructions, because this process has already run a network: make the Trainer "
    "first, or start with ONEDNN_MAX_CPU_ISA=AVX2"
)


@functools.cache
def _load_library() -> None:
    """Run a graph, which makes MindSpore load oneDNN."""
    nn.ReLU().compile_and_run(mindspore.Tensor([1.0], mstype.float32))


@contextlib.contextmanager
def planned_for_one_core() -> Iterator[None]:
    """Make sums of programs compiled in the block independent of the number of cores.

    oneDNN then creates each operator for one thread. Requires `can_plan_for_one_core`.
    """
    _load_library()
    library, before = _library(), ctypes.c_int()
    assert library is not None
    library.dnnl_threadpool_interop_get_max_concurrency(ctypes.byref(before))
    set_threads = library.dnnl_threadpool_interop_set_max_concurrency
    set_threads(1)
    try:
        yield
    finally:
        set_threads(before)


@functools.cache
def can_plan_for_one_core() -> bool:
    """Return whether oneDNN has the setting that `planned_for_one_core` uses.

    Searches the library's file for the function's name, because loading the library here would be too early for
    `limit_for_convolutions`.
    """
    return is_known_onednn() and b"dnnl_threadpool_interop_set_max_concurrency\0" in _library_path().read_bytes()


def is_known_onednn() -> bool:
    """Return whether MindSpore contains oneDNN version 3, which was measured."""
    return _library_path().exists()


def limit_for_convolutions(network: nn.Cell) -> None:
    """Limit oneDNN to AVX2 for the rest of the process if `network` gets faster.

    Does nothing if all convolutions are 1x1, if the device is not a CPU with AVX-512, or if the user has set one of
    `VARIABLES`. Logs the limit, or warns that it is too late to set it.
    """
    if not (_has_convolutions(network) and is_affected()) or user_choice() is not None:
        return
    library = _library()
    if library is None:
        return
    if library.dnnl_set_max_cpu_isa(_AVX2) == 0:
        logger.info("%s: %s", _SLOW, _LIMITED)
    elif library.dnnl_get_effective_cpu_isa() & _AVX512_BIT:
        logger.warning("%s; %s", _SLOW, _TOO_LATE)


def is_affected() -> bool:
    """Return whether this MindSpore's convolutions are slow on this CPU's AVX-512."""
    if not device.current().uses_onednn or not is_known_onednn():
        return False
    with contextlib.suppress(OSError):
        return " avx512bw" in Path("/proc/cpuinfo").read_text()
    return False


def user_choice() -> str | None:
    """Return the user's setting of oneDNN's instruction set as NAME=value, or None."""
    return next((f"{name}={os.environ[name]}" for name in VARIABLES if os.environ.get(name)), None)


def _has_convolutions(network: nn.Cell) -> bool:
    return any(
        np.prod(getattr(cell, "kernel_size", 1)) > 1
        for _, cell in cells_and_names(network)
        if any(base.__name__.startswith("Conv") for base in type(cell).__mro__)
    )


def _library_path() -> Path:
    return Path(mindspore.__file__).parent / "lib" / "libdnnl.so.3"


def _library() -> ctypes.CDLL | None:
    try:
        # NOLOAD opens MindSpore's copy; another copy would have its own setting.
        library = ctypes.CDLL(str(_library_path()), mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        library.dnnl_get_effective_cpu_isa.restype = ctypes.c_uint
        library.dnnl_set_max_cpu_isa.restype = ctypes.c_int
    except (OSError, AttributeError):
        return None
    return library


@contextlib.contextmanager
def fast_max_pooling(network: nn.Cell) -> Iterator[None]:
    """Compile max pooling as `AdaptiveMaxPool2D` where the maxima are the same."""
    cells = [] if device.current().fast_max_pooling else _replaceable(network)
    for cell in cells:
        hide(cell, "window", _pair(cell.kernel_size))
        hide(cell, "construct", types.MethodType(_construct, cell))
    try:
        yield
    finally:
        for cell in cells:
            del vars(cell)["construct"], vars(cell)["window"]


def _replaceable(network: nn.Cell) -> list[nn.Cell]:
    """Return the max pooling cells with disjoint windows and no explicit padding."""
    return [
        cell
        for _, cell in cells_and_names(network)
        if type(cell) is nn.MaxPool2d
        and _pair(cell.kernel_size) == _pair(cell.stride)
        and isinstance(cell.max_pool, ops.MaxPool)
        and cell.format == "NCHW"
        and not {"construct", "window"} & set(vars(cell))
    ]


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _construct(self, x):
    """Return the output of `nn.MaxPool2d.construct`."""
    if x.ndim == 3:
        return self.max_pool(x.unsqueeze(0)).squeeze(0)
    height, width = self.window
    divides = x.shape[2] % height == 0 and x.shape[3] % width == 0
    if self.training and divides and x.dtype in (mstype.float16, mstype.float32):
        return ops.adaptive_max_pool2d(x, (x.shape[2] // height, x.shape[3] // width))
    return self.max_pool(x)
