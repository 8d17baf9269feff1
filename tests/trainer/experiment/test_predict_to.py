"""`trainer predict --to`: predictions of any number of rows, with kept columns, also after a kill."""

import csv
import errno
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainer.checkpoint import durable
from trainer.experiment.cli import main
from trainer.experiment.commands.prediction_file import PredictionFile

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
    """Probabilities of all rows by the older way, which holds them in memory."""
    assert main(["fit", "table.yaml"]) == 0
    assert main(["predict", "runs/table", "--output", "whole.csv"]) == 0
    with open("whole.csv", encoding="utf-8") as file:
        return [float(row["prediction"]) for row in csv.DictReader(file)]


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
    assert not os.path.exists(f"{path}.parts")


@pytest.mark.long(but=["csv"])
@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_kept_columns_stand_beside_the_probabilities(expected, ending, capsys):
    path = f"scores.{ending}"
    assert main(["predict", "runs/table", "--to", path, "--part-rows", "8000"]) == 0
    assert "20,000 rows" in capsys.readouterr().out
    check(path, expected)


def test_other_columns_are_kept_where_they_are_named(expected):
    assert main(["predict", "runs/table", "--to", "named.jsonl", "--keep", "city", "--keep", "age"]) == 0
    check("named.jsonl", expected, ("row", "city", "age", "prediction"))
    assert [row["city"] for row in read("named.jsonl")] == [city for _, _, city, _, _ in table(ROWS, ROWS)]


@pytest.mark.long(but=["jsonl"])
@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_lists_and_missing_numbers_are_kept(expected, project, ending):
    rows = table(6, 0)
    rows[1] = ("user 1", None, *rows[1][2:])
    write("few.parquet", rows)
    path = f"few-scores.{ending}"
    given = ["--data", "few.parquet", "--set", "fit.batch_size=2", "--part-rows", "1"]  # a part for each batch
    assert main(["predict", "runs/table", *given, "--to", path, "--keep", "tags", "age"]) == 0
    if ending == "jsonl":
        assert "NaN" not in (project / path).read_text("utf-8")
    kept = read(path)
    tags = [json.loads(row["tags"]) if ending == "csv" else row["tags"] for row in kept]
    assert tags == [["new", "café"], ["café"], []] * 2
    assert kept[1]["age"] is None if ending == "jsonl" else np.isnan(float(kept[1]["age"]))
    assert float(kept[0]["age"]) == pytest.approx(rows[0][1])


@pytest.mark.long
@pytest.mark.process
def test_a_killed_prediction_goes_on_after_its_parts_and_leaves_no_half_file(expected, project, caplog):
    command = [sys.executable, "-m", "mindspore_trainer", "predict", "runs/table", "--to", "killed.parquet"]
    command += ["--part-rows", "1024"]
    parts = project / "killed.parquet.parts"
    kills, seen = 0, 0
    for _ in range(2):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        until = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < until:
            if len(list(parts.glob("part-*"))) >= seen + 2:
                process.send_signal(signal.SIGKILL)
                process.wait()
                kills += 1
                break
            time.sleep(0.001)
        assert process.poll() == -signal.SIGKILL, "it was not killed in the middle"
        assert not (project / "killed.parquet").exists()
        seen = len(list(parts.glob("part-*")))
    assert 0 < seen < ROWS // 1024
    assert main(command[3:]) == 0
    assert f"going on after {seen * 1024:,} rows" in caplog.text
    check("killed.parquet", expected)


def test_a_kill_between_the_last_part_and_the_file_loses_nothing(expected, project, monkeypatch):
    monkeypatch.setattr(PredictionFile, "_finish", lambda self: None)
    assert main(["predict", "runs/table", "--to", "late.csv", "--part-rows", "8000"]) == 0
    assert not (project / "late.csv").exists()
    monkeypatch.undo()
    monkeypatch.chdir(project)
    assert main(["predict", "runs/table", "--to", "late.csv", "--part-rows", "8000"]) == 0
    check("late.csv", expected)


@pytest.mark.long(but=["parquet"])
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_failure_while_the_parts_become_the_file_shows_no_half_of_it(expected, project, monkeypatch, ending, capsys):
    command = ["predict", "runs/table", "--to", f"torn.{ending}", "--part-rows", "8000"]

    def full_disk(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(durable, "sum_and_sync", full_disk)
        assert main(command) != 0
    assert "No space left" in capsys.readouterr().err
    assert not (project / f"torn.{ending}").exists()
    assert main(command) == 0
    check(f"torn.{ending}", expected)


def test_parts_of_another_prediction_are_refused(expected, project, capsys):
    parts = project / "other.csv.parts"
    parts.mkdir()
    (parts / "task.json").write_text(json.dumps({"snapshot": "another"}))
    assert main(["predict", "runs/table", "--to", "other.csv"]) == 2
    assert "parts of another prediction, with another snapshot" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--to", "scores.txt"], ".parquet, .csv, .jsonl"),
        (["--to", "scores.csv", "--output", "scores.npy"], "--output or --to"),
        (["--keep", "user"], "goes with --to"),
        (["--to", "scores.csv", "--keep", "city,age"], "has no column 'city,age'"),
        (["--to", "scores.csv", "--keep", "city", "--keep", "agee"], "no column 'agee'; did you mean 'age'"),
        (["--to", "scores.csv", "--part-rows", "0"], "--part-rows"),
    ],
)
def test_what_cannot_be_written_is_refused(expected, capsys, arguments, said):
    assert main(["predict", "runs/table", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not [name for name in os.listdir() if name.endswith(".parts") and name.startswith("scores")]


def test_rows_that_the_features_forbid_are_left_out_where_asked(project, expected, capsys):
    rows = [*table(30, 1)]
    lines = [f'{user},{"old" if n == 4 else age},"{city}",1' for n, (user, age, city, *_) in enumerate(rows)]
    (project / "odd.csv").write_text("user,age,city,click\n" + "\n".join(lines) + "\n", encoding="utf-8")
    capsys.readouterr()
    data = ["--data", "odd.csv"]
    assert main(["predict", "runs/table", *data, "--to", "odd.jsonl"]) != 0
    message = capsys.readouterr().err
    assert "1 of 30 rows set aside: age takes" in message
    assert "line 6 of odd.csv" in message
    assert "trainer predict --to FILE --keep COLUMN --set-aside" in message
    assert main(["predict", "runs/table", *data, "--set-aside"]) == 2
    assert "--set-aside goes with --to" in capsys.readouterr().err
    assert main(["predict", "runs/table", *data, "--to", "good.jsonl", "--set-aside"]) == 0
    answered = read("good.jsonl")
    assert list(answered[0]) == ["user", "prediction"]
    assert [row["user"] for row in answered] == [user for n, (user, *_) in enumerate(rows) if n != 4]


def test_a_prediction_that_sets_rows_aside_goes_on_without_repeating_or_losing_one(project, expected, monkeypatch):
    rows = [*table(400, 2)]
    lines = [f'{user},{"old" if n % 10 == 4 else age},"{city}",1' for n, (user, age, city, *_) in enumerate(rows)]
    (project / "tenth.csv").write_text("user,age,city,click\n" + "\n".join(lines) + "\n", encoding="utf-8")
    command = ["predict", "runs/table", "--data", "tenth.csv", "--set-aside", "--part-rows", "64"]
    assert main([*command, "--to", "whole.jsonl"]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(PredictionFile, "_finish", lambda self: None)
        assert main([*command, "--to", "rest.jsonl"]) == 0
    parts = sorted((project / "rest.jsonl.parts").glob("part-*"))
    for part in parts[-2:]:  # as a kill before them leaves it
        part.unlink()
    assert main([*command, "--to", "rest.jsonl"]) == 0
    assert read("rest.jsonl") == read("whole.jsonl")
    assert [row["user"] for row in read("rest.jsonl")] == [row[0] for n, row in enumerate(rows) if n % 10 != 4]
