"""Grammar for arithmetic over columns; Python parses but never evaluates the text."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from ..errors import ConfigurationError, did_you_mean

MAX_LENGTH = 2000

_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: np.true_divide,
    ast.Mod: np.mod,
    ast.Pow: np.power,
}
_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_UNARY: dict[type, Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: lambda value: value,
    ast.Not: np.logical_not,
}

Columns = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Parsed:
    """A checked expression.

    Attributes:
        names: names of the columns that it reads.
        evaluate: computes its value from float64 columns [N] by name.
    """

    names: tuple[str, ...]
    evaluate: Callable[[Columns], Any]


def parse(text: str, functions: Mapping[str, Callable[..., Any]]) -> Parsed:
    """Parse and check an expression."""
    if not isinstance(text, str) or not text.strip() or len(text) > MAX_LENGTH:
        raise ConfigurationError(f"an expression takes text of 1 to {MAX_LENGTH} characters; received {text!r:.100}")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigurationError(f"expression {text!r:.200}: {getattr(error, 'msg', None) or error}") from None
    names: dict[str, None] = {}
    evaluate = _Compiler(text, functions, names).compile(tree.body)
    if not names:
        raise ConfigurationError(f"expression {text!r:.200} reads no column")
    return Parsed(tuple(names), evaluate)


class _Compiler:
    """Compiles a syntax tree into nested functions of the columns."""

    def __init__(self, text: str, functions: Mapping[str, Callable[..., Any]], names: dict[str, None]) -> None:
        self.text, self.functions, self.names = text, functions, names

    def compile(self, node: ast.expr) -> Callable[[Columns], Any]:
        match node:
            case ast.Constant(value=bool() | int() | float() as value):
                return lambda columns: float(value)
            case ast.Name(id=name):
                self.names[name] = None
                return lambda columns: columns[name]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return self._apply(_BINARY[type(op)], [left, right])
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
                return self._apply(_UNARY[type(op)], [operand])
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
                return self._apply(_COMPARE[type(op)], [left, right])
            case ast.BoolOp(op=op, values=values):
                combine = np.logical_and if isinstance(op, ast.And) else np.logical_or
                return self._apply(lambda *parts: combine.reduce(np.broadcast_arrays(*parts)), values)
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                if name not in self.functions:
                    self._refuse(f"no function {name!r}{did_you_mean(name, self.functions)}")
                count = getattr(self.functions[name], "nin", 3)  # `where`, with 3, is no ufunc
                if len(arguments) != count:  # a ufunc would write its result into a further argument
                    plural = "s" * (count > 1)
                    self._refuse(f"{name} takes {count} argument{plural}, received {len(arguments)}")
                return self._apply(self.functions[name], arguments)
        self._refuse(f"{ast.unparse(node)!r:.60} is not arithmetic")

    def _apply(self, function: Callable[..., Any], arguments: list[ast.expr]) -> Callable[[Columns], Any]:
        parts = [self.compile(argument) for argument in arguments]
        # truth values are the numbers 0 and 1: NumPy would add True and True to True
        return lambda columns: np.asarray(function(*[part(columns) for part in parts]), np.float64)

    def _refuse(self, reason: str) -> NoReturn:
        raise ConfigurationError(
            f"expression {self.text!r:.200}: {reason}; accepted are names of columns, numbers, + - * / % **, "
            f"comparisons, and, or, not, and the functions {', '.join(self.functions)}"
        )
