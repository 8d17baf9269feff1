"""The two commands: what gets installed, and what `make` says where it cannot work."""

import configparser
import importlib.util
import os
import re
import shutil
import subprocess
from types import SimpleNamespace
from venv import create

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement


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
    for extra in setup_cfg["options.extras_require"].values():
        wanted += "\n" + extra
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


def _make(project_root, *arguments):
    # Free of what a `make test` around this one hands down.
    inherited = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHON", "ARGS")
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


def test_ci_runs_the_checks_and_the_tests(project_root):
    commands = [
        line for line in (project_root / ".ci" / "run").read_text().splitlines() if line and not line.startswith("#")
    ]
    assert commands[:4] == ["set -euo pipefail", 'cd "$(dirname "$0")/.."', "make lint", "make test && exit 0"]
    assert commands[-1].startswith("exec make test ")
    assert "--last-failed " in commands[-1]
    dry = _make(project_root, "--dry-run", "test")
    assert ".venv/bin/python -m pytest" in dry.stdout


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
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(module, "STAMP", tmp_path / ".venv" / "installed")
    module.commands = []

    def run(command, **_):
        module.commands.append(" ".join(map(str, command[1:])))
        if module.fails in module.commands[-1]:
            raise subprocess.CalledProcessError(1, command)

    module.fails = "nothing"
    calls = SimpleNamespace(run=run, CalledProcessError=subprocess.CalledProcessError)
    monkeypatch.setattr(module, "subprocess", calls)
    monkeypatch.setattr(module.venv, "create", lambda folder, **_: folder.mkdir(exist_ok=True))
    return module


def test_installing_happens_once_until_something_changes(setup_env, tmp_path):
    assert setup_env.main() == 0
    assert "--require-hashes" in setup_env.commands[0]
    assert f"--editable {tmp_path}[" in setup_env.commands[1]
    setup_env.commands.clear()
    assert setup_env.main() == 0
    assert setup_env.commands == []
    (tmp_path / "requirements.lock").write_text("another version")
    assert setup_env.main() == 0
    assert setup_env.commands


def test_a_broken_off_installation_is_done_again(setup_env, capsys):
    setup_env.fails = "--editable"
    assert setup_env.main() == 1
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
