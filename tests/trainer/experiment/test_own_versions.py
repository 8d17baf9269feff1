"""The versions of a run are its own: runs of one file, and copies of it under another name, share no folder."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from trainer.experiment.cli import main
from trainer.serving import ServedModel, Versions

sys.path.insert(0, str(Path(__file__).parents[3]))  # benchmarks are not installed

from benchmarks.serve_process import Server

CONFIG = """
experiment: visits
seed: 1
features:
  columns: [{kind: numeric, name: age, normalize: standard}, {kind: categorical, name: city}]
  label: click
network: {model: wide_deep, dim: 2, hidden: [4]}
loss: {class_path: mindspore.nn.BCEWithLogitsLoss}
optimizer: {class_path: mindspore.nn.Adam, init_args: {learning_rate: 0.01}}
data:
  train: {class_path: trainer.features.RawFiles, init_args: {path: visits.csv}}
  test: {class_path: trainer.features.RawFiles, init_args: {path: visits.csv}}
fit: {epochs: 1, batch_size: 32}
callbacks: [{class_path: trainer.serving.Publish, init_args: {every: 100, batch: 8}}]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two runs of one file, the second trained further, and a copy of it with another name."""
    folder = tmp_path_factory.mktemp("own")
    rng = np.random.default_rng(0)
    age, city = rng.uniform(18, 70, 128), rng.choice(list("abc"), 128)
    lines = [f"{a:.3f},{c},{int(a > 40)}" for a, c in zip(age, city, strict=True)]
    (folder / "visits.csv").write_text("\n".join(["age,city,click", *lines]) + "\n")
    (folder / "visits.yaml").write_text(CONFIG)
    (folder / "copy.yaml").write_text(CONFIG.replace("experiment: visits", "experiment: copy"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["fit", "visits.yaml"]) == 0
        assert main(["fit", "visits.yaml", "--set", "fit.epochs=3"]) == 0
        assert main(["fit", "copy.yaml", "--set", "seed=2"]) == 0
    return folder


@pytest.fixture(autouse=True)
def inside(folder, monkeypatch):
    monkeypatch.chdir(folder)


@pytest.mark.long
def test_each_run_publishes_to_its_own_folder_and_is_served_from_there(folder, capsys):
    rows = {"age": [20.0, 60.0], "city": ["a", "b"]}
    answers = {}
    for run in ("visits", "visits-2", "copy"):
        assert main(["versions", f"runs/{run}", "--json"]) == 0
        numbers = [version["number"] for version in json.loads(capsys.readouterr().out)]
        assert numbers[0] == 1  # nobody else's before them
        with ServedModel(f"runs/{run}/published", follow=False) as model:
            answers[run] = model.predict(rows, output="probability").tolist()
    assert len({str(answer) for answer in answers.values()}) == 3
    server = Server(folder / "runs" / "visits")
    body = {"columns": rows}
    assert server.ask("/predict", body)[2]["probability"] == answers["visits"]
    server.stop()
    assert sorted(path.name for path in folder.iterdir()) == ["copy.yaml", "runs", "visits.csv", "visits.yaml"]


def test_a_folder_of_another_run_is_refused_by_name(folder, caplog, capsys):
    explicit = "callbacks.0.init_args.root=shared"
    assert main(["fit", "visits.yaml", "--set", explicit, "--set", "run_dir=runs/first"]) == 0
    before = Versions("shared").newest()
    for root in ("shared", "runs/visits/published"):
        root = f"callbacks.0.init_args.root={root}"
        assert main(["fit", "visits.yaml", "--set", root, "--set", "run_dir=runs/second"]) == 2
        said = capsys.readouterr().err + caplog.text
        assert "holds the versions of the run" in said
        assert not Path("runs/second").exists()
        caplog.clear()
    assert Versions("shared").newest() == before
