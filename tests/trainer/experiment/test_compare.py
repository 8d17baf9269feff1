"""`trainer compare` shows each result once, in cells that a terminal has room for."""

from __future__ import annotations

import json

import pytest

from trainer.experiment.runs.compare import compare, list_runs
from trainer.experiment.runs.run_pages import render


@pytest.fixture
def folders(tmp_path):
    names = []
    for name, auc, loss in (("one", 0.75, 0.5), ("two", 0.8, None)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.yaml").write_text(f"experiment: {name}\n")
        results = {"val_loss": loss, "val_log_loss": 0.5, "val_auc": auc, "test_auc": auc}
        reason = f"callback: val_auc has not improved in 3 measurements (best {auc} at step 300, now 0.1)"
        baseline = {
            "model": {"auc": auc},
            "plain": {"logistic regression": {"auc": auc - 0.1}},
            "importance": {"city": [auc / 3, 0.0344539310700664]},
        }
        metrics = {"results": results, "stop_reason": reason, "baseline": baseline, "seconds": auc, "best": {}}
        (folder / "metrics.json").write_text(json.dumps({**metrics, "progress": {"global_step": 5}}))
        names.append(folder)
    return names


def test_results_are_shown_once_and_short(folders, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    table = compare(*folders)
    rows = {line[:24].strip(): line[24:].strip() for line in table[table.index("Results") :].splitlines()[2:]}
    assert "logistic regression, auc" in table
    assert "0.250 +- 0.034" in rows["cost of shuffling city"]
    assert "not improved" not in table  # both stopped early
    assert "baseline" not in table
    assert "val_auc" in rows
    assert "None" in rows["val_loss"]  # not finite


def test_a_cost_that_is_not_finite_is_unknown(folders, monkeypatch):
    """As that of a column is where all test rows are of one class and the metric is the AUC."""
    monkeypatch.setenv("COLUMNS", "400")
    metrics = json.loads((folders[1] / "metrics.json").read_text())
    metrics["baseline"]["importance"] = {"city": [None, None]}
    (folders[1] / "metrics.json").write_text(json.dumps(metrics))
    (row,) = [line.split() for line in compare(*folders).splitlines() if line.startswith("cost of shuffling city")]
    assert row[-1] == "unknown"


def test_a_configuration_of_other_software_among_the_runs_is_passed_over(folders, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    for name in ("one", "two"):
        (tmp_path / name / "versions.json").write_text(json.dumps({"command": "fit"}))
    (tmp_path / "chart").mkdir()
    (tmp_path / "chart" / "config.yaml").write_text("a: 1\n---\nb: 2\n")
    assert [line.split()[0] for line in list_runs(tmp_path).splitlines()[2:]] == [str(folders[1]), str(folders[0])]


def test_a_best_value_that_is_not_finite_is_none(folders, tmp_path, monkeypatch):
    """It was infinite at every validation, so that the first one is the best."""
    monkeypatch.setenv("COLUMNS", "400")
    metrics = json.loads((folders[1] / "metrics.json").read_text())
    metrics["best"] = {"val_loss": {"value": None, "step": 5, "snapshot": None}}
    metrics |= {"results": {"val_loss": None, "train_loss": 0.5}, "snapshot": None, "baseline": {}}
    metrics["progress"]["samples_seen"] = 50
    (folders[1] / "metrics.json").write_text(json.dumps(metrics))
    (folders[1] / "versions.json").write_text(json.dumps({"command": "fit"}))
    (line,) = list_runs(tmp_path).splitlines()[2:]
    assert line.split()[:4] == [str(folders[1]), "stopped", "early", "5"]
    assert "best of validation" not in render([folders[1]])
