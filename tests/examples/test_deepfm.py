"""DeepFM on MovieLens-100K, by the files as they are and by a stream."""

import json

import pytest

from trainer.experiment.cli import main

pytestmark = pytest.mark.long


@pytest.fixture
def _in_project(project_root, monkeypatch):
    monkeypatch.chdir(project_root)


@pytest.mark.usefixtures("_in_project")
def test_the_experiment_beats_the_item_mean_and_the_linear_model(from_parquet, tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["fit", "configs/deepfm_movielens.yaml", "--set", f"run_dir={run}", *from_parquet]) == 0
    metrics = json.loads((run / "metrics.json").read_text())
    scores = metrics["report"]
    assert scores["DeepFM"]["auc"] >= 0.73
    assert scores["DeepFM"]["auc"] > max(scores["linear"]["auc"], scores["item mean"]["auc"])
    assert "the newest 10,000 ratings, 71% of them by new users" in capsys.readouterr().out


@pytest.mark.usefixtures("_in_project")
def test_a_stream_gives_every_new_id_its_row(tmp_path):
    run = tmp_path / "run"
    segments = {"rows": 8_000, "folder": tmp_path / "segments"}
    sets = [f"data.stream.init_args.path.init_args.{name}={value}" for name, value in segments.items()]
    sets += [f"run_dir={run}", "online.batch_size=20", "online.window.init_args.rows=3000"]
    command = ["online", "configs/deepfm_movielens_online.yaml", *(word for s in sets for word in ("--set", s))]
    assert main(command) == 0
    results = json.loads((run / "metrics.json").read_text())["results"]
    assert results["lifetime_rows"] == 8_000
    # scored before learned, half of the people new: far above chance all the same
    assert results["window_auc"] > 0.62
