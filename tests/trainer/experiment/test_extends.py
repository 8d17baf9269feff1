"""`extends:` another experiment, `${env:NAME,default}`, `init_from:`: mistakes are named in the file they stand in."""

import pytest

from trainer.experiment import build, load_config
from trainer.experiment.configuration.problems import ConfigErrors
from trainer.experiment.runs.restart import published_by

BASE = """\
experiment: base
seed: 3
network: {class_path: mindspore.nn.Dense, init_args: {in_channels: 3, out_channels: 1}}
loss: mindspore.nn.MSELoss
optimizer:
  class_path: mindspore.nn.Adam
  init_args: {learning_rate: 0.1, weight_decay: 0.5}
metrics: [mse, mae]
fit: {epochs: 2, batch_size: 8}
"""


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    write("base.yaml", BASE)
    return write


def test_mappings_are_merged_and_everything_else_is_replaced(write):
    path = write("over.yaml", "extends: base.yaml\nexperiment: over\nmetrics: [mse]\nfit: {epochs: 5}\nloss: null\n")
    config = load_config(path)
    assert (config.experiment, config.seed, config.metrics, config.loss) == ("over", 3, ("mse",), None)
    assert {**config.fit}.items() >= {"epochs": 5, "batch_size": 8}.items()
    assert "extends" not in config.to_dict()


def test_arguments_are_given_to_a_class_that_the_base_names_alone(write):
    """As by --set loss.init_args.reduction=sum."""
    config = load_config(write("over.yaml", "extends: base.yaml\nloss: {init_args: {reduction: sum}}\n"))
    assert (config.loss.class_path, config.loss.init_args) == ("mindspore.nn.MSELoss", {"reduction": "sum"})


def test_arguments_are_merged_unless_the_class_is_another(write):
    same = load_config(write("same.yaml", "extends: base.yaml\noptimizer: {init_args: {learning_rate: 0.2}}\n"))
    assert same.optimizer.init_args == {"learning_rate": 0.2, "weight_decay": 0.5}
    text = "extends: base.yaml\noptimizer: {class_path: mindspore.nn.Adagrad, init_args: {learning_rate: 0.2}}\n"
    other = load_config(write("other.yaml", text))
    assert (other.optimizer.class_path, other.optimizer.init_args) == ("mindspore.nn.Adagrad", {"learning_rate": 0.2})


def test_files_extend_others_relative_to_themselves_and_later_ones_come_over_earlier_ones(write):
    write("parts/fast.yaml", "fit: {epochs: 1}\nseed: 7\n")
    write("parts/middle.yaml", "extends: ../base.yaml\nfit: {epochs: 9, batch_size: 4}\n")
    path = write("over.yaml", "extends: [parts/middle.yaml, parts/fast.yaml]\nexperiment: over\n")
    config = load_config(path, ["fit.batch_size=2"])
    assert (config.seed, config.fit["epochs"], config.fit["batch_size"]) == (7, 1, 2)


def test_a_mistake_is_named_in_the_file_it_stands_in(write, tmp_path):
    write("base.yaml", BASE.replace("weight_decay", "weight_decey"))
    path = write("over.yaml", "extends: base.yaml\n\nfit: {epoch: 5}\n")
    with pytest.raises(ConfigErrors) as errors:
        load_config(path)
    places = {problem.path: str(problem.location) for problem in errors.value.problems}
    assert places == {
        "optimizer.init_args.weight_decey": f"{tmp_path / 'base.yaml'}:7:35",
        "fit.epoch": f"{tmp_path / 'over.yaml'}:3:7",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extends: bsae.yaml\n", "over.yaml:1:10: extends: received 'bsae.yaml' .*; there is no file .*bsae.yaml"),
        ("extends: over.yaml\n", "a file extends itself"),
        ("extends: {a: 1}\n", "accepts the path of an experiment, or a list of them"),
        ("extends: broken.yaml\n", "broken.yaml:2:.*: invalid YAML"),
    ],
)
def test_what_cannot_be_extended_is_named(write, text, message):
    write("broken.yaml", "fit: {\n")
    with pytest.raises(ConfigErrors, match=message):
        load_config(write("over.yaml", text))


def test_a_variable_of_the_environment_has_a_default_or_is_named_when_missing(write, monkeypatch):
    text = BASE.replace("learning_rate: 0.1", 'learning_rate: "${env:RATE_OF_THE_TEST,0.25}"')
    path = write("env.yaml", text)
    monkeypatch.delenv("RATE_OF_THE_TEST", raising=False)
    assert build(load_config(path), ()).trainer.learning_rate == 0.25
    monkeypatch.setenv("RATE_OF_THE_TEST", "0.5")
    assert build(load_config(path), ()).trainer.learning_rate == 0.5
    monkeypatch.delenv("RATE_OF_THE_TEST")
    path.write_text(text.replace(",0.25", ""))
    with pytest.raises(ConfigErrors, match=r"env.yaml:\d:.*variable RATE_OF_THE_TEST is not set; .* a default"):
        build(load_config(path), ())
    path.write_text(text.replace("RATE_OF_THE_TEST", "RATE OF"))
    with pytest.raises(ConfigErrors, match="names no environment variable"):
        load_config(path)


@pytest.mark.parametrize(
    ("value", "path", "message"),
    [
        ("[a]", "init_from", "accepts a path, or a mapping with the keys path, parameter_map, strict"),
        ("{pth: a}", "init_from.pth", "did you mean 'path'"),
        ("{path: 3}", "init_from.path", "accepts text or a path"),
        ("{path: a, strict: maybe}", "init_from.strict", "accepts true or false"),
    ],
)
def test_what_a_training_cannot_begin_with_is_named(write, value, path, message):
    with pytest.raises(ConfigErrors) as errors:
        load_config(write("begin.yaml", f"extends: base.yaml\ninit_from: {value}\n"))
    assert path in [problem.path for problem in errors.value.problems]
    assert message in str(errors.value)


def test_variables_stand_for_values_of_declared_columns_too(write, monkeypatch):
    text = """\
experiment: env
features:
  columns: [{kind: numeric, name: x}, {kind: list, name: tags, max_length: "${env:LENGTH_OF_THE_TEST}"}]
  label: ${env:LABEL_OF_THE_TEST}
  max_bad_share: ${env:SHARE_OF_THE_TEST,0.25}
  csv: {encoding: "${env:ENCODING_OF_THE_TEST,cp1252}"}
network: {model: lr}
loss: mindspore.nn.BCEWithLogitsLoss
optimizer: mindspore.nn.Adam
"""
    config = load_config(write("env.yaml", text))
    with pytest.raises(ConfigErrors, match=r"env.yaml:\d.*features.*variable LENGTH_OF_THE_TEST is not set"):
        build(config, ())
    for name, value in (("LENGTH", "7"), ("LABEL", "click")):
        monkeypatch.setenv(f"{name}_OF_THE_TEST", value)
    features = build(config, ()).trainer.features
    assert (features.features[1].max_length, features.labels, features.max_bad_share) == (7, ("click",), 0.25)
    assert features.csv.encoding == "cp1252"
    assert config.to_dict()["features"]["label"] == "${env:LABEL_OF_THE_TEST}"


def test_variables_stand_for_values_of_the_trainer_with_fixed_choices(write, monkeypatch):
    text = BASE.replace("nn.MSELoss", "nn.BCEWithLogitsLoss").replace(
        "batch_size: 8", "max_time: '${env:TIME_OF_THE_TEST,1h}'"
    )
    options = {"amp_level": "LEVEL", "prediction_activation": "ACTIVATION", "calibration": "CALIBRATION"}
    written = ", ".join(f"{option}: '${{env:{name}_OF_THE_TEST}}'" for option, name in options.items())
    path = write("env.yaml", f"{text}trainer: {{{written}}}\n")
    config = load_config(path)
    for name, value in (("LEVEL", "O4"), ("ACTIVATION", "sigmoid"), ("CALIBRATION", "platt")):
        monkeypatch.setenv(f"{name}_OF_THE_TEST", value)
    with pytest.raises(ConfigErrors, match=r"env.yaml:\d+:\d+: trainer.*amp_level.*takes 'O0', .*; received 'O4'"):
        build(config, ())
    monkeypatch.setenv("LEVEL_OF_THE_TEST", "O2")
    trainer = build(config, ()).trainer
    assert (trainer.precision.level, trainer.calibrator.method) == ("O2", "platt")


@pytest.mark.parametrize("arguments", ["{root: '${env:ROOT_OF_THE_TEST}/v'}", "['${env:ROOT_OF_THE_TEST}/v']"])
def test_the_folder_that_a_run_publishes_to_is_found_by_its_variable(write, tmp_path, monkeypatch, arguments):
    callbacks = f"callbacks: [{{class_path: trainer.serving.Publish, init_args: {arguments}}}]\n"
    write("run/config.yaml", BASE + callbacks)
    monkeypatch.setenv("ROOT_OF_THE_TEST", str(tmp_path))
    assert published_by(tmp_path / "run") == tmp_path / "v"


def test_a_variable_in_a_list_of_numbers_is_a_number(write, monkeypatch):
    text = """\
experiment: env
features: {columns: [{kind: numeric, name: x}], label: y}
network: {model: deepfm, dim: 2, hidden: [3, "${env:WIDTH_OF_THE_TEST}"]}
loss: mindspore.nn.MSELoss
optimizer: {class_path: mindspore.nn.SGD, init_args: ["${env:RATE_OF_THE_TEST}"]}
"""
    monkeypatch.setenv("WIDTH_OF_THE_TEST", "5")
    monkeypatch.setenv("RATE_OF_THE_TEST", "0.5")
    trainer = build(load_config(write("env.yaml", text)), ()).trainer
    assert (5, 3) in [parameter.shape for parameter in trainer.network.trainable_params()]
    assert trainer.learning_rate == 0.5
