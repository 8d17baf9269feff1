"""Two processes weigh losses like one process, and evaluate and predict the data that they are given."""

import numpy as np
import pytest

from tests.trainer.distributed import losses_program

pytestmark = [pytest.mark.process, pytest.mark.long]

PROGRAM = losses_program
TRAINED = [f"{name}/{parts}" for name in losses_program.CASES for parts in (1, 2) if (name, parts) != ("tasks", 2)]
TRAINED += [f"{case.loss}/{parts}" for case, parts in losses_program.WEIGHED]


@pytest.mark.parametrize("name", TRAINED)
def test_parameters_and_losses_are_those_of_one_process(one, two, name):
    for found in two:
        np.testing.assert_allclose(found[f"{name}/weights"], one[f"{name}/weights"], rtol=3e-7, atol=3e-8)
        np.testing.assert_allclose(found[f"{name}/losses"], one[f"{name}/losses"], rtol=1e-6)


@pytest.mark.parametrize("name", [name[:-2] for name in TRAINED if name[-1] == "2" and f"{name[:-2]}/1" in TRAINED])
def test_micro_batches_are_one_batch(two, name):
    np.testing.assert_allclose(two[0][f"{name}/2/weights"], two[0][f"{name}/1/weights"], rtol=3e-7, atol=6e-8)


def test_rows_of_their_own_are_evaluated_together(one, two):
    for found in two:
        np.testing.assert_array_equal(found["whole"], one["whole"])
        np.testing.assert_array_equal(found["parts"][:, 0], one["whole"][:, 0])
        np.testing.assert_allclose(found["parts"][:, 1].astype(float), one["whole"][:, 1].astype(float), rtol=1e-6)
        assert {"val_auc", "val_loss"} <= {*found["validated"].tolist()}


def test_outputs_by_name_are_predicted_on_all_processes(one, two):
    assert one["named/second"].shape == losses_program.X.shape
    for found in two:
        for name in ("one", "first", "second"):
            np.testing.assert_array_equal(found[f"named/{name}"], one[f"named/{name}"])


def test_each_process_gets_the_predictions_of_its_own_rows(two):
    assert [bool(found["own predictions"]) for found in two] == [True, True]
    assert [found["own batches"].tolist() for found in two] == [[5] * 4, [5] * 5 + [3]]


@pytest.mark.parametrize("verb", ["evaluate", "predict", "fit", "one sided"])
def test_other_data_on_each_process_are_refused_on_all(two, verb):
    texts = [str(found[f"refused/{verb}"]) for found in two]
    assert texts[0] == texts[1]
    assert texts[0].startswith("ConfigurationError: rank 1 and rank 0 differ: ")
    assert texts[0].endswith("pass sharded=True")


def test_a_loss_that_does_not_say_what_it_divides_by_is_refused(two):
    for found in two:
        text = str(found["refused/unknown"])
        assert text.startswith("ConfigurationError: 2 processes: the denominator of squares is unknown")


def test_processes_in_different_verbs_end_with_one_error_that_names_both(two):
    texts = [str(found["apart"]) for found in two]
    assert texts[0] == texts[1]
    assert texts[0].startswith("TrainerError: the processes are in different calls: ranks [0] are in evaluate: ")
    assert "; ranks [1] are in fit: " in texts[0]
