"""Processes that are given different things are refused; one that ends before the others is noticed and named."""

import json
from pathlib import Path

import pytest

from tests.trainer.distributed import jobs, settings_program

pytestmark = [pytest.mark.process, pytest.mark.long]


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("settings")
    code, output = jobs.run("python", Path(settings_program.__file__), folder)
    files = [folder / f"found_{rank}.json" for rank in range(2)]
    assert all(file.is_file() for file in files), output
    return code, output, [json.loads(file.read_text()) for file in files]


def test_what_differs_is_named_on_all_ranks_before_anything_is_trained(job):
    _, _, found = job
    found = [{name: message for name, message in each.items() if name not in ("resume", "damaged")} for each in found]
    assert found[0] == found[1]
    assert found[0].pop("nothing") == 5
    for name, message in found[0].items():
        assert str(message).startswith("rank 1 and rank 0 differ: "), name
        assert name in message
    assert "learning rate: rank 0 has 0.01, rank 1 0.05" in found[0]["learning rate"]


def test_a_process_without_the_snapshot_of_the_others_is_named_on_all_ranks(job):
    for found in job[2]:
        assert found["resume"].startswith("rank 0 would resume from step_00000005 (")
        assert "rank 1 from no snapshot (CheckpointNotFoundError); all processes" in found["resume"]
        assert "rank 0 would resume from no snapshot (Checkpoint" in found["damaged"]
        assert "rank 1 from no snapshot (CheckpointNotFoundError); all processes" in found["damaged"]


def test_a_process_that_ends_well_in_the_middle_ends_the_job_and_is_named(job):
    code, output, _ = job
    assert code == 1
    assert "rank 1 has ended" in output
    assert "scheduler (pid" not in output
