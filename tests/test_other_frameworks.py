"""docs/other-frameworks.md: the same training in six frameworks prints the same losses; its table quotes the programs.

MindSpore's programs are always run. Those of another framework are run by the first interpreter that has
it: PEER_PYTHONS names interpreters, separated as PATH is, and BENCHMARK_PEERS that of the benchmarks.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.docs

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "other-frameworks.md").read_text("utf-8")
PROGRAMS = dict(re.findall(r"^### ([^\n]+)\n\n```python\n(.*?)^```", PAGE, re.M | re.S))
(PRINTED,) = re.findall(r"^```text\n(.*?)^```", PAGE, re.M | re.S)
PACKAGES = {"PyTorch": "torch", "TensorFlow": "tensorflow", "Keras": "keras", "Lightning": "lightning"}
STEPS = ["data", "network", "loss", "optimizer", "step", "gradient", "update"]


@cache
def backend(interpreter: str, package: str) -> str | None:
    """Return what Keras is to compute with in an interpreter; None where it lacks the package."""
    names = [package, "tensorflow", "torch"]
    code = f"from importlib.util import find_spec; print([bool(find_spec(name)) for name in {names}])"
    try:
        done = subprocess.run([interpreter, "-c", code], capture_output=True, text=True, timeout=60)
    except OSError:
        return None
    if not done.stdout.startswith("[True"):
        return None
    return "tensorflow" if done.stdout.startswith("[True, True") else "torch"


def test_every_program_of_the_page_has_a_test():
    assert set(PROGRAMS) == {*PACKAGES, "Plain MindSpore", "Here"}
    assert PAGE.count("```python") == len(PROGRAMS)


@pytest.mark.long
@pytest.mark.parametrize("name", ["Plain MindSpore", "Here"])
def test_mindspore_prints_the_losses_of_the_page(name, tmp_path, installed_forks):
    (tmp_path / "program.py").write_text(PROGRAMS[name], encoding="utf-8")
    done = installed_forks.start("program.py", cwd=tmp_path)
    assert done.wait() == 0, done.errors.read_text()
    assert done.output.read_text() == PRINTED


@pytest.mark.long
@pytest.mark.parametrize("name", PACKAGES)
def test_another_framework_prints_the_losses_of_the_page(name, tmp_path):
    named = [*os.environ.get("PEER_PYTHONS", "").split(os.pathsep), os.environ.get("BENCHMARK_PEERS", "")]
    for interpreter in filter(None, [sys.executable, *named]):
        keras = backend(interpreter, PACKAGES[name])
        if keras:
            break
    else:
        pytest.skip(f"no interpreter has {PACKAGES[name]}; PEER_PYTHONS names others")
    (tmp_path / "program.py").write_text(PROGRAMS[name], encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"KERAS_BACKEND": keras, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    command = [interpreter, "-W", "ignore", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.findall(r"^\d\.\d{4}$", done.stdout, re.M) == PRINTED.split()


def test_the_table_of_the_seven_steps_quotes_the_programs():
    (table,) = re.findall(r"^## The seven steps.*?\n\|(.*?)\n\n", PAGE, re.M | re.S)
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert [line[0] for line in lines[2:]] == STEPS
    for column, name in enumerate(lines[0][1:], start=1):
        parts = dict(re.findall(r"^ *# (\w+)\n(.*?)(?=^ *# \w+$|\Z)", PROGRAMS[name], re.M | re.S))
        for line in lines[2:]:
            if line[column].startswith("`"):
                assert line[column].strip("`") in [text.strip() for text in parts[line[0]].splitlines()]
        assert ["gradient"] * (name == "Here") == [line[0] for line in lines[2:] if not line[column].startswith("`")]
