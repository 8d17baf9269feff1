"""What each section of an experiment may hold, as the real classes tell: nothing about `Trainer` is repeated here."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .. import checks
from ..errors import ConfigurationError
from .signature import Signature, real_signature

_ELSEWHERE: dict[str, dict[str, str]] = {
    "trainer": {
        "network": "section network",
        "features": "section features",
        "loss_fn": "section loss",
        "optimizer": "section optimizer",
        "metrics": "section metrics",
        "seed": "key seed",
        "run_dir": "key run_dir",
    },
    "fit": {
        "train_dataset": "data.train",
        "valid_dataset": "data.valid",
        "callbacks": "section callbacks",
        "resume": "trainer fit --resume RUN",
    },
    "online": {
        "stream": "data.stream",
        "callbacks": "section callbacks",
        "resume": "trainer online --resume RUN",
    },
}
_METHODS = {"trainer": "__init__", "fit": "fit", "online": "online_train"}


@functools.cache
def section_signature(section: str) -> tuple[Signature, Mapping[str, str]]:
    """Return the signature behind a section of keyword arguments, and where the arguments it may not hold are given.

    Args:
        section: "trainer", "fit" or "online".
    """
    from ..trainer import Trainer

    target = Trainer if section == "trainer" else inspect.unwrap(getattr(Trainer, _METHODS[section]))
    signature = real_signature(target)
    assert signature is not None
    parameters = {name: p for name, p in signature.parameters.items() if name != "self"}
    return replace(signature, name=f"section {section}", parameters=parameters), _ELSEWHERE[section]


def supplied_names(section: str, signature: Signature | None, *, features: bool = False) -> frozenset[str]:
    """Return the arguments of an object of `section` that are filled in with what other sections made.

    Args:
        section: the section.
        signature: that of the object's class, or None.
        features: whether there is a section `features`, which networks may ask for.
    """
    if section == "optimizer" and signature is None:
        return frozenset({"params"})
    # a function that builds an optimizer may ask for the network instead of its parameters, to group them
    if section == "network":
        return (
            frozenset({"features"} & set(signature.parameters)) if features and signature is not None else frozenset()
        )
    filled = {"optimizer": {"params", "network"}, "eval_network": {"network", "loss_fn"}}.get(section, set())
    return frozenset(filled & set(signature.parameters)) if signature is not None else frozenset()


def trainer_problems(keywords: Mapping[str, Any]) -> dict[str, str]:
    """Return what is wrong with values of the section `trainer` that need no network to judge: message by key."""
    from ..graph import precision
    from ..metrics.predictions import check_activation

    key, activation = "prediction_activation", keywords.get("prediction_activation")
    if isinstance(activation, str):
        try:
            check_activation(key, activation)
        except ConfigurationError as error:
            return {key: str(error).removeprefix(f"{key} ")}
    level, dtype = keywords.get("amp_level", "O0"), keywords.get("amp_dtype", "float16")
    if not isinstance(level, str) or not isinstance(dtype, str):
        return {}
    try:
        precision.resolve(level, dtype)
    except ConfigurationError as error:
        key, _, message = str(error).partition(": ")
        return {key.partition("=")[0]: message}
    return {}


_above_zero = functools.partial(checks.number, above=0, optional=True)
_whole = functools.partial(checks.whole, optional=True)
_RANGES: dict[str, Callable[[str, Any], Any]] = {
    "epochs": _whole,
    "batch_size": _whole,
    "max_steps": _whole,
    "gradient_accumulation_steps": _whole,
    "max_seconds": _above_zero,
    "idle_timeout": functools.partial(checks.number, least=0, optional=True),
    "clip_norm": _above_zero,
    "clip_value": _above_zero,
}


def value_problems(keywords: Mapping[str, Any]) -> dict[str, str]:
    """Return which numbers of a section are out of range: message by key."""
    problems = {}
    for name in _RANGES.keys() & keywords.keys():
        if checks.is_number(keywords[name]):  # what is no number is refused by type
            try:
                _RANGES[name](name, keywords[name])
            except ConfigurationError as error:
                problems[name] = str(error).removeprefix(f"{name} ")
    return problems


@functools.cache
def known_metrics() -> tuple[str, ...]:
    """Return the names that `Trainer(metrics=...)` knows."""
    from ..metrics import metric_names

    return tuple(metric_names())


def metric_known(name: str) -> bool:
    """Return whether `name` is that of a metric, of a metric by column ("gauc/user"), or of a task's ("click_auc")."""
    from ..metrics import get_metrics

    if name in known_metrics():
        return True
    words = name.split("_")
    for start in range(len(words)):  # what stands before is the name of a task, which the loss knows
        try:
            get_metrics(["_".join(words[start:])])
        except ConfigurationError:
            continue
        return True
    return False


# Values that arguments may need; everything else of the standard library acts on the machine or is no object of ours.
_VALUE_MODULES = frozenset({"collections", "datetime", "decimal", "fractions", "pathlib", "zoneinfo"})
_UNTELLING = (object, typing.Any, inspect.Signature.empty)


@dataclass(frozen=True)
class Kind:
    """What a section takes.

    Attributes:
        name: for messages: "a callbacks.Callback or a mindspore.train.Callback".
        fits: whether objects of a class are of this kind.
        examples: classes of this kind; a function that returns a base of them may return one.
    """

    name: str
    fits: Callable[[type], bool]
    examples: tuple[type, ...] = ()


@functools.cache
def kind_of_section(section: str) -> Kind | None:
    """Return what a section takes, or None where anything may serve (arguments of other objects)."""
    if section == "data":
        return Kind("a dataset, a stream or another source of batches", _is_data)
    if section == "report":
        return Kind("an object to call as report(trainer, run_dir)", lambda made: _has(made, "__call__"))
    if section not in ("network", "eval_network", "loss", "optimizer", "metrics", "callbacks"):
        return None
    import mindspore.train
    from mindspore import nn

    from callbacks import Callback

    if section == "optimizer":
        return Kind("an optimizer", _is_optimizer, (nn.Optimizer,))
    if section == "metrics":
        return Kind("a metric: one has update and eval, or update and value", _is_metric, (mindspore.train.Metric,))
    if section == "callbacks":
        accepted = {"callbacks.Callback": Callback, "mindspore.train.Callback": mindspore.train.Callback}
        classes = tuple(accepted.values())
        return Kind(f"a {' or a '.join(accepted)}", lambda made: issubclass(made, classes), classes)
    if section == "loss":
        return Kind("a loss: a mindspore.nn.Cell, or a function of outputs and labels", _is_loss, (nn.Cell,))
    fits = lambda made: issubclass(made, nn.Cell) and not issubclass(made, nn.Optimizer)  # noqa: E731
    return Kind("a mindspore.nn.Cell other than an optimizer", fits, (nn.Cell,))


def wrong_kind(target: Any, class_path: str, section: str) -> str:
    """Return why `target` cannot make the object of a section ("" for an argument), or an empty string.

    Classes are judged by what they are, functions by their return annotation; a function without one is called, and
    what it returns judged, unless it is Python's own.
    """
    if not callable(target):
        return "names a value, not a class or a function"
    library = _standard_library(target, class_path)
    if library and not (section == "" and library in _VALUE_MODULES):
        return (
            f"is Python's own ({library}), no part of an experiment; what an experiment is made of comes from "
            "MindSpore, this package, other packages, or modules of yours"
        )
    kind = kind_of_section(section)
    if kind is None:
        return ""
    if isinstance(target, type):
        return "" if kind.fits(target) else f"is not {kind.name}"
    returned = _returned(target)
    if returned is None or any(_may_be(part, kind) for part in _parts(returned)):
        return ""
    return f"returns {getattr(returned, '__name__', returned)}, which is not {kind.name}"


def wrong_result(made: Any, section: str) -> str:
    """Return what is wrong with an object that was made for a section, or an empty string."""
    kind = kind_of_section(section)
    if kind is None or kind.fits(type(made)) or (section == "optimizer" and _is_cell(type(made))):
        return ""
    return f"which is not {kind.name}"


def _standard_library(target: Any, class_path: str) -> str:
    """Return the module of the standard library that `target` is from, or an empty string."""
    while isinstance(target, functools.partial):
        target = target.func
    if inspect.ismethod(target):  # of a class or an object
        owner = target.__self__
        target = owner if isinstance(owner, type) else type(owner)
    homes = [class_path.partition(".")[0], (getattr(target, "__module__", None) or "builtins").partition(".")[0]]
    return next((home for home in homes if home in sys.stdlib_module_names), "")


def _returned(function: Any) -> Any:
    """Return what `function` says it returns, or None when it does not."""
    annotation: Any = inspect.Signature.empty
    with contextlib.suppress(Exception):  # names that exist for type checkers only
        annotation = typing.get_type_hints(inspect.unwrap(function)).get("return", annotation)
    return None if annotation in _UNTELLING else annotation


def _parts(annotation: Any) -> tuple[Any, ...]:
    arguments = typing.get_args(annotation)
    united = typing.get_origin(annotation) is typing.Union or type(annotation).__name__ == "UnionType"
    return tuple(part for argument in arguments for part in _parts(argument)) if united else (annotation,)


def _may_be(annotation: Any, kind: Kind) -> bool:
    """Return whether an object of the annotated type may be of the kind: the type is, or is a base of what is."""
    made = typing.get_origin(annotation) or annotation
    if not isinstance(made, type) or made is object or getattr(made, "_is_protocol", False):
        return True
    return kind.fits(made) or any(issubclass(example, made) for example in kind.examples)


def _has(made: type, *names: str) -> bool:
    # not by getattr, which finds the methods of the class's own class too
    return all(any(vars(base).get(name) is not None for base in made.__mro__) for name in names)


def _is_cell(made: type) -> bool:
    from mindspore import nn

    return issubclass(made, nn.Cell)


def _is_loss(made: type) -> bool:
    from mindspore import nn

    return _has(made, "__call__") and not issubclass(made, nn.Optimizer | type)


def _is_optimizer(made: type) -> bool:
    from mindspore import nn
    from mindspore.experimental import optim

    if issubclass(made, nn.Optimizer | optim.Optimizer):
        return True
    signature = real_signature(made) if _is_cell(made) else None
    takes = set(signature.parameters) if signature is not None else set()
    return bool(takes & {"params", "parameters", "network"})


def _is_metric(made: type) -> bool:
    return _has(made, "update") and (_has(made, "eval") or _has(made, "value") or _has(made, "compute"))


def _is_data(made: type) -> bool:
    from callbacks import Callback

    if issubclass(made, str | bytes | Callback) or _is_cell(made):
        return False
    readers = ("__iter__", "__getitem__", "__call__", "create_dict_iterator", "create_tuple_iterator", "poll")
    return any(_has(made, name) for name in readers)
