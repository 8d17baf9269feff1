"""Write the table of docs/migrating.md: run every case and, when all pass, put its line into the page.

python -m tests.dropin.table
"""

import pathlib
import re
import sys

import pytest

from tests.dropin.cases import all_cases

HEAD = "| Case | Result |\n|---|---|\n"
TABLE = re.compile(re.escape(HEAD) + r"(\|.*\n)+")


def lines():
    """Return the table as the cases say it; the tests beside this file hold each line to be true."""
    return HEAD + "".join(f"| {name} | {differs or 'same'} |\n" for name, (_, differs) in all_cases().items())


if __name__ == "__main__":
    here = pathlib.Path(__file__).parent
    page = here.parent.parent / "docs" / "migrating.md"
    status = pytest.main([str(here / "calls_and_values.py")])
    if status:
        sys.exit(status)
    page.write_text(TABLE.sub(lambda _: lines(), page.read_text()))
