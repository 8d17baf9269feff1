"""`make run`: Wide & Deep on MovieLens-100K beats two baselines on the newest tenth of the ratings."""

import json

import pytest
from sklearn.metrics import log_loss as exact_log_loss
from sklearn.metrics import roc_auc_score

from examples import baselines
from examples.movielens import load, split_by_time
from trainer.experiment.cli import main


@pytest.fixture(scope="module")
def parts():
    return split_by_time(load())


def test_baselines_reach_what_the_data_allows_them_without_the_held_out_labels(parts):
    train, test = parts
    found = baselines.baselines(train, test)
    assert found["item mean"]["auc"] == pytest.approx(0.707, abs=0.002)
    assert 0.715 < found["linear"]["auc"] < 0.730
    assert found["linear"]["log_loss"] < found["item mean"]["log_loss"] < 0.62
    few = {name: column[:3000] for name, column in train.items()}
    found, turned = (baselines.baselines(few, {**test, "label": label}) for label in (test["label"], 1 - test["label"]))
    for name, scores in turned.items():
        assert scores["auc"] == pytest.approx(1 - found[name]["auc"], abs=1e-9)


def test_scores_are_those_of_scikit_learn(parts):
    train, test = parts
    p = baselines.item_mean(train, test)  # few distinct values, so ties count
    assert baselines.auc(test["label"], p) == pytest.approx(roc_auc_score(test["label"], p), abs=1e-12)
    assert baselines.log_loss(test["label"], p) == pytest.approx(exact_log_loss(test["label"], p), abs=1e-9)


@pytest.mark.long
def test_the_experiment_beats_both_and_tells_where_everything_is(
    project_root, from_parquet, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(project_root)
    run = tmp_path / "run"
    assert main(["fit", "configs/wide_deep_movielens.yaml", "--set", f"run_dir={run}", *from_parquet]) == 0
    scores = json.loads((run / "metrics.json").read_text())["report"]
    assert scores["Wide & Deep"]["auc"] >= 0.725
    for baseline in ("linear", "item mean"):
        assert scores["Wide & Deep"]["auc"] > scores[baseline]["auc"]
        assert scores["Wide & Deep"]["log_loss"] < scores[baseline]["log_loss"]

    printed, progress = capsys.readouterr()
    assert f"Wide & Deep        {scores['Wide & Deep']['auc']:.4f}" in printed
    assert "item mean          0.707" in printed
    snapshot = next((run / "checkpoints").glob("step_*"))
    assert str(snapshot) in printed
    assert (run / "loss_curve.png").read_bytes().startswith(b"\x89PNG")
    assert str(run / "loss_curve.png") in printed
    assert list((run / "tensorboard").glob("events.*"))
    assert str(run / "tensorboard") in printed
    assert "loss 0.5" in progress
    assert "samples/s" in progress
