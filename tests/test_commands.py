"""Every command that a page shows runs from an installed wheel, in a folder with nothing but a table of visits.

tests/test_your_own_table.py runs those of docs/your-own-table.md and the three of README, home page and
docs/seeing-a-run.md; the rest is here, each with the values that make it short. Sweeps train one trial:
tests/trainer/experiment/test_sweep.py has the others.
"""

from __future__ import annotations

import contextlib
import csv
import json
import re
import shlex
import signal
import time
import urllib.request
from pathlib import Path

import pytest

from tests.trainer.experiment.test_first_config import make_table, write

pytestmark = pytest.mark.docs

ROOT = Path(__file__).resolve().parent.parent
COMMAND = re.compile(r"^(?:\$ )?(trainer (?:[^ \n]| (?!  ))+)", re.M)  # what follows several spaces explains it
SHORT = {
    "1e-4,1e-3,1e-2": "1e-3",
    "8,16": "8",
    "--trials 20": "--trials 1",
    "--trials 50": "--trials 1",
    "--monitor val_auc": "--monitor val_auc --set fit.epochs=1",
    "yesterday.parquet": "visits.parquet",
    "fit visits.yaml": "fit visits.yaml --set fit.epochs=1",
}
ELSEWHERE = {
    "launch -n 4 --max-restarts 3 python train.py": "restarts: tests/trainer/distributed/test_launch.py",
}
RUN_HERE = {"install.md", "seeing-a-run.md", "export.md", "versions.md", "scaling.md", "serving.md", "closed_loop.md"}


def commands(page: str) -> list[str]:
    """Return the commands that a page of docs/ shows, without their first word."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    shown = "\n".join(re.findall(r"^```(?:text|sh)\n(.*?)^```", text, re.M | re.S))
    return [command.removeprefix("trainer ").strip() for command in COMMAND.findall(shown)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("visits")
    for name in ("visits.csv", "visits.parquet"):
        write(make_table(), folder / name)
    return folder


@pytest.fixture(scope="module")
def run(installed_forks, folder):
    """Run a command, made short; return what it printed."""

    def run(command, *more):
        for long, short in SHORT.items():
            command = command.replace(long, short)
        process = installed_forks.start("-m", "mindspore_trainer", *shlex.split(command), *more, cwd=folder)
        assert process.wait() == 0, (command, process.errors.read_text()[-3000:])
        return process.output.read_text()

    run("init deepfm visits.csv")
    run("fit visits.yaml")
    return run


def test_every_page_with_commands_is_run():
    pages = {page.name for page in (ROOT / "docs").glob("*.md") if commands(page.name)}
    assert pages == RUN_HERE | {"index.md", "index_cn.md", "your-own-table.md"}
    text = "\n".join(page.read_text("utf-8") for page in (ROOT / "docs").rglob("*.md"))
    assert not re.findall(r"^    (?:\$ )?trainer \w+ .*", text, re.M), "commands in a block that names no language"


@pytest.mark.long
def test_sweeps(run, folder):
    first, *others, resumed = commands("seeing-a-run.md")[3:]
    assert len(others) == 2
    for number, command in enumerate((first, *others)):
        printed = run(command)
        assert "val_auc" in printed
        if command is first:
            assert "val_auc" in run(resumed)
        assert "parallel" in (folder / "sweeps" / "visits" / "report.html").read_text("utf-8").lower()
        (folder / "sweeps" / "visits").rename(folder / "sweeps" / f"visits-{number}")


@pytest.mark.long
def test_the_doctor_finds_what_the_page_explains(run):
    """Each line of the doctor begins with a name of the page's table, and the code has no other names."""
    (command,) = commands("install.md")
    page = (ROOT / "docs" / "install.md").read_text("utf-8")
    explained = set(re.findall(r"`([^`|]+)`", "".join(re.findall(r"^\| (`.*?) \|", page, re.M))))
    found = [re.match(r"\w+ +(.+?)(?:  |$)", line)[1] for line in run(command).splitlines() if not line.startswith(" ")]
    packages = {name for name in found if name in {"numpy", "mindspore", "pydantic", "mindspore-trainer"}}
    assert len(packages) == 4
    code = (ROOT / "trainer" / "experiment" / "commands" / "doctor_command.py").read_text("utf-8")
    named = set(re.findall(r'Finding\("([^"{]+)"', code)) | packages
    assert named - explained == set()


@pytest.mark.long
def test_export_and_the_scores_of_many_rows(run, folder):
    init, fit, export, predict = commands("export.md")
    assert (init, fit) == ("init visits.csv", "fit visits.yaml")  # done for all, with a smaller model
    page = (ROOT / "docs" / "export.md").read_text("utf-8")
    shown = re.search(r"^network\.onnx takes.*?it$", page, re.M | re.S)[0]
    assert re.sub(r"\S*\d\S*", "N", shown) in re.sub(r"\S*\d\S*", "N", run(export).replace(f"{folder}/", ""))
    run(predict)
    import pyarrow.parquet

    assert pyarrow.parquet.read_table(folder / "scores.parquet").column_names[:2] == ["row", "user_id"]


@pytest.mark.long
def test_versions(run):
    listed = run("versions runs/visits", "--json")
    numbers = [str(version["number"]) for version in json.loads(listed)]
    assert len(numbers) >= 2
    for command in commands("versions.md"):
        if "roll-back 8" in command:
            run("versions runs/visits promote")  # there are two versions, and the older one is served
        run(re.sub(r"\b8[12]\d\b", numbers[-1], command).replace(f"roll-back {numbers[-1]}", f"roll-back {numbers[0]}"))


@pytest.mark.long
def test_two_processes_are_launched(run):
    here = [command for command in commands("scaling.md") if command not in ELSEWHERE]
    assert len(here) == 1
    assert len(commands("scaling.md")) == 1 + len(ELSEWHERE)
    run(here[0])


def ready(url):
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=5):
            return True
    except OSError:
        return False


@contextlib.contextmanager
def serving(command, folder, installed_forks):
    """Run a command that serves, on a free port; give its address."""
    words = shlex.split(command.replace("8080", "0"))
    server = installed_forks.start("-m", "mindspore_trainer", *words, cwd=folder)
    try:
        while not (reported := re.search(r"is served at (http://[\d.:]+)", server.errors.read_text())):
            assert server.poll() is None, server.errors.read_text()
            time.sleep(0.05)
        while not ready(reported[1]):
            assert server.poll() is None, server.errors.read_text()
            time.sleep(0.05)
        yield reported[1]
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


def ask(url, body, **headers):
    headers = {"Content-Type": "application/json"} | headers
    with urllib.request.urlopen(urllib.request.Request(f"{url}/predict", body, headers), timeout=30) as answer:
        return json.load(answer)


@pytest.mark.long
def test_a_server_answers_what_the_page_asks(run, folder, installed_forks):
    (command,) = commands("serving.md")
    page = (ROOT / "docs" / "serving.md").read_text("utf-8")
    asked, shown = re.search(r"^\$ (curl .*)\n(\{.*\})$", page, re.M).groups()
    with serving(command, folder, installed_forks) as url:
        given = ask(url, shlex.split(asked)[-1].encode())
    assert set(given) == set(json.loads(shown))


@pytest.mark.long
def test_a_model_learns_from_its_own_answers(run, folder, installed_forks):
    """Every row that was answered is trained on once, and each click finds its row."""
    serve, online = commands("closed_loop.md")
    with (folder / "visits.csv").open() as file:
        rows = sorted((row for row in csv.DictReader(file) if row["when"]), key=lambda row: row["when"])[:60]
    with serving(serve, folder, installed_forks) as url:
        for row in rows:
            visit = {name: value for name, value in row.items() if value and name not in ("visit", "click")}
            ask(url, json.dumps(visit).encode(), **{"X-Request-Id": row["visit"]})
    (folder / "outcomes").mkdir()
    clicks = [{"request_id": row["visit"], "when": row["when"]} for row in rows if row["click"] == "1"]
    (folder / "outcomes" / "0.jsonl").write_text("".join(json.dumps(click) + "\n" for click in clicks))
    for log in ("served", "outcomes"):
        (folder / log / "_DONE").touch()
    online = online.replace("wait: 30m", "wait: 30m, negative_after: never")
    last = dict(re.findall(r"^(\w+) +([\d.]+)", run(online), re.M))
    assert 0 < len(clicks) < len(rows)
    assert (int(last["lifetime_rows"]), int(last["stream_unmatched_outcomes"])) == (len(clicks), 0)
    assert int(last["stream_expired_rows"]) + len(clicks) == len(rows)
