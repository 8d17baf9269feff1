"""Every experiment in configs/ passes its check, and trains."""

import json
from pathlib import Path

import pytest
import yaml

from trainer.experiment.cli import main

CONFIGS = sorted((Path(__file__).resolve().parents[2] / "configs").glob("*.yaml"))
ROWS = 3000


@pytest.fixture(autouse=True)
def _in_project(project_root, monkeypatch):
    monkeypatch.chdir(project_root)


@pytest.fixture(scope="module")
def some_rows(raw_movielens, tmp_path_factory):
    """Every tenth rating of MovieLens-100K, as JSON lines."""
    path = tmp_path_factory.mktemp("rows") / "movielens.jsonl"
    path.write_text("".join(raw_movielens.read_text().splitlines(keepends=True)[::10]))
    return path


@pytest.mark.long
@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_it_passes_its_check_and_trains_some_steps(config, some_rows, tmp_path, capsys):
    assert main(["check", str(config)]) == 0, capsys.readouterr().err
    content = yaml.safe_load(config.read_text())
    assert content["experiment"] == config.stem
    assert "run_dir" not in content  # runs/ and the name of the experiment
    verb = "online" if "online" in content else "fit"
    changes = {"run_dir": tmp_path / "run", f"{verb}.max_steps": 6, "report": "null"}
    if verb == "online":
        changes |= {"online.batch_size": 50, "online.sink_size": 3, "online.window.init_args.rows": 100}
        if content["data"]["stream"]["class_path"].endswith("FileStream"):
            changes["data.stream.init_args.path.init_args.folder"] = tmp_path / "segments"
            changes["data.stream.init_args.path.init_args.rows"] = ROWS
    for name, dataset in content["data"].items():
        if dataset["class_path"] == "trainer.features.RawFiles":
            changes[f"data.{name}.init_args.path"] = some_rows
    if "report" not in content:
        del changes["report"]
    sets = [word for name, value in changes.items() for word in ("--set", f"{name}={value}")]
    assert main([verb, str(config), *sets]) == 0, capsys.readouterr().err
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["progress"]["global_step"] == 6
    assert list((tmp_path / "run" / "checkpoints").glob("step_*"))
