"""A network by its name: `network: {model: deepfm, hidden: [8]}`, with the features handed over."""

import pytest

from tests.trainer.features.every_kind import make_rows
from tests.trainer.features.test_features import write_csv
from trainer.experiment import build, load_config
from trainer.experiment.cli import main
from trainer.experiment.configuration.problems import ConfigErrors
from trainer.experiment.runs.run_folder import Run
from trainer.models import MODELS, DeepFM

CONFIG = """\
experiment: table
features:
  columns:
    - {kind: numeric, name: age, normalize: standard}
    - {kind: categorical, name: city, vocabulary: learn}
  label: click
network:
  model: deepfm
  dim: 2
  hidden: [4]
loss: mindspore.nn.BCEWithLogitsLoss
optimizer: {class_path: mindspore.nn.Adam, init_args: {learning_rate: 0.01}}
metrics: [auc]
data: {train: rows.csv, test: rows.csv}
callbacks: [callbacks.ModelCheckpoint]
fit: {epochs: 1, batch_size: 64}
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    write_csv(make_rows(200), tmp_path / "rows.csv")
    (tmp_path / "table.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "table.yaml"


@pytest.mark.long
def test_it_is_trained_and_its_run_folder_loads_as_the_same_model(config, capsys):
    for command in (["fit", config], ["evaluate", "runs/table"], ["predict", "runs/table"]):
        assert main(list(map(str, command))) == 0, capsys.readouterr()
    recorded = Run.read("runs/table").config["network"]
    assert recorded == {"model": "deepfm", "dim": 2, "hidden": [4], "mean": 0.0, "deviation": 1.0}
    experiment = build(load_config("runs/table"), ())
    assert isinstance(experiment.trainer.network, DeepFM)


def test_every_model_is_known_by_its_name(config):
    for name in MODELS:
        options = dict.fromkeys(("two_tower", "bpr"), "item: [city]").get(name, "")
        config.write_text(CONFIG.replace("  model: deepfm\n  dim: 2\n  hidden: [4]", f"  model: {name}\n  {options}"))
        assert load_config(config).network.to_dict()["model"] == name


@pytest.mark.parametrize(
    ("old", "new", "line", "path", "message"),
    [
        ("model: deepfm", "model: depfm", 8, "network.model", "did you mean 'deepfm'"),
        ("model: deepfm", "model: 3", 8, "network.model", "received 3 (int); accepts lr, fm, wide_deep"),
        (
            "hidden: [4]",
            "hiden: [4]",
            10,
            "network.hiden",
            "accepts dim, hidden, mean, deviation; did you mean 'hidden'",
        ),
        ("hidden: [4]", "hidden: wide", 10, "network.hidden", "accepts a list of"),
        ("hidden: [4]", "init_args: {hidden: [4]}", 10, "network.init_args", "next to its name"),
        ("hidden: [4]", "features: city", 10, "network.features", "is filled in"),
        ("model: deepfm", "model: two_tower", 8, "network.item", "is missing; TwoTower needs it"),
    ],
)
def test_a_mistake_is_named_at_its_line(config, old, new, line, path, message):
    config.write_text(CONFIG.replace(old, new))
    with pytest.raises(ConfigErrors) as errors:
        load_config(config)
    (problem,) = errors.value.problems
    assert (problem.path, problem.location.line) == (path, line)
    assert message in problem.message


def test_a_model_without_features_says_what_is_missing(config):
    head, tail = CONFIG.index("features:"), CONFIG.index("network:")
    config.write_text(CONFIG[:head] + CONFIG[tail:])
    with pytest.raises(ConfigErrors, match="deepfm reads declared columns; add the section features"):
        load_config(config)
