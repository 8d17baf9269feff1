"""A file of the user's with the name of a package is named, by each way in; each case is a process of its own."""

import ast

import pytest

from tests.sources import trees
from trainer.experiment.configuration.class_paths import UnresolvedError, resolve

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("own", "script"),
    [
        ("callbacks", "from trainer import Trainer"),
        ("callbacks", "from mindspore_trainer import Trainer"),
        ("trainer", "from mindspore_trainer import Trainer"),
        ("trainer", "from callbacks import LossMonitor"),
    ],
)
def test_a_file_that_hides_a_package_is_named_with_what_to_do(own, script, tmp_path, forks):
    (tmp_path / f"{own}.py").write_text("WHOSE = 'the user'\n")
    (tmp_path / "script.py").write_text(script)
    done = forks.start("script.py", cwd=tmp_path)
    assert done.wait() == 1
    told = done.errors.read_text().splitlines()[-1]
    assert told.startswith(f"ImportError: import {own} finds {tmp_path / own}.py, which hides the package of that name")
    assert f"my_{own}.py" in told


def test_the_second_name_gives_the_same_objects_and_versions(tmp_path, forks):
    (tmp_path / "script.py").write_text(
        "import mindspore_trainer, trainer\n"
        "from mindspore_trainer import LossMonitor, Trainer\n"
        "import callbacks\n"
        "assert Trainer is trainer.Trainer and LossMonitor is callbacks.LossMonitor\n"
        "print(mindspore_trainer.__version__ == trainer.__version__)\n"
    )
    done = forks.start("script.py", cwd=tmp_path)
    assert done.wait() == 0, done.errors.read_text()
    assert done.output.read_text() == "True\n"


def test_a_class_path_into_such_a_file_names_it(tmp_path, monkeypatch):
    (tmp_path / "callbacks.py").write_text("class Marker: pass\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UnresolvedError, match=r"no 'Marker'.*callbacks.py here is hidden by the package .* my_callbacks.py"
    ):
        resolve("callbacks.Marker")
    assert resolve("callbacks.LossMonitor").__name__ == "LossMonitor"


LEAVES = {"trainer.cadence", "trainer.checks", "trainer.errors", "trainer.masking"}


def imports(tree):
    """Yield (line, module) of the absolute imports in a syntax tree, those for types left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, node.module
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        yield from imports(node)


def test_callbacks_import_only_the_leaves(project_root):
    wrong = [
        f"{file.relative_to(project_root)}:{line}: {module}"
        for file, tree in trees().items()
        for line, module in imports(tree)
        if module.partition(".")[0] == "trainer"
        and not file.is_relative_to(project_root / "trainer")
        and file.is_relative_to(project_root / "callbacks")
        and module not in LEAVES
    ]
    assert wrong == []
