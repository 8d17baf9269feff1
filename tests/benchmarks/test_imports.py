"""What benchmarks take from each other exists; few of their programs run in tests."""

import ast

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


def missing(path):
    """Yield the imported names of other benchmarks that are not there."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "benchmarks":
            module, folder = (ROOT / f"{node.module.replace('.', '/')}{end}" for end in (".py", ""))
            there = defined(module) if module.exists() else {path.stem for path in folder.glob("*")}
            yield from (f"{node.module}.{alias.name}" for alias in node.names if alias.name not in there)


def test_imported_names_are_there():
    assert len(FILES) > 50
    assert {path.name: names for path in FILES if (names := list(missing(path)))} == {}
