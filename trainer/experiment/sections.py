"""What each section of an experiment may hold, as the real classes tell: nothing about `Trainer` is repeated here."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
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
_VALUES: dict[str, Callable[[str, Any], Any]] = {
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
    for name in _VALUES.keys() & keywords.keys():
        if checks.is_number(keywords[name]):  # what is no number is refused by type
            try:
                _VALUES[name](name, keywords[name])
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
