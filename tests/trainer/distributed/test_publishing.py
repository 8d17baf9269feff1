"""Two processes publish one version in parts; with a fault on either of them there is none, and the next has all."""

import numpy as np
import pytest

from tests.trainer.distributed import jobs, publish_program
from tests.trainer.distributed.table_program import clicks
from trainer.serving import ServedModel, Versions

pytestmark = [pytest.mark.process, pytest.mark.long]

PROGRAM = publish_program


@pytest.fixture(scope="module")
def steps(two):
    """What rank 0 has noted after each step, from the first."""
    return dict(enumerate(two[0]["steps"], 1))


FAILED = {3: "rows", 5: "current.json", 9: "full"}  # versions of which there is nothing


def test_after_every_version_servers_have_the_rows_that_are_trained(steps):
    assert [step for step, note in steps.items() if not note["same"]] == list(FAILED)


def test_each_process_writes_its_part(steps):
    rows = ["rows.0.safetensors", "rows.1.safetensors"]
    assert steps[2]["files"] == [*rows, "weights.safetensors"]
    assert steps[2]["parts"] == {"rows": 2}
    assert steps[13]["files"] == ["full.0.safetensors", "full.1.safetensors", *rows, "weights.safetensors"]
    assert steps[13]["parts"] == {"rows": 2, "full": 2}


def test_a_fault_of_a_rank_leaves_the_version_before_and_the_next_holds_everything(steps):
    chains = [note["chain"] for note in steps.values()]
    #         1  2  -  4  -  6  7  8  -  10 11 12 13 14 15
    assert chains == [1, 2, 2, 1, 1, 1, 2, 3, 3, 1, 2, 3, 1, 2, 3]
    for step, file in FAILED.items():
        assert steps[step]["version"] == steps[step - 1]["version"]
        assert "No space left" in steps[step]["problem"]
        if file != "current.json":
            assert "rank 1: cannot write part of a version" in steps[step]["problem"]
            assert f"{file}.1.safetensors" in steps[step]["problem"]
    assert [step for step, note in steps.items() if note["problem"]] == list(FAILED)


def test_it_is_served_and_listed(folder, two):
    with ServedModel(folder / "served", follow=False) as model:
        served = model.predict({key: clicks()[key] for key in ("user", "items")})
    for found in two:
        np.testing.assert_allclose(served, found["predicted"], rtol=0, atol=1e-5)
    assert [version.problem for version in Versions(folder / "served").list()] == [None] * 13
    assert not [path.name for path in (folder / "served").glob(".*.tmp")]


def test_a_run_ends_on_all_ranks_where_that_was_asked(folder, two):
    assert all("rank 1: cannot write part of a version" in found["raised"] for found in two)
    assert two[0]["trained"] == two[1]["trained"]
    assert [version.number for version in Versions(folder / "raised").list()] == [1]


def test_a_folder_that_one_rank_cannot_write_to_receives_all_rows_from_rank_0(two):
    assert [(note["parts"], note["same"]) for note in two[0]["gathered"]] == [(None, True)] * 3
    assert "rows.safetensors" in two[0]["gathered"][0]["files"]
    (warning,) = two[0]["warnings"]
    assert "rank 1 cannot write to" in warning
    assert "keep versions on a file system that all processes share" in warning


def test_a_training_of_two_processes_begins_with_it(folder, two):
    for found in two:
        np.testing.assert_allclose(found["initial"], found["predicted"], rtol=0, atol=1e-5)


def test_a_version_has_the_statistics_of_all_processes(folder, two):
    with ServedModel(folder / "normed", follow=False) as model:
        served = model.predict(np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32))
    assert two[0]["normed"] == two[1]["normed"]
    np.testing.assert_allclose(served, two[0]["normed"], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("rank", "moment"), [(1, "rows.1.safetensors"), (0, "current.json")])
def test_a_rank_that_is_killed_leaves_the_version_before(tmp_path, rank, moment):
    code, output = jobs.run("python", PROGRAM.__file__, tmp_path, rank, moment)
    assert code != 0, output
    with ServedModel(tmp_path / "served", follow=False) as model:
        assert (model.version, model.step) == (1, 1)
        assert np.isfinite(model.predict({key: clicks()[key] for key in ("user", "items")})).all()
