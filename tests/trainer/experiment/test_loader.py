"""What a configuration may say, and what is said about one that is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trainer.experiment.configuration.experiment_config import ExperimentConfig
from trainer.experiment.configuration.loader import load_config
from trainer.experiment.configuration.object_spec import ObjectSpec
from trainer.experiment.configuration.problems import ConfigErrors
from trainer.experiment.configuration.yaml_tree import dump, parse_tree

GOOD = """\
experiment: tiny
network: {class_path: mindspore.nn.Dense, init_args: {in_channels: 4, out_channels: 1}}
loss: mindspore.nn.BCEWithLogitsLoss
optimizer:
  class_path: mindspore.nn.Adam
  init_args:
    learning_rate:
      class_path: mindspore.nn.ExponentialDecayLR
      init_args: {learning_rate: 1e-3, decay_rate: 0.9, decay_steps: 4}
metrics: [auc, mindspore.train.MAE]
trainer: {amp_level: O0}
data:
  train: {class_path: mindspore.dataset.NumpySlicesDataset, init_args: {data: [1, 2]}}
fit: {epochs: 3}
callbacks:
  - class_path: mindspore.train.LossMonitor
"""


def load(folder: Path, text: str, *overrides: str) -> ExperimentConfig:
    path = folder / "experiment.yaml"
    path.write_text(text)
    return load_config(path, overrides)


def problems(folder: Path, text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        load(folder, text, *overrides)
    return [str(problem).replace(f"{folder}/", "") for problem in caught.value.problems]


def test_a_good_file_is_read_with_its_defaults_filled_in(tmp_path):
    config = load(tmp_path, GOOD)
    assert config.seed == 0
    assert config.run_dir == Path("runs/tiny")
    assert config.loss == ObjectSpec("mindspore.nn.BCEWithLogitsLoss")
    assert config.optimizer.init_args["learning_rate"].init_args["learning_rate"] == 1e-3
    assert config.metrics == ("auc", ObjectSpec("mindspore.train.MAE"))
    assert config.fit["epochs"] == 3
    plain = config.to_dict()
    # the real signature of nn.Adam sits behind a decorator that shows (*args, **kwargs)
    assert plain["optimizer"]["init_args"]["beta1"] == 0.9
    assert "params" not in plain["optimizer"]["init_args"]
    assert plain["fit"]["dataset_sink_mode"] is True
    defaults = config.default_paths()
    assert {"fit.dataset_sink_mode", "optimizer.init_args.beta1"} <= set(defaults)
    assert not {"fit.epochs", "optimizer.init_args.learning_rate"} & set(defaults)


def test_the_mirror_may_be_a_variable(tmp_path):
    assert load(tmp_path, f"{GOOD}mirror: ${{env:MIRROR}}\n").mirror == "${env:MIRROR}"
    (wrong,) = problems(tmp_path, f"{GOOD}mirror: ${{env:a b}}\n")
    assert "${env:a b} names no environment variable" in wrong


def test_the_saved_form_of_a_configuration_loads_as_the_same_experiment(tmp_path):
    config = load(tmp_path, GOOD)
    saved = dump(config.to_dict())
    again = load(tmp_path, saved)
    assert again.to_dict() == config.to_dict()


def test_all_problems_are_reported_at_once_with_their_locations(tmp_path):
    text = """\
experimnt: tiny
seed: fast
network:
  class_path: mindspore.nn.Dense
  init_args: {in_channels: "4", out_chanels: 1}
loss: mindspore.nn.BCEWithLogitLoss
optimizer:
  class_path: mindspore.nn.Adam
  init_args: {learning_rat: 1e-3, beta1: fast, use_nesterov: yes, params: 3}
trainer: {amp_levle: O0, clip_norm: a, metrics: [auc]}
data: {trian: mindspore.dataset.MnistDataset, test: {init_args: {}}}
fit: {epochs: three, valid_dataset: 3}
callbacks:
  - mindspore.nn.ReLU
"""
    found = problems(tmp_path, text)
    expected = [
        ("experiment.yaml:1:1: experimnt: unknown key; accepts experiment, seed,", "did you mean 'experiment'?"),
        ("experiment.yaml:2:7: seed: received 'fast' (str); accepts a whole number from 0 to 4294967295", ""),
        ("experiment.yaml:5:28: network.init_args.in_channels: received '4' (str); accepts a whole number", ""),
        ("experiment.yaml:5:33: network.init_args.out_chanels: Dense has no argument", "did you mean 'out_channels'?"),
        ("experiment.yaml:6:7: loss: received 'mindspore.nn.BCEWithLogitLoss'", "did you mean 'BCEWithLogitsLoss'?"),
        ("experiment.yaml:9:15: optimizer.init_args.learning_rat: Adam has no", "did you mean 'learning_rate'?"),
        ("experiment.yaml:9:42: optimizer.init_args.beta1: received 'fast' (str); accepts a number", ""),
        ("experiment.yaml:9:62: optimizer.init_args.use_nesterov: received 'yes' (str)", "write true"),
        ("experiment.yaml:9:67: optimizer.init_args.params: is filled in; leave it out", ""),
        ("experiment.yaml:10:11: trainer.amp_levle: section trainer has no argument", "did you mean 'amp_level'?"),
        ("experiment.yaml:10:37: trainer.clip_norm: received 'a' (str); accepts a number", ""),
        ("experiment.yaml:10:40: trainer.metrics: is given elsewhere: section metrics", ""),
        ("experiment.yaml:11:8: data.trian: unknown key", "did you mean 'train'?"),
        ("experiment.yaml:11:53: data.test.class_path: is missing", ""),
        ("experiment.yaml:12:15: fit.epochs: received 'three' (str); accepts a whole number", ""),
        ("experiment.yaml:12:22: fit.valid_dataset: is given elsewhere: data.valid", ""),
        ("experiment.yaml:14:5: callbacks.0: mindspore.nn.ReLU is not a callbacks.Callback or a mindspore", ""),
    ]
    assert len(found) == len(expected), "\n".join(found)
    for line, (start, end) in zip(found, expected, strict=True):
        assert line.startswith(start), line
        assert line.endswith(end), line


def test_missing_arguments_are_reported_where_the_object_stands(tmp_path):
    text = GOOD.replace(", out_channels: 1", "").replace("experiment: tiny\n", "")
    assert problems(tmp_path, text) == [
        "experiment.yaml:1:1: experiment: is missing",
        "experiment.yaml:1:23: network.init_args.out_channels: is missing; Dense needs it (a whole number)",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seed: 1\nexperiment: a\nseed: 2\n", "3:1: seed: duplicate key; it was first given at"),
        ("a: {b: 1, c: [}\n", "1:15: invalid YAML"),
        ("a: !!python/object:os.system {}\n", "1:4: a: the tag"),
        ("a: &a [*a]\n", "1:4: a.0: this anchor contains itself"),
        ("a: 1\n---\nb: 2\n", "2:1: invalid YAML: expected a single document"),
        ("- 1\n- 2\n", "1:1: received [1, 2]; accepts a mapping"),
        ("", "1:1: received nothing (null); accepts a mapping"),
        ("a: \x01", "1:4: invalid YAML: the character '\\x01' is not allowed"),
        ("? [a, b]\n: 1\n", "1:3: a key is a plain word or number"),
        ("a: " + "[" * 5_000, "invalid YAML: maximum recursion depth"),
    ],
)
def test_text_that_is_not_a_configuration_is_refused_with_its_place(tmp_path, text, expected):
    found = problems(tmp_path, text)
    assert any(expected in line for line in found), found


def test_of_very_many_problems_the_first_are_reported(tmp_path):
    told = problems(tmp_path, GOOD.replace("[auc, ", "[" + "1, " * 900))
    assert len(told) == 201
    assert told[0].startswith("experiment.yaml:10:11: metrics.0: received 1 (int)")
    assert told[-1] == "configuration: these are the first 200 problems; there may be more"


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigErrors, match=r"nowhere.yaml: cannot be read: No such file"):
        load_config(tmp_path / "nowhere.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"experiment: tiny\nname: caf\xe9\n")
    with pytest.raises(ConfigErrors, match=r"latin.yaml:2:10: byte 0xe9 is not UTF-8"):
        load_config(tmp_path / "latin.yaml")


@pytest.mark.parametrize("name", ["visits.csv", "visits.PARQUET"])
def test_a_table_in_place_of_an_experiment_is_named(tmp_path, name):
    (tmp_path / name).write_bytes(b"age,click\n\xff,1\n")
    with pytest.raises(ConfigErrors, match=rf"{name}: is a table of rows, not an experiment; `trainer init "):
        load_config(tmp_path / name)


def test_scalars_mean_what_people_expect():
    text = "[1e-3, 010, yes, on, 2024-01-01, 1:30, 0x1f, 1_000, .inf, ~, true, 1.5, '1e-3', -2, 1_]"
    expected = [1e-3, 10, "yes", "on", "2024-01-01", "1:30", 31, 1000, float("inf"), None, True, 1.5, "1e-3", -2, "1_"]
    read = parse_tree(text, "text").value
    assert read == expected
    assert list(map(type, read)) == list(map(type, expected))


def test_anchors_and_merge_keys_work_and_what_is_written_wins():
    text = "base: &base {a: 1, b: 2}\nother: &other {b: 3, c: 4}\nuse: {<<: [*base, *other], a: 5}\n"
    assert parse_tree(text, "text").value["use"] == {"a": 5, "b": 2, "c": 4}


def test_overrides_are_read_as_yaml_and_reach_everywhere(tmp_path):
    config = load(
        tmp_path,
        GOOD,
        "trainer.amp_level=O2",
        "optimizer.init_args.learning_rate=1e-2",
        "loss.init_args.reduction=sum",
        "callbacks.0.init_args.per_print_times=5",
        "metrics=[accuracy]",
        "run_dir=elsewhere",
    )
    assert config.trainer["amp_level"] == "O2"
    assert config.optimizer.init_args == {"learning_rate": 1e-2}
    assert config.loss.init_args == {"reduction": "sum"}
    assert config.callbacks[0].init_args == {"per_print_times": 5}
    assert config.metrics == ("accuracy",)
    assert config.run_dir == Path("elsewhere")


def test_a_wrong_override_is_reported_like_a_wrong_line(tmp_path):
    found = problems(tmp_path, GOOD, "trainer.amp_levl=O2", "fit.epochs=x", "callbacks.3.a=1", "nothing", "seed.x=[")
    assert [line.partition(": accepts")[0].partition(";")[0] for line in found] == [
        "--set callbacks.3.a=1: callbacks.3: an index of this list is 0 to 0",
        "--set fit.epochs=x: fit.epochs: received 'x' (str)",
        "--set nothing: received 'nothing' (str)",
        "--set seed.x=[: invalid YAML: while parsing a flow node, expected the node content, but found '<stream end>'",
        "--set trainer.amp_levl=O2: trainer.amp_levl: section trainer has no argument 'amp_levl'",
    ]


def test_modules_beside_the_project_are_found_and_sys_path_is_put_back(tmp_path, monkeypatch):
    project = tmp_path / "project"
    (project / "configs").mkdir(parents=True)
    (project / "networks_of_this_test.py").write_text(
        "from mindspore import nn\n"
        "class Small(nn.Cell):\n"
        "    def __init__(self, units: int, activation: nn.Cell, kernel: tuple[int, int] = (1, 1)):\n"
        "        super().__init__()\n"
    )
    text = GOOD.replace("{class_path: mindspore.nn.Dense, init_args: {in_channels: 4, out_channels: 1}}", "{network}")
    network = "{class_path: networks_of_this_test.Small, init_args: {units: 3, activation: mindspore.nn.ReLU}}"
    before = list(sys.path)
    monkeypatch.chdir(tmp_path)
    config = load(project / "configs", text.replace("{network}", network))
    assert sys.path == before
    # a class name alone is an object where the annotation asks for one
    assert config.network.init_args["activation"] == ObjectSpec("mindspore.nn.ReLU")
    wrong = network.replace("mindspore.nn.ReLU", "mindspore.train.MAE, kernel: [1]")
    found = problems(project / "configs", text.replace("{network}", wrong))
    assert "network.init_args.activation: received 'mindspore.train.MAE' (str); accepts an object of Cell" in found[0]
    assert "network.init_args.kernel: received [1]; accepts a list of (a whole number)" in found[1]


@pytest.mark.parametrize(
    ("name", "code", "reason"),
    [
        ("broken_a", "import nothing_of_this_name", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("broken_b", "1 / 0", "ZeroDivisionError: division by zero"),
        ("broken_c", "raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_module_whose_import_fails_is_reported_with_its_reason(tmp_path, monkeypatch, name, code, reason):
    (tmp_path / f"{name}_of_the_loader_test.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    found = problems(tmp_path, GOOD.replace("mindspore.nn.Dense", f"{name}_of_the_loader_test.Net"))
    assert found[0].endswith(f"importing {name}_of_the_loader_test failed: {reason}")


MINE = """
import functools
import subprocess
from collections.abc import Iterator
from subprocess import check_output as harmless
import numpy as np
from mindspore import nn

def untold(part="x"): return [1]
def arrays() -> dict[str, np.ndarray]: return {}
def batches() -> Iterator[tuple]: yield ()
def network(width: int = 3) -> nn.SequentialCell: return nn.SequentialCell(nn.Dense(4, width))
def some_cell() -> nn.Cell: return nn.Dense(4, 1)
def optimizer(params) -> nn.Cell: return nn.SGD(params)
def path() -> str: return "rows.csv"
def nothing() -> None: pass
rows = functools.partial(untold, part="y")
command = functools.partial(subprocess.check_output, ["true"])
class Source:
    def __iter__(self): return iter(())
class Metric:
    def clear(self): pass
    def update(self, *values): pass
    def eval(self): return 1.0
def mae(predictions, labels): return abs(predictions - labels)
def loss(): return mae
class Report:
    def __call__(self, trainer, run_dir): pass
"""


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "mine_of_the_loader_test.py").write_text(MINE)
    return tmp_path


@pytest.mark.parametrize(
    ("section", "class_path", "message"),
    [
        ("data.train", "subprocess.check_output", "is Python's own (subprocess)"),
        ("data.train", "mine_of_the_loader_test.harmless", "is Python's own (subprocess)"),
        ("data.train", "mine_of_the_loader_test.command", "is Python's own (subprocess)"),
        ("network", "os.system", "is Python's own (os)"),
        ("report", "builtins.exec", "is Python's own (builtins)"),
        ("loss", "pathlib.Path.home", "is Python's own (pathlib)"),
        ("data.train", "mindspore.nn.Dense", "is not a dataset"),
        ("network", "mindspore.nn.Adam", "is not a mindspore.nn.Cell"),
        ("loss", "mine_of_the_loader_test.Metric", "is not a loss"),
        ("loss", "mindspore.nn.Adam", "is not a loss"),
        ("optimizer", "mindspore.nn.Dense", "is not an optimizer"),
        ("metrics.0", "mindspore.nn.Dense", "is not a metric"),
        ("callbacks.0", "mine_of_the_loader_test.Report", "is not a callbacks.Callback"),
        ("report", "mine_of_the_loader_test.Source", "is not an object to call as report"),
        ("optimizer.init_args.learning_rate", "subprocess.getoutput", "is Python's own (subprocess)"),
    ],
)
def test_what_makes_another_kind_of_object_is_refused_and_never_called(mine, section, class_path, message):
    (problem, *_) = problems(mine, GOOD, f"{section}={{class_path: {class_path}}}")
    assert f"{class_path} {message}" in problem


@pytest.mark.parametrize(
    ("section", "class_paths"),
    [
        (
            "data.train",
            [f"mine_of_the_loader_test.{name}" for name in ("untold", "arrays", "batches", "rows", "Source")],
        ),
        ("network", [f"mine_of_the_loader_test.{name}" for name in ("untold", "network", "some_cell")]),
        ("metrics.0", ["mine_of_the_loader_test.Metric", "mindspore.train.F1"]),
        ("loss", ["mine_of_the_loader_test.loss", "mindspore.nn.MSELoss"]),
        ("optimizer", ["mine_of_the_loader_test.optimizer"]),
        ("report", ["mine_of_the_loader_test.Report"]),
        ("network.init_args.weight_init", ["collections.OrderedDict"]),
    ],
)
def test_what_may_make_the_right_kind_is_accepted(mine, section, class_paths):
    for class_path in class_paths:
        load(mine, GOOD, f"{section}={{class_path: {class_path}}}")
    load(mine, GOOD, "optimizer={class_path: mindspore.experimental.optim.SGD, init_args: {lr: 0.1}}")


@pytest.mark.parametrize(
    ("section", "class_path", "advice"),
    [
        ("callbacks.0", "mindspore.train.LossMonitr", "no 'LossMonitr'; did you mean 'LossMonitor'?"),
        ("metrics.0", "mindspore.train.LossMonitr", "no 'LossMonitr'; did you mean 'Loss'?"),
        ("metrics.0", "callbacks.EarlyStoping", "no 'EarlyStoping'"),
        ("optimizer", "mindspore.nn.Adm", "no 'Adm'; did you mean 'Adam'?"),
        ("network", "mindspore.nn.Momentm", "no 'Momentm'; did you mean 'Moments'?"),
        ("network", "mindspore.nnn.Dense", "no 'nnn'; did you mean 'nn'?"),
    ],
)
def test_only_what_is_of_the_kind_that_a_section_takes_is_suggested(tmp_path, section, class_path, advice):
    (problem, *_) = problems(tmp_path, GOOD, f"{section}={{class_path: {class_path}}}")
    assert problem.endswith(advice)
