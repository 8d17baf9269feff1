"""What each section of an experiment may hold, as the real classes tell: nothing about `Trainer` is repeated here."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import ConfigurationError
from .signature import Signature, real_signature

_ELSEWHERE: dict[str, dict[str, str]] = {
    "trainer": {
        "network": "section network",
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


def supplied_names(section: str, signature: Signature | None) -> frozenset[str]:
    """Return the arguments of an object of `section` that are filled in with what other sections made."""
    if section == "optimizer" and signature is None:
        return frozenset({"params"})
    # a function that builds an optimizer may ask for the network instead of its parameters, to group them
    filled = {"optimizer": {"params", "network"}, "eval_network": {"network", "loss_fn"}}.get(section, set())
    return frozenset(filled & set(signature.parameters)) if signature is not None else frozenset()


def trainer_problems(keywords: Mapping[str, Any]) -> dict[str, str]:
    """Return what is wrong with values of the section `trainer` that need no network to judge: message by key."""
    from ..graph import precision

    level, dtype = keywords.get("amp_level", "O0"), keywords.get("amp_dtype", "float16")
    if not isinstance(level, str) or not isinstance(dtype, str):
        return {}
    try:
        precision.resolve(level, dtype)
    except ConfigurationError as error:
        key, _, message = str(error).partition(": ")
        return {key.partition("=")[0]: message}
    return {}


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
