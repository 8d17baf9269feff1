"""The tutorials run from an installed wheel, each from top to bottom as one program, and print what they show."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.docs

TUTORIALS = Path(__file__).resolve().parent.parent / "docs" / "tutorials"
NUMBER = re.compile(r"\d+\.\d+")


@pytest.mark.long
@pytest.mark.parametrize("name", ["offline", "online", "serving"])
def test_a_tutorial_prints_what_it_shows(name, tmp_path, installed_forks):
    page = (TUTORIALS / f"{name}.md").read_text("utf-8")
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


def test_every_tutorial_has_a_test():
    assert {path.stem for path in TUTORIALS.iterdir()} == {"offline", "online", "serving"}
