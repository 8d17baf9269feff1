"""Test each version of MindSpore and update the table of docs/install.md.

    make versions                               all but the newest, which CI runs; takes over an hour
    make versions ARGS="2.8.0 2.9.0"            only these two
    make versions ARGS="2.8.0 --counted-only"   count earlier results in build/mindspore, without running tests

Each version has a separate environment, which `make test MINDSPORE=...` creates.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from packaging.version import Version

from scripts.reliability_tables import table
from trainer.checks import installed

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "install.md"
RESULTS = ROOT / "build" / "mindspore"
HEADS = ("MindSpore", "last run", "passed", "skipped", "failed", "what differs")
_TABLE = re.compile(rf"^\| {HEADS[0]} \|.*\n\| ---.*\n((?:\|.*\n)+)", re.MULTILINE)
_PROGRAM = (
    "import json; from trainer.mindspore_internals.differences import differences; print(json.dumps(differences()))"
)


def pinned() -> list[str]:
    """Return the versions in both lock files; `make test` uses the last by default."""
    locks = ("requirements-mindspore.lock", "requirements.lock")
    return [pin for name in locks for pin in re.findall(r"^mindspore==(\S+)", (ROOT / name).read_text(), re.MULTILINE)]


def run(version: str) -> None:
    """Run `make test` with a version; write its results to `RESULTS`."""
    for old in RESULTS.glob(f"{version}*.xml"):
        old.unlink()
    results = RESULTS / f"{version}.xml"
    subprocess.run(["make", "test", f"MINDSPORE={version}", f"ARGS=--junitxml={results}"], cwd=ROOT)


def row(version: str) -> list[str]:
    """Return the table row of a version, from all its results in `RESULTS`."""
    suites = [suite for path in RESULTS.glob(f"{version}*.xml") for suite in ElementTree.parse(path).iter("testsuite")]
    if not suites:
        raise SystemExit(f"{RESULTS} has no results of {version}")
    tests, failures, errors, skipped = (
        sum(int(suite.get(name, 0)) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    )
    day = max(suite.get("timestamp", "")[:10] for suite in suites)
    failed = failures + errors
    return [
        version,
        day,
        str(tests - failed - skipped),
        str(skipped),
        str(failed),
        "; ".join(_differences(version)) or "-",
    ]


def _differences(version: str) -> list[str]:
    folder = ".venv" if version == pinned()[-1] else f".venv-{version}"
    python = sys.executable if installed("mindspore") == version else ROOT / folder / "bin" / "python"
    environment = {**os.environ, "GLOG_v": "3"}
    command = [python, "-c", _PROGRAM]
    output = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    return json.loads(output.splitlines()[-1])


def updated_page(page: str, rows: Sequence[Sequence[str]]) -> str:
    """Return the page with these rows in its table; keep the rows of other versions."""
    match = _TABLE.search(page)
    if match is None:
        raise SystemExit(f"{PAGE} has no table that begins with {' | '.join(HEADS)}")
    lines = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in match[1].splitlines()]
    by_version = {line[0]: line for line in (*lines, *rows)}
    newest_first = sorted(by_version, key=Version, reverse=True)
    text = "\n".join(table(HEADS, [by_version[version] for version in newest_first])) + "\n"
    return page[: match.start()] + text + page[match.end() :]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the versions of the command line; return 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs="*", help=f"of {', '.join(pinned())}; all but the last without")
    parser.add_argument("--counted-only", action="store_true", help="run nothing; count earlier results")
    options = parser.parse_args(arguments)
    versions = options.versions or pinned()[:-1]
    if unknown := set(versions) - set(pinned()):
        parser.error(f"{', '.join(sorted(unknown))}: not pinned; {', '.join(pinned())} are")
    for version in () if options.counted_only else versions:
        run(version)
    rows = [row(version) for version in versions]
    PAGE.write_text(updated_page(PAGE.read_text("utf-8"), rows), "utf-8")
    print("\n".join(table(HEADS, rows)))
    return int(any(cells[HEADS.index("failed")] != "0" for cells in rows))


if __name__ == "__main__":
    sys.exit(main())
