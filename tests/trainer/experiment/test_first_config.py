"""`trainer init`: a first experiment for a table, which runs as it is; and the commands on the user's own files."""

import csv
import json
import shlex

import numpy as np
import pytest

from tests.trainer.models.tables import make_rows
from trainer.errors import ConfigurationError, DataError
from trainer.experiment import build, load_config
from trainer.experiment.cli import main
from trainer.experiment.commands.proposal import UNSUPPORTED, propose
from trainer.experiment.commands.table_summary import summarize
from trainer.experiment.runs.run_folder import Run
from trainer.features import Categorical, Features
from trainer.features.feature_data import rows_of
from trainer.models import MODELS
from trainer.streams.formats.csv_format import CsvFormat

ROWS = 400


def make_table():
    """Return columns of every type a file may hold, each but the label with missing values."""
    rng = np.random.default_rng(3)
    cities = rng.choice(list("abcdef"), ROWS)
    day = np.datetime64("2024-01-01T00:00:00")
    words = np.array(["red", "blue", "hat", "cap", "shoe"])
    columns = {
        "visit": [f"v{n:06x}" for n in range(ROWS)],
        "age": rng.normal(40, 10, ROWS).round(1).tolist(),
        "income": rng.lognormal(2, 3, ROWS).round(2).tolist(),
        "city": cities.tolist(),
        "user_id": rng.integers(0, 60, ROWS).tolist(),
        "children": rng.integers(0, 5, ROWS).tolist(),
        "member": (rng.random(ROWS) < 0.5).tolist(),
        "when": [str(day + np.timedelta64(int(h), "h")) for h in rng.integers(0, 9000, ROWS)],
        "genres": ["|".join(rng.choice(["x", "y", "z"], rng.integers(1, 4))) for _ in range(ROWS)],
        "title": [" ".join(rng.choice(words, 6)) for _ in range(ROWS)],
        "viewed": [";".join(f"i{n}" for n in rng.integers(0, 30, rng.integers(1, 5))) for _ in range(ROWS)],
        "item": [f"i{n}" for n in rng.integers(0, 30, ROWS)],
        "nothing": [None] * ROWS,
        "same": ["x"] * ROWS,
    }
    for name, values in columns.items():
        for row in np.flatnonzero(rng.random(ROWS) < 0.1) if name not in ("visit", "same") else ():
            values[row] = None
    columns["click"] = [int(rng.random() < (0.8 if city in "abc" else 0.2)) for city in cities]
    return columns


KINDS = {
    "age": ("numeric", {"normalize": "standard", "indicator": True}),
    "income": ("numeric", {"transform": "log1p"}),
    "city": ("categorical", {"vocabulary": "learn"}),
    "user_id": ("categorical", {"dtype": "int64"}),
    "children": ("categorical", {"dtype": "int64"}),
    "member": ("categorical", {}),
    "when": ("time", {"parts": ["hour", "weekday"]}),
    "genres": ("list", {"separator": "|", "max_length": 3}),
    "title": ("text", {}),
    "viewed": ("list", {"separator": ";", "table": "item", "pooling": None}),
    "item": ("categorical", {}),
}


def write(columns, path):
    if path.suffix == ".csv":
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(
                [["" if value is None else value for value in row] for row in zip(*columns.values(), strict=True)]
            )
    elif path.suffix == ".jsonl":
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        import pandas as pd

        frame = pd.DataFrame(columns)
        frame["when"] = pd.to_datetime(frame["when"])
        frame["user_id"], frame["children"] = frame["user_id"].astype("Int64"), frame["children"].astype("Int64")
        frame.to_parquet(path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("a folder")
    for name in ("my visits.csv", "visits.jsonl", "visits.parquet"):
        write(make_table(), folder / name)
    return folder


@pytest.mark.parametrize("name", ["my visits.csv", "visits.jsonl", "visits.parquet"])
def test_each_column_is_declared_as_what_it_holds(folder, name):
    proposal = propose(summarize(folder / name))
    assert (proposal.model, proposal.labels, proposal.binary, proposal.event_time) == ("din", ("click",), True, "when")
    declared = {arguments["name"]: arguments for arguments, _ in proposal.features if arguments}
    assert list(declared) == list(KINDS)
    for column, (kind, options) in KINDS.items():
        assert declared[column]["kind"] == kind
        assert options.items() <= declared[column].items(), column
    left_out = [about for arguments, about in proposal.features if arguments is None]
    assert left_out == ["visit: a different value in every row", "nothing: no value", "same: one value in all rows"]


def test_the_look_is_at_the_first_rows_and_says_so(folder):
    whole, part = (summarize(folder / "visits.jsonl", sample) for sample in (1000, 100))
    assert (whole.rows, whole.complete) == (ROWS, True)
    assert (part.rows, part.complete) == (pytest.approx(ROWS, rel=0.05), False)
    assert part.column("age").rows == 100


@pytest.mark.long
def test_a_csv_is_trained_on_from_init_to_answers(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert main(["init", "deepfm", "my visits.csv"]) == 0, capsys.readouterr()
    config = "my visits.yaml"
    assert "next: trainer fit 'my visits.yaml'" in capsys.readouterr().out
    assert main(["check", config]) == 0, capsys.readouterr()
    few = ["--set", "network.hidden=[4]", "--set", "network.dim=2"]
    fit = ["fit", config, *few, "--set", "fit.epochs=8", "--set", "optimizer.init_args.learning_rate=0.01"]
    assert main(fit) == 0, capsys.readouterr()
    shown = "".join(capsys.readouterr())
    assert "val_log_loss" in shown
    assert "next: trainer report runs/my_visits, or trainer serve runs/my_visits" in shown
    for line in ("val_loss", "test_loss", "sparse tables", "sink mode", "programs compiled"):  # repeated, or internal
        assert line not in shown
    for command in (
        ["evaluate", "runs/my_visits", "--data", "visits.parquet", "--verbose"],
        ["predict", "runs/my_visits", "--data", "visits.jsonl", "--output", "answers.csv"],
    ):
        assert main(command) == 0, capsys.readouterr()
    assert "sparse tables" in capsys.readouterr().err
    results = Run.read("runs/my_visits").metrics["results"]
    assert results["test_auc"] > 0.6
    with open("answers.csv") as file:
        answers = list(csv.DictReader(file))
    assert [list(answers[0]), len(answers)] == [["row", "prediction"], ROWS]
    scores = np.array([float(answer["prediction"]) for answer in answers])
    assert ((scores > 0) & (scores < 1)).all()
    cities = np.array([city in ("a", "b", "c") for city in make_table()["city"]])
    assert scores[cities].mean() > scores[~cities].mean() + 0.1

    assert main(["online", config, *few, "--set", "online.max_steps=4"]) == 0, capsys.readouterr()
    assert Run.read("runs/my_visits-2").metrics["progress"]["samples_seen"] == 4 * 64


def test_nothing_is_replaced_unless_that_is_asked_for(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    data = str(folder / "visits.jsonl")
    (tmp_path / "visits.yaml").write_text("mine")
    assert main(["init", data]) == 2
    assert "visits.yaml exists; give --output FILE for another, or --force to replace it" in capsys.readouterr().err
    assert (tmp_path / "visits.yaml").read_text() == "mine"
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    for answer, code in (("", 2), ("n", 2), ("y", 0)):
        monkeypatch.setattr("builtins.input", lambda question, answer=answer: answer)
        assert main(["init", data]) == code
    assert main(["init", data, "--output", "other.yaml"]) == 0
    assert main(["init", data, "--force"]) == 0


@pytest.mark.long(but=["deepfm", "din", "mmoe", "two_tower"])
@pytest.mark.parametrize("model", [name for name in MODELS if name not in UNSUPPORTED])
def test_every_model_gets_a_configuration_that_can_be_built(model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write({name: list(map(_plain, values)) for name, values in make_rows().items()}, tmp_path / "rows.jsonl")
    tasks = ["--label", "click", "--label", "buy"] if model in ("mmoe", "ple", "esmm") else []
    if model == "two_tower":
        tasks = ["--user", "age", "--item", "price", "--item", "genres", "--user", "history"]
    assert main(["init", model, "rows.jsonl", *tasks]) == 0, capsys.readouterr()
    experiment = build(load_config("rows.yaml"), ())
    assert type(experiment.trainer.network).__name__ == MODELS[model]
    assert len(experiment.trainer.features.features) >= 5


def _plain(value):
    return value.item() if isinstance(value, np.generic) else value


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["depfm", "rows.csv"], "MODEL takes .* did you mean 'deepfm'"),
        (["sasrec", "rows.csv"], "init writes no configuration for sasrec"),
        (["rows.cvs"], "no such file"),
        (["rows.csv", "--label", "clik"], "no column 'clik'.* did you mean 'click'"),
        (["rows.csv", "--label", "when"], "label 'when' is time, .*; a label is a number, 0 and 1, or one of 2 to 100"),
        (["two_tower", "plain.csv", "--item", "y"], "no column 'y'"),
        (["plain.csv", "--user", "x"], "--user and --item need the model two_tower"),
        (["rows.csv", "--time", "wen"], "no column 'wen'.* did you mean 'when'"),
        (["mmoe", "rows.csv"], "mmoe has several tasks; name the label columns: --label click --label NAME"),
        (["deepfm", "rows.csv", "--label", "click", "--label", "age"], "deepfm has one label; received click, age"),
        (["bst", "plain.csv"], "bst needs a history"),
        (["two_tower", "plain.csv"], "name the column with the item's number"),
        (["unnamed.csv"], "is named like a label; name .* one of a, b: trainer init unnamed.csv --label b$"),
        (["plain.csv", "--leave-out", "x"], "no column besides click can be a feature: x: as you asked"),
        (["a", "b", "rows.csv"], r"takes \[MODEL\] DATA"),
        (
            ["rows.csv", "--leave-out", "click"],
            "--leave-out click: click is the label; keep it, or name another by --label",
        ),
        (["rows.csv", "--time", "city"], "--time city: takes a column of times; received text, 2 distinct"),
    ],
)
def test_what_cannot_be_proposed_says_why(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("city,when,age,click\na,2024-01-01,3,0\nb,2024-01-02,4,1\n")
    (tmp_path / "plain.csv").write_text("x,click\n0.5,0\n1.5,1\n")
    (tmp_path / "unnamed.csv").write_text("a,b\n0.5,3\n1.5,2\n")
    assert main(["init", *arguments]) == 2
    import re

    assert re.search(message, capsys.readouterr().err)
    assert not list(tmp_path.glob("*.yaml"))


def test_check_names_each_slip_in_a_written_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write({"age": [n / 7 for n in range(60)], "click": [0, 1] * 30}, tmp_path / "rows.csv")
    assert main(["init", "rows.csv"]) == 0
    written = (tmp_path / "rows.yaml").read_text()
    slips = {
        ("name: age", "name: agee"): "rows.csv has no column 'agee', it has age, click; did you mean 'age'?",
        ("label: click", "label: clik"): "rows.csv has no column 'clik', it has age, click; did you mean 'click'?",
        ("patience: 3", "patience: -3"): "EarlyStopping(patience=...) takes a whole number >= 0; received -3",
        ("part: valid", "part: validation"): "RawFiles(part=...) takes 'train', 'valid', 'test' or None",
        ("\n  dim: 8", "\n   dim: 8"): "keys of one mapping begin in one column",
        ("\n  valid:", "\n valid:"): "keys of one mapping, and items of one list, begin in one column",
        ("\n  dim: 8", "\n\tdim: 8"): "indent with spaces",
        ("seed: 1", "seed 1"): "write KEY: VALUE",
    }
    for (right, wrong), said in slips.items():
        assert right in written
        (tmp_path / "rows.yaml").write_text(written.replace(right, wrong))
        capsys.readouterr()
        assert main(["check", "rows.yaml"]) == 2, wrong
        assert said in capsys.readouterr().err
    (tmp_path / "rows.yaml").write_text(written)
    assert main(["check", "rows.yaml"]) == 0


def test_without_a_command_all_commands_are_listed_by_task(capsys):
    assert main([]) == 2
    shown = capsys.readouterr().out
    listed = [line.split()[0] for line in shown.splitlines() if line.startswith("  ")]
    assert main(["nothing"]) == 2
    accepted = capsys.readouterr().err.partition("accepts ")[2].split(";")[0]
    assert sorted(listed) == sorted(accepted.strip().split(", "))
    assert main(["export", "x.yaml", "--format", "onnx"]) == 2
    assert "did you mean" not in capsys.readouterr().err
    tasks = [line for line in shown.splitlines() if line.endswith(":")]
    assert tasks == ["begin:", "train:", "look:", "serve:", "check:"]
    assert max(map(len, shown.splitlines())) <= 80


def test_each_help_ends_with_two_examples_that_the_command_takes(capsys, tmp_path, monkeypatch):
    """Without their files each example fails as late as a missing file or run can be found, or is done."""
    monkeypatch.chdir(tmp_path)
    assert main([]) == 2
    commands = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    for command in commands:
        assert main([command, "--help"]) == 0
        lines = capsys.readouterr().out.strip().splitlines()
        assert max(map(len, lines)) <= 80, command
        first, *examples = lines[-3:]
        assert first == "examples:"
        for example in examples:
            program, *words = shlex.split(example)
            assert (program, words[0]) == ("trainer", command)
            if command not in ("launch", "watch", "serve", "doctor"):  # these begin at once
                main(words)
                assert "usage:" not in capsys.readouterr().err, example


@pytest.mark.parametrize("mark", ["?", "NA", "n/a", "null", "-", "NaN"])
def test_a_word_where_a_number_is_missing_is_no_category(tmp_path, mark):
    """Such a column would be a category of as many ids as numbers."""
    columns = {"spend": [mark if n % 5 == 0 else n / 7 for n in range(200)], "click": [0, 1] * 100}
    columns |= {"size": [mark if n % 5 == 0 else n % 4 for n in range(200)]}
    table = summarize(write(columns, tmp_path / "rows.csv"))
    assert table.csv.missing == (mark,)
    assert [(column.name, column.kind, column.missing) for column in table.columns] == [
        ("spend", "number", 40),
        ("click", "integer", 0),
        ("size", "integer", 40),
    ]


def test_a_word_that_is_a_value_elsewhere_is_left_to_the_user(tmp_path):
    columns = {"spend": ["none" if n % 5 == 0 else n / 7 for n in range(200)], "click": [0, 1] * 100}
    columns |= {"garage": ["none", "one", "two", "two"] * 50, "age": ["k.A." if n % 9 == 0 else n for n in range(200)]}
    path = write(columns, tmp_path / "rows.csv")
    proposal = propose(summarize(path))
    about = {arguments["name"] if arguments else None: text for arguments, text in proposal.features}
    remedy = "leave these cells empty, or pass --missing none"
    assert about[None] == f"spend: numbers, but 'none' in 40 rows, which seem to be missing values; {remedy}"
    assert about["age"] == "178 distinct, numbers except for 'k.A.'; if that means a missing value, pass --missing k.A."
    table = summarize(path, given=CsvFormat(missing=("k.A.", "none")))
    assert [table.column(name).missing for name in columns] == [40, 0, 50, 23]


def test_few_times_divide_no_rows_and_numbers_that_count_rows_are_no_features(tmp_path):
    columns = {"when": ["2024-01-01", "2024-01-02"] * 100, "Kundennr": list(range(5000, 5200)), "click": [0, 1] * 100}
    proposal = propose(summarize(write(columns | {"x": [n / 7 for n in range(200)]}, tmp_path / "rows.csv")))
    assert proposal.event_time is None
    assert [about for arguments, about in proposal.features if arguments is None] == [
        "Kundennr: a different value in every row"
    ]


@pytest.mark.parametrize(("unit", "of_second"), [("ms", 10**3), ("us", 10**6), ("ns", 10**9), ("yyyymmdd", None)])
def test_times_in_other_units_are_times(tmp_path, unit, of_second):
    days = np.datetime64("2024-01-01") + np.arange(200)
    values = days.astype("datetime64[s]").astype(np.int64)
    numbers = values * of_second if of_second else np.char.replace(days.astype(str), "-", "").astype(int)
    columns = {"ts": numbers.tolist(), "x": [n / 7 for n in range(200)], "click": [0, 1] * 100}
    proposal = propose(summarize(write(columns, tmp_path / "rows.csv")))
    assert (proposal.features[0][0]["unit"], proposal.event_time) == (unit, "ts")
    features = Features([arguments for arguments, _ in proposal.features], label="click", event_time="ts")
    (rows,) = rows_of(features, str(tmp_path / "rows.csv"))
    assert rows.columns["ts"].tolist() == values.tolist()


def test_an_empty_or_damaged_file_is_named(tmp_path):
    (tmp_path / "empty.csv").write_text("a,b\n")
    (tmp_path / "broken.jsonl").write_text("{\n")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    for name, reason in (
        ("empty.csv", "has no rows"),
        ("broken.jsonl", "cannot be read"),
        ("broken.parquet", "cannot"),
    ):
        with pytest.raises((DataError, ConfigurationError), match=f"{name} {reason}"):
            summarize(tmp_path / name)


@pytest.mark.parametrize("codes", [["00301", "90210"], ["007", "7"], ["+049", "+1"]])
def test_numbers_that_begin_with_zeros_are_codes(tmp_path, codes):
    columns = {"zip": [codes[n % 2] for n in range(ROWS)], "click": [n % 2 for n in range(ROWS)]}
    summary = summarize(write(columns, tmp_path / "codes.csv"))
    assert (summary.column("zip").kind, summary.column("zip").distinct) == ("text", 2)
    numbers = columns | {"zip": [["0", "0.5", "-0.25"][n % 3] for n in range(ROWS)]}
    assert summarize(write(numbers, tmp_path / "numbers.csv")).column("zip").kind == "number"


@pytest.mark.long(
    but=[".csv-values0-classes0-float32", ".jsonl-values4-classes4-int32", ".parquet-values2-classes2-float32"]
)
@pytest.mark.parametrize(
    ("values", "classes", "numbers"),
    [
        (["yes", "no"], ["no", "yes"], np.float32),
        ([-1, 1], [-1, 1], np.float32),
        ([2, 1], [1, 2], np.float32),
        ([0.5, 1.5], [0.5, 1.5], np.float32),
        (["left", "bought", "returned"], ["bought", "left", "returned"], np.int32),
    ],
)
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_classes_of_a_label_are_named_and_numbered(tmp_path, monkeypatch, capsys, values, classes, numbers, suffix):
    monkeypatch.chdir(tmp_path)
    columns = {"churn": [values[n % len(values)] for n in range(ROWS)], "age": [n % 7 + 0.5 for n in range(ROWS)]}
    columns |= dict.fromkeys(("when", "user_id", "children"), [None] * ROWS) if suffix == ".parquet" else {}
    data = write(columns, tmp_path / f"rows{suffix}")
    assert main(["init", data.name]) == 0, capsys.readouterr()
    assert main(["check", "rows.yaml"]) == 0, capsys.readouterr()
    config = load_config("rows.yaml")
    assert config.features["label_classes"] == classes
    features = build(config, ()).trainer.features
    features.fit(data)
    inputs = [features.batch(rows.columns)["churn"] for rows in rows_of(features, data)]
    wanted = [classes.index(value) for value in columns["churn"]]
    assert np.concatenate(inputs).dtype == numbers
    assert np.concatenate(inputs).tolist() == wanted
    again = Features.from_declaration(json.loads(json.dumps(features.declaration())))
    assert again.label_classes == tuple(classes)
    unknown = "other" if isinstance(classes[0], str) else 7
    read = features.read({"churn": [values[0], unknown], "age": [1.5, 2.5]})
    assert list(read.bad) == [1]
    assert f"takes {', '.join(map(repr, features.schema.fields['churn'].accepts))}; received" in read.bad[1]


def test_a_feature_may_not_read_the_label_of_classes():
    with pytest.raises(ConfigurationError, match="a feature reads the label 'churn'"):
        Features([Categorical("churn")], label="churn", label_classes=["no", "yes"])
    for classes in (["a"], ["a", "a"], ["a", 1], [True, False], "ab"):
        with pytest.raises(ConfigurationError, match="two or more different texts"):
            Features([Categorical("x")], label="churn", label_classes=classes)


def test_towers_hold_what_is_known_before_the_choice(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    user, film = rng.integers(0, 30, ROWS), rng.integers(0, 40, ROWS)
    table = {"user_id": user, "home": user % 5, "film": film, "genre": film % 3, "rating": rng.integers(1, 6, ROWS)}
    write(table, tmp_path / "rows.csv")
    assert main(["init", "two_tower", "rows.csv", "--label", "film"]) == 0, capsys.readouterr()
    config = load_config("rows.yaml")
    assert config.network.init_args["item"] == ["film", "genre"]
    assert [column["name"] for column in config.features["columns"]] == ["user_id", "home", "film", "genre"]
    assert "# left out: rating: known only after the user's choice" in (tmp_path / "rows.yaml").read_text()

    for item, code in (("[film, genre]", 0), ("[genre]", 2)):
        assert main(["check", "rows.yaml", "--set", f"network.item={item}"]) == code
    assert "feature 'film' is a user feature but reads 'film'" in capsys.readouterr().err

    write(table | {"seconds": rng.random(ROWS).round(3)}, tmp_path / "rows.csv")
    assert main(["init", "two_tower", "rows.csv", "--label", "film", "--force"]) == 2
    asked = capsys.readouterr().err
    assert all(f"{option} seconds" in asked for option in ("--user", "--item", "--leave-out"))
    for option, items, names in (("--user", 2, 5), ("--item", 3, 5), ("--leave-out", 2, 4)):
        assert main(["init", "two_tower", "rows.csv", "--label", "film", "--force", option, "seconds"]) == 0
        config = load_config("rows.yaml")
        assert [len(config.network.init_args["item"]), len(config.features["columns"])] == [items, names]


def test_columns_that_are_named_like_inputs_of_the_network_get_other_names(tmp_path):
    hours = np.datetime64("2024-01-01T00") + np.arange(200)
    columns = {
        "when": hours.astype(str),
        "when_hour": [n % 24 for n in range(200)],
        "numbers": [n / 7 for n in range(200)],
    }
    columns |= {"ids": ["a|b", "b", "a"] * 66 + ["a", "b"], "click": [0, 1] * 100}
    proposal = propose(summarize(write({n: list(c) for n, c in columns.items()}, tmp_path / "rows.csv")))
    declared = [arguments for arguments, _ in proposal.features]
    assert {a["name"]: a["column"] for a in declared if "column" in a} == {
        "when_hour_": "when_hour",
        "numbers_": "numbers",
        "ids_": "ids",
    }
    features = Features(declared, label="click")
    assert {*features.columns} == {"when", "when_hour", "numbers", "ids"}


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_ids_that_no_int64_holds_are_texts(suffix, tmp_path):
    ids = [2**63 + n % 5 for n in range(200)]
    lists = [f"{n}|{n + 1}" if suffix == ".csv" else [n, n + 1] for n in ids]
    rows = {"user_id": ids, "seen": lists, "codes": ["01|1"] * 100 + ["1"] * 100, "click": [0, 1] * 100}
    path = write(rows, tmp_path / f"rows{suffix}")
    features = Features([arguments for arguments, _ in propose(summarize(path)).features], label="click")
    assert all(feature.dtype == "str" for feature in features.features)
    (read,) = rows_of(features, str(path))
    assert read.good == 200
    assert sorted(set(read.columns["user_id"].tolist())) == [str(2**63 + n) for n in range(5)]


def test_labels_with_an_exponent_are_numbers(tmp_path):
    columns = {"churn": ["2e0", "1e0"] * 50, "x": [n / 7 for n in range(100)]}
    assert propose(summarize(write(columns, tmp_path / "rows.csv"))).classes == (1.0, 2.0)


@pytest.mark.parametrize("value", ["1", "true", "0.5"])
def test_a_label_of_one_value_is_refused(tmp_path, value, capsys):
    table = tmp_path / "visits.csv"
    table.write_text("age,click\n" + "".join(f"{n},{value}\n" for n in range(30)))
    assert main(["init", str(table), "--output", str(tmp_path / "visits.yaml")]) == 2
    assert f"label 'click' is {value} in all rows" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(("distinct", "expected"), [(40, "categorical"), (100, "a different value in every row")])
def test_numbers_too_long_for_floats_are_ids(distinct, expected, tmp_path):
    columns = {"order": [10**17 + 7919 * (row % distinct) for row in range(100)]}
    columns |= {"price": [row % 7 + 0.5 for row in range(100)], "click": [row % 2 for row in range(100)]}
    (arguments, about), _ = propose(summarize(write(columns, tmp_path / "orders.csv"))).features
    assert expected in (arguments["kind"] if arguments else about)
