"""The section `features`: raw files are trained on without code, and every mistake is named at its line."""

import pytest

from tests.trainer.features.every_kind import make_rows
from tests.trainer.features.test_features import write_csv
from trainer.experiment import load_config
from trainer.experiment.cli import main
from trainer.experiment.configuration.problems import ConfigErrors

CONFIG = """\
experiment: table
features:
  columns:
    - {kind: numeric, name: age, normalize: standard, indicator: true}
    - {kind: categorical, name: city, vocabulary: learn, min_count: 2}
    - kind: list
      name: genres
      separator: "|"
  label: click
network:
  class_path: tests.trainer.features.every_kind.Net
  init_args: {dim: 2}
loss: mindspore.nn.BCEWithLogitsLoss
optimizer: {class_path: mindspore.nn.Adam, init_args: {learning_rate: 0.01}}
metrics: [auc]
data: {train: rows.csv, test: rows.csv, stream: rows.csv}
callbacks: [callbacks.ModelCheckpoint]
fit: {epochs: 2, batch_size: 64}
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    write_csv(make_rows(300), tmp_path / "rows.csv")
    (tmp_path / "table.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "table.yaml"


@pytest.mark.long
def test_a_csv_is_trained_on_without_code(config, capsys):
    for command in (["check", config], ["fit", config], ["evaluate", "runs/table"], ["predict", "runs/table"]):
        assert main(list(map(str, command))) == 0, capsys.readouterr()
    assert "auc" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new", "line", "path", "message"),
    [
        ("kind: numeric", "kind: numerc", 4, "features.columns.0.kind", "did you mean 'numeric'"),
        ("normalize: standard", "normalise: standard", 4, "features.columns.0.normalise", "did you mean 'normalize'"),
        ("normalize: standard", "normalize: standart", 4, "features.columns.0.normalize", "did you mean 'standard'"),
        ("name: genres", "name: city", 3, "features", "two features are named 'city'"),
        ("  label: click", "  lable: click", 9, "features.lable", "did you mean 'label'"),
        ("{dim: 2}", "{dim: 2, features: 3}", 12, "network.init_args.features", "is filled in"),
        ("train: rows.csv", "train: row.csv", 16, "data.train", "that exists"),
    ],
)
def test_a_mistake_is_named_at_its_line(config, old, new, line, path, message):
    config.write_text(CONFIG.replace(old, new))
    with pytest.raises(ConfigErrors) as errors:
        load_config(config)
    (problem,) = errors.value.problems
    assert problem.path == path
    assert message in problem.message
    assert str(problem.location).endswith(f":{line}") or f":{line}:" in str(problem.location)


def test_a_file_of_rows_without_declared_columns_says_what_is_missing(config):
    with pytest.raises(ConfigErrors, match=r"data.train: received 'rows.csv' .*; a file of raw rows needs the section"):
        load_config(config, ["features=null", "network=mindspore.nn.Flatten"])
