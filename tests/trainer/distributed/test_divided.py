"""Processes whose parts of the data differ in length train as one does on the batches of each step put together."""

import itertools

import numpy as np
import pytest

from tests.trainer.distributed import divided_program, jobs

pytestmark = [pytest.mark.process, pytest.mark.long]

CASES = ["tables", "both", "accumulated", "lists", "bags"]
WITH_TABLES = ["tables", "both", "lists", "bags"]
BY_CLOCK, BY_CALLS = "last_time", "plan"  # one process makes more calls, because its shapes change


@pytest.fixture(scope="module", params=[2, 3])
def trained(request, tmp_path_factory):
    """What the processes have found, and what one finds."""
    size, folder = request.param, tmp_path_factory.mktemp("divided")
    jobs.run_program(divided_program.__file__, folder, processes=size)
    found = [dict(np.load(folder / f"found_{size}_{rank}.npz")) for rank in range(size)]
    return found, divided_program.train(size, 0, together=True)


def of(found, name):
    return {key.removeprefix(name): value for key, value in found.items() if key.startswith(name)}


@pytest.mark.parametrize("name", CASES)
def test_losses_and_parameters_are_those_of_one_process(trained, name):
    found, one = trained
    for kind in ("losses", "history", "parameters"):
        for key, value in of(one, f"{name}/{kind}").items():
            for own in found:
                np.testing.assert_allclose(own[f"{name}/{kind}{key}"], value, rtol=0, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("name", WITH_TABLES)
def test_rows_and_decisions_are_those_of_one_process(trained, name):
    found, one = trained
    expected, rows = of(one, f"{name}/rows/"), of(found[0], f"{name}/rows/")
    assert expected.keys() == rows.keys()
    for key, value in expected.items():
        if key.endswith("values"):
            np.testing.assert_allclose(rows[key], value, rtol=0, atol=1e-6, err_msg=key)
        elif key.endswith("numbers"):  # the second counts calls
            np.testing.assert_array_equal(np.delete(rows[key], 1), np.delete(value, 1), err_msg=key)
        elif key.rpartition("/")[2] not in (BY_CLOCK, BY_CALLS):
            np.testing.assert_array_equal(rows[key], value, err_msg=key)


def test_items_were_refused_and_admitted(trained):
    one = trained[1]
    assert 0 < len(one["both/rows/bias/ids"]) < len(one["both/rows/items/ids"])


@pytest.mark.parametrize("name", CASES)
def test_an_epoch_ends_with_the_last_batch_of_any_process_and_every_row_is_trained_once(trained, name):
    found, one = trained
    for own in found:
        np.testing.assert_array_equal(own[f"{name}/progress"], one[f"{name}/progress"])
        np.testing.assert_array_equal(own[f"{name}/calls"], found[0][f"{name}/calls"])
    rows = [int(own[f"{name}/own rows"]) for own in found]
    assert sum(rows) == one[f"{name}/progress"][2]
    assert len(set(rows)) == len(rows), "the parts differ"
    assert len(rows) == 2 or 0 in rows


def test_calls_hold_several_steps_before_and_after_a_process_has_run_out(trained):
    found, _ = trained
    counts = divided_program.FULL[len(found)]
    both, rest = sorted(counts)[-2], max(counts) - sorted(counts)[-2]
    expected = [[min(4, steps - first) for first in range(0, steps, 4)] for steps in (both, rest)]
    assert found[0]["tables/calls"].tolist() == 2 * list(itertools.chain(*expected))


def test_evaluation_afterwards_is_that_of_one_process(trained):
    found, one = trained
    for own in found:
        values = own["tables/evaluated"][:, 1].astype(float)
        np.testing.assert_allclose(values, one["tables/evaluated"][:, 1].astype(float), rtol=0, atol=1e-6)
