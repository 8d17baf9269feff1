"""What features learn is written by a command, on one process or on Ray, and taken over by a training."""

import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from trainer.errors import CheckpointMismatchError, ConfigurationError
from trainer.experiment.cli import main
from trainer.features import Bucketized, Categorical, Features, ListFeature, Numeric
from trainer.features.feature_files import read_features

CONFIG = """\
experiment: visits
features:
  columns:
    - {kind: numeric, name: age, normalize: standard}
    - {kind: bucketized, name: income, boundaries: 8}
    - {kind: categorical, name: city, vocabulary: learn, min_count: 2}
    - {kind: list, name: tags, dtype: int64, vocabulary: learn}
  label: click
network: {model: deepfm, dim: 2, hidden: [4]}
loss: mindspore.nn.BCEWithLogitsLoss
optimizer: {class_path: mindspore.nn.Adam, init_args: {learning_rate: 0.01}}
data: {train: rows}
fit: {epochs: 1}
"""


def declared(**options):
    features = [
        Numeric("age", normalize="standard"), Bucketized("income", boundaries=8),
        Categorical("city", vocabulary="learn", min_count=2), ListFeature("tags", dtype="int64", vocabulary="learn"),
    ]  # fmt: skip
    return Features(features, label="click", **options)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Four Parquet files, with missing values and a row without a label."""
    rng, rows = np.random.default_rng(0), tmp_path / "rows"
    rows.mkdir()
    for part in range(4):
        table = {
            "age": pa.array(rng.normal(40, 12, 500), mask=rng.random(500) < 0.1),
            "income": rng.lognormal(10, 1, 500),
            "city": pa.array([f"c{n}" for n in rng.zipf(1.5, 500)], mask=rng.random(500) < 0.1),
            "tags": [list(map(int, rng.integers(0, 50, n))) for n in rng.integers(0, 4, 500)],
            "click": pa.array(rng.integers(0, 2, 500), mask=np.arange(500) == 7),
            "other": np.zeros(500),
        }
        parquet.write_table(pa.table(table), rows / f"{part}.parquet", row_group_size=100)
    (tmp_path / "visits.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def same(one, other):
    """Compare two states: counts bit by bit, moments to rounding."""
    first, second = one.published_state(), other.published_state()
    for name, state in first["json"]["features"].items():
        if state:
            np.testing.assert_allclose(state, second["json"]["features"][name], rtol=1e-12)
        assert (state == {}) == (second["json"]["features"][name] == {})
    counts = [name for name in first["arrays"] if not name.startswith("@")]
    assert len(counts) > 5
    for name in counts:
        np.testing.assert_array_equal(first["arrays"][name], second["arrays"][name])


def test_what_a_command_learned_is_taken_over(folder, capsys):
    expected = declared()
    expected.fit(folder / "rows")
    assert main(["features", "visits.yaml", "--fit", "--to", "learned"]) == 0
    assert "features: {fitted: learned}" in capsys.readouterr().out
    features = declared(fitted="learned")
    assert features.is_fitted
    same(features, expected)
    row = {"age": 30, "income": 2e4, "city": "c1", "tags": [3, 7]}
    for name, values in features.transform(row).items():
        assert np.asarray(values[:]).tobytes() == np.asarray(expected.transform(row)[name][:]).tobytes()
    assert "fitted" not in json.dumps(features.declaration())
    with pytest.raises(CheckpointMismatchError):
        Features([Numeric("age", normalize="min_max")], label="click", fitted="learned")
    with pytest.raises(ConfigurationError, match=r"Features\(fitted='none'\): .* is missing"):
        declared(fitted="none")
    for options in (["--to", "learned"], [], ["--to", "new", "--engine", "rai"]):
        assert main(["features", "visits.yaml", "--fit", *options]) == 2
    assert "did you mean 'ray'" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.process
def test_four_tasks_of_ray_learn_what_one_process_does(folder, capsys):
    pytest.importorskip("ray")
    from trainer.features.ray_fit import fit_on_ray

    expected, features = declared(), declared()
    expected.fit(folder / "rows")
    assert main(["features", "visits.yaml", "--fit", "--to", "learned", "--engine", "ray", "--data", "rows"]) == 0
    same(read_features(folder / "learned"), expected)
    fit_on_ray(features, folder / "rows", rows=500)
    same(features, expected)
