"""Tasks and metrics of the newer kinds in a configuration."""

import csv
from pathlib import Path

import numpy as np
import pytest

from trainer.experiment.cli import main
from trainer.experiment.configuration.instantiate import build
from trainer.experiment.configuration.loader import load_config
from trainer.experiment.configuration.problems import ConfigErrors

CONFIG = """
experiment: tasks
seed: 1
network: {class_path: examples.rating.Rater, init_args: {outputs: 2, heads: true}}
loss:
  class_path: trainer.MultiTaskLoss
  init_args:
    losses:
      liked: {class_path: mindspore.nn.BCEWithLogitsLoss}
      loved: {class_path: mindspore.nn.BCEWithLogitsLoss, init_args: {reduction: none}}
    masks: {loved: liked}
    weights: {loved: 0.5}
optimizer: {class_path: mindspore.nn.Adam}
metrics: [auc, liked_log_loss, loved_gauc/user]
data:
  train: {class_path: examples.movielens.MovieLens}
"""
DECLARED = """
experiment: tasks
features: {columns: [{kind: numeric, name: x}], label: [click, buy]}
network: {model: mmoe, dim: 2, experts: 1}
loss:
  class_path: trainer.MultiTaskLoss
  init_args: {losses: {click: &loss {class_path: mindspore.nn.BCEWithLogitsLoss}, buy: *loss}}
optimizer: mindspore.nn.Adam
data: {train: rows.csv, test: rows.csv}
fit: {epochs: 1, batch_size: 64}
callbacks: [callbacks.ModelCheckpoint]
"""


def test_losses_masks_weights_and_metrics_of_tasks_come_from_a_file(tmp_path):
    path = tmp_path / "tasks.yaml"
    path.write_text(CONFIG)
    trainer = build(load_config(path), datasets=[]).trainer
    assert trainer.tasks.describe() == "liked (weight 1), loved (weight 0.5 where liked)"
    assert set(trainer.metrics) == {"liked_auc", "loved_auc", "liked_log_loss", "loved_gauc"}


def test_an_activation_by_task_comes_from_a_file_and_a_wrong_one_is_named(tmp_path):
    path = tmp_path / "tasks.yaml"
    path.write_text(CONFIG + "trainer: {prediction_activation: {loved: exp}}")
    assert build(load_config(path), datasets=[]).trainer.prediction_activations == {"loved": "exp"}
    path.write_text(CONFIG + "trainer: {prediction_activation: sigmoyd}")
    with pytest.raises(ConfigErrors, match=r"received 'sigmoyd'; did you mean 'sigmoid'"):
        load_config(path)


def test_a_misspelt_metric_of_a_task_is_named(tmp_path):
    path = tmp_path / "tasks.yaml"
    path.write_text(CONFIG.replace("liked_log_loss", "liked_log_los"))
    with pytest.raises(ConfigErrors, match="liked_log_los"):
        load_config(path)


def test_a_kept_label_stands_beside_the_prediction_of_its_task(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    lines = [f"{x:.3f},{int(x > 0)},{n % 2}" for n, x in enumerate(rng.normal(size=64))]
    Path("rows.csv").write_text("\n".join(["x,click,buy", *lines]) + "\n")
    Path("tasks.yaml").write_text(DECLARED)
    assert main(["fit", "tasks.yaml"]) == 0
    assert main(["predict", "runs/tasks", "--output", "answers.csv", "--keep", "click", "x"]) == 0
    with open("answers.csv", newline="") as file:
        answers = list(csv.DictReader(file))
    assert list(answers[0]) == ["row", "click", "x", "prediction_click", "buy"]
    assert [answer["click"] for answer in answers] == [line.split(",")[1] for line in lines]
    assert all(0 < float(answer["prediction_click"]) < 1 for answer in answers)


def test_the_columns_of_one_output_are_those_of_the_tasks_in_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [f"{x},{int(x > 3)},{x % 2}" for x in range(8)]
    Path("rows.csv").write_text("\n".join(["x,click,buy", *lines]) + "\n")
    network = "{class_path: mindspore.nn.Dense, init_args: {in_channels: 1, out_channels: 2}}"
    Path("tasks.yaml").write_text(DECLARED.replace("{model: mmoe, dim: 2, experts: 1}", network))
    assert main(["fit", "tasks.yaml"]) == 0
    for name in ("answers.csv", "logits.npy"):
        assert main(["predict", "runs/tasks", "--output", name]) == 0
    with open("answers.csv", newline="") as file:
        answers = list(csv.DictReader(file))
    expected = 1 / (1 + np.exp(-np.load("logits.npy")))
    assert list(answers[0]) == ["row", "click", "buy"]
    for column, task in enumerate(("click", "buy")):
        np.testing.assert_allclose([float(answer[task]) for answer in answers], expected[:, column], rtol=1e-5)
