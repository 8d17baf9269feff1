"""Generate the tables of docs/reliability.md by running every case.

    python scripts/reliability_tables.py

A table is a function in `TABLES` that returns the table's lines. The page contains the table between two comments with
its name. With `--check`, nothing is written, and the exit code is 1 if the page is out of date.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reliability.md"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table."""
    return ["| " + " | ".join(cells) + " |" for cells in (headings, ["---"] * len(headings), *rows)]


def ways_and_values() -> list[str]:
    """Return how values in each form are read, compared with the values in a list."""
    from scripts.value_ways import WAYS, UnsupportedError
    from trainer.features import Categorical, Features, ListFeature, Numeric, Time

    when = datetime.datetime(2024, 2, 3, 17, 18)
    seconds = 1_706_980_680
    cases: dict[str, tuple[Any, list[Any]]] = {
        "int64, one missing": (Categorical("x"), [2**62 + 1, -5, None]),
        "20 digits and more": (Categorical("x"), [89 * 10**20 + 7 * n for n in range(3)]),
        "least int64": (Categorical("x", dtype="int64"), [-(2**63), -(2**63) + 2]),
        "whole floats as text": (Categorical("x"), [5.0, None, 7.0]),
        "numbers": (Numeric("x", indicator=True), [0.1, None, 1e300, -7.0]),
        "truth values": (Categorical("x"), [True, None, False]),
        "texts": (Categorical("x"), ["Łódź", "", "True", "007"]),
        "timestamps": (Time("x"), [when, None]),
        "epochs in s, ms, us, ns": (Time("x"), [seconds, seconds * 10**3, seconds * 10**6, seconds * 10**9, None]),
        "number 20240203": (Time("x"), [20_240_203]),
        "lists": (ListFeature("x"), [[2**62 + 1, None], [], None]),
    }
    expected: dict[str, Any] = {}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, read in WAYS.items():
            cells = [name]
            for case, (feature, values) in cases.items():
                try:
                    outcome = read(Features([feature]), values, Path(folder))
                except UnsupportedError:
                    cells.append("-")
                    continue
                if outcome == expected.setdefault(case, outcome):
                    aside = sum(row is None for row in outcome)
                    cells.append(
                        "same" if not aside else "set aside" if aside == len(outcome) else f"same, {aside} set aside"
                    )
                else:
                    cells.append("as its text")
            rows.append(cells)
    return table(["way in", *cases], rows)


def roles_losses_and_verbs() -> list[str]:
    """Return how each method uses each role, as `tests/trainer/test_roles.py` tests."""
    from tests.trainer.role_cases import CASES, FILES, OTHER_ROLES, PARTS, VERBS

    headings = (*VERBS, *PARTS, *FILES)
    tested = [(case.roles, case.loss, case.result if case.used else "refused", case.verbs) for case in CASES]
    tested += [(roles, CASES[0].loss, outcome, verbs) for roles, outcome, verbs in OTHER_ROLES]
    rows = [[roles, loss, *(how if verb in verbs else "-" for verb in headings)] for roles, loss, how, verbs in tested]
    return table(["declared roles", "loss", *headings], rows)


TABLES: dict[str, Callable[[], list[str]]] = {
    "ways x values": ways_and_values,
    "roles x losses x verbs": roles_losses_and_verbs,
}


def updated_page(page: str, names: Sequence[str] = tuple(TABLES)) -> str:
    """Return the page with these tables regenerated."""
    for name in names:
        begin, end = f"<!-- table: {name} -->", f"<!-- end of table: {name} -->"
        lines = "\n".join(TABLES[name]())
        page, count = re.subn(
            f"{re.escape(begin)}.*?{re.escape(end)}",
            lambda _, b=begin, t=lines, e=end: f"{b}\n\n{t}\n\n{e}",
            page,
            flags=re.S,
        )
        if count != 1:
            raise SystemExit(f"{PAGE} has the comments of the table {name!r} {count} times")
    return page


def main() -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where the page differs")
    arguments = parser.parse_args()
    before = PAGE.read_text(encoding="utf-8")
    after = updated_page(before)
    if not arguments.check:
        PAGE.write_text(after, encoding="utf-8")
    return int(arguments.check and before != after)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
