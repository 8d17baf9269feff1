"""Test which of the internals that the trainer uses this MindSpore lacks."""

from __future__ import annotations

from collections.abc import Callable

import mindspore
import numpy as np
from mindspore import nn

from . import VARIABLE, public_only
from .compilation import compilations_are_short
from .cpu_kernels import can_plan_for_one_core, is_known_onednn
from .execution import compiled
from .pipelines import shuffles_as_expected
from .shared_memory import try_view


def differences() -> list[str]:
    """Return a sentence for each missing internal; runs a graph and a pipeline."""
    if public_only():
        return [f"{VARIABLE} is set: only public functions of MindSpore are used"]
    abilities: dict[str, Callable[[], bool]] = {
        "`Trainer(deterministic=True)` is refused: its oneDNN has no setting of threads": can_plan_for_one_core,
        "convolutions on AVX-512 were not measured (`ONEDNN_MAX_CPU_ISA=AVX2` may be faster)": is_known_onednn,
        "compiled programs are run by MindSpore's own lookup: 0.3 ms more per call": _runs_by_name,
        "programs take longer to compile": compilations_are_short,
        "values of parameters are copied: rows of sparse tables twice more per call": try_view,
        "shuffled arrays are read row by row": shuffles_as_expected,
    }
    return [sentence for sentence, is_available in abilities.items() if not is_available()]


def _runs_by_name() -> bool:
    return compiled(nn.ReLU(), (mindspore.Tensor(np.ones(2, np.float32)),))[1] is not None
