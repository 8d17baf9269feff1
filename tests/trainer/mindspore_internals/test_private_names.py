"""No private name of MindSpore is used outside of the room that is made for them."""

import ast
import functools

import pytest
from mindspore import Parameter, Tensor, nn

from tests.sources import ROOT, trees

# of Python and of confluent_kafka
OTHERS = {
    *("_replace", "_asdict", "_fields", "_exit", "_is_protocol"),
    *("_AUTHENTICATION", "_AUTO_OFFSET_RESET", "_PARTITION_EOF"),
}
UNDOCUMENTED = {"phase_cache", "get_overflow_status", "mindspore.graph.api", "mindspore.common.api"}


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


PRIVATE = {name for thing in (nn.Cell(), Tensor, Parameter) for name in dir(thing) if is_private(name)}


def outside():
    """Return path -> syntax tree of what is not in that room."""
    return {path: tree for path, tree in trees().items() if "mindspore_internals" not in path.parts}


@functools.cache
def own_names():
    """Return the private names that this source defines itself, in classes, by assignment or as functions."""
    names = set()
    for tree in outside().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
    return names


def uses(tree):
    """Yield (line, what) for every use of a private or undocumented name of MindSpore."""
    own = own_names() - PRIVATE | OTHERS
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            on_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if node.attr in UNDOCUMENTED or (not on_self and is_private(node.attr) and node.attr not in own):
                yield node.lineno, node.attr
        elif isinstance(node, ast.Constant) and (node.value in PRIVATE or node.value in UNDOCUMENTED):
            yield node.lineno, repr(node.value)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            module = getattr(node, "module", None) or ""
            for name in [f"{module}.{alias.name}".lstrip(".") for alias in node.names]:
                if name.startswith("mindspore") and any(map(is_private, name.split("."))):
                    yield node.lineno, name
        elif isinstance(node, ast.Assign | ast.AugAssign) and ".asnumpy()[" in ast.unparse(node).partition("=")[0]:
            yield node.lineno, "writing to asnumpy()"


def test_there_is_none():
    found = {path.relative_to(ROOT): list(uses(tree)) for path, tree in outside().items()}
    assert len(found) > 300
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        "cell._cells['a'] = b",
        "vars(cell)['_params']",
        "cell.phase_cache[cell.phase]",
        "from mindspore.common.api import _cell_graph_executor",
        "import mindspore._c_expression",
        "parameter.asnumpy()[...] = 0",
    ],
)
def test_one_would_be_found(line):
    assert list(uses(ast.parse(line)))
