"""Networks that take a batch as one dict: `construct(self, batch)`.

The network declares the keys of the dict in its attribute `batch_keys`.

This module relies on graph code being able to build a dict with constant keys. The program's inputs are still tensors.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

from mindspore import nn

from ..checks import refuse
from ..errors import ConfigurationError

ATTRIBUTE = "batch_keys"


def batch_keys(network: nn.Cell | type[nn.Cell]) -> tuple[str, ...]:
    """Return the keys of the dict that `network` takes; empty if it takes tensors.

    Raises:
        ConfigurationError: the attribute is not a tuple or list of strings, or `construct` requires several arguments.
    """
    kind: Any = network if isinstance(network, type) else type(network)
    attributes = {} if kind is network else vars(network)
    # `getattr` on a cell without the attribute is slow.
    if not (ATTRIBUTE in attributes or hasattr(kind, ATTRIBUTE) or kind.__getattr__ is not nn.Cell.__getattr__):
        return ()
    declared = getattr(network, ATTRIBUTE, None)
    if declared is None:
        return ()
    if not isinstance(declared, tuple | list) or not declared or not all(isinstance(key, str) for key in declared):
        accepted = "the names of the columns in its dict, as ('user', 'item')"
        refuse(f"network: {kind.__name__}.{ATTRIBUTE}", accepted, declared)
    parameters = list(inspect.signature(kind.construct).parameters.values())[1:]
    required = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    if len(required) != 1 or parameters.index(required[0]) != 0:
        raise ConfigurationError(
            f"network: {kind.__name__}.{ATTRIBUTE} is for a network whose construct requires one argument, a dict"
        )
    return tuple(dict.fromkeys(declared))


def require_declared_keys(network: nn.Cell) -> None:
    """Refuse a network that indexes its input by name but declares no `batch_keys`.

    Inspects the bytecode of `construct`, because MindSpore's error for such an index names neither the network nor the
    missing attribute.
    """
    kind = type(network)
    construct = inspect.unwrap(kind.construct)
    if batch_keys(network) or not inspect.isfunction(construct):
        return
    argument, keys = _subscripts(construct.__code__)
    if keys:
        raise ConfigurationError(
            f"network: {kind.__name__}.construct reads {keys[0]!r} of {argument!r} by name, and receives tensors by "
            f"position; name the columns of its dict: {kind.__name__}.{ATTRIBUTE} = {keys}"
        )


@lru_cache(maxsize=64)  # reading the bytecode takes as long as a small prediction
def _subscripts(code: CodeType) -> tuple[str | None, tuple[str, ...]]:
    """Return a method's first argument and the constant strings that index it."""
    argument = next(iter(code.co_varnames[1 : code.co_argcount]), None)
    steps = [(step.opname.partition("_CHECK")[0], step.argval) for step in dis.get_instructions(code)]
    if ("STORE_FAST", argument) in steps:  # the name is assigned another value
        return argument, ()
    keys = [
        key
        for loaded, (name, key), (index, _) in zip(steps, steps[1:], steps[2:], strict=False)
        if loaded == ("LOAD_FAST", argument) and (name, index) == ("LOAD_CONST", "BINARY_SUBSCR") and type(key) is str
    ]
    return argument, tuple(dict.fromkeys(keys))


class DictNetwork(nn.Cell):
    """Passes the columns to a network as a dict."""

    def __init__(self, network: nn.Cell, keys: Sequence[str]) -> None:
        super().__init__(auto_prefix=False)
        self.network = network
        self.keys = tuple(keys)

    def construct(self, *columns):
        """Return the network's output."""
        return self._apply_network(columns)

    def _apply_network(self, columns):
        return self.network({key: columns[index] for index, key in enumerate(self.keys)})


def by_position(network: nn.Cell) -> nn.Cell:
    """Return a cell that takes columns by position: `network` or a `DictNetwork`."""
    keys = batch_keys(network)
    return DictNetwork(network, keys) if keys else network
