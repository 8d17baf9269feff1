"""Lists the models and their options as text."""

from __future__ import annotations

import inspect
import sys

from . import MODELS


def describe() -> str:
    """Return the name and paper of each model, followed by its options with defaults."""
    models = sys.modules[__package__]
    lines = []
    for name, class_name in MODELS.items():
        model = getattr(models, class_name)
        paper = (inspect.getmodule(model).__doc__ or "").splitlines()[0]
        lines += [f"{name:<10} {paper}", f"{'':<10} options: {', '.join(_options(model)) or 'none'}"]
    return "\n".join(lines)


def _options(model: type) -> list[str]:
    parameters = inspect.signature(model).parameters.values()
    return [
        option.name if option.default is option.empty else f"{option.name}={_default(option.default)}"
        for option in parameters
        if option.name != "features"
    ]


def _default(value: object) -> str:
    return repr(list(value) if isinstance(value, tuple) else value)
