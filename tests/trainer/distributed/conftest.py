"""What a program trains on two real processes, and on this one alone."""

import json
import os

import numpy as np
import pytest

from tests.trainer.distributed import jobs

STUB = """
import threading

class communication:
    init = threading.Event().wait
"""


@pytest.fixture
def _waiting_scheduler(tmp_path_factory, monkeypatch):
    """The scheduler of jobs whose processes do not use MindSpore does not either: it waits until it is ended."""
    folder = tmp_path_factory.mktemp("stub")
    (folder / "mindspore.py").write_text(STUB)
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ['PYTHONPATH']}")


@pytest.fixture(scope="module")
def folder(request, tmp_path_factory):
    """The folder of the program that a module names as PROGRAM, after it has run on two processes."""
    folder = tmp_path_factory.mktemp("job")
    if not any(item.get_closest_marker("long") for item in request.session.items if item.path == request.path):
        (folder / "quick").touch()  # a program may leave out what only long tests look at
    getattr(request.module, "prepare", lambda folder: None)(folder)
    jobs.run_program(request.module.PROGRAM.__file__, folder)
    return folder


@pytest.fixture(scope="module")
def two(folder):
    """What each of the two processes has found."""
    return [_found(folder, 2, rank) for rank in range(2)]


@pytest.fixture(scope="module")
def one(request, folder):
    """What one process finds."""
    if not [*folder.glob("found_1_0.*")]:
        request.module.PROGRAM.main(folder)
    return _found(folder, 1, 0)


def _found(folder, size, rank):
    (path,) = folder.glob(f"found_{size}_{rank}.*")
    return json.loads(path.read_text()) if path.suffix == ".json" else dict(np.load(path))
