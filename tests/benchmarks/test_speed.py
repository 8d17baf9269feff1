"""The contenders of `make bench` do the same work, and its report says what was measured. No test bounds a time."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # benchmarks are not installed

from benchmarks import page, run  # noqa: E402
from benchmarks.cases import mlp, row_types, wide_deep  # noqa: E402
from benchmarks.measure import Group, Measured, Ratio, against, compare  # noqa: E402

STEPS = 64


@pytest.fixture(scope="module")
def contenders():
    """The contenders of case (a) that need no other environment, warm."""
    made = {name: mlp.make(name, {"steps": STEPS}) for name in (mlp.RAW, mlp.SINGLE, mlp.SUNK)}
    for contender in made.values():
        contender.epoch()
        contender.epoch()
    return made


@pytest.mark.long
def test_ratios_of_times_are_reported(contenders, record_property):
    windows = {name: [contender.window() for _ in range(3)] for name, contender in contenders.items()}
    values = {name: [w["seconds"] / w["steps"] * 1e6 for w in found] for name, found in windows.items()}
    pairs = (Ratio(mlp.SINGLE, mlp.RAW, plus=20), Ratio(mlp.SUNK, mlp.RAW, 0.5))
    measured = Measured(Group("mlp", "MLP", "mlp", {}, ratios=pairs), values)
    lines = run.lines_of(measured)
    record_property("ratios", lines)
    print(*lines, sep="\n")
    assert any(mlp.SUNK in line and " / " in line for line in lines)


@pytest.mark.long
def test_wide_and_deep_computes_what_model_computes(record_property):
    options = {"batch": 64, "rows": 20_000, "steps": 8}
    ours, model = (wide_deep.make(name, options) for name in (wide_deep.DENSE, wide_deep.MODEL))
    measured = Measured(wide_deep.group(64, 20_000, 8))
    compare(measured, {wide_deep.DENSE: ours.losses(), wide_deep.MODEL: model.losses()})
    assert measured.problems == []
    record_property("losses_agree_within", measured.agreement)
    record_property("thread_us", {"ours": ours.window()["thread_us"], "model": model.window()["thread_us"]})


def test_losses_that_differ_are_a_problem():
    group = wide_deep.group(64, 10_000, 8)
    measured = Measured(group)
    falling = np.linspace(0.7, 0.5, 50)
    compare(measured, {wide_deep.DENSE: falling, wide_deep.MODEL: falling, wide_deep.TORCH_DENSE: falling * 1.05})
    assert measured.agreement == pytest.approx(0.05)
    assert "torch, Adam" in measured.problems[0]


def test_only_what_every_pair_of_processes_misses_is_beyond_noise():
    ratio = Ratio("now", "then", 1.03)
    group = Group("mlp", "work", "mlp", {}, ratios=(ratio,))
    disturbed = Measured(group, {"now": [9.0, 1.2, 1.2, 1.0, 1.0, 9.0], "then": [1.0] * 6}, processes=2)
    slower = Measured(group, {"now": [1.2, 1.2, 1.2, 1.1, 1.1, 9.0], "then": [1.0] * 6}, processes=2)
    assert disturbed.ratio(ratio) == pytest.approx((1.1, 1.0, 1.2))
    assert (disturbed.met(ratio), slower.met(ratio)) == (True, False)
    again = run.rebuilt(slower.to_dict())
    assert again.ratio(ratio) == slower.ratio(ratio) == pytest.approx((1.15, 1.1, 1.2))


def test_another_commit_is_compared_in_time_and_not_in_quality(tmp_path):
    assert [against(group, tmp_path) for group in row_types.groups(quick=True)] == [None, None]
    assert all(against(group, tmp_path).ratios for group in mlp.groups(quick=True))


def test_a_report_becomes_a_table_a_picture_and_a_part_of_the_readme(tmp_path):
    ratio = Ratio("ours", "theirs", 0.5)
    measured = Measured(Group("mlp", "work", "mlp", {}, ratios=(ratio,)), {"ours": [1.0, 2.0], "theirs": [4.0, 4.0]})
    measured.devices = {"ours": "CPU", "theirs": "NVIDIA H100"}
    machine = {"processor": "p", "cores": 2, "load": 0.1, "python": "3.11", "versions": {"numpy": "1.26"}}
    report = {"date": "2026-01-01", "quick": False, "machine": machine, "results": [measured.to_dict()]}
    alone = Group("loop", "added", "loop", {}, unit="us/step", goals={"slow": 9.0}, most={"fit": 40.0, "slow": 1.0})
    report["results"].append(Measured(alone, {"fit": [30.0, 50.0, 39.0], "slow": [8.0]}).to_dict())
    rate, goals = (Ratio("fast", "slow", 0.5),), {"goals": {"fast": 5.0}, "programs": {"fast": 2}}
    rows = Measured(Group("criteo", "rows", "criteo", {}, ratios=rate, unit="rows/s", **goals))
    rows.values, rows.extra = {"fast": [8.0], "slow": [2.0]}, {"fast": {"programs": 3.0}}
    report["results"].append(rows.to_dict())
    text = run.table(report)
    assert "| 0.38 (0.31 to 0.44) | <= 0.5, met |" in text
    assert "| work (on CPU, NVIDIA H100) (noisy: ours) | ours: 1.50" in text
    assert "| fit: added (noisy: fit) | 39.0 (34.5 to 44.5) us/step | <= 40, met |" in text
    assert "| slow: added | 8.00 (8.00 to 8.00) us/step | >= 9, <= 1, missed |" in text
    assert "2 rows/s | 0.25 (0.25 to 0.25) | <= 0.5, met |" in text  # a ratio of times, not of rates
    assert "| fast: rows | 8 (8 to 8) rows/s, 3 programs | >= 5, <= 2 programs, missed |" in text
    assert "slow: rows" not in text
    run.draw(report, tmp_path / "ratios.png")
    assert (tmp_path / "ratios.png").read_bytes()[1:4] == b"PNG"
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    page.refresh(text, readme)
    assert readme.read_text() == f"before\n{page.BEGIN}\n{text}\n{page.END}\nafter\n"
    other = text.replace("cores of p;", "cores of q;")
    for _ in range(2):  # what another processor gave stays when this one is measured again
        page.refresh(other, readme)
        assert "| ratio of times (quartiles) | on 2 cores of p, 2026-01-01 | goal |" in readme.read_text()
        assert "| 0.38 (0.31 to 0.44) | 0.38 | <= 0.5, met |" in readme.read_text()
        assert "| 39.0 (34.5 to 44.5) us/step | 39.0 us/step | <= 40, met |" in readme.read_text()
