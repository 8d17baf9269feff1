"""Every code block of the README and of the documentation runs as it stands, from an installed wheel.

Each runs in an empty folder of its own, in a process that does not see the checkout: what a page uses has to be in the
package, or be shown by the page. tests/test_commands.py runs the commands.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.docs

ROOT = Path(__file__).resolve().parent.parent
OWN_TABLE = ROOT / "docs" / "your-own-table.md"  # tests/test_your_own_table.py runs it
PEERS = (
    ROOT / "docs" / "other-frameworks.md"
)  # tests/test_other_frameworks.py runs it, where the frameworks are installed
TOP_TO_BOTTOM = ROOT / "docs" / "metrics.md"  # tests/test_tutorials.py runs it and compares what it prints
IN_STEP = ROOT / "docs" / "index_cn.md"  # its blocks are those of index.md, says tests/test_docs.py
PAGES = [ROOT / "README.md", *sorted(set((ROOT / "docs").glob("*.md")) - {OWN_TABLE, PEERS, IN_STEP, TOP_TO_BOTTOM})]
BLOCKS = [
    (page.name, kind, text)
    for page in PAGES
    for kind, text in re.findall(r"^```(\w+)\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)
]


def blocks(language: str) -> list:
    """Return the blocks of a language, named after their page."""
    return [pytest.param(page, text, id=page) for page, kind, text in BLOCKS if kind == language]


def files_of(page: str) -> dict[str, str]:
    """Return the files that a page asks its reader to write: blocks that begin with the name, `# digits.py`."""
    named = [(re.match(r"# (\w+\.py)\n", text), text) for name, kind, text in BLOCKS if name == page]
    return {found[1]: text for found, text in named if found}


def test_there_is_no_block_that_is_not_run():
    assert {language for _, language, _ in BLOCKS} == {"python", "yaml", "text"}


@pytest.mark.long
def test_the_package_that_runs_is_the_installed_one(installed_forks, installed, tmp_path):
    code = "import trainer, callbacks, mindspore_trainer as m\nprint(trainer.__file__, callbacks.__file__, m.__file__)"
    (tmp_path / "where.py").write_text(code)
    done = installed_forks.start("where.py", cwd=tmp_path)
    assert done.wait() == 0, done.errors.read_text()
    assert all(path.startswith(str(installed.parent)) for path in done.output.read_text().split())


@pytest.mark.long(but=["README.md", "tables.md"])
@pytest.mark.parametrize(("page", "code"), blocks("python"))
def test_python_block(page, code, tmp_path, installed_forks):
    (tmp_path / "script.py").write_text(code, encoding="utf-8")
    done = installed_forks.start("script.py", cwd=tmp_path)
    assert done.wait() == 0, done.errors.read_text()
    assert bool(done.output.read_text()) == ("print(" in code)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["script.py"], "a script left something in its folder"


@pytest.mark.long
@pytest.mark.parametrize(("page", "text"), blocks("yaml"))
def test_yaml_block(page, text, tmp_path, installed_forks):
    (tmp_path / "experiment.yaml").write_text(text, encoding="utf-8")
    for name, code in files_of(page).items():
        (tmp_path / name).write_text(code, encoding="utf-8")
    for words in (["check", "experiment.yaml"], ["fit", "experiment.yaml", "--set", "fit.epochs=1"]):
        done = installed_forks.start("-m", "mindspore_trainer", *words, cwd=tmp_path)
        assert done.wait() == 0, done.errors.read_text()
    assert (tmp_path / "runs").is_dir()
