"""A whole training step on two real processes is the step of one with the batches put together."""

import numpy as np
import pytest
from mindspore import nn

from tests.trainer.distributed import step_program
from tests.trainer.distributed.test_fit import of
from trainer import Trainer, checkpoint

pytestmark = [pytest.mark.process, pytest.mark.long]

PROGRAM = step_program
CASES = ["plain", "single calls", "scaled", "interrupted", "resumed", "stream"]


@pytest.mark.parametrize("name", CASES)
def test_parameters_are_those_of_one_process(one, two, name):
    expected, found = of(one, f"{name}/parameters/"), of(two[0], f"{name}/parameters/")
    assert expected.keys() == found.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=0, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("name", [*CASES[:-1]])
def test_losses_are_the_means_over_the_rows_of_all(one, two, name):
    np.testing.assert_allclose(two[0][f"{name}/losses"], one[f"{name}/losses"], rtol=0, atol=1e-6)
    assert two[0][f"{name}/samples"] == one[f"{name}/samples"]


@pytest.mark.parametrize("name", [*CASES, "context", "own rows", "summed"])
def test_all_processes_hold_the_same_bits(two, name):
    for key, value in of(two[0], f"{name}/parameters/").items():
        np.testing.assert_array_equal(two[1][f"{name}/parameters/{key}"], value, err_msg=key)


def test_a_data_parallel_context_changes_nothing(two):
    plain = of(two[0], "plain/parameters/")
    for key, value in of(two[0], "context/parameters/").items():
        np.testing.assert_array_equal(value, plain[key], err_msg=key)


def test_a_process_without_rows_leaves_its_moving_statistics_alone(two):
    once, twice = ([of(found, f"{name}/parameters/") for found in two] for name in ("normed once", "normed"))
    statistics = [key for key in once[0] if "moving" in key]
    assert len(statistics) == 2
    for key in statistics:  # the second step has one row, which rank 1 trains
        np.testing.assert_array_equal(twice[0][key], once[0][key], err_msg=key)
        assert not np.array_equal(twice[1][key], once[1][key])
    for key in twice[0].keys() - statistics:
        np.testing.assert_array_equal(twice[1][key], twice[0][key], err_msg=key)


def test_uneven_parts_end_together_and_no_row_is_left_out(two):
    assert two[0]["own rows/samples"] == 2 * 569


def test_evaluation_is_that_of_one_process(one, two):
    for found in two:
        assert found["evaluated"][0, 0] == one["evaluated"][0, 0]
        np.testing.assert_allclose(
            found["evaluated"][:, 1].astype(float), one["evaluated"][:, 1].astype(float), rtol=1e-6
        )


def test_a_resumed_step_ends_where_an_uninterrupted_one_does(two):
    plain, resumed = of(two[0], "plain/parameters/"), of(two[0], "resumed/parameters/")
    for key, value in plain.items():
        np.testing.assert_allclose(resumed[key], value, rtol=0, atol=1e-7, err_msg=key)


def test_one_process_loads_the_snapshot_of_two(folder, two):
    step = nn.TrainOneStepCell(*step_program.with_loss(seed=9))
    Trainer(step).load(folder / "snapshots_2")
    assert checkpoint.find(folder / "snapshots_2").step == 13
    expected = of(two[0], "interrupted/parameters/")
    for parameter in step.get_parameters():
        np.testing.assert_array_equal(parameter.asnumpy(), expected[parameter.name], err_msg=parameter.name)


def test_a_reducer_that_adds_up_is_kept_and_warned_of_by_rank_0(two):
    (warning,) = two[0]["summed/warnings"]
    assert "sums the gradients of 2 processes, so an update is 2 times as large as with one process" in warning
    assert not len(two[1]["summed/warnings"])


def test_a_step_that_does_not_use_its_reducer_is_stopped_with_the_parameter_that_differs(two):
    for found in two:
        assert str(found["unreduced"]) == str(two[0]["unreduced"])
    assert "parameters differ between the processes after a training step, the first is 'inner.0." in str(
        two[0]["unreduced"]
    )


def test_a_step_without_a_reducer_is_refused_with_what_to_write(two):
    for found in two:
        assert "gradients = self.grad_reducer(gradients)" in str(found["refused"])
