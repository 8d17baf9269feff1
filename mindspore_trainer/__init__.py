"""The public names of `trainer` under a second package name.

    from mindspore_trainer import Trainer

Importing it raises ImportError if a file of the user hides the package `trainer` or `callbacks`; the message names the
file.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer import *  # noqa: F403

for _package in ("trainer", "callbacks"):
    _spec = find_spec(_package)
    _found = Path((_spec and _spec.origin) or "nothing").resolve()
    if _found != Path(__file__).resolve().parents[1] / _package / "__init__.py":
        raise ImportError(
            f"import {_package} finds {_found}, which hides the package of that name; rename that file and whatever "
            f"imports it, for example to my_{_package}.py"
        )


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name != "__version__":  # attributes that the import system looks up
        raise AttributeError(name)
    return getattr(import_module("trainer"), name)
