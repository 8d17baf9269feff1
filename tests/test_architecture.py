"""The rooms of the package depend on the rooms below them only, types included."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FACADE = "trainer.trainer.Trainer"  # the type of callbacks' argument, which the run hands them


def layers():
    """Return room -> height, from the contract that `lint-imports` checks."""
    contract = re.search(r"^layers = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL | re.MULTILINE)
    rows = re.findall(r'"(.+)"', contract[1])
    return {room: -index for index, row in enumerate(rows) for room in re.split(r" [:|] ", row)}


def imported(path):
    """Yield the full names of the modules that a file imports, anywhere in it."""
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    package = module.removesuffix(".__init__") if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def room_of(module, heights):
    """Return the room that a module is in; the innermost where rooms are nested."""
    rooms = [room for room in heights if module == room or module.startswith(f"{room}.")]
    return max(rooms, key=len, default=None)


def arrows_up():
    """Return (file, module) for each import of a higher room."""
    heights, arrows = layers(), []
    for package in ("trainer", "callbacks"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            room = room_of(name, heights)
            if room is None:  # the face of a package
                continue
            for module in imported(path):
                other = room_of(module, heights)
                if other is not None and heights[other] > heights[room]:
                    arrows.append((str(path.relative_to(ROOT)), module))
    return arrows


def test_no_room_imports_a_higher_one_but_for_the_type_of_the_trainer():
    typed = ("callbacks/", "trainer/run/", "trainer/compat/verbs.py", "trainer/serving/publish")
    arrows = [arrow for arrow in arrows_up() if not (arrow[0].startswith(typed) and arrow[1] == FACADE)]
    assert arrows == []
