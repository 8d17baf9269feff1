"""Networks that take a batch as one dict: `construct(self, batch)`.

Relied on:
- A graph may build a dict with constant keys; the program's inputs stay tensors.
- The source of `construct` can be read, because MindSpore compiles from it.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from mindspore import nn

from ..checks import refuse
from ..errors import ConfigurationError

ATTRIBUTE = "batch_keys"
_known: weakref.WeakKeyDictionary[Any, tuple[str, ...]] = weakref.WeakKeyDictionary()  # asked several times per call


def batch_keys(network: nn.Cell | type[nn.Cell]) -> tuple[str, ...]:
    """Return the dict keys that `network` reads; empty if it takes tensors.

    They are the keys in the source of `construct`, in order, and of the methods and cells that it passes the dict to.
    The network's attribute ``batch_keys`` overrides them.

    Raises:
        ConfigurationError: the attribute is no tuple or list of texts, or `construct` requires several arguments.
    """
    kind: Any = network if isinstance(network, type) else type(network)
    construct, own = kind.construct, {} if kind is network else vars(network)
    declared = None
    # otherwise the cell itself is not asked: a miss there is slow
    if ATTRIBUTE in own or hasattr(kind, ATTRIBUTE) or kind.__getattr__ is not nn.Cell.__getattr__:
        declared = getattr(network, ATTRIBUTE, None)
    if declared is None:
        if network not in _known:
            _known[network] = _keys_read(network, construct, 0, frozenset())
        return _known[network]
    if not isinstance(declared, tuple | list) or not declared or not all(isinstance(key, str) for key in declared):
        wanted = "the names of the columns in its dict, as ('user', 'item')"
        refuse(f"network: {kind.__name__}.{ATTRIBUTE}", wanted, declared)
    if _dict_argument(construct, 0) is None:
        raise ConfigurationError(
            f"network: {kind.__name__}.{ATTRIBUTE} is for a network whose construct requires one argument, a dict"
        )
    return tuple(dict.fromkeys(declared))


class DictNetwork(nn.Cell):
    """Pass a network its columns as a dict."""

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


def _keys_read(owner: Any, function: Callable[..., Any], position: int, visited: frozenset[Any]) -> tuple[str, ...]:
    """Return the keys that a method reads of its argument number `position`."""
    name = _dict_argument(function, position) if not visited else _argument(function, position)
    if name is None or (id(owner), function) in visited:
        return ()
    visited |= {(id(owner), function)}
    keys: dict[str, None] = {}
    for read in _reads(function, name):
        if isinstance(read, str):
            keys[read] = None
            continue
        attribute, at = read
        callee = _attribute(owner, attribute)
        if isinstance(callee, nn.Cell):
            if not type(callee).__module__.startswith("mindspore."):
                keys |= dict.fromkeys(_keys_read(callee, type(callee).construct, at, visited))
        elif inspect.isfunction(callee):
            keys |= dict.fromkeys(_keys_read(owner, callee, at, visited))
    return tuple(keys)


def _attribute(owner: Any, name: str) -> Any:
    """Return a cell, or a method of the class of `owner` as a function."""
    kind = owner if isinstance(owner, type) else type(owner)
    cell = None if isinstance(owner, type) else nn.Cell.name_cells(owner).get(name)
    return cell if cell is not None else inspect.getattr_static(kind, name, None)


@functools.lru_cache(maxsize=256)
def _dict_argument(construct: Callable[..., Any], position: int) -> str | None:
    """Return the name of the argument of a `construct` that requires only one."""
    parameters = list(inspect.signature(construct).parameters.values())[1:]
    required = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    return None if len(required) != 1 else _argument(construct, position)


def _argument(function: Callable[..., Any], position: int) -> str | None:
    parameters = list(inspect.signature(function).parameters.values())[1:]
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return positional[position] if position < len(positional) else None


@functools.lru_cache(maxsize=256)
def _reads(function: Callable[..., Any], name: str) -> tuple[str | tuple[str, int], ...]:
    """Return the results of `_read` for a function's source, in order."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, TypeError, SyntaxError):  # a function without a source
        return ()
    ends = [_end(node) for node in ast.walk(tree) if isinstance(node, ast.Assign) and _assigns(node, name)]
    last = min(ends, default=(1 << 30, 0))  # later the name has another value
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.expr) and _end(node) <= last]
    nodes.sort(key=lambda node: (node.lineno, node.col_offset))
    return tuple(read for node in nodes if (read := _read(node, name)) is not None)


def _assigns(node: ast.Assign, name: str) -> bool:
    return any(isinstance(part, ast.Name) and part.id == name for target in node.targets for part in ast.walk(target))


def _end(node: Any) -> tuple[int, int]:
    return getattr(node, "end_lineno", 0), getattr(node, "end_col_offset", 0)


def _read(node: ast.AST, name: str) -> str | tuple[str, int] | None:
    """Return the key that a node reads, or the self attribute that gets the dict."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _is(node.value, name):
        return _text(node.slice)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    if _is(node.func.value, name):
        return _text(node.args[0]) if node.func.attr == "get" and node.args else None
    if _is(node.func.value, "self"):
        return next(((node.func.attr, at) for at, value in enumerate(node.args) if _is(value, name)), None)
    return None


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _text(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
