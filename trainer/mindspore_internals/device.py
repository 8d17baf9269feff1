"""The device that runs the graphs, as one object with named abilities.

No other module asks MindSpore which device it is: code asks `current()` for an ability. docs/devices.md has the same
table, with the date on which each device was last seen.

Relied on:
- `get_context("device_target")` names the device. MindSpore takes a GPU or an Ascend unasked if the plugin loads.
- `mindspore.set_device` changes the device until the first operator runs, and leaves a trace in `DeviceManagerConf`;
  `set_context(device_target=...)` leaves none.
"""

from __future__ import annotations

import logging
import os
import weakref
from dataclasses import dataclass
from typing import Any

import mindspore

from ..checks import choice
from ..errors import ConfigurationError
from . import gpu_libraries

logger = logging.getLogger(__name__)

UNSAFE = "TRAINER_UNSAFE_GPU"
_TOO_LATE = (
    "this process already runs on another device; make the Trainer, or call mindspore.set_device, before anything is "
    "computed"
)


@dataclass(frozen=True)
class Device:
    """Abilities of a kind of device."""

    name: str  # MindSpore's `device_target`
    auto_level: str  # the level that amp_level="auto" selects
    shares_memory: bool  # `Parameter.asnumpy()` is the memory that operators use, and reading an output is cheap
    runs_python: bool  # operators written in Python: kernels of sparse tables, sums over processes
    has_bfloat16: bool  # matrix products in bfloat16
    lowers_batch_norm: bool  # BatchNorm with scale and statistics in float16, in evaluation too
    has_overflow_status: bool  # the operators of MindSpore's own overflow check
    has_all_finite: bool  # a kernel for `amp.all_finite`
    trains_with_mint: bool  # `mint.optim` updates the weights
    fast_max_pooling: bool  # the gradient of MaxPool needs no replacement
    uses_onednn: bool  # convolutions run in oneDNN
    times_operators: bool  # MindSpore's profiler gives the time of each operator
    keeps_programs_apart: bool  # a second live training program does not change values of the first
    repeats_sums: bool  # two equal trainings give the same bits: every operator adds in a fixed order
    automatic_steps: int  # the most steps per call that sink_size=-1 chooses


CPU = Device(
    name="CPU",
    auto_level="O0",
    shares_memory=True,
    runs_python=True,
    has_bfloat16=False,
    lowers_batch_norm=True,
    has_overflow_status=False,
    has_all_finite=False,
    trains_with_mint=False,
    fast_max_pooling=False,
    uses_onednn=True,
    times_operators=True,
    keeps_programs_apart=True,
    repeats_sums=True,
    automatic_steps=32,
)
GPU = Device(
    name="GPU",
    auto_level="O2",
    shares_memory=False,
    runs_python=False,
    has_bfloat16=False,
    lowers_batch_norm=False,
    has_overflow_status=True,
    has_all_finite=True,
    trains_with_mint=True,
    fast_max_pooling=True,
    uses_onednn=False,
    times_operators=False,
    keeps_programs_apart=False,
    repeats_sums=False,
    automatic_steps=1,
)
ASCEND = Device(
    name="Ascend",
    auto_level="O3",
    shares_memory=False,
    runs_python=False,
    has_bfloat16=True,
    lowers_batch_norm=True,
    has_overflow_status=True,
    has_all_finite=True,
    trains_with_mint=True,
    fast_max_pooling=True,
    uses_onednn=False,
    times_operators=False,
    keeps_programs_apart=True,
    repeats_sums=True,
    automatic_steps=32,
)
DEVICES = {device.name: device for device in (CPU, GPU, ASCEND)}
CHOICES = {**{name.lower(): name for name in DEVICES}, "auto": None}  # MindSpore's name of each


def current() -> Device:
    """Return the device that runs the graphs of this process."""
    return DEVICES[mindspore.get_context("device_target")]


def choose(name: str | None) -> Device:
    """Return the device of a Trainer; set MindSpore's device if `name` is another one.

    The device is the process's: MindSpore runs all graphs of a process on one, so the choice is not undone.

    Args:
        name: "cpu", "gpu", "ascend"; "auto" for the device that MindSpore has taken; None for the one that the user has
            set by `mindspore.set_device`, else the CPU if MindSpore has taken no other.

    Raises:
        ConfigurationError: `name` is None and MindSpore took the device unasked, the device does not exist here, or
            another device has already run operators.
    """
    found = current()
    wanted = CHOICES[choice("device", name, CHOICES, optional=True) or "auto"]
    if wanted is not None:
        return found if wanted == found.name else _change(found.name, wanted)
    if found.name == CPU.name or _is_set():
        return found
    if name is None:
        raise ConfigurationError(
            f"device: MindSpore has taken the {found.name} by itself; pass device={found.name.lower()!r} to train on "
            "it, device='cpu', or device='auto' for the one that MindSpore takes (a choice by "
            "mindspore.set_device counts too; one by set_context cannot be recognized)"
        )
    logger.warning("device='auto': training on the %s, which MindSpore has taken", found.name)
    return found


def _is_set() -> bool:
    """Return whether the user called `mindspore.set_device`."""
    try:
        from mindspore._c_expression import DeviceManagerConf

        return DeviceManagerConf.get_instance().is_device_enable()
    except (ImportError, AttributeError):
        return False


def _change(found: str, wanted: str) -> Device:
    if _trains_on:  # MindSpore would change it, for the programs that exist too
        raise ConfigurationError(f"device={wanted.lower()!r}: {_TOO_LATE}")
    try:
        mindspore.set_device(wanted)
    except (RuntimeError, ValueError) as error:
        mindspore.set_context(device_target=found)  # `set_device` changes it before it fails
        raise ConfigurationError(f"device={wanted.lower()!r}: {_reason(wanted, str(error))}") from None
    return DEVICES[wanted]


def _reason(wanted: str, message: str) -> str:
    if "Unsupported device target" not in message:
        return _TOO_LATE
    reason = "MindSpore has no such device here"
    if wanted == GPU.name and (missing := gpu_libraries.missing()):
        reason += f": {', '.join(missing)} cannot be loaded"
    return f"{reason}; `trainer doctor` lists what is missing"


def check_sparse_tables(names: Any) -> None:
    """Refuse sparse tables where their values are known to be wrong.

    Raises:
        ConfigurationError: the device does not keep programs apart, and `UNSAFE` is not set.
    """
    if names and not current().keeps_programs_apart and not _unsafe():
        raise ConfigurationError(
            f"device={current().name.lower()!r}: sparse tables ({', '.join(names)}) get wrong values on this "
            "device with this MindSpore; use device='cpu', or give the tables a capacity and mode='dense'. "
            f"{UNSAFE}=1 allows them, to debug the cause"
        )


_trains_on: set[str] = set()  # names of the devices that this process has training programs for
_training: list[weakref.ref[Any]] = []  # owners of the training programs of this process


def claim_training(owner: object) -> None:
    """Note that `owner` is about to compile a training program.

    Raises:
        ConfigurationError: another owner is alive, the device does not keep programs apart, and `UNSAFE` is not set.
    """
    _trains_on.add(current().name)
    if current().keeps_programs_apart:
        return
    _training[:] = [other for other in _training if other() is not None]
    if not any(other() is owner for other in _training):
        if _training and not _unsafe():
            raise ConfigurationError(
                f"device={current().name.lower()!r}: two training programs in one process both get wrong values on "
                "this device with this MindSpore; train in a separate process, or delete the first Trainer "
                f"(del trainer; gc.collect()). {UNSAFE}=1 allows it, to debug the cause"
            )
        _training.append(weakref.ref(owner))


def _unsafe() -> bool:
    return os.environ.get(UNSAFE, "0") not in ("", "0")
