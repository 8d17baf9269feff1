"""The two commands: what gets installed, and what `make` says where it cannot work."""

import configparser
import datetime
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from types import SimpleNamespace
from venv import create

import pytest
import yaml
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import trainer
from trainer.experiment.cli import main

pytestmark = pytest.mark.process


@pytest.fixture
def setup_cfg(project_root):
    parser = configparser.ConfigParser()
    parser.read(project_root / "setup.cfg")
    return parser


@pytest.fixture
def pins(project_root):
    """{package: [(version, marker or None)]} of the lock."""
    found: dict[str, list] = {}
    for line in (project_root / "requirements.lock").read_text().splitlines():
        match = re.match(r"([\w.-]+)==([\w.]+)(?: ; (.*?))? \\$", line)
        if match:
            name, version, marker = match.groups()
            found.setdefault(name.lower().replace("_", "-"), []).append((version, marker and Marker(marker)))
    return found


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12"])
def test_the_lock_pins_everything_for_each_python(python, setup_cfg, pins):
    environment = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    wanted = setup_cfg["options"]["install_requires"]
    for extra, requirements in setup_cfg["options.extras_require"].items():
        if extra not in ("gpu", "ray"):  # `.venv` does without: the one pins its own, the other is a cluster's
            wanted += "\n" + requirements
    requirements = [Requirement(line) for line in wanted.splitlines() if line and not line.startswith("#")]
    assert len(requirements) > 15
    for requirement in requirements:
        versions = [
            version
            for version, marker in pins[requirement.name.lower().replace("_", "-")]
            if marker is None or marker.evaluate(environment)
        ]
        assert len(versions) == 1, requirement.name
        assert requirement.specifier.contains(versions[0]), requirement


def test_every_pin_has_a_checksum_and_no_host_is_named(project_root):
    text = (project_root / "requirements.lock").read_text()
    assert "://" not in text
    blocks = re.split(r"\n(?=\S)", text.strip())
    assert len(blocks) > 40
    assert all("--hash=sha256:" in block for block in blocks)


def test_make_run_installs_some_of_the_same_pins(project_root):
    """`make test` adds the others, and changes none."""
    pins = {}
    for name in ("requirements-run.lock", "requirements.lock"):
        text = (project_root / name).read_text()
        assert "://" not in text
        pins[name] = {block.split()[0]: set(block.split()) for block in re.split(r"\n(?=\S)", text.strip())}
    run, everything = pins.values()
    assert 20 < len(run) < len(everything) / 2
    for pin, block in run.items():
        hashes = {word for word in block if word.startswith("--hash=sha256:")}
        assert hashes, pin
        assert hashes <= everything[pin], pin


def _make(project_root, *arguments):
    # Free of what a `make test` around this one hands down.
    inherited = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHON", "ARGS", "MINDSPORE")
    environment = {name: value for name, value in os.environ.items() if name not in inherited}
    return subprocess.run(
        ["make", *arguments], cwd=project_root, capture_output=True, text=True, timeout=60, env=environment
    )


def test_another_python_is_refused_with_what_is_needed(project_root, tmp_path):
    old = tmp_path / "python3.13"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.13.0 && exit 0\nexit 1\n')
    old.chmod(0o755)
    done = _make(project_root, "venv", f"PYTHON={old}")
    assert done.returncode == 2
    assert "needs Python 3.10, 3.11 or 3.12" in done.stderr
    assert f"{old}: Python 3.13.0" in done.stderr
    assert "PYTHON=/path/to/python3.12 make run" in done.stderr
    missing = _make(project_root, "venv", "PYTHON=/no/such/python3.12")
    assert missing.returncode == 2
    assert "/no/such/python3.12" in missing.stderr


def test_ci_runs_the_checks_and_every_test_once(project_root):
    commands = [
        line for line in (project_root / ".ci" / "run").read_text().splitlines() if line and not line.startswith("#")
    ]
    assert commands[2:] == ["make lint", "exec make --keep-going test test-long"]
    for target, marked in (("test", '-m "not long"'), ("test-long", "-m long")):
        planned = _make(project_root, "--dry-run", target).stdout
        (command,) = re.findall(r"^.venv/bin/python -m pytest .*", planned, re.M)
        assert marked in command


@pytest.fixture
def setup_env(project_root, tmp_path, monkeypatch):
    """`scripts/setup_env.py` working on an empty folder; what it would install is noted instead."""
    spec = importlib.util.spec_from_file_location("setup_env", project_root / "scripts" / "setup_env.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in module.INPUTS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "MINDSPORE", "")
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(module, "STAMP", tmp_path / ".venv" / "installed")
    module.commands = []

    def run(command, **_):
        module.commands.append(" ".join(map(str, command[1:])))
        if module.fails in module.commands[-1]:
            raise subprocess.CalledProcessError(1, command)
        settings = "global.extra-index-url='https://one.example/simple file:///two'\nglobal.timeout='9'\n"
        return SimpleNamespace(stdout=settings if "config" in command else "")

    module.fails = "nothing"
    calls = SimpleNamespace(run=run, CalledProcessError=subprocess.CalledProcessError)
    monkeypatch.setattr(module, "subprocess", calls)
    monkeypatch.setattr(module.venv, "create", lambda folder, **_: folder.mkdir(exist_ok=True))
    return module


def test_installing_happens_once_until_something_changes(setup_env, tmp_path):
    (tmp_path / "requirements.lock").write_text(
        "a==1 \\\n    --hash=sha256:1\nuv==2 \\\n    --hash=sha256:2\nvine==3\n"
    )
    assert setup_env.main() == 0
    pip, _, uv, project, *_ = setup_env.commands
    assert "-m pip" in pip
    assert "--require-hashes" in pip
    assert (tmp_path / ".venv" / "uv.lock").read_text() == "uv==2 \\\n    --hash=sha256:2"
    assert "-m uv pip install" in uv
    assert "--index https://one.example/simple --index file:///two --require-hashes" in uv
    assert f"--editable {tmp_path}[" in project
    setup_env.commands.clear()
    assert setup_env.main() == 0
    assert setup_env.commands == []
    (tmp_path / "requirements.lock").write_text("another version")
    assert setup_env.main() == 0
    assert setup_env.commands


def _blocks(lock):
    return re.split(r"\n(?=\S)", lock.strip())


def test_another_mindspore_has_an_environment_of_its_own(setup_env, project_root, tmp_path, monkeypatch, capsys):
    for name in ("requirements.lock", "requirements-mindspore.lock"):
        shutil.copy(project_root / name, tmp_path)
    locked = _blocks((tmp_path / "requirements.lock").read_text())
    others = [block for block in _blocks((tmp_path / "requirements-mindspore.lock").read_text()) if block[0] != "#"]
    assert len(others) == 3
    for pin in others:
        version = re.match(r"mindspore==(\S+) ", pin)[1]
        monkeypatch.setattr(setup_env, "MINDSPORE", version)
        monkeypatch.setattr(setup_env, "STAMP", tmp_path / ".venv" / version)
        assert setup_env.main() == 0
        installed = _blocks((tmp_path / ".venv" / "requirements.lock").read_text())
        ((replaced, by),) = [pair for pair in zip(locked, installed, strict=True) if pair[0] != pair[1]]
        assert replaced.startswith("mindspore==")
        assert by == pin
        assert (
            f".venv-{version}/bin/python -m pytest" in _make(project_root, "-n", "test", f"MINDSPORE={version}").stdout
        )
    locked_version = re.match(r"mindspore==(\S+) ", replaced)[1]
    assert ".venv/bin/python -m pytest" in _make(project_root, "-n", "test", f"MINDSPORE={locked_version}").stdout
    monkeypatch.setattr(setup_env, "MINDSPORE", "2.6.0")
    monkeypatch.setattr(setup_env, "STAMP", tmp_path / ".venv" / "2.6.0")
    setup_env.commands.clear()
    assert setup_env.main() == 2
    assert setup_env.commands == []
    assert (
        "MINDSPORE=2.6.0: requirements-mindspore.lock has no pin of it, but of mindspore==2" in capsys.readouterr().err
    )


def test_what_make_run_needs_is_part_of_what_the_tests_need(setup_env, tmp_path, monkeypatch):
    created = []
    monkeypatch.setattr(setup_env.venv, "create", lambda folder, **_: (folder.mkdir(), created.append(folder)))
    assert setup_env.main("run") == 0
    assert (tmp_path / ".venv" / "requirements.lock").read_text() == "requirements-run.lock"
    assert f"{tmp_path}[arrow,examples,report]" in " ".join(setup_env.commands)
    assert setup_env.main() == 0  # the rest, into the same environment
    assert (tmp_path / ".venv" / "requirements.lock").read_text() == "requirements.lock"
    setup_env.commands.clear()
    assert setup_env.main("run") == 0
    assert setup_env.commands == []
    assert len(created) == 1


def test_a_broken_off_installation_is_done_again(setup_env, capsys):
    setup_env.fails = "--editable"
    assert setup_env.main() == 1  # by uv, then by pip
    assert ["-m uv" in command for command in setup_env.commands if "--editable" in command] == [True, False]
    assert "setting up .venv failed" in capsys.readouterr().err
    setup_env.fails = "nothing"
    setup_env.commands.clear()
    assert setup_env.main() == 0
    assert "--require-hashes" in setup_env.commands[0]


def test_the_environment_is_found_up_to_date_for_any_user(setup_env, project_root, tmp_path, monkeypatch):
    """The interpreter that made .venv, which `make` prefers, and the one in it must come to the same answer."""
    monkeypatch.setattr(setup_env.venv, "create", lambda folder, **how: create(folder, **{**how, "with_pip": False}))
    shutil.copy(project_root / "scripts" / "setup_env.py", tmp_path / "scripts")
    shutil.copy(project_root / "Makefile", tmp_path)
    assert setup_env.main() == 0
    for arguments in ([], ["PYTHON=.venv/bin/python"]):
        done = _make(tmp_path, "venv", *arguments)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")  # setting up would say so


def test_the_environment_never_replaces_itself_while_it_runs(setup_env, tmp_path, monkeypatch):
    monkeypatch.setattr(setup_env.sys, "prefix", str(tmp_path / ".venv"))
    monkeypatch.setattr(setup_env.venv, "create", lambda *_, **__: pytest.fail("replaced"))
    (tmp_path / ".venv").mkdir()
    assert setup_env.main() == 0
    assert "--require-hashes" in setup_env.commands[0]


def test_a_machine_without_wheels_is_refused(setup_env, monkeypatch, capsys):
    monkeypatch.setattr(setup_env.platform, "machine", lambda: "riscv64")
    assert setup_env.main() == 2
    assert "MindSpore has no wheel for" in capsys.readouterr().err
    assert setup_env.commands == []


def test_the_citation_is_valid_and_of_this_version(project_root, setup_cfg):
    """By the Citation File Format 1.2.0: its required keys, no others than it knows, authors with names."""
    citation = yaml.safe_load((project_root / "CITATION.cff").read_text("utf-8"))
    known = {
        "abstract", "authors", "cff-version", "commit", "contact", "date-released", "doi", "identifiers", "keywords",
        "license", "license-url", "message", "preferred-citation", "references", "repository", "repository-artifact",
        "repository-code", "title", "type", "url", "version",
    }  # fmt: skip
    assert {"cff-version", "message", "title", "authors"} <= set(citation) <= known
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] == "software"
    assert citation["title"] == setup_cfg["metadata"]["name"]
    assert citation["license"] == setup_cfg["metadata"]["license"]
    assert str(citation["version"]) == setup_cfg["metadata"]["version"] == trainer.__version__
    released = f"## [{citation['version']}] - {citation['date-released']}"
    assert released in (project_root / "CHANGELOG.md").read_text("utf-8").splitlines()
    assert citation["authors"]
    assert all(author.get("name") or author.get("family-names") for author in citation["authors"])


def test_the_changelog_has_the_form_of_keep_a_changelog(project_root):
    lines = (project_root / "CHANGELOG.md").read_text("utf-8").splitlines()
    assert lines[0] == "# Changelog"
    releases = [line for line in lines if line.startswith("## ")]
    assert releases[0] == "## [Unreleased]"
    dated = [re.fullmatch(r"## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d{2}-\d{2})", line) for line in releases[1:]]
    assert all(dated), releases
    versions = [Version(match[1]) for match in dated]
    days = [datetime.date.fromisoformat(match[2]) for match in dated]
    assert versions == sorted(set(versions), reverse=True)
    assert days == sorted(days, reverse=True)
    assert versions[0] == Version(trainer.__version__)
    kinds, part, seen = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}, None, set()
    for number, line in enumerate(lines, 1):
        if line.startswith("## "):
            release, part, seen = line, None, set()
        elif line.startswith("### "):
            part = line.removeprefix("### ")
            assert part in kinds or release != "## [Unreleased]", f"line {number}: {line}"
            assert part not in seen, f"line {number}: {part} is there twice"
            seen.add(part)
        elif part is not None and line:
            assert line.startswith(("- ", "  ")), f"line {number} belongs to no entry: {line}"


def test_each_release_is_read_in_two_minutes_and_says_how_to_upgrade(project_root):
    text = (project_root / "CHANGELOG.md").read_text("utf-8")
    for release in re.split(r"^## ", text, flags=re.M)[2:]:
        assert len(release.splitlines()) <= 60, release.splitlines()[0]
        if not release.startswith("[0.1.0]"):  # the first one
            assert re.search(r"^### .*", release, re.M)[0] == "### When you upgrade", release.splitlines()[0]


def test_the_image_is_made_of_files_and_commands_of_this_project(
    project_root, setup_cfg, tmp_path, monkeypatch, capsys
):
    """The Dockerfile's steps without an engine: its files make the package, its versions are those of the lock."""
    text = re.sub(r"\\\n\s*", "", (project_root / "Dockerfile").read_text())
    steps = [line.split(" ", 1) for line in text.splitlines() if line and not line.startswith("#")]
    base = re.fullmatch(r"python:(3\.\d+)-slim", dict(steps)["FROM"])
    assert base[1] in SpecifierSet(setup_cfg["options"]["python_requires"])
    for kind, words in steps:
        if kind == "COPY":
            *sources, target = words.split()
            for source in sources:
                origin, copy = project_root / source, tmp_path / target / (source if target == "./" else "")
                if origin.is_dir():
                    shutil.copytree(origin, copy, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(origin, copy)
    (run,) = [words for kind, words in steps if kind == "RUN" and "pip install" in words]
    lock, install = run.split(" && ")
    subprocess.run(lock, shell=True, cwd=tmp_path, check=True, timeout=60)
    constraints = [
        Requirement(line) for line in (tmp_path / "constraints.txt").read_text().splitlines() if line.strip()
    ]
    assert len(constraints) > 40
    words = shlex.split(install)
    assert words[:2] == ["pip", "install"]
    assert words[words.index("-c") + 1] == "constraints.txt"
    asked = Requirement("package" + words[-1].removeprefix(".")).extras
    assert asked
    assert asked <= set(setup_cfg["options.extras_require"])
    build = [sys.executable, "-m", "pip", "-q", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "."]
    subprocess.run(build, cwd=tmp_path, check=True, timeout=200)
    assert len(list(tmp_path.glob("mindspore_trainer-*.whl"))) == 1
    program = dict(steps)["ENTRYPOINT"].strip('["]')
    assert f"{program} = " in setup_cfg["options.entry_points"]["console_scripts"]
    shown = re.findall(r"^# +docker run .*? mindspore-trainer (.+)$", (project_root / "Dockerfile").read_text(), re.M)
    assert shown
    monkeypatch.chdir(tmp_path)
    for command in shown:  # of a run that is not there: its name is the only thing that is refused
        assert main(shlex.split(command)) == 2
        refusal = capsys.readouterr().err
        assert "visits" in refusal
        assert "unrecognized" not in refusal
