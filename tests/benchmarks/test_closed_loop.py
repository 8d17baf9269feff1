"""The closed loop with three kills in its short form: no answered row is lost, doubled or mislabelled."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # benchmarks are not installed

from benchmarks import closed_loop, servers  # noqa: E402

pytestmark = [pytest.mark.server, pytest.mark.long]


@pytest.mark.skipif(servers.missing("redis") is not None, reason="no Redis server")
def test_three_kills_lose_and_double_no_row(tmp_path):
    figures = closed_loop.run(tmp_path, 600, rows=5, wait=30.0, log_wait=8.0, connections=4)
    wrong = ("answered, not in the log", "lost", "doubled", "other inputs", "other labels")
    assert {name: figures[name] for name in ("answered", *wrong)} == {"answered": 3000, **dict.fromkeys(wrong, 0)}
