"""Which instructions oneDNN uses for convolutions: with AVX-512, MindSpore's build of it runs its reference code.

Relied on: `libdnnl.so.3` in MindSpore's `lib` folder, loaded with MindSpore, and two functions of oneDNN's public C
interface, `dnnl_set_max_cpu_isa` and `dnnl_get_effective_cpu_isa`. Setting fails once oneDNN has run anything, which is
how "too late" is found out. Measured on 2.9.0 and 2.10.0 (oneDNN 3.10.1): a forward of 64 channels 3x3 on
[64, 64, 16, 16] takes 1,260 to 2,100 ms with AVX-512 and 17 to 19 ms with AVX2. MindSpore 2.7 and 2.8 (oneDNN 2.2,
`libdnnl.so.2`) take about 45 ms with either and are left alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
from pathlib import Path

import mindspore
import numpy as np
from mindspore import nn

logger = logging.getLogger(__name__)

VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
_AVX2, _AVX512_BIT = 0x7, 0x20  # dnnl_cpu_isa_avx2; the bit that every dnnl_cpu_isa_avx512_* has
_LIMITED = (
    "the network has convolutions and this CPU has AVX-512, where MindSpore's convolutions are 10 to 100 times slower: "
    "oneDNN is limited to AVX2 in this process, which may slow large Dense, MaxPool and LSTM layers down (set "
    "ONEDNN_MAX_CPU_ISA to decide yourself)"
)
_TOO_LATE = (
    "the network has convolutions and this CPU has AVX-512, where MindSpore's convolutions are 10 to 100 times slower; "
    "it is too late to choose other instructions, because this process has already run a network: make the Trainer "
    "first, or start with ONEDNN_MAX_CPU_ISA=AVX2"
)


def limit_for_convolutions(network: nn.Cell) -> None:
    """Limit oneDNN to AVX2 when that makes `network` faster; holds for the process, oneDNN has no way back.

    Nothing happens without convolutions other than 1x1, off the CPU, without AVX-512, when the user has set one of
    `VARIABLES`, or when it was done before. Logs what was done, or that it is too late.
    """
    if not (_has_convolutions(network) and is_affected()) or user_choice() is not None:
        return
    library = _library()
    if library is None:
        return
    if library.dnnl_set_max_cpu_isa(_AVX2) == 0:
        logger.info(_LIMITED)
    elif library.dnnl_get_effective_cpu_isa() & _AVX512_BIT:
        logger.warning(_TOO_LATE)


def is_affected() -> bool:
    """Return whether networks run on a CPU that has AVX-512, by a MindSpore whose convolutions are slow there."""
    if mindspore.get_context("device_target") != "CPU" or not _library_path().exists():
        return False
    with contextlib.suppress(OSError):
        return " avx512bw" in Path("/proc/cpuinfo").read_text()
    return False


def user_choice() -> str | None:
    """Return the user's own setting of oneDNN's instructions, as NAME=value, or None."""
    return next((f"{name}={os.environ[name]}" for name in VARIABLES if os.environ.get(name)), None)


def _has_convolutions(network: nn.Cell) -> bool:
    return any(_is_convolution(cell) for _, cell in network.cells_and_names())


def _is_convolution(cell: nn.Cell) -> bool:
    named = any(base.__name__.startswith("Conv") for base in type(cell).__mro__)
    return named and bool(np.prod(getattr(cell, "kernel_size", 1)) > 1)


def _library_path() -> Path:
    return Path(mindspore.__file__).parent / "lib" / "libdnnl.so.3"


def _library() -> ctypes.CDLL | None:
    try:
        # NOLOAD: a second copy of the library would have a setting of its own
        library = ctypes.CDLL(str(_library_path()), mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        library.dnnl_get_effective_cpu_isa.restype = ctypes.c_uint
        library.dnnl_set_max_cpu_isa.restype = ctypes.c_int
    except (OSError, AttributeError):
        return None
    return library
