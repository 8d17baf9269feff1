"""`trainer features`: what comes out of the first rows, statistics of the columns, and drift since a run."""

import json
import shutil

import pytest
import yaml

from tests.trainer.features.every_kind import make_features, make_rows
from tests.trainer.features.test_features import write_csv
from trainer.experiment.cli import main
from trainer.features import KINDS

CONFIG = """\
experiment: table
features:
  columns:
    - {kind: numeric, name: age, normalize: standard, indicator: true}
    - {kind: categorical, name: city, vocabulary: learn, min_count: 20}
    - {kind: list, name: genres, separator: "|", max_length: 4}
    - {kind: time, name: ts}
  label: click
network: {model: lr}
loss: mindspore.nn.BCEWithLogitsLoss
optimizer: {class_path: mindspore.nn.Adam, init_args: {learning_rate: 0.01}}
data: {train: rows.csv}
callbacks: [callbacks.ModelCheckpoint]
fit: {epochs: 1, batch_size: 128}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    rows = make_rows(256)
    write_csv(rows, folder / "rows.csv")
    for row in rows:
        row["city"] = "elsewhere" if len(row["city"] or "") == 1 else row["city"]
    write_csv(rows, folder / "newer.csv")
    (folder / "table.yaml").write_text(CONFIG)
    return folder


@pytest.fixture(autouse=True)
def _in_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "200")


def lines_of(capsys):
    """Return the cells of each line by its first word."""
    text = capsys.readouterr().out
    return {line.split()[0]: line for line in text.splitlines() if line.strip()}, text


def test_columns_are_described_before_any_run(capsys):
    assert main(["features", "table.yaml"]) == 0, capsys.readouterr()
    lines, text = lines_of(capsys)
    ages = [row["age"] for row in make_rows(256)]
    present = [age for age in ages if age is not None]
    share = f"{1 - len(present) / 256:.1%}"
    assert [share, str(len(set(present))), f"{min(present):g}"] == lines["age"].split()[2:5]
    city = [row["city"] for row in make_rows(256) if row["city"]]
    rare = sum(city.count(name) < 20 for name in city) / 256
    assert f" {rare:.1%} " in lines["city"]
    assert lines["ts"].split()[4].startswith("2017-07-")
    assert "256 rows; inputs of the network: numbers, ids, genres" in text
    assert "learned statistics are from data.train" in text


def test_drift_is_measured_from_the_newest_run(capsys):
    assert main(["fit", "table.yaml"]) == 0
    capsys.readouterr()
    assert main(["features", "table.yaml", "--data", "newer.csv"]) == 0
    lines, text = lines_of(capsys)
    assert lines["city"].endswith("changed")
    assert lines["age"].endswith("0.000")
    assert "learned statistics are from" in text
    assert main(["features", "runs/table", "--rows", "100"]) == 0
    assert "100 rows" in capsys.readouterr().out


def test_every_kind_has_its_line(folder, capsys):
    declared = make_features(max_length=4).features
    columns = []
    for feature in declared:
        if feature.name != "vowels":  # a function of the tests
            kind = next(name for name, of in KINDS.items() if type(feature) is of)
            columns.append({"kind": kind, **feature.declaration()})
    text = yaml.safe_dump({"columns": columns, "label": "click"})
    head, tail = CONFIG.index("features:"), CONFIG.index("network:")
    indented = "".join(f"  {line}\n" for line in text.splitlines())
    (folder / "every.yaml").write_text(CONFIG[:head] + "features:\n" + indented + CONFIG[tail:])
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in make_rows(200)))
    assert main(["features", "every.yaml", "--data", "rows.jsonl", "--set", "data.train=rows.jsonl", "--run", "."]) == 0
    lines, _ = lines_of(capsys)
    assert {column["name"] for column in columns} <= set(lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rows", "0"], "--rows takes a whole number >= 1; received 0"),
        (["--data", "no.csv"], "no such file or folder: no.csv"),
        (
            ["--set", "features=null", "--set", "network=mindspore.nn.Flatten", "--set", "data=null"],
            "has no section features",
        ),
        (["--set", "data=null"], "names no file of rows to look at; give --data FILE"),
    ],
)
def test_what_cannot_be_shown_says_why(arguments, message, capsys):
    assert main(["features", "table.yaml", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_run_is_moved_without_the_statistics_that_it_began_with(folder, tmp_path, monkeypatch, capsys):
    """Its snapshots hold them."""
    assert main(["features", "table.yaml", "--fit", "--to", "learned"]) == 0
    assert main(["fit", "table.yaml", "--set", "features.fitted=learned", "--set", "run_dir=runs/moved"]) == 0
    assert main(["predict", "runs/moved", "--data", "newer.csv", "--output", "here.csv"]) == 0
    shutil.move("runs/moved", tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    shutil.copy(folder / "rows.csv", tmp_path)
    assert main(["predict", "moved", "--data", str(folder / "newer.csv"), "--output", "there.csv"]) == 0, (
        capsys.readouterr()
    )
    assert (tmp_path / "there.csv").read_text() == (folder / "here.csv").read_text()
    assert main(["fit", "--resume", "moved", "--set", "fit.epochs=2"]) == 0, capsys.readouterr()
