"""docs/your-own-table.md from an installed wheel, in an empty folder with a space in its name and an empty home."""

import csv
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from examples.movielens import find_files
from tests.trainer.experiment.test_first_config import ROWS, make_table, write

pytestmark = [pytest.mark.docs, pytest.mark.long]

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "your-own-table.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.M | re.S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own") / "my data"
    folder.mkdir()
    (folder.parent / "home").mkdir()
    write(make_table(), folder / "visits.csv")
    unlabelled = {name: values for name, values in make_table().items() if name != "click"}
    write(unlabelled, folder / "new.csv")
    write(make_table(), folder / "visits.parquet")
    return folder


@pytest.fixture(scope="module")
def environment(installed, folder):
    keep = ("LANG", "TMPDIR", "GLOG_v", "SYSTEMROOT")
    kept = {name: os.environ[name] for name in keep if name in os.environ}
    return kept | {"PATH": f"{installed}{os.pathsep}/usr/bin:/bin", "HOME": str(folder.parent / "home")}


@pytest.fixture(scope="module")
def run(installed, folder, environment):
    """Start one of the installed programs as a user does."""

    def run(*words, program="trainer", start=subprocess.run):
        options = {"timeout": 300} if start is subprocess.run else {}
        return start(
            [str(installed / program), *words], cwd=folder, env=environment, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
        )  # fmt: skip

    return run


@pytest.fixture(scope="module")
def quick(installed_forks, folder, environment):
    """Run the installed wheel with MindSpore imported already, and return what was printed."""

    def quick(*words, cwd=folder):
        arguments = words if words[0].endswith(".py") else ("-m", "mindspore_trainer", *words)
        process = installed_forks.start(*arguments, cwd=cwd, environment=environment)
        assert process.wait() == 0, process.errors.read_text()[-3000:]
        return process.output.read_text()

    return quick


def succeed(done):
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_package_that_runs_is_the_installed_one(run, installed):
    place = succeed(
        run("-c", "import trainer, callbacks; print(trainer.__file__, callbacks.__file__)", program="python")
    )
    assert all(str(installed.parent) in path for path in place.split())


def test_five_commands_lead_from_a_csv_to_a_served_answer(run, folder):
    commands = [
        line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines() if line.startswith("trainer ")
    ]
    assert len(commands) == 5
    timed = sum(time is not None for time in make_table()["when"])  # rows are divided by it, so it has to be there
    for command in commands:
        words = [word.replace("8080", "0") for word in shlex.split(command)[1:]]
        if words[0] != "serve":
            succeed(run(*words))
            continue
        server = run(*words, start=subprocess.Popen)
        try:
            url = next(filter(None, (re.search(r"http://[\d.:]+", line) for line in server.stderr)))[0]
            rows = [{"age": 33, "city": "b", "when": "2024-05-01 09:30", "item": "i3", "viewed": "i1;i2"}, {}]
            assert len(_ask(url, rows)) == 2
        finally:
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=60)
    with open(folder / "answers.csv") as file:
        answers = [float(row["prediction"]) for row in csv.DictReader(file)]
    assert len(answers) == ROWS
    assert 0 < min(answers) < max(answers) < 1
    assert json.loads((folder / "runs" / "visits-2" / "metrics.json").read_text())["progress"]["samples_seen"] == timed


def test_a_page_about_the_run_to_share(quick, folder):
    done = quick("report", "runs/visits")
    assert "report.html" in done
    assert "<title>visits</title>" in (folder / "runs" / "visits" / "report.html").read_text("utf-8")


def test_three_commands_lead_from_a_csv_to_a_page_to_share(quick, folder):
    """Those that README, home page and docs/seeing-a-run.md show, in a folder with nothing but the table."""
    pages = [ROOT / "README.md", *(ROOT / "docs" / name for name in ("index.md", "seeing-a-run.md"))]
    blocks = [
        re.findall(r"^```text\n(?:pip .*\n)?(trainer init.*?)^```", page.read_text("utf-8"), re.M | re.S)
        for page in pages
    ]
    assert blocks[0] == blocks[1] == blocks[2]
    commands = blocks[0][0].splitlines()
    assert len(commands) == 3
    fresh = folder.parent / "three"
    fresh.mkdir()
    shutil.copy(folder / "visits.csv", fresh)
    for command in commands:
        quick(*shlex.split(command)[1:], cwd=fresh)
    page = (fresh / "runs" / "visits" / "report.html").read_text("utf-8")
    assert "<title>visits</title>" in page
    assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=[\"']?https?:", page), "the page needs a network"


def _ask(url, rows):
    for _ in range(100):
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=5):
                break
        except OSError:
            time.sleep(0.1)
    with urllib.request.urlopen(f"{url}/openapi.json", timeout=5) as answer:
        path = next(path for path in json.load(answer)["paths"] if path.endswith("predict"))
    request = urllib.request.Request(
        f"{url}{path}", json.dumps({"rows": rows}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        body = json.load(answer)
    return next(value for value in body.values() if isinstance(value, list))


def test_twelve_lines_of_python_do_the_same(quick, folder):
    (code,) = [text for kind, text in BLOCKS if kind == "python"]
    assert len([line for line in code.splitlines() if line.strip()]) <= 12
    (folder / "twelve.py").write_text(code)
    printed = quick("twelve.py")
    assert re.fullmatch(r"\[0\.\d+\]", printed.strip().splitlines()[-1])


def test_a_parquet_file_is_trained_evaluated_and_predicted(quick):
    few = ["--set", "network.hidden=[4]", "--set", "fit.epochs=1"]
    quick("init", "deepfm", "visits.parquet", "--output", "parquet.yaml")
    quick("fit", "parquet.yaml", *few)
    assert "auc" in quick("evaluate", "runs/parquet", "--data", "visits.csv")
    assert f"({ROWS},)" in quick("predict", "runs/parquet", "--data", "visits.parquet")
    quick("online", "parquet.yaml", *few, "--set", "online.max_steps=2")


def test_movielens_is_trained_on_from_its_files(quick, folder):
    """Ratings, people and films put side by side, nothing else: texts, times, genres as they are in the files."""
    import pandas as pd

    files = find_files()
    if (files / "u.data").is_file():
        pytest.skip("the files here are not RecBole's, whose genres are texts")
    tables = [pd.read_csv(files / f"ml-100k.{part}", sep="\t") for part in ("inter", "user", "item")]
    table = tables[0].merge(tables[1]).merge(tables[2], on="item_id:token")[:20_000]
    table.columns = [name.partition(":")[0] for name in table.columns]
    table.to_csv(folder / "ratings.csv", index=False)
    quick("init", "deepfm", "ratings.csv")
    text = (folder / "ratings.yaml").read_text()
    assert "kind: list, name: class, separator" in text
    assert "event_time: timestamp" in text
    quick("fit", "ratings.yaml", "--set", "network.hidden=[16]", "--set", "optimizer.init_args.learning_rate=0.005")
    results = json.loads((folder / "runs" / "ratings" / "metrics.json").read_text())["results"]
    assert results["test_rmse"] < np.std(table["rating"])


def test_another_numpy_is_named_at_import_with_the_cure(run, folder):
    stub = folder / "numpy-2.1.0.dist-info"
    stub.mkdir()
    (stub / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 2.1.0\n")
    done = run("-c", "import sys; sys.path.insert(0, '.'); import trainer", program="python")
    shutil.rmtree(stub)
    assert "NumPy 2.1.0 is installed" in done.stderr
    assert "pip install 'numpy>=1.25,<2'" in done.stderr
    assert run("-c", "import trainer", program="python").stderr == ""
