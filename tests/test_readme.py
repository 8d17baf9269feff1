"""Every code block of the README and of the documentation runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.experiment.cli import main

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", TEXT, re.M | re.S)
# Each script runs in a process of its own; MindSpore alone, which takes longest to import, they have from their parent.
RUN = """
import os, runpy, sys
import mindspore

for folder in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{folder}.{name}", os.O_CREAT | os.O_WRONLY), number)
        os.chdir(folder)
        sys.argv[:] = ["script.py"]
        runpy.run_path("script.py", run_name="__main__")
        break
    with open(f"{folder}.code", "w") as file:
        file.write(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
"""


def blocks(language: str) -> list[str]:
    return [text for kind, text in BLOCKS if kind == language]


def test_there_is_no_block_that_nobody_runs():
    assert {language for language, _ in BLOCKS} == {"python", "yaml", "text"}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """{code of a script: its folder}; all of them have run."""
    folders = {code: tmp_path_factory.mktemp("script") for code in blocks("python")}
    for code, folder in folders.items():
        (folder / "script.py").write_text(code, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOG_v": "3"}
    subprocess.run([sys.executable, "-c", RUN, *folders.values()], env=environment, timeout=600, check=True)
    return folders


@pytest.mark.parametrize(
    "code", blocks("python"), ids=lambda code: re.findall(r"^class (\w+)", code, re.M)[:1] or "script"
)
def test_python_block(code, scripts):
    folder = scripts[code]
    exit_code, out, error = (folder.with_name(f"{folder.name}.{name}").read_text() for name in ("code", "out", "err"))
    assert exit_code == "0", error
    assert bool(out) == ("print(" in code)
    assert sorted(path.name for path in folder.iterdir()) == ["script.py"], "a script left something in its folder"


@pytest.mark.parametrize("text", blocks("yaml"))
def test_yaml_block(text, tmp_path, capsys):
    config = tmp_path / "experiment.yaml"
    config.write_text(text, encoding="utf-8")
    assert main(["check", str(config)]) == 0, capsys.readouterr()
    overrides = ["--set", "fit.epochs=1", "--set", f"run_dir={tmp_path / 'run'}"]
    assert main(["fit", str(config), *overrides]) == 0, capsys.readouterr()
