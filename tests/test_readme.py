"""Every code block of the README and of the documentation runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", TEXT, re.M | re.S)


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOG_v": "3"}
    return subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def blocks(language: str) -> list[str]:
    return [text for kind, text in BLOCKS if kind == language]


def test_there_is_no_block_that_nobody_runs():
    assert {language for language, _ in BLOCKS} == {"python", "yaml", "text"}


@pytest.mark.parametrize(
    "code", blocks("python"), ids=lambda code: re.findall(r"^class (\w+)", code, re.M)[:1] or "script"
)
def test_python_block(code, tmp_path):
    (tmp_path / "script.py").write_text(code, encoding="utf-8")
    result = run([sys.executable, "script.py"], tmp_path)
    assert result.returncode == 0, result.stderr
    assert bool(result.stdout) == ("print(" in code)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["script.py"], "a script left something in its folder"


@pytest.mark.parametrize("text", blocks("yaml"))
def test_yaml_block(text, tmp_path):
    config = tmp_path / "experiment.yaml"
    config.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "trainer.experiment.cli"]
    result = run([*command, "check", str(config)], tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    overrides = ["--set", "fit.epochs=1", "--set", f"run_dir={tmp_path / 'run'}"]
    result = run([*command, "fit", str(config), *overrides], tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
