"""The device that runs the graphs, described by its abilities.

Only this module asks MindSpore for the device; other code reads an ability of `current()`. docs/devices.md has the same
table of abilities, with the date on which each device was last tested.

This module relies on the following behaviour of MindSpore:
- `get_context("device_target")` names the device. By default MindSpore selects a GPU or an Ascend whose plugin loads.
- `mindspore.set_device` can change the device until the first operator runs. `DeviceManagerConf` records that call, but
  does not record `set_context(device_target=...)`.
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
    runs_python: bool  # it runs operators written in Python (kernels of sparse tables, sums over processes)
    has_bfloat16: bool  # it has matrix products in bfloat16
    lowers_batch_norm: bool  # BatchNorm accepts scale and statistics in float16, in evaluation too
    has_overflow_status: bool  # it has the operators of MindSpore's own overflow check
    has_all_finite: bool  # it has a kernel for `amp.all_finite`
    trains_with_mint: bool  # `mint.optim` updates the weights
    fast_max_pooling: bool  # the gradient of MaxPool is fast enough and is not replaced
    uses_onednn: bool  # convolutions run in oneDNN
    times_operators: bool  # MindSpore's profiler reports the time of each operator
    keeps_programs_apart: bool  # a second live training program does not change values of the first
    repeats_sums: bool  # equal trainings give the same bits, because every operator adds in a fixed order
    automatic_steps: int  # maximum steps per call that sink_size=-1 chooses


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
CHOICES = {**{name.lower(): name for name in DEVICES}, "auto": None}  # value of `device=` -> MindSpore's name


def current() -> Device:
    """Return the device that runs the graphs of this process."""
    return DEVICES[mindspore.get_context("device_target")]


def choose(name: str | None) -> Device:
    """Return the device of a Trainer; set MindSpore's device if `name` is another one.

    MindSpore runs all graphs of a process on one device, so the choice holds until the process ends.

    Args:
        name: "cpu", "gpu" or "ascend"; "auto" for the device that MindSpore has selected; None for the device that the
            user set by `mindspore.set_device`, or else for the CPU.

    Raises:
        ConfigurationError: `name` is None and MindSpore has selected another device than the CPU by itself, the device
            does not exist here, or another device has already run operators.
    """
    device = current()
    target = CHOICES[choice("device", name, CHOICES, optional=True) or "auto"]
    if target is not None:
        return device if target == device.name else _change(device.name, target)
    if device.name == CPU.name or _is_set():
        return device
    if name is None:
        raise ConfigurationError(
            f"device: MindSpore has selected the {device.name} by itself; pass device="
            f"{device.name.lower()!r} to train on it, device='cpu', or device='auto' for the device that MindSpore "
            "selects (a choice by mindspore.set_device counts too; one by set_context cannot be recognized)"
        )
    logger.warning("device='auto': training on the %s, which MindSpore has selected", device.name)
    return device


def _is_set() -> bool:
    """Return whether the user called `mindspore.set_device`."""
    try:
        from mindspore._c_expression import DeviceManagerConf

        return DeviceManagerConf.get_instance().is_device_enable()
    except (ImportError, AttributeError):
        return False


def _change(previous: str, target: str) -> Device:
    if _trains_on:  # MindSpore would also change the device of existing programs
        raise ConfigurationError(f"device={target.lower()!r}: {_TOO_LATE}")
    try:
        mindspore.set_device(target)
    except (RuntimeError, ValueError) as error:
        mindspore.set_context(device_target=previous)  # a failed `set_device` has changed it
        raise ConfigurationError(f"device={target.lower()!r}: {_reason(target, str(error))}") from None
    return DEVICES[target]


def _reason(target: str, message: str) -> str:
    if "Unsupported device target" not in message:
        return _TOO_LATE
    reason = "MindSpore has no such device here"
    if target == GPU.name and (missing := gpu_libraries.missing()):
        reason += f": {', '.join(missing)} cannot be loaded"
    return f"{reason}; `trainer doctor` lists what is missing"


def check_sparse_tables(names: Any) -> None:
    """Refuse sparse tables on a device that is known to compute wrong values for them.

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
    """Record that `owner` is about to compile a training program.

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
