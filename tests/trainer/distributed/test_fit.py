"""`fit` on two real processes is `fit` on one with the batches put together."""

import numpy as np
import pytest

from tests.trainer.distributed import fit_program
from trainer import checkpoint

pytestmark = pytest.mark.process

PROGRAM = fit_program


def of(found, name):
    return {key.removeprefix(name): value for key, value in found.items() if key.startswith(name)}


CASES = ["accumulated", "overflow", "batches", "scaled loss"]


@pytest.mark.parametrize("name", CASES)
def test_parameters_and_optimizer_state_are_those_of_one_process(one, two, name):
    expected, found = of(one, f"{name}/parameters/"), of(two[0], f"{name}/parameters/")
    assert expected.keys() == found.keys()
    tolerance = 2e-3 if name == "overflow" else 1e-6  # float16 is rounded in other places
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=0, atol=tolerance, err_msg=key)


@pytest.mark.parametrize("name", CASES)
def test_losses_and_counts_are_those_of_one_process(one, two, name):
    np.testing.assert_allclose(two[0][f"{name}/losses"], one[f"{name}/losses"], rtol=0, atol=2e-3)
    for kind in ("progress", "skipped", "stop"):
        np.testing.assert_array_equal(two[0][f"{name}/{kind}"], one[f"{name}/{kind}"])


@pytest.mark.parametrize("name", [*CASES, "adasum", "normed", "own rows"])
def test_all_processes_hold_the_same_bits(two, name):
    for key, value in of(two[0], name).items():
        if "normed/parameters" in key and "moving" in key:
            continue  # statistics are each process's own between two snapshots
        np.testing.assert_array_equal(two[1][name + key], value, err_msg=key)


def test_an_overflow_on_one_process_skips_the_step_on_all(one, two):
    assert one["overflow/skipped"][0] == 2, "the second step of both epochs"
    assert [found["overflow/skipped"][0] for found in two] == [2, 2]


def test_validation_counts_every_row_once(one, two):
    np.testing.assert_allclose(two[0]["batches/history"], one["batches/history"], rtol=0, atol=1e-6)


def test_a_process_that_waits_for_its_data_is_named(two):
    for found in two:
        fast, slow = found["waits/shares"]
        assert slow - fast > 1 / 3
        np.testing.assert_array_equal(found["waits/shares"], two[0]["waits/shares"])
    (warning,) = two[0]["waits/warnings"]
    assert warning.startswith("rank 1 spends")
    assert "every step waits for that process" in warning
    assert not len(two[1]["waits/warnings"]), "rank 0 alone says it"


def test_one_process_that_asks_to_stop_stops_all_at_the_same_step(two):
    for found in two:
        assert found["normed/progress"].tolist() == [0, 5, 320]
        assert found["normed/stop"] == "user"


def test_rank_0_writes_the_snapshots_with_statistics_of_all(folder, two):
    written = checkpoint.find(folder / "snapshots_2")
    assert written.step == 5
    held = written.tensors("model")
    for found in two:
        for key, value in of(found, "normed/parameters/").items():
            if key in held:
                np.testing.assert_array_equal(held[key], value, err_msg=key)


def test_evaluation_is_that_of_one_process_to_the_last_bit(one, two):
    for found in two:
        assert found["evaluated"].tolist() == one["evaluated"].tolist()


def test_predictions_come_back_in_order_and_whole(one, two):
    for found in two:
        np.testing.assert_array_equal(found["predicted"], one["predicted"])
        assert found["predicted one by one"].tolist() == [85] * 6 + [59]
        assert found["normed/predictions"].shape == (569, 1)


def test_adasum_is_not_the_mean(one, two):
    assert np.abs(two[0]["adasum/parameters/0.weight"] - one["adasum/parameters/0.weight"]).max() > 1e-5
    np.testing.assert_allclose(two[0]["adasum/losses"], one["adasum/losses"], rtol=0, atol=0.1)


def test_uneven_parts_end_together_and_no_row_is_left_out(two):
    assert two[0]["own rows/progress"].tolist() == [2, 20, 2 * 569]
