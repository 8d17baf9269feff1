"""`trainer check` looks at what a configuration declares of its streams, and at numbers, without calling anything."""

import json
from pathlib import Path

import pytest

from trainer.errors import ConfigurationError, nearest
from trainer.experiment.cli import main
from trainer.experiment.configuration.loader import load_config
from trainer.experiment.runs import training_run

CONFIG = """\
experiment: online
network: {class_path: examples.rating.Rater}
loss: mindspore.nn.BCEWithLogitsLoss
optimizer: mindspore.nn.Adam
metrics: [auc]
data:
  stream:
    class_path: trainer.streams.FileStream
    init_args:
      path: segments
      schema: SCHEMA
online: {batch_size: 20}
"""


@pytest.fixture
def check(tmp_path, monkeypatch, capsys):
    (tmp_path / "segments").mkdir()
    monkeypatch.chdir(tmp_path)

    def run(text, schema):
        (tmp_path / "online.yaml").write_text(text.replace("SCHEMA", json.dumps(schema)))
        return main(["check", "online.yaml"]), capsys.readouterr().err

    return run


def schema(*names, label="rating", **options):
    return {"columns": dict.fromkeys(names, "int64") | {label: "float32"}, "label": label, **options}


def inputs():
    from trainer.data.column_checks import arguments_of
    from trainer.experiment.configuration.class_paths import resolve

    return arguments_of(resolve("examples.rating.Rater"))[2]


def test_a_sound_stream_passes(check):
    assert check(CONFIG, schema(*inputs())) == (0, "")


def test_a_path_that_does_not_exist(check):
    code, text = check(CONFIG.replace("path: segments", "path: segmnts"), schema(*inputs()))
    assert code == 2
    assert "data.stream.init_args.path: " in text
    assert "takes a folder or file that exists; received 'segmnts'" in text


def test_a_url_is_not_looked_up(check):
    assert check(CONFIG.replace("path: segments", "path: s3://bucket/rows"), schema(*inputs())) == (0, "")


def test_a_url_that_no_store_has(check):
    assert (
        "unknown scheme 's4'" in check(CONFIG.replace("path: segments", "path: s4://bucket/rows"), schema(*inputs()))[1]
    )


def test_a_label_that_is_no_column(check):
    wrong = schema(*inputs()) | {"label": "ratng"}
    assert "label='ratng' is not among the columns" in check(CONFIG, wrong)[1]


def test_a_schema_made_by_its_class_is_judged_too(check):
    made = {"class_path": "trainer.streams.Schema", "init_args": schema(*inputs()) | {"label": "ratng"}}
    assert "label='ratng' is not among the columns" in check(CONFIG, made)[1]


def test_arguments_of_the_network_that_the_schema_lacks(check):
    first, *others = inputs()
    code, text = check(CONFIG, schema(first + "s", *others))
    assert code == 2
    assert f"the schema has no {first}, its columns are {first}s" in text
    assert f"did you mean '{first}s'" in text


def test_numbers_out_of_range_are_reported_beside_other_problems(check):
    wrong = CONFIG.replace("[auc]", "[acu]") + "fit: {epochs: -3, limit_valid_batches: 1.5, max_time: 1h}\n"
    code, text = check(wrong, schema(*inputs()))
    assert code == 2
    assert "fit.epochs: takes a whole number >= 1" in text
    assert "fit.limit_valid_batches: takes a whole number of batches >= 0, a share of them in (0.0, 1.0]" in text
    assert 'fit.max_time: takes seconds > 0, a timedelta, or text as "HH:MM:SS"' in text
    assert "metrics.0: received 'acu'" in text


def test_evaluate_of_a_stream_alone_says_what_to_give(check):
    check(CONFIG, schema(*inputs()))
    with pytest.raises(ConfigurationError, match=r"only a stream, which has no end; give the dataset .* as data.test"):
        training_run.evaluate(load_config("online.yaml"), Path("last"))


@pytest.mark.parametrize(
    ("name", "choice"), [("mea", "mae"), ("acu", "auc"), ("logloss", "log_loss"), ("rsme", "rmse"), ("AUC", "auc")]
)
def test_the_nearest_name_is_the_one_with_the_fewest_edits(name, choice):
    names = ["mse", "map", "mae", "mape", "acc", "auc", "accuracy", "log_loss", "rmse", "loss"]
    assert nearest(name, names) == choice
