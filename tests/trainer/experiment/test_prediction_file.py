"""`trainer predict --output`: predictions of any number of rows, with kept columns."""

import csv
import errno
import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainer.checkpoint import durable
from trainer.errors import DataError
from trainer.experiment.cli import main
from trainer.experiment.commands.prediction_file import PART_ROWS, write_columns

CONFIG = """\
experiment: table
features:
  columns:
    - {kind: numeric, name: age}
    - {kind: categorical, name: city, vocabulary: learn}
    - {kind: list, name: tags, max_length: 2}
  label: click
  keep: [user]
network: {model: lr}
loss: mindspore.nn.BCEWithLogitsLoss
optimizer: {class_path: mindspore.nn.Adam, init_args: {learning_rate: 0.1}}
metrics: []
data: {train: train.parquet, test: rows.parquet}
callbacks: [callbacks.ModelCheckpoint]
fit: {epochs: 1, batch_size: 64}
"""
ROWS = 20_000
TAGS = ["new", "café"]


def table(count, seed):
    random = np.random.default_rng(seed)
    ages, cities = random.normal(40, 10, count).round(3), random.choice(["a", "b", "café, x"], count)
    return [
        (f"user {n}", age, city, TAGS[n % 3 :], int(age > 40))
        for n, (age, city) in enumerate(zip(ages, cities, strict=True))
    ]


def write(path, rows):
    names = ("user", "age", "city", "tags", "click")
    pq.write_table(pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))), path)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    for name, count in (("train", 256), ("rows", ROWS)):
        write(folder / f"{name}.parquet", table(count, count))
    (folder / "table.yaml").write_text(CONFIG)
    before = os.getcwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


@pytest.fixture(scope="module")
def expected(project):
    """Probabilities of all rows, from the logits in an array."""
    assert main(["fit", "table.yaml"]) == 0
    assert main(["predict", "runs/table", "--output", "whole.npy"]) == 0
    return 1 / (1 + np.exp(-np.load("whole.npy").ravel().astype(np.float64)))


def read(path):
    if path.endswith(".parquet"):
        return pq.read_table(path).to_pylist()
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file)) if path.endswith(".csv") else [json.loads(line) for line in file]


def check(path, expected, columns=("row", "user", "prediction")):
    rows = read(path)
    assert tuple(rows[0]) == columns
    assert [int(row["row"]) for row in rows] == list(range(ROWS))
    if "user" in columns:
        assert [row["user"] for row in rows] == [f"user {n}" for n in range(ROWS)]
    np.testing.assert_allclose([float(row["prediction"]) for row in rows], expected, rtol=1e-6)
    assert not [name for name in os.listdir() if name.endswith(".tmp")]


@pytest.mark.long(but=["csv"])
@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_kept_columns_stand_beside_the_probabilities(expected, ending, capsys):
    path = f"scores.{ending}"
    assert main(["predict", "runs/table", "--output", path]) == 0
    assert "20,000 rows" in capsys.readouterr().out
    check(path, expected)


def test_other_columns_are_kept_where_they_are_named(expected):
    assert main(["predict", "runs/table", "--output", "named.jsonl", "--keep", "city", "--keep", "age"]) == 0
    check("named.jsonl", expected, ("row", "city", "age", "prediction"))
    assert [row["city"] for row in read("named.jsonl")] == [city for _, _, city, _, _ in table(ROWS, ROWS)]


@pytest.mark.long(but=["jsonl"])
@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_lists_and_missing_numbers_are_kept(expected, project, ending):
    rows = table(6, 0)
    rows[1] = ("user 1", None, *rows[1][2:])
    write("few.parquet", rows)
    path = f"few-scores.{ending}"
    given = ["--data", "few.parquet", "--set", "fit.batch_size=2"]
    assert main(["predict", "runs/table", *given, "--output", path, "--keep", "tags", "age"]) == 0
    if ending == "jsonl":
        assert "NaN" not in (project / path).read_text("utf-8")
    kept = read(path)
    tags = [json.loads(row["tags"]) if ending == "csv" else row["tags"] for row in kept]
    assert tags == [["new", "café"], ["café"], []] * 2
    assert kept[1]["age"] is None if ending == "jsonl" else np.isnan(float(kept[1]["age"]))
    assert float(kept[0]["age"]) == pytest.approx(rows[0][1])


@pytest.mark.long(but=["parquet"])
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_failure_while_the_file_is_written_shows_no_half_of_it(expected, project, monkeypatch, ending, capsys):
    command = ["predict", "runs/table", "--output", f"torn.{ending}"]

    def full_disk(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(durable, "checksum_and_sync", full_disk)
        assert main(command) != 0
    assert "No space left" in capsys.readouterr().err
    assert not (project / f"torn.{ending}").exists()
    assert main(command) == 0
    check(f"torn.{ending}", expected)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--output", "scores.txt"], "takes '.parquet', '.csv', '.jsonl'"),
        (
            ["--keep", "user"],
            "trainer predict --keep needs --output FILE with one of the endings .parquet, .csv, .jsonl",
        ),
        (["--output", "scores.csv", "--keep", "city,age"], "has no column 'city,age'"),
        (["--output", "scores.csv", "--keep", "city", "--keep", "agee"], "no column 'agee'; did you mean 'age'"),
    ],
)
def test_what_cannot_be_written_is_refused(expected, capsys, arguments, said):
    assert main(["predict", "runs/table", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not [name for name in os.listdir() if name.startswith(("scores", ".scores")) and "csv." in name]


def test_a_column_has_one_type_in_the_whole_file(tmp_path):
    def written(name, *parts):
        columns = [{"k": np.resize(part, PART_ROWS)} for part in parts]
        assert write_columns(tmp_path / name, columns) == PART_ROWS * len(parts)
        if name.endswith("csv"):
            with open(tmp_path / name, newline="") as file:
                return [row for (row,) in csv.reader(file)][1::PART_ROWS]
        return pq.read_table(tmp_path / name).column("k").to_pylist()[::PART_ROWS]

    whole, gone, text = np.array([5]), np.array([None], object), np.array(["a"])
    assert written("a.parquet", whole, gone, whole) == [5, None, 5]
    assert written("b.parquet", gone, whole, text) == [None, "5", "a"]
    assert written("c.csv", whole, gone, text, np.array([True])) == ["5", "", "a", "true"]
    for number, parts in enumerate([(whole, text), (np.array([2**64], object),)]):
        with pytest.raises(DataError, match=r"several types, or larger than 64 bits.*\.csv and \.jsonl"):
            written(f"d{number}.parquet", *parts)
        assert not (tmp_path / f"d{number}.parquet").exists()


def test_batches_are_joined_with_the_values_that_they_have(tmp_path):
    batches = [{"k": np.array([2**60 + 1])}, {"k": np.array([0.5])}, {"k": np.array([True])}]
    write_columns(tmp_path / "e.jsonl", batches)
    assert (tmp_path / "e.jsonl").read_text() == f'{{"k": {2**60 + 1}}}\n{{"k": 0.5}}\n{{"k": true}}\n'
    with pytest.raises(DataError, match="several types"):
        write_columns(tmp_path / "e.parquet", batches)
    with pytest.raises(DataError, match=r"column 'k' has rows of the shapes \[2\] and \[3\]"):
        write_columns(tmp_path / "f.csv", [{"k": np.zeros((4, width))} for width in (3, 2)])


def test_rows_that_the_features_forbid_are_left_out_where_asked(project, expected, capsys):
    rows = [*table(30, 1)]
    lines = [f'{user},{"old" if n == 4 else age},"{city}",1' for n, (user, age, city, *_) in enumerate(rows)]
    (project / "odd.csv").write_text("user,age,city,click\n" + "\n".join(lines) + "\n", encoding="utf-8")
    capsys.readouterr()
    data = ["--data", "odd.csv"]
    assert main(["predict", "runs/table", *data, "--output", "odd.jsonl"]) != 0
    message = capsys.readouterr().err
    assert "1 of 30 rows set aside: age takes" in message
    assert "line 6 of odd.csv" in message
    assert "trainer predict --output FILE --keep COLUMN --set-aside" in message
    assert main(["predict", "runs/table", *data, "--set-aside"]) == 2
    assert "--set-aside needs --output FILE" in capsys.readouterr().err
    assert main(["predict", "runs/table", *data, "--output", "good.jsonl", "--set-aside"]) == 0
    answered = read("good.jsonl")
    assert list(answered[0]) == ["user", "prediction"]
    assert [row["user"] for row in answered] == [user for n, (user, *_) in enumerate(rows) if n != 4]


NETWORKS = """\
from mindspore import nn

from trainer.models import LogisticRegression


class Scores(LogisticRegression):
    def __init__(self, features, further):
        super().__init__(features)
        self.further = further

    def construct(self, *columns):
        scores = self.linear(*columns)
        if self.further == "number":
            return scores, 3
        return scores, (scores, scores.reshape(-1, 1))


class OfFirst(nn.Cell):
    def construct(self, outputs, label):
        return (outputs[0] - label).square().mean()
"""


@pytest.mark.parametrize(
    ("further", "said"),
    [
        ("number", "is an array of shape []; this file takes arrays with a row for each row; .npy takes"),
        ("nested", "is a tuple; this file takes"),
    ],
)
def test_an_output_without_a_row_for_each_row_is_named(tmp_path, monkeypatch, capsys, further, said):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "train.parquet", table(8, 0))
    (tmp_path / "scored_networks.py").write_text(NETWORKS)
    network = f"{{class_path: scored_networks.Scores, init_args: {{further: {further}}}}}"
    config = CONFIG.replace("{model: lr}", network).replace("mindspore.nn.BCEWithLogitsLoss", "scored_networks.OfFirst")
    (tmp_path / "table.yaml").write_text(config.replace("test: rows.parquet", "test: train.parquet"))
    assert main(["fit", "table.yaml"]) == 0
    for ending in ("csv", "parquet"):
        assert main(["predict", "runs/table", "--output", f"scores.{ending}"]) == 1
        assert f"output 'prediction_1' of the network {said}" in capsys.readouterr().err
    assert main(["predict", "runs/table", "--output", "scores.npz"]) == (further == "nested")
    assert os.path.exists("scores.npz") == (further != "nested")
