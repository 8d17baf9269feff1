"""What benchmarks take from each other exists; few of their programs run in tests."""

import ast

import pytest

from tests.conftest import ROOT

FILES = sorted((ROOT / "benchmarks").rglob("*.py"))


def defined(path):
    """Return the names that a module defines or imports at its top level."""
    names = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        else:
            names |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_imported_names_are_there(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "benchmarks":
            module = ROOT / f"{node.module.replace('.', '/')}.py"
            names = {alias.name for alias in node.names}
            if module.exists():
                assert names <= defined(module), node.module
            else:
                folder = ROOT / node.module.replace(".", "/")
                assert all((folder / f"{name}.py").exists() or (folder / name).is_dir() for name in names), node.module
