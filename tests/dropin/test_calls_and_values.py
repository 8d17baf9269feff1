"""`mindspore.Model` and `trainer.Model` on the same data: `calls_and_values.py`, run in a process of its own.

In a process that has compiled many other programs MindSpore 2.10 may fail to compile MindRec's Wide & Deep with
"Illegal AnfNode for evaluating", in `mindspore.Model` itself.
"""

import subprocess
import sys
from xml.etree import ElementTree

import pytest

from tests.dropin import table
from tests.dropin.cases import all_cases

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def failures(project_root, tmp_path_factory):
    """Return what pytest says of each case that failed, None of one that passed, by the case's name."""
    report = tmp_path_factory.mktemp("dropin") / "report.xml"
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--junitxml={report}"]
    command = [sys.executable, "-m", "pytest", *options, "tests/dropin/calls_and_values.py"]
    done = subprocess.run(command, cwd=project_root, capture_output=True, text=True)
    if not report.exists():
        pytest.fail(f"no report: {done.stdout[-4000:]}{done.stderr[-4000:]}")
    cases = ElementTree.parse(report).iter("testcase")
    return {case.get("name"): case[0].text if len(case) else None for case in cases}


@pytest.mark.long
@pytest.mark.parametrize("name", all_cases())
def test_as_mindspores_own(name, failures):
    failure = failures[f"test_as_mindspores_own[{name}]"]
    assert failure is None, failure


@pytest.mark.long
def test_every_case_ran(failures):
    assert len(failures) == len(all_cases())


def test_the_table_of_the_documentation_is_this_one(project_root):
    page = (project_root / "docs" / "migrating.md").read_text()
    assert table.TABLE.search(page)[0] == table.lines(), "write it with: python -m tests.dropin.table"
