"""A trainer for MindSpore: finite datasets and endless streams with one loop.

    from trainer import Trainer
    Trainer(net, loss, opt, amp_level="O2").fit(ds)

Importing the package does not import MindSpore; the first use of a name that needs it does.
"""

from __future__ import annotations

import warnings
from importlib import import_module, metadata
from typing import TYPE_CHECKING

import mindspore_trainer as _named  # noqa: F401 - raises an error if a user's file hides a package
from callbacks.lazy_names import declared_imports, lazy_names

if metadata.version("numpy").partition(".")[0] != "1":  # read from the metadata, since importing NumPy may fail
    warnings.warn(
        f"NumPy {metadata.version('numpy')} is installed, and MindSpore's binaries are built against NumPy 1: its "
        "operators fail; to fix this: pip install 'numpy>=1.25,<2' 'pandas>=2.2,<3'",
        RuntimeWarning,
        stacklevel=2,
    )

if TYPE_CHECKING:
    from callbacks import *  # noqa: F403

    from .cadence import Every as Every
    from .compat.model import Model as Model
    from .compat.model import RecModel as RecModel
    from .data.finite.parquet_folder import ParquetFolder as ParquetFolder
    from .graph.multi_task import MultiTaskLoss as MultiTaskLoss
    from .graph.schedules import Schedule as Schedule
    from .metrics.window import Window as Window
    from .run.limits import Limits as Limits
    from .storage.mirror import Mirror as Mirror
    from .trainer import Trainer as Trainer

__version__ = "0.6.0"

import_module(".mindspore_internals.gpu_libraries", __name__).prepare()

_HOMES = declared_imports(__file__)
_HOMES |= dict.fromkeys(set(import_module("callbacks").__all__) - {"HOOKS", "adapt"}, "callbacks")
__all__ = ["__version__", *sorted(_HOMES)]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
