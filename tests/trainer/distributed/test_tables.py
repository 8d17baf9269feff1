"""Two processes that divide the rows of sparse tables train, read, save and publish what one process does."""

import numpy as np
import pytest

from tests.trainer.distributed import table_program
from trainer import checkpoint
from trainer.embedding import RowAdagrad
from trainer.serving.served_model import ServedModel

pytestmark = pytest.mark.process

PROGRAM = table_program
prepare = table_program.main  # by one process: the two go on from its snapshot as well


def of(found, name):
    return {key.removeprefix(name): value for key, value in found.items() if key.startswith(name)}


BY_CLOCK = "last_time"


@pytest.mark.long
def test_float16_rows_are_those_of_one_process_and_come_back_exactly(one, two):
    """Where gradients summed in another order differ in their last bits, a weight may be rounded to its neighbour."""
    expected, found = of(one, "float16/rows/"), of(two[0], "float16/rows/")
    restored = of(two[0], "float16 restored/")
    for table in ("users", "items"):
        np.testing.assert_array_equal(found[f"{table}/ids"], expected[f"{table}/ids"])
        values = expected[f"{table}/values"]
        assert values.dtype == np.float16
        assert (found[f"{table}/values"] == values).mean() > 0.98
        np.testing.assert_allclose(found[f"{table}/values"], values, rtol=0, atol=2e-3)
        np.testing.assert_array_equal(restored[f"{table}/values"], values)


@pytest.mark.long(but=["plain", "rules", "stream"])
@pytest.mark.parametrize("name", ["plain", "rules", "stream", "own rule, accumulated", "half", "bags", "window"])
def test_rows_slots_and_decisions_are_those_of_one_process(one, two, name):
    expected, found = of(one, f"{name}/rows/"), of(two[0], f"{name}/rows/")
    assert expected.keys() == found.keys()
    tolerance = 1e-4 if name == "half" else 1e-6  # float16 is rounded in other places
    for key, value in expected.items():
        if key.endswith("values"):
            np.testing.assert_allclose(found[key], value, rtol=0, atol=tolerance, err_msg=key)
        elif BY_CLOCK not in key:
            np.testing.assert_array_equal(found[key], value, err_msg=key)
    np.testing.assert_allclose(two[0][f"{name}/loss"], one[f"{name}/loss"], rtol=0, atol=tolerance)


def test_validations_between_calls_read_the_rows_after_the_last_one(one, two):
    assert len(one["rules/val_loss"]) == 7
    for found in two:
        np.testing.assert_allclose(found["rules/val_loss"], one["rules/val_loss"], rtol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("name", ["half", "own rule, accumulated"])
def test_rows_are_exchanged_with_their_owners_alone(one, two, name):
    assert [found[f"{name}/by_owner"].item() for found in (one, *two)] == [False, True, True]


def test_new_items_were_refused_and_admitted(one):
    assert one["rules/rows/bias/numbers"][-1] > 100, "refused"
    assert 20 < len(one["rules/rows/bias/ids"]) < len(one["rules/rows/items/ids"]) / 2


def test_each_process_keeps_its_part_of_the_rows(one, two):
    whole = one["plain/held"][1]
    parts = [found["plain/held"] for found in two]
    assert sum(part[1] for part in parts) == whole
    for found in (one, *two):  # figures are those of the whole job
        assert found["plain/figures"][0] == whole
    assert two[0]["plain/figures"].tolist() == two[1]["plain/figures"].tolist()
    assert all(0.3 * whole < part[0] < 0.7 * whole for part in parts), "at no time more"


def test_evaluation_and_prediction_ask_the_owners(one, two):
    """Ten batches on two processes; the last batch is short."""
    for found in two:
        np.testing.assert_array_equal(found["plain/predicted"], two[0]["plain/predicted"])
        np.testing.assert_allclose(found["plain/predicted"], one["plain/predicted"], rtol=0, atol=1e-5)
        assert found["plain/evaluated"][0].tolist() == one["plain/evaluated"][0].tolist()
        values = found["odd/evaluated"][:, 1].astype(float)
        np.testing.assert_allclose(values, one["odd/evaluated"][:, 1].astype(float), rtol=1e-5)


@pytest.mark.long
def test_bags_are_predicted_by_asking_the_owners(one, two):
    for found in two:
        np.testing.assert_allclose(found["bags/predicted"], one["bags/predicted"], rtol=0, atol=1e-5)


def test_a_process_without_batches_answers_the_others(two):
    for found in two:
        (auc, loss), expected = found["plain/divided"][:, 1], found["plain/together"][:, 1]
        assert auc == expected[0]
        assert float(loss) == pytest.approx(float(expected[1]), rel=1e-6)


def test_a_snapshot_of_any_number_of_processes_is_taken_up_to_the_last_bit(one, two):
    assert two[0]["rules/deltas"] > 0, "the newest one builds on others"
    for name, writer in (("restored", one), ("own", two[0])):
        expected, found = of(writer, "rules/rows/"), of(two[0], f"{name}/")
        for key, value in expected.items():
            np.testing.assert_array_equal(found[key], value, err_msg=f"{name}: {key}")


@pytest.mark.long
def test_a_run_cut_inside_an_accumulation_window_goes_on_with_its_rows(folder, two):
    """And comes to what one process does undisturbed: see "window" above."""
    snapshot = checkpoint.find(folder / "window_2")
    assert snapshot.state["loop"]["position"]["fill"] == 1
    assert snapshot.manifest.parts == {"part.tables": 2}, "each process has written its rows"
    assert len(snapshot.tensors("part.tables")["items/accumulated_rows"]) > 10


def test_one_process_goes_on_from_the_snapshot_of_two(folder, two):
    restored = table_program.build(table_program.Clicks(RowAdagrad(), table_program.RULES))
    data = table_program.clicks()
    restored.predict({key: data[key] for key in ("user", "items")}, batch_size=250)
    restored.load(folder / "rules_2", strict=False)
    found = table_program.content(restored)
    for key, value in of(two[0], "rules/rows/").items():
        np.testing.assert_array_equal(found[key], value, err_msg=key)


def test_what_two_processes_publish_is_served(folder, two):
    data = table_program.clicks()
    with ServedModel(folder / "served_2", follow=False) as model:
        served = model.predict({key: data[key] for key in ("user", "items")})
    np.testing.assert_allclose(served, two[0]["plain/predicted"], rtol=0, atol=1e-5)
