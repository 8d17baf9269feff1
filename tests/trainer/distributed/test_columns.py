"""Several tasks, and lists of different lengths: two real processes train as one does on the batches put together."""

import numpy as np
import pytest

from tests.trainer.distributed import columns_program

pytestmark = [pytest.mark.process, pytest.mark.long]

PROGRAM = columns_program


def prepare(folder):
    columns_program.write_segments(folder / "segments")


CASES = ["tasks", "tasks online", "lists", "bags", "batches", "stream", "one sided"]


@pytest.mark.parametrize("name", CASES)
def test_losses_and_parameters_are_those_of_one_process(one, two, name):
    found = [key for key in one if key.startswith(f"{name}/") and key.split("/")[1] in ("losses", "parameters")]
    assert len(found) > 1
    for key in found:
        for rank in range(2):
            np.testing.assert_allclose(two[rank][key], one[key], rtol=0, atol=2e-6, err_msg=key)


@pytest.mark.parametrize("name", ["tasks", "tasks online"])
def test_the_loss_of_a_task_is_the_mean_over_the_rows_of_all_that_count_for_it(one, two, name):
    for kind in ("tasks", "windows"):
        for rank in range(2):
            np.testing.assert_allclose(two[rank][f"{name}/{kind}"], one[f"{name}/{kind}"], rtol=0, atol=2e-6)
    assert one[f"{name}/tasks"].size + one[f"{name}/windows"].size > 0


def test_the_evaluation_of_tasks_and_lists_is_that_of_one_process(one, two):
    for rank in range(2):
        np.testing.assert_allclose(
            two[rank]["tasks/evaluated"][:, 1].astype(float), one["tasks/evaluated"][:, 1].astype(float), atol=1e-5
        )
        np.testing.assert_allclose(two[rank]["lists/predicted"], one["lists/predicted"], atol=1e-6)


@pytest.mark.parametrize("name", ["lists", "batches", "stream"])
def test_all_processes_pad_to_the_lengths_of_one(one, two, name):
    assert len(np.unique(one[f"{name}/shapes"])) > 1
    for rank in range(2):
        np.testing.assert_array_equal(two[rank][f"{name}/shapes"], one[f"{name}/shapes"])


@pytest.mark.parametrize("name", ["lists", "bags", "batches", "stream", "one sided"])
def test_every_row_is_trained_by_one_process(one, two, name):
    assert two[0][f"{name}/rows"] + two[1][f"{name}/rows"] == one[f"{name}/rows"]
