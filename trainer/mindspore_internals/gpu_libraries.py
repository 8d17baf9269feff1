"""Find and load the libraries of MindSpore's GPU plugin; describe the GPU.

This module relies on the following behaviour of MindSpore 2.10.0:
- During its import, MindSpore loads `lib/plugin/libmindspore_gpu.so.11.6` if ``$CUDA_HOME/bin/nvcc --version`` prints
  release 11.6. The plugin needs `LIBRARIES`, and `DRIVER` from the GPU driver. If the process has already loaded these
  libraries, `LD_LIBRARY_PATH` need not be set.
- Its operators, `libcuda_ops.so.11`, contain machine code for the compute capabilities 6.0, 6.1, 7.0, 7.5 and 8.0,
  which also runs on newer GPUs with the same major number. They also contain PTX for 6.0 and 8.6, which the driver
  compiles for all later GPUs.

This module does not import MindSpore unless `prepare` is called.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DRIVER = "libcuda.so.1"
_PLUGIN = "libmindspore_gpu.so.11.6"
# library -> (package that contains it, its folder in the package `nvidia`); dependencies come first
LIBRARIES = {
    "libcudart.so.11.0": ("nvidia-cuda-runtime-cu11", "cuda_runtime"),
    "libcublasLt.so.11": ("nvidia-cublas-cu11", "cublas"),
    "libcublas.so.11": ("nvidia-cublas-cu11", "cublas"),
    "libnvrtc.so.11.2": ("nvidia-cuda-nvrtc-cu11", "cuda_nvrtc"),
    "libcurand.so.10": ("nvidia-curand-cu11", "curand"),
    "libcufft.so.10": ("nvidia-cufft-cu11", "cufft"),
    "libcusparse.so.11": ("nvidia-cusparse-cu11", "cusparse"),
    "libcusolver.so.11": ("nvidia-cusolver-cu11", "cusolver"),
    "libcudnn.so.8": ("nvidia-cudnn-cu11", "cudnn"),
}
_NVCC_RELEASE = "Cuda compilation tools, release 11.6, V11.6.0"
_NEWEST_MAJOR = 8  # major number of the compute capability
_CAPABILITY = (75, 76)  # attributes of cuDeviceGetAttribute: major and minor number of the compute capability


@dataclass(frozen=True)
class Card:
    """An NVIDIA GPU, as described by its driver."""

    name: str
    capability: tuple[int, int]

    @property
    def compiles_at_first_use(self) -> bool:
        """Whether the driver compiles MindSpore's operators before the first one runs."""
        return self.capability[0] > _NEWEST_MAJOR


def prepare() -> None:
    """Import MindSpore with its GPU plugin, if the libraries are installed.

    Does nothing if the libraries or the driver are missing, or if MindSpore has already been imported.
    """
    if "mindspore" in sys.modules or not any(map(_path_in_package, LIBRARIES)) or not loads(DRIVER):
        return
    if not missing():
        with _provided_nvcc():
            importlib.import_module("mindspore")


def plugin() -> Path | None:
    """Return the path of MindSpore's GPU plugin, or None if the wheel has none."""
    spec = importlib.util.find_spec("mindspore")
    folder = Path(spec.origin).parent if spec and spec.origin else None
    path = folder / "lib" / "plugin" / _PLUGIN if folder else None
    return path if path is not None and path.is_file() else None


def plugin_is_loaded() -> bool:
    """Return whether this process has loaded the plugin."""
    try:
        return _PLUGIN in Path("/proc/self/maps").read_text()
    except OSError:
        return False


def missing() -> dict[str, str]:
    """Load the libraries; return those that are missing, with their packages."""
    packages = {library: package for library, (package, _) in LIBRARIES.items()}
    return {name: package for name, package in packages.items() if not loads(str(_path_in_package(name) or name))}


def _path_in_package(library: str) -> Path | None:
    """Return the path of a library in its package, or None if it is not installed."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        path = Path(folder) / LIBRARIES[library][1] / "lib" / library
        if path.is_file():
            return path
    return None


def loads(library: str) -> bool:
    """Return whether the dynamic linker can load a library."""
    try:
        ctypes.CDLL(library, mode=os.RTLD_LAZY)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _provided_nvcc() -> Iterator[None]:
    """Provide an `nvcc` that prints `_NVCC_RELEASE`, unless CUDA_HOME is set."""
    if os.environ.get("CUDA_HOME"):
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        nvcc = Path(folder) / "bin" / "nvcc"
        nvcc.parent.mkdir()
        nvcc.write_text(f"#!/bin/sh\necho '{_NVCC_RELEASE}'\n")
        nvcc.chmod(0o755)
        os.environ["CUDA_HOME"] = folder
        try:
            yield
        finally:
            del os.environ["CUDA_HOME"]


def driver_version() -> str | None:
    """Return the CUDA release that the driver supports, such as "12.4"."""
    version = ctypes.c_int()
    try:
        code = ctypes.CDLL(DRIVER).cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if code else f"{version.value // 1000}.{version.value % 1000 // 10}"


def cards() -> list[Card]:
    """Return the GPUs that the driver finds."""
    try:
        driver = ctypes.CDLL(DRIVER)
        count = ctypes.c_int()
        if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
            return []
        return [_card(driver, index) for index in range(count.value)]
    except (OSError, AttributeError):
        return []


def _card(driver: ctypes.CDLL, index: int) -> Card:
    name, device = ctypes.create_string_buffer(128), ctypes.c_int()
    driver.cuDeviceGet(ctypes.byref(device), index)
    driver.cuDeviceGetName(name, len(name), device)
    numbers = [ctypes.c_int(), ctypes.c_int()]
    for number, attribute in zip(numbers, _CAPABILITY, strict=True):
        driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
    return Card(name.value.decode(errors="replace"), (numbers[0].value, numbers[1].value))
