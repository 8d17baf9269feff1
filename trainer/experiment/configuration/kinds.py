"""Define which objects a section accepts, and which arguments others supply."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...errors import ConfigurationError
from .arguments import UNKNOWN, Signature, real_signature


def supplied_names(section: str, signature: Signature, *, features: bool = False) -> set[str]:
    """Return the arguments of a section's object that other sections supply.

    Args:
        features: whether the experiment has a section `features`, which is supplied to the network.
    """
    if signature is UNKNOWN:
        return {"params"} if section == "optimizer" else set()
    supplied = {
        "network": {"features"} if features else set(),
        # a function that builds an optimizer may take the network, to group its parameters
        "optimizer": {"params", "network"},
        "eval_network": {"network", "loss_fn"},
    }
    return supplied.get(section, set()) & set(signature.parameters)


@functools.cache
def known_metrics() -> tuple[str, ...]:
    """Return the metric names that `Trainer(metrics=...)` accepts."""
    from ...metrics import metric_names

    return tuple(metric_names())


def is_metric_name(name: str) -> bool:
    """Return whether `name` is a metric, including "gauc/user" and "click_auc"."""
    from ...metrics import get_metrics

    if name in known_metrics():
        return True
    words = name.split("_")
    for start in range(len(words)):  # the words before `start` may be a task; only the loss knows its tasks
        with contextlib.suppress(ConfigurationError):
            get_metrics(["_".join(words[start:])])
            return True
    return False


# The only standard library modules whose objects a configuration may create: plain values without side effects.
_VALUE_MODULES = frozenset({"collections", "datetime", "decimal", "fractions", "pathlib", "zoneinfo"})


@dataclass(frozen=True)
class Kind:
    """The kind of object a section takes."""

    name: str  # used in messages, such as "an optimizer"
    fits: Callable[[type], bool]


@functools.cache
def kind_of_section(section: str) -> Kind | None:
    """Return the kind of object that a section takes; None for any object."""
    if section == "data":
        return Kind("a dataset, a stream or another source of batches", _is_data)
    if section == "report":
        return Kind("an object to call as report(trainer, run_dir)", lambda cls: _defines(cls, "__call__"))
    if section not in ("network", "eval_network", "loss", "optimizer", "metrics", "callbacks"):
        return None
    import mindspore.train
    from mindspore import nn

    from callbacks import Callback

    if section == "optimizer":
        return Kind("an optimizer", _is_optimizer)
    if section == "metrics":
        return Kind("a metric: one has update and eval, or update and value", _is_metric)
    if section == "callbacks":
        accepted = {"callbacks.Callback": Callback, "mindspore.train.Callback": mindspore.train.Callback}
        classes = tuple(accepted.values())
        return Kind(f"a {' or a '.join(accepted)}", lambda cls: issubclass(cls, classes))
    if section == "loss":
        return Kind("a loss: a mindspore.nn.Cell, or a function of outputs and labels", _is_loss)
    fits = lambda cls: issubclass(cls, nn.Cell) and not issubclass(cls, nn.Optimizer)  # noqa: E731
    return Kind("a mindspore.nn.Cell other than an optimizer", fits)


def wrong_kind(target: Any, class_path: str, section: str) -> str:
    """Return why `target` cannot create a section's object, or an empty string.

    For a function, only its module is checked here; `wrong_result` checks the returned object later.
    """
    if not callable(target):
        return "names a value, not a class or a function"
    library = _standard_library(target, class_path)
    if library and not (section == "" and library in _VALUE_MODULES):
        return (
            f"is Python's own ({library}), which an experiment may not use; it takes classes and functions of "
            "MindSpore, of this package, of other packages and of your own modules"
        )
    kind = kind_of_section(section)
    if kind is None or not isinstance(target, type) or kind.fits(target):
        return ""
    return f"is not {kind.name}"


def wrong_result(result: Any, section: str) -> str:
    """Return the problem with an object created for a section, or an empty string."""
    kind = kind_of_section(section)
    if kind is None or kind.fits(type(result)) or (section == "optimizer" and _is_cell(type(result))):
        return ""
    return f"which is not {kind.name}"


def _standard_library(target: Any, class_path: str) -> str:
    """Return the standard library module that defines `target`, or an empty string."""
    while isinstance(target, functools.partial):
        target = target.func
    if inspect.ismethod(target):  # a class or instance method
        owner = target.__self__
        target = owner if isinstance(owner, type) else type(owner)
    modules = [class_path.partition(".")[0], (getattr(target, "__module__", None) or "builtins").partition(".")[0]]
    return next((module for module in modules if module in sys.stdlib_module_names), "")


def _defines(cls: type, *names: str) -> bool:
    # `getattr` would also find methods of the metaclass, such as `type.__call__`
    return all(any(vars(base).get(name) is not None for base in cls.__mro__) for name in names)


def _is_cell(cls: type) -> bool:
    from mindspore import nn

    return issubclass(cls, nn.Cell)


def _is_loss(cls: type) -> bool:
    from mindspore import nn

    return _defines(cls, "__call__") and not issubclass(cls, nn.Optimizer | type)


def _is_optimizer(cls: type) -> bool:
    from mindspore import nn
    from mindspore.experimental import optim

    if issubclass(cls, nn.Optimizer | optim.Optimizer):
        return True
    return _is_cell(cls) and not real_signature(cls).parameters.keys().isdisjoint(("params", "parameters", "network"))


def _is_metric(cls: type) -> bool:
    return _defines(cls, "update") and (_defines(cls, "eval") or _defines(cls, "value") or _defines(cls, "compute"))


def _is_data(cls: type) -> bool:
    from callbacks import Callback

    from ...features.raw_rows import RawData

    if issubclass(cls, RawData):
        return True
    if issubclass(cls, str | bytes | Callback) or _is_cell(cls):
        return False
    readers = ("__iter__", "__getitem__", "__call__", "create_dict_iterator", "create_tuple_iterator", "poll")
    return any(_defines(cls, name) for name in readers)
