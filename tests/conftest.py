"""What every test session needs: MindSpore kept quiet, and a scratch folder to litter in instead of the checkout."""

import fcntl
import gc
import itertools
import os
import shutil
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent

# Read when MindSpore is imported, by this process and by those that tests start.
os.environ.setdefault("GLOG_v", "3")
# Threads of operators sleep between two graph calls: other tests and processes share the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Tests start hundreds of processes that import the package: without stored bytecode each compiles 350 files.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Relative entries would mean another folder once the tests have changed into theirs.
_paths = [
    str(ROOT),
    *(str(Path(entry).resolve()) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry),
]
os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(_paths))


# Those that take longest: whoever shares the tests begins with them and is not kept waiting at the end.
FIRST = (
    "trainer/distributed/test_tables.py",
    "trainer/distributed/test_fit.py",
    "trainer/distributed/test_streams.py",
    "trainer/distributed/test_losses.py",
    "test_your_own_table.py",
    "dropin/test_calls_and_values.py",
    "examples/test_deepfm.py",
    "examples/test_configs.py",
    "test_commands.py",
    "test_reliability_tables.py",
    "trainer/models/test_training.py",
    "trainer/distributed/test_chain.py",
    "benchmarks/test_chaos.py",
    "benchmarks/test_serve_load.py",
)


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector):
    """Take `long` from the cases that `@pytest.mark.long(but=[...])` names: `make test` runs those."""
    made = yield
    cases = {item.callspec.id: item for item in made if hasattr(item, "callspec")} if isinstance(made, list) else {}
    for name, item in cases.items():
        for mark in [mark for mark in item.own_markers if mark.name == "long" and "but" in mark.kwargs]:
            if unknown := set(mark.kwargs["but"]) - set(cases):
                raise collector.CollectError(f"{item.originalname} has {list(cases)}, but not {unknown}")
            if name in mark.kwargs["but"]:
                item.own_markers.remove(mark)
    return made


def pytest_collection_modifyitems(items):
    """Begin with the files of `FIRST`, in that order."""
    places = {ROOT / "tests" / name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Let every test begin with random numbers of its own, so that one that fails does so again."""
    np.random.seed(zlib.crc32(item.nodeid.encode()))


@pytest.fixture(scope="session", autouse=True)
def _scratch_folder(tmp_path_factory):
    """Run in a temporary folder: MindSpore writes rank_0/, kernel_meta/ and rewritten_network/ to the current one."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("cwd"))
    yield
    os.chdir(before)


@pytest.fixture(scope="session")
def forks(tmp_path_factory):
    """Starts processes that have MindSpore imported already; see `tests.forked`."""
    from tests.forked import ForkServer

    server = ForkServer(tmp_path_factory.mktemp("forks"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """Return the folder of programs of an environment that has the built wheel, and the dependencies of this one.

    The processes that share the tests share it.
    """
    from tests.wheel import install

    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    folder = root / "installed"
    with open(root / "installed.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "installed.done").exists():
            shutil.rmtree(folder, ignore_errors=True)  # of an attempt that failed
            folder.mkdir()
            install(folder)
            (root / "installed.done").touch()
    return folder / "env" / "bin"


@pytest.fixture(scope="session")
def installed_forks(installed, tmp_path_factory):
    """Starts processes as `forks` does, of the installed wheel."""
    from tests.forked import ForkServer
    from tests.wheel import without_checkout

    server = ForkServer(tmp_path_factory.mktemp("forks"), installed / "python", without_checkout(installed))
    yield server
    server.close()


_modules_before = itertools.count()


@pytest.fixture(scope="module", autouse=True)
def _gc_frozen():
    """Collect the garbage of earlier modules and freeze the rest: MindSpore runs the collector at each compilation.

    A look at all objects takes half a second with the libraries that the tests import, so only every tenth module
    looks at those that were frozen before.
    """
    if next(_modules_before) % 10 == 0:
        gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _mode_as_found():
    """Put MindSpore's global mode back: some tests set it, as users' scripts do, and the next ones must not see it."""
    loaded = "mindspore" in sys.modules
    before = sys.modules["mindspore"].get_context("mode") if loaded else None
    yield
    if "mindspore" in sys.modules:
        mindspore = sys.modules["mindspore"]
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE if before is None else before)


@pytest.fixture(scope="module", autouse=True)
def _no_seed_of_other_modules():
    """Unset MindSpore's seed, which decides the order of rows of a Trainer without a seed of its own."""
    if "mindspore.dataset" in sys.modules:
        sys.modules["mindspore.dataset"].config.set_seed(5489)  # std::mt19937::default_seed, which it has at first


@pytest.fixture(scope="session")
def project_root() -> Path:
    """The checkout: configs/, examples/ and the packaging files."""
    return ROOT
