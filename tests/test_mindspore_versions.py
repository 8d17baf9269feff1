"""The table of MindSpore's versions has each version that is pinned, counted from the results of its tests."""

import mindspore
import pytest

from scripts import mindspore_versions

pytestmark = pytest.mark.docs

RESULTS = """<testsuites><testsuite errors="1" failures="2" skipped="3" tests="10" timestamp="2030-01-02T03:04:05"/>
</testsuites>"""


def test_the_page_has_a_row_for_each_version_that_is_pinned():
    page = mindspore_versions.PAGE.read_text("utf-8")
    assert mindspore_versions.updated_page(page, []) == page
    assert all(f"\n| {version} | " in page for version in mindspore_versions.pinned())


def test_results_are_added_up_and_other_versions_stay(tmp_path, monkeypatch, capsys):
    page = tmp_path / "install.md"
    page.write_text(mindspore_versions.PAGE.read_text("utf-8"), "utf-8")
    here = mindspore.__version__
    for part in ("graph", "run"):
        (tmp_path / f"{here}-{part}.xml").write_text(RESULTS)
    monkeypatch.setattr(mindspore_versions, "PAGE", page)
    monkeypatch.setattr(mindspore_versions, "RESULTS", tmp_path)
    before = page.read_text("utf-8").splitlines()
    assert mindspore_versions.main([here, "--counted-only"]) == 1  # as some tests failed
    (changed,) = [line for line in page.read_text("utf-8").splitlines() if line not in before]
    assert changed.startswith(f"| {here} | 2030-01-02 | 8 | 6 | 6 | ")
    assert changed in capsys.readouterr().out
    with pytest.raises(SystemExit):
        mindspore_versions.main(["2.6.0"])
    assert "2.6.0: not pinned" in capsys.readouterr().err
