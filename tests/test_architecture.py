"""The rooms of the package depend on the rooms below them only, types included."""

import ast
import re

from mindspore import nn

from callbacks import hook_trainer
from tests.sources import ROOT, trees
from trainer import Trainer
from trainer.state import Progress, State


def layers():
    """Return room -> height, from the contract that `lint-imports` checks."""
    contract = re.search(r"^layers = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL | re.MULTILINE)
    rows = re.findall(r'"(.+)"', contract[1])
    return {room: -index for index, row in enumerate(rows) for room in re.split(r" [:|] ", row)}


def imported(path, tree):
    """Yield the full names of the modules that a file imports, anywhere in it."""
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    package = module.removesuffix(".__init__") if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
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
    for path, tree in trees().items():
        room = room_of(".".join(path.relative_to(ROOT).with_suffix("").parts), heights)
        if room is None:  # the face of a package
            continue
        for module in imported(path, tree):
            other = room_of(module, heights)
            if other is not None and heights[other] > heights[room]:
                arrows.append((str(path.relative_to(ROOT)), module))
    return arrows


def test_no_room_imports_a_higher_one():
    arrows = arrows_up()
    for file, module in arrows:
        print(f"{file} -> {module}")
    assert arrows == []


def test_the_trainer_has_all_that_hooks_may_read_and_do():
    network = nn.Dense(1, 1)
    trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params()))
    promised = {*hook_trainer.Trainer.__annotations__, *vars(hook_trainer.Trainer)}
    assert {"state", "stop", "learning_rate"} <= promised
    assert [name for name in promised if not (name.startswith("_") or hasattr(trainer, name))] == []


def test_only_the_run_writes_the_state():
    fields = {*vars(State()), *vars(Progress())}
    writers = set()
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in fields):
                continue
            owner = getattr(node.value, "attr", getattr(node.value, "id", None))
            if owner in ("state", "progress"):
                writers.add(path.relative_to(ROOT).parts[:2])
    assert writers == {("trainer", "run")}


def test_the_table_of_ten_changes_counts_the_files_it_names():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| (\d+) \| ([^|]+) \|$", text, re.MULTILINE)
    assert len(rows) == 10
    for change, count, named in rows:
        assert len(re.split(r", | and (?=`)|; ", named)) == int(count), change
        for path in re.findall(r"`(\w+/[\w/.]*)`", named):
            assert (ROOT / path).exists(), path


def long_first_lines():
    """Yield (file, line) for each docstring whose first line has more than 80 characters."""
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                first = (ast.get_docstring(node) or "").partition("\n")[0]
                if len(first) > 80:
                    yield path.relative_to(ROOT), first


def test_first_lines_of_docstrings_are_short():
    assert not dict(long_first_lines())
