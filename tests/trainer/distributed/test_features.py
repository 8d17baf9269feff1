"""Features learn from the rows of two real processes: all know the same, which is what one process knows."""

import numpy as np
import pytest

from tests.trainer.distributed import features_program, jobs
from tests.trainer.experiment.test_first_config import make_table, write
from trainer import checkpoint
from trainer.experiment.cli import main

pytestmark = [pytest.mark.process, pytest.mark.long]

PROGRAM = features_program


@pytest.mark.parametrize("name", ["own rows", "own files", "all rows", "online"])
def test_two_processes_learn_what_one_learns(one, two, name):
    keys = [key for key in one if key.startswith(f"{name}/")]
    assert len(keys) > 10
    for key in keys:
        np.testing.assert_array_equal(two[0][key], two[1][key], err_msg=key)
        if "/state/" not in key:
            np.testing.assert_allclose(two[0][key], one[key], rtol=1e-5, atol=2e-6, err_msg=key)
        elif key.rpartition(".")[2] in ("ids", "rows", "keys"):
            np.testing.assert_array_equal(two[0][key], one[key], err_msg=key)
    assert len(np.unique(one[f"{name}/ids"][:, 1])) > 5


def test_drift_of_a_feature_is_that_of_the_rows_of_all_processes(one, two):
    """In windows of 80 rows, of which each process reads a half from a segment of its own."""
    assert one["drift"].shape == (features_program.ROWS // (2 * features_program.EACH), 2)
    assert one["drift"].max() > 0.25
    assert one["drifts"].max() > 0
    for rank in two:
        np.testing.assert_array_equal(rank["drift"], one["drift"])
        np.testing.assert_array_equal(rank["drifts"], one["drifts"])


def test_tables_beside_moving_statistics_of_a_network(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(make_table(), tmp_path / "visits.csv")
    assert main(["init", "din", "visits.csv"]) == 0  # Dice keeps means and variances
    code, output = jobs.run("fit", "visits.yaml", "--set", "fit.epochs=1")
    assert code == 0, output
    values = checkpoint.find(tmp_path / "runs/visits/checkpoints").tensors("model")
    variances = [value for name, value in values.items() if name.endswith("moving_variance")]
    assert len(variances) == 4
    assert all(np.isfinite(value).all() and (value != 1).all() for value in variances)
