"""Every code block of the README and of the documentation runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainer.experiment.cli import main

ROOT = Path(__file__).resolve().parent.parent
OWN_TABLE = ROOT / "docs" / "your-own-table.md"  # tests/test_your_own_table.py runs it, from an installed wheel
PEERS = (
    ROOT / "docs" / "other-frameworks.md"
)  # tests/test_other_frameworks.py runs it, where the frameworks are installed
IN_STEP = ROOT / "docs" / "index_cn.md"  # its blocks are those of index.md, says tests/test_docs.py
PAGES = [ROOT / "README.md", *sorted(set((ROOT / "docs").glob("*.md")) - {OWN_TABLE, PEERS, IN_STEP})]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", TEXT, re.M | re.S)


def blocks(language: str) -> list[str]:
    return [text for kind, text in BLOCKS if kind == language]


def test_there_is_no_block_that_is_not_run():
    assert {language for language, _ in BLOCKS} == {"python", "yaml", "text"}


@pytest.mark.parametrize(
    "code", blocks("python"), ids=lambda code: re.findall(r"^class (\w+)", code, re.M)[:1] or "script"
)
def test_python_block(code, tmp_path, forks):
    (tmp_path / "script.py").write_text(code, encoding="utf-8")
    done = forks.start("script.py", cwd=tmp_path)
    assert done.wait() == 0, done.errors.read_text()
    assert bool(done.output.read_text()) == ("print(" in code)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["script.py"], "a script left something in its folder"


@pytest.mark.parametrize("text", blocks("yaml"))
def test_yaml_block(text, tmp_path, capsys):
    config = tmp_path / "experiment.yaml"
    config.write_text(text, encoding="utf-8")
    assert main(["check", str(config)]) == 0, capsys.readouterr()
    overrides = ["--set", "fit.epochs=1", "--set", f"run_dir={tmp_path / 'run'}"]
    assert main(["fit", str(config), *overrides]) == 0, capsys.readouterr()
