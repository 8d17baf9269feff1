"""`trainer init` on tables as they come out of other programs: what it finds, says, declares, and what is read then."""

import contextlib
import csv
import io

import numpy as np
import pytest

from trainer.experiment import build, load_config
from trainer.experiment.cli import main
from trainer.features.feature_data import rows_of

ROWS = 120
RNG = np.random.default_rng(4)
CITIES = RNG.choice(["Köln", "Bonn", "Düsseldorf"], ROWS).tolist()
AMOUNTS = RNG.lognormal(5, 2, ROWS).round(2).tolist()
TIMES = np.datetime64("2024-01-01T00:00:00") + RNG.integers(0, 300 * 24 * 60, ROWS).astype("timedelta64[m]")
SECONDS = TIMES.astype("datetime64[s]").astype(np.int64).tolist()
CLICKS = RNG.integers(0, 2, ROWS).tolist()


def german(number):
    return f"{number:,.2f}".translate(str.maketrans(",.", ".,"))


def table(name, delimiter, encoding, head, columns, line_end="\r\n"):
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, lineterminator=line_end)
    writer.writerows([head, *zip(*columns, strict=True)])
    return name, text.getvalue().encode(encoding)


def times(pattern):
    return [time.strftime(pattern) for time in TIMES.astype(object)]


NAMES = ["city", "amount", "when", "click"]
ANSWERS = [["nein", "ja"][click] for click in CLICKS]
# the file; what init declares of it; the order of day and month; the label
TABLES = {
    "german excel": (
        table("t.csv", ";", "cp1252", NAMES, [CITIES, map(german, AMOUNTS), times("%d.%m.%Y %H:%M"), ANSWERS]),
        {"delimiter": ";", "encoding": "cp1252", "decimal": ",", "thousands": "."},
        True,
        "predicted is the probability of ja",
    ),
    "excel unicode text": (
        table("t.tsv", "\t", "utf-16", NAMES, [CITIES, AMOUNTS, times("%m/%d/%Y %I:%M %p"), CLICKS]),
        {"encoding": "utf-16"},
        False,
        "predicted is the probability of 1",
    ),
    "pipes": (
        table("t.csv", "|", "utf-8-sig", NAMES, [CITIES, AMOUNTS, times("%d %b %Y, %H:%M"), [c + 1 for c in CLICKS]]),
        {"delimiter": "|"},
        None,
        "predicted is the probability of 2",
    ),
    "spaces": (
        ("t.csv", ", ".join([*NAMES]).encode() + b"\n" + "".join(
            f"{city} , {amount:10} ,{time}, {click}\n"
            for city, amount, time, click in zip(CITIES, AMOUNTS, times("%Y-%m-%d %H:%M"), CLICKS, strict=True)
        ).encode()),
        {"strip": True},
        None,
        "predicted is the probability of 1",
    ),
    "thousands": (
        table("t.csv", ",", "utf-8", NAMES, [CITIES, (f"{a:,.2f}" for a in AMOUNTS), times("%Y/%m/%d %H:%M"), CLICKS]),
        {"thousands": ","},
        None,
        "predicted is the probability of 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", TABLES)
def test_what_is_found_is_said_declared_and_read(kind, tmp_path, monkeypatch, capsys):
    (name, content), declared, day_first, label = TABLES[kind]
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(content + "short\n".encode("utf-16-le" if "utf-16" in str(declared) else "utf-8"))
    assert main(["init", name]) == 0, capsys.readouterr()
    said = capsys.readouterr().out
    assert all(len(line) <= 80 for line in said.splitlines()), said
    words = " ".join(said.split())
    for expected in ("city category 3 distinct", "amount number", "when time 2024-01-", "click label 2 classes", label):
        assert expected in words
    assert f"{ROWS} rows, 4 columns" in words
    assert f"the first is line {ROWS + 2} of {name}, received one of 1" in words
    assert "ordered by when: the oldest 80 % to train on" in words
    order = {True: "day before month", False: "month before day"}.get(day_first)
    assert (order is None and "before" not in words) or order in words

    assert main(["check", "t.yaml"]) == 0, capsys.readouterr()
    config = load_config("t.yaml")
    assert config.features.get("csv", {}) == declared
    (time,) = [column for column in config.features["columns"] if column["name"] == "when"]
    assert time.get("day_first") is day_first
    features = build(config, ()).trainer.features
    features.fit(name)
    rows = list(rows_of(features, name))
    read = {column: np.concatenate([part.columns[column] for part in rows]) for column in NAMES}
    assert read["city"].tolist() == CITIES
    assert read["amount"].tolist() == AMOUNTS
    assert read["when"].tolist() == SECONDS
    numbers = np.concatenate([features.batch(part.columns)["click"] for part in rows])
    assert numbers.tolist() == CLICKS


ASKED = [
    ("when,click\n03/02/2024,1\n05/06/2024,0\n", "when left out 03/02/2024 is 2024-02-03 or 2024-03-02",
     {"--day-first": "2024-02-03 to 2024-06-05", "--month-first": "2024-03-02 to 2024-05-06"}),
    ('n,click\n"1,234",1\n"2,345",0\n', "n left out 1,234 is 1234 or 1.234; give --decimal , or --thousands ,",
     {"--decimal=,": "n number 1.234 to 2.345", "--thousands=,": "n number 1234 to 2345"}),
    ("n,click\n12.5 €,1\n3 €,0\n", "n left out numbers with '€' behind or before them", {}),
    ("when,click\n03/02/2024,1\n25/02/2024,0\n02/25/2024,0\n", "other rows have another order; write one in all", {}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said", "options"), ASKED)
def test_what_has_two_readings_is_named_and_an_option_decides(text, said, options, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    head, *lines = text.splitlines()
    (tmp_path / "t.csv").write_text(f"{head},x\n" + "".join(f"{line},{n % 7}\n" for n, line in enumerate(lines * 40)))
    assert main(["init", "t.csv"]) == 0, capsys.readouterr()
    assert said in " ".join(capsys.readouterr().out.split())
    for option, read in options.items():
        assert main(["init", "t.csv", "--force", option]) == 0, capsys.readouterr()
        assert read in " ".join(capsys.readouterr().out.split())
        assert main(["check", "t.yaml"]) == 0, capsys.readouterr()


@pytest.mark.long
def test_predict_reads_another_file_as_it_is_declared_or_says_what_fits(tmp_path, monkeypatch, capsys):
    """The three commands of the README on a German Excel export, then other files of the same columns."""
    monkeypatch.chdir(tmp_path)
    (name, content), *_ = TABLES["german excel"]
    (tmp_path / name).write_bytes(content + b"short\n")
    (tmp_path / "new.csv").write_bytes(content[: content.index(b"\r\n", 400) + 2])
    (tmp_path / "english.csv").write_text("city,amount,when\nBonn,3.5,2024-01-01\n")
    few = ["--set", "network.hidden=[4]", "--set", "network.dim=2", "--set", "fit.epochs=1"]
    for command in (
        ["init", name],
        ["fit", "t.yaml", *few],
        ["report", "runs/t"],
        ["predict", "runs/t", "--data", "new.csv", "--output", "answers.csv"],
    ):
        assert main(command) == 0, capsys.readouterr()
        if command[0] == "fit":  # train, valid and test are read from one file
            said = f"1 of {ROWS + 1} rows set aside: takes a line of 4 fields 1; the first is line {ROWS + 2} of t.csv"
            assert capsys.readouterr().err.count(said) == 1
    page = (tmp_path / "runs" / "t" / "report.html").read_text("utf-8")
    assert "classes of the label" in page
    assert "nein, ja" in page
    lines = (tmp_path / "answers.csv").read_text().splitlines()
    assert lines[0] == "row,prediction,probability_nein,probability_ja"
    assert len(lines) == len((tmp_path / "new.csv").read_bytes().splitlines())
    capsys.readouterr()
    with contextlib.suppress(SystemExit):
        assert main(["predict", "runs/t", "--data", "english.csv", "--output", "no.csv"]) != 0
    assert "this file fits csv: {delimiter: ','" in capsys.readouterr().err


def test_a_stream_of_a_table_with_lines_that_are_no_rows_is_declared_to_have_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = [f"{row % 50},{row % 3},{row % 2}" + ",x" * (row % 10 == 0) for row in range(300)]
    (tmp_path / "t.csv").write_text("\n".join(["age,kind,click", *lines, ""]))
    assert main(["init", "t.csv"]) == 0
    assert "30 of 300 rows set aside" in capsys.readouterr().out
    stream = build(load_config("t.yaml"), ("stream",)).datasets["stream"]
    assert stream.dead_letter.max_bad_share == pytest.approx(0.21)
    assert main(["online", "t.yaml", "--set", "online.max_steps=1"]) == 0, capsys.readouterr()
