"""LeNet with BatchNorm learns scikit-learn's digits at every precision level, float16 on the CPU included."""

import json

import numpy as np
import pytest

from examples.digits import digits
from trainer.errors import ConfigurationError
from trainer.experiment.cli import main


@pytest.mark.long
@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_digits_are_learnt_at_every_level(level, project_root, tmp_path, monkeypatch):
    monkeypatch.chdir(project_root)
    run = tmp_path / level
    changes = {"run_dir": run, "trainer.amp_level": level, "fit.epochs": 2}
    changes |= {"fit.batch_size": 32, "optimizer.init_args.learning_rate": 5e-3}  # more steps in fewer epochs
    sets = [word for name, value in changes.items() for word in ("--set", f"{name}={value}")]
    assert main(["fit", "configs/lenet_digits.yaml", *sets]) == 0
    assert json.loads((run / "metrics.json").read_text())["results"]["test_accuracy"] >= 0.95


def test_the_parts_are_all_digits_and_share_none():
    train, test = digits("train"), digits("test")
    assert (train["image"].shape, train["image"].dtype) == ((1348, 1, 8, 8), np.float32)
    assert (len(test["label"]), test["label"].dtype) == (449, np.int32)
    assert train["image"].min() == 0
    assert train["image"].max() == 1
    assert len(np.unique(np.concatenate([train["image"], test["image"]]).reshape(1797, -1), axis=0)) == 1797
    assert set(train["label"]) == set(test["label"]) == set(range(10))
    np.testing.assert_array_equal(digits("test")["image"], test["image"])


def test_a_part_that_does_not_exist_is_refused():
    with pytest.raises(ConfigurationError, match="received 'trian'; did you mean 'train'"):
        digits("trian")
