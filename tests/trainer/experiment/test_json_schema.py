"""`trainer schema`: editors accept what the loader accepts, and mark typos."""

import copy
import json
from pathlib import Path

import jsonschema
import pytest

from trainer.experiment.cli import main
from trainer.experiment.configuration.json_schema import experiment_schema
from trainer.experiment.configuration.yaml_tree import parse_tree, read_tree
from trainer.models import MODELS

CONFIGS = sorted((Path(__file__).resolve().parents[3] / "configs").glob("*.yaml"))
EXPERIMENT = """\
experiment: table
seed: 1
features:
  columns:
    - {kind: numeric, name: age, normalize: standard, clip: [0, null]}
    - {kind: categorical, name: city, vocabulary: [a, b]}
    - {kind: cross, name: both, columns: [age, city]}
    - {kind: time, name: when, parts: [hour]}
    - {kind: list, name: genres, separator: "|", pooling: null}
  label: [click, buy]
  event_time: when
network: {model: mmoe, tasks: [click, buy], experts: 4, expert_hidden: [8]}
loss: mindspore.nn.BCEWithLogitsLoss
optimizer:
  class_path: mindspore.nn.Adam
  init_args: {learning_rate: {class_path: mindspore.nn.CosineDecayLR, init_args: [1e-5, 3e-3, 900]}, weight_decay: 1e-4}
metrics: [auc, gauc/user, click_auc, {class_path: mindspore.nn.Accuracy}]
trainer: {amp_level: O2, clip_norm: 1, loss_scale: null, gradient_accumulation_steps: "${env:STEPS}"}
data: {train: rows.csv, test: null, stream: {class_path: trainer.streams.FileStream, init_args: {path: rows}}}
fit: {epochs: 3, max_time: "00:10:00", limit_train_batches: 0.5, overfit_batches: null, fast_dev_run: 2}
online: {window: {class_path: trainer.Window, init_args: {rows: 100}}, batch_size: 2}
callbacks:
  - callbacks.ProgressBar
  - {class_path: callbacks.ModelCheckpoint, init_args: {every: window, monitor: val_auc}}
  - {class_path: callbacks.EarlyStopping, init_args: {patience: 3}}
  - {class_path: my_own.Callback, init_args: {anything: 1}}
"""


@pytest.fixture(scope="module")
def validator():
    schema = json.loads(json.dumps(experiment_schema()))
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_experiment_of_the_repository_is_accepted(validator, path):
    assert [error.message for error in validator.iter_errors(read_tree(path).value)] == []


def test_what_an_experiment_may_hold_is_accepted(validator):
    assert [str(error) for error in validator.iter_errors(parse_tree(EXPERIMENT, "text").value)] == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("trianer",), {}),
        (("experiment",), "two words"),
        (("seed",), -1),
        (("features", "lable"), "click"),
        (("features", "columns", 0, "kind"), "numerc"),
        (("features", "columns", 0, "normalise"), "standard"),
        (("features", "columns", 0, "indicator"), "yes"),
        (("features", "columns", 1, "min_count"), 1.5),
        (("network", "model"), "depfm"),
        (("network", "expert"), 4),
        (("network", "experts"), "four"),
        (("network", "expert_hidden"), 8),
        (("optimizer", "class_path"), "Adam"),
        (("optimizer", "init_arg"), {}),
        (("trainer", "amp_levl"), "O2"),
        (("trainer", "clip_norm"), "1"),
        (("trainer", "network"), {}),
        (("data", "trian"), "rows.csv"),
        (("fit", "epochs"), "3"),
        (("callbacks", 0), "ProgressBar"),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, tuple) else None,
)
def test_a_typo_is_marked_where_it_stands(validator, path, value):
    experiment = copy.deepcopy(parse_tree(EXPERIMENT, "text").value)
    inner = experiment
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    errors = list(validator.iter_errors(experiment))
    assert errors
    assert all(list(error.absolute_path) == list(path[: len(error.absolute_path)]) for error in errors)
    assert len(errors[0].absolute_path) >= min(len(path) - 1, 2), errors


def test_every_model_and_its_options_are_known(validator):
    for name in MODELS:
        experiment = {
            "experiment": "x",
            "network": {"model": name, "dim": 4, **({"item": ["a"]} if name in ("two_tower", "bpr") else {})},
        }
        assert validator.is_valid(experiment) is (name != "lr"), name  # which has no vectors


def test_it_is_printed_or_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["schema"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["properties"]["network"]["description"]
    assert main(["schema", "--output", "trainer.schema.json"]) == 0
    assert "# yaml-language-server: $schema=trainer.schema.json" in capsys.readouterr().out
    assert json.loads((tmp_path / "trainer.schema.json").read_text()) == printed
    assert main(["schema", "--output", "no/folder/s.json"]) == 2
