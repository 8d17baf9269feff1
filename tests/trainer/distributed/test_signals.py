"""A signal that finds one of two processes waiting for data: all end together, none is left in a collective."""

import json
from pathlib import Path

import pytest

from tests.trainer.distributed import jobs, signal_program

pytestmark = [pytest.mark.process, pytest.mark.long]


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("signals")
    code, output = jobs.run("python", Path(signal_program.__file__), folder)
    return folder, code, output


@pytest.fixture(scope="module")
def found(job):
    folder, _, output = job
    files = [folder / f"found_{rank}.json" for rank in range(2)]
    assert all(file.is_file() for file in files), output
    return [json.loads(file.read_text()) for file in files]


@pytest.mark.parametrize("name", ["iterable", "tables", "validation", "stream"])
def test_all_processes_stop_at_the_same_step_with_a_snapshot(found, name):
    for rank, one in enumerate(found):
        assert one[name]["code"] == (143 if rank else 0), "the process that got the signal ends by it"
        assert one[name]["stop"] == "signal"
        assert one[name]["step"] == found[0][name]["step"]
        assert one[name]["snapshot"] == (one[name]["step"] or None)
    assert (found[0][name]["step"] > 0) == (name != "stream")


def test_a_wait_outside_python_ends_the_job_and_says_so(job):
    _, code, output = job
    assert code == 1
    assert "rank 1" in output
    assert "the job ends with the newest snapshot it has" in output
