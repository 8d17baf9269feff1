"""Tutorials and tasks run from an installed wheel, each from top to bottom as one program, and print what they show."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.docs

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = sorted([*DOCS.glob("tutorials/*.md"), *DOCS.glob("tasks/*.md"), DOCS / "metrics.md"])
NUMBER = re.compile(r"\d+\.\d+")


@pytest.mark.long
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_prints_what_it_shows(path, tmp_path, installed_forks):
    page = path.read_text("utf-8")
    code = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    shown = "".join(re.findall(r"^```text\n(.*?)^```", page, re.M | re.S))
    (tmp_path / "tutorial.py").write_text("\n".join(code), encoding="utf-8")
    done = installed_forks.start("tutorial.py", cwd=tmp_path)
    assert done.wait() == 0, done.errors.read_text()
    printed = done.output.read_text()
    assert NUMBER.sub("N", printed) == NUMBER.sub("N", shown)
    # metrics differ between processors in their last digits
    assert [float(n) for n in NUMBER.findall(printed)] == pytest.approx(
        [float(n) for n in NUMBER.findall(shown)], abs=0.05
    )
    assert [path.name for path in tmp_path.iterdir()] == ["tutorial.py"], "a tutorial left something in its folder"
