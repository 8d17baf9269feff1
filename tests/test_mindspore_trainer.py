"""The package under a name that no script's own module hides; each case is a process of its own."""

import ast

import pytest

from tests.sources import trees

pytestmark = pytest.mark.process

OWN = "WHOSE = 'the user'\n\nclass Marker:\n    pass\n"
FIT = """
import numpy as np
from mindspore import nn

net = nn.Dense(3, 1)
trainer = Trainer(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1))
data = {"x": np.ones((8, 3), np.float32), "y": np.ones((8, 1), np.float32)}
history = trainer.fit(data, 1, batch_size=4, callbacks=[LossMonitor()])
print("steps", trainer.state.progress.global_step)
"""
DATA = """
import numpy as np

def rows():
    return {"x": np.ones((8, 3), np.float32), "y": np.ones((8, 1), np.float32)}
"""
CONFIG = """
experiment: hidden
network: {class_path: mindspore.nn.Dense, init_args: {in_channels: 3, out_channels: 1}}
loss: {class_path: mindspore.nn.MSELoss}
optimizer: {class_path: mindspore.nn.SGD, init_args: {learning_rate: 0.1}}
data: {train: {class_path: data.rows}}
fit: {epochs: 1, batch_size: 4}
callbacks:
  - {class_path: callbacks.LossMonitor}
  - {class_path: callbacks.LambdaCallback}
"""
ONE_COPY = """
import collections, sys
files = collections.defaultdict(set)
for module in list(sys.modules.values()):
    file = getattr(module, "__file__", None)
    if file and ("/callbacks/" in file or "/trainer/" in file):
        files[file].add(id(module))
print("copies", max(map(len, files.values())))
"""


@pytest.fixture
def run(tmp_path, forks):
    """Run a script, or with `arguments` a module, in a folder that holds the named modules of the user's own."""

    def start(script="", *arguments, own=()):
        for name in own:
            (tmp_path / f"{name}.py").write_text(OWN)
        (tmp_path / "script.py").write_text(script)
        done = forks.start(*(arguments or ["script.py"]), cwd=tmp_path)
        assert done.wait() == 0, done.errors.read_text()
        return done.output.read_text()

    return start


def test_a_script_beside_its_own_callbacks_changes_nothing(run):
    script = "import callbacks\nfrom trainer import LossMonitor, Trainer\n" + FIT + ONE_COPY
    script += "print(callbacks.WHOSE, LossMonitor.__module__)"
    out = run(script, own=["callbacks"])
    assert "steps 2" in out
    assert "copies 1" in out
    assert "the user mindspore_trainer.callbacks.loss_monitor" in out


ONE_IMPORT = f"""
from mindspore_trainer import Trainer
from mindspore_trainer.callbacks import LossMonitor
{FIT}
from mindspore_trainer.trainer.streams import ReplayStream
from mindspore_trainer.trainer.checkpoint import catalog
import trainer, callbacks
{ONE_COPY}
print("whose", *(getattr(module, "WHOSE", "ours") for module in (trainer, callbacks)), sep=" / ")
"""
SAME = """
import importlib
import mindspore_trainer.trainer.run.limits as one, trainer.run.limits as other
from mindspore_trainer.callbacks import History as a
from callbacks import History as b
print("same", one is other, a is b, other.__spec__.name, importlib.reload(other) is other)
"""
RESOLVED = """
from mindspore_trainer.trainer.experiment.configuration.class_paths import UnresolvedError, resolve
print(resolve("callbacks.LossMonitor"), resolve("trainer.Window"), resolve("callbacks.Marker"))
try:
    resolve("callbacks.Mark")
except UnresolvedError as error:
    print(error)
"""
HIDDEN = """
from pathlib import Path
from mindspore_trainer.trainer.experiment.configuration.class_paths import UnresolvedError, resolve
Path("mine.py").write_text("from trainer.errors import DataError")
try:
    resolve("mine.thing")
except UnresolvedError as error:
    print(error)
"""


@pytest.fixture
def train(run):
    """Return a function: runs a script that trains by the one import, then `more`; returns what that says."""

    def start(own, more):
        out, _, rest = run(ONE_IMPORT + more, own=own).partition("whose / ")
        assert "steps 2" in out
        assert "copies 1" in out
        whose, _, rest = rest.partition("\n")
        # every class is the same by either name where nothing is hidden
        assert whose == " / ".join("the user" if name in own else "ours" for name in ("trainer", "callbacks"))
        return rest

    return start


@pytest.mark.long
def test_the_names_are_the_same_objects_where_nothing_is_hidden(train):
    assert train([], SAME) == "same True True trainer.run.limits True\n"


@pytest.mark.long
def test_a_path_in_a_configuration_finds_the_package_first_and_then_the_users_module(train):
    out = train(["trainer", "callbacks"], RESOLVED)
    assert "mindspore_trainer.callbacks.loss_monitor.LossMonitor" in out
    assert "mindspore_trainer.trainer.metrics.window.Window" in out
    assert "<class 'callbacks.Marker'>" in out
    assert "neither the package nor your own module has it" in out
    assert "did you mean 'Marker'" in out


def test_a_users_module_that_needs_the_hidden_package_gets_its_other_name(train):
    out = train(["trainer"], HIDDEN)
    assert "trainer.py hides the package 'trainer' there: import it as 'mindspore_trainer'" in out


@pytest.mark.long(but=["trainer-own1"])
@pytest.mark.parametrize(
    ("module", "own"), [("mindspore_trainer", ["callbacks", "trainer"]), ("trainer", ["callbacks"])]
)
def test_the_command_line_works_beside_such_modules(run, tmp_path, module, own):
    (tmp_path / "data.py").write_text(DATA)
    (tmp_path / "a.yaml").write_text(CONFIG)
    out = run("", "-m", module, "fit", "a.yaml", own=own)
    assert (tmp_path / "runs" / "hidden").is_dir(), out


LEAVES = {"trainer.cadence", "trainer.checks", "trainer.errors", "trainer.masking"}


def imports(tree):
    """Yield (line, module, is a from-import) of the absolute imports in a syntax tree, those for types left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, node.module, True
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, False) for alias in node.names)
        yield from imports(node)


def test_packages_import_each_other_by_from_imports_and_callbacks_only_the_leaves(project_root):
    """``import trainer.x`` would bind the user's own module; a from-import reaches ours under any name."""
    wrong = [
        f"{file.relative_to(project_root)}:{line}: {module}"
        for file, tree in trees().items()
        for line, module, is_from in imports(tree)
        if module.partition(".")[0] in ("trainer", "callbacks")
        and not (is_from and (file.is_relative_to(project_root / "trainer") or module in LEAVES))
    ]
    assert wrong == []
