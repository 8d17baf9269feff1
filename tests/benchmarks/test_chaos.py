"""The kill test in its short form: real runs on MovieLens-100K killed, resumed and compared with undisturbed ones."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from trainer import checkpoint

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # benchmarks and examples are not installed

from benchmarks import chaos, ledger  # noqa: E402


def trainer_at(step: int, steps: int = 0, rows: list[int] | None = None):
    """What a ledger reads of a trainer: its step, and the rows of the chunk just trained on."""
    rows = np.array(rows or [], np.int64)
    chunk = SimpleNamespace(num_samples=len(rows), num_steps=steps, names=("id",), rows=lambda column: rows)
    state = SimpleNamespace(progress=SimpleNamespace(global_step=step), outputs=SimpleNamespace(chunk=chunk))
    return SimpleNamespace(state=state, group=SimpleNamespace(size=1, rank=0))


def process(folder: Path, start: int, chunks: dict[int, list[int]]) -> None:
    """Write the ledger of a process that goes on from `start` and trains the rows of one step each."""
    diary = ledger.Ledger(folder, key=["id"])
    diary.setup(trainer_at(start))
    diary.on_train_begin(trainer_at(start))
    for step, rows in chunks.items():
        diary.on_train_step_begin(trainer_at(step - 1))
        diary.on_train_step_end(trainer_at(step, 1, rows))
    diary.teardown(None)


def test_what_a_killed_process_trained_after_its_last_snapshot_never_happened(tmp_path):
    process(tmp_path, 0, {1: [10, 11], 2: [12], 3: [13]})
    process(tmp_path, 2, {3: [13], 4: [14, 15]})
    history = ledger.surviving(tmp_path)
    assert history.rows.tolist() == [10, 11, 12, 13, 14, 15]
    assert (history.lost_steps, history.repeated_steps, history.redone) == (0, 0, 1)
    assert ledger.read_phase(tmp_path) == (ledger.STEPPING, 3)


def test_the_ledger_shows_rows_and_steps_that_are_lost_or_repeated(tmp_path):
    process(tmp_path, 0, {1: [10], 2: [11]})
    process(tmp_path, 2, {2: [11], 4: [14]})
    history = ledger.surviving(tmp_path)
    assert (history.lost_steps, history.repeated_steps) == (1, 1)
    assert history.rows.tolist() == [10, 11, 11, 14]


def test_an_entry_cut_short_by_a_kill_is_left_out(tmp_path):
    process(tmp_path, 0, {1: [10], 2: [11, 12]})
    (file,) = tmp_path.glob("*.ledger")
    file.write_bytes(file.read_bytes()[:-3])
    assert ledger.surviving(tmp_path).rows.tolist() == [10]


def test_one_bit_is_a_difference(tmp_path):
    weights = np.linspace(0, 1, 5, dtype=np.float32)
    state = {"progress": {"global_step": 1}, "metrics": {}, "loop": {"meter": {}}}
    changed = weights.copy()
    changed.view(np.int32)[3] ^= 1
    for name, values in (("a", weights), ("b", weights), ("c", changed)):
        checkpoint.write(tmp_path / name, 1, {"model": {"w": values}}, state)
    assert chaos.differences(tmp_path / "a", tmp_path / "b") == []
    assert chaos.differences(tmp_path / "a", tmp_path / "c") == ["model: w"]


def test_tables_are_the_same_however_their_snapshots_divide_them(tmp_path):
    state = {"progress": {"global_step": 2}, "metrics": {}, "loop": {"meter": {}}}

    def table(ids, removed=()):
        values = np.array([[number / 10, number] for number in ids], np.float32)
        rows = np.arange(len(ids), dtype=np.int32)
        parts = {"ids": np.array(ids), "removed": np.array(removed, np.int64), "rows": rows, "values": values}
        return {chaos.TABLES: {f"user/{name}": array for name, array in parts.items()}}

    checkpoint.write(tmp_path / "full", 2, table([5, 7, 9]), state)
    checkpoint.write(tmp_path / "changes", 1, table([9, 3, 5]), state)
    checkpoint.write(tmp_path / "changes", 2, table([7], removed=[3]), state, base="step_00000001")
    checkpoint.write(tmp_path / "kept", 1, table([9, 3, 5]), state)
    checkpoint.write(tmp_path / "kept", 2, table([7]), state, base="step_00000001")
    assert chaos.differences(tmp_path / "full", tmp_path / "changes") == []
    assert chaos.differences(tmp_path / "full", tmp_path / "kept") == [
        "part.tables: user/ids",
        "part.tables: user/values",
    ]


@pytest.fixture
def _soon_started(monkeypatch, forks):
    """Runs start with MindSpore imported."""
    start = lambda command, cwd, **streams: forks.start(*command[1:], cwd=cwd)  # noqa: E731
    monkeypatch.setattr(chaos, "subprocess", SimpleNamespace(Popen=start, DEVNULL=None))


def run_source(folder: Path, source: str, kills: int, terms: int) -> chaos.Result:
    given = argparse.Namespace(kills=kills, terms=terms, rows=4000, epochs=1, seed=3)
    result = chaos.run_source(source, folder, given)
    assert result.good, chaos.details(result)
    assert sum(result.kills.values()) == kills
    assert len(result.exits) == terms
    return result


@pytest.mark.long
@pytest.mark.process
@pytest.mark.usefixtures("_soon_started")
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL and SIGTERM")
def test_kills_of_a_fit_lose_nothing_repeat_nothing_and_change_no_bit(tmp_path):
    result = run_source(tmp_path, "fit", kills=3, terms=1)  # twenty and more by `make chaos`
    assert set(result.kills) == {chaos.WRITE, chaos.EVALUATION, chaos.STEP}
    assert result.resumes + result.restarts == 4


@pytest.mark.long
@pytest.mark.process
@pytest.mark.usefixtures("_soon_started")
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL and SIGTERM")
def test_kills_of_a_stream_lose_no_row_and_train_none_twice(tmp_path):
    result = run_source(tmp_path, "files", kills=1, terms=0)
    assert result.resumes + result.restarts == 1
    assert len(np.unique(result.history.rows)) == len(result.history.rows) == 31 * chaos.BATCH
