"""`online_train` on two real processes: each reads its part of the stream, all take the same steps."""

import json

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from tests.trainer.distributed import stream_program
from trainer import checkpoint
from trainer.streams.sources.folder_segments import lane_of

pytestmark = [pytest.mark.process, pytest.mark.long]

ROWS = sum(stream_program.SEGMENTS)


PROGRAM = stream_program


def prepare(folder):
    stream_program.write_segments(folder / "segments", stream_program.SEGMENTS)
    stream_program.write_segments(folder / "followed", [40, 40])
    (folder / "followed" / "_DONE").unlink()
    stream_program.write_segments(folder / "uneven", [20, 16])
    (folder / "silent").mkdir()
    stream_program.write_segments(folder / "spoilt", [50, 50], overflowing=60)
    stream_program.write_segments(folder / "late", [16] * 34)
    (folder / "late" / "_DONE").unlink()


def rows_of(found, name):
    return [row for step in found[name]["steps"] for row in step]


NAMES = ["files", "one sided", "replayed", "stopped", "seconds", "event time", "idle", "tables", "went on"]
SPOILT = ["spoilt", "spoilt tables"]


@pytest.mark.parametrize("name", [*NAMES, *SPOILT])
def test_all_processes_take_the_same_steps_to_the_same_bits(two, name):
    for kind in ("parameters", "progress", "stop", "windows", "losses"):
        # as text, for a window may hold NaN
        assert json.dumps(two[1][name][kind]) == json.dumps(two[0][name][kind]), kind
    assert len(two[1][name]["steps"]) == len(two[0][name]["steps"])


@pytest.mark.parametrize("name", ["files", "seconds", "event time"])
def test_every_row_is_trained_on_once_by_the_process_its_segment_falls_to(two, name):
    assert sorted(rows_of(two[0], name) + rows_of(two[1], name)) == list(range(ROWS))
    ends = np.cumsum(stream_program.SEGMENTS)
    for rank in range(2):
        segments = {int(np.searchsorted(ends, row, side="right")) for row in rows_of(two[rank], name)}
        assert segments == {0, 2, 4} if rank == 0 else {1, 3, 5}
    assert two[0][name]["progress"]["samples_seen"] == ROWS
    assert lane_of("part-003.jsonl") == 3


def test_a_process_whose_part_has_ended_goes_on_with_empty_batches(two):
    counts = [[len(step) for step in found["files"]["steps"]] for found in two]
    assert counts[0][-1] > 0
    assert counts[1][-1] == 0
    assert two[0]["files"]["stop"] == "stream_end"


def test_a_process_that_never_has_a_row_changes_nothing(one, two):
    assert rows_of(two[1], "one sided") == []
    assert rows_of(two[0], "one sided") == rows_of(one, "one sided")
    for mine, theirs in zip(one["one sided"]["parameters"], two[0]["one sided"]["parameters"], strict=True):
        np.testing.assert_allclose(theirs, mine, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", SPOILT)
def test_a_step_that_one_process_cannot_compute_is_left_out_on_all(two, name):
    """The row falls to rank 1, in its first batch; weights, rows of tables and losses go on with the next one."""
    assert 60 in two[1][name]["steps"][0]
    for found in two:
        assert found[name]["skipped"] == 1
        assert found[name]["stop"] == "stream_end"
        assert len(found[name]["steps"]) == 4
        assert all(np.isfinite(parameter).all() for parameter in found[name]["parameters"])
        assert np.isfinite(found[name]["losses"][1:]).all()
        assert np.abs(np.concatenate(found[name]["parameters"])).max() < 10


def test_late_rows_are_those_of_all_processes(two):
    for found in two:
        assert found["late"]["progress"]["samples_seen"] == 34 * 16
        assert found["late"]["windows"][-1]["late_rows"] == 10 + 7


def test_a_stream_without_partitions_is_shared_batch_by_batch(one, two):
    assert sorted(rows_of(two[0], "replayed") + rows_of(two[1], "replayed")) == list(range(500))
    assert rows_of(two[1], "replayed")[:16] == list(range(16, 32))
    np.testing.assert_allclose(two[0]["replayed"]["losses"], one["replayed"]["losses"], rtol=0, atol=1e-6)
    for mine, theirs in zip(one["replayed"]["parameters"], two[0]["replayed"]["parameters"], strict=True):
        np.testing.assert_allclose(theirs, mine, rtol=0, atol=1e-6)


def test_windows_count_the_rows_of_all_processes(two):
    label = stream_program.table()["label"].reshape(-1)
    windows = two[0]["files"]["windows"]
    rows, scores, first, place = [], [], [0, 0], 0
    for window in windows:
        rows, scores = [], []
        for rank, found in enumerate(two):
            steps = found["files"]["steps"][place : window["after"]]
            count = sum(map(len, steps))
            rows += [row for step in steps for row in step]
            scores += found["files"]["predicted"][first[rank] : first[rank] + count]
            first[rank] += count
        place = window["after"]
        assert window["window_rows"] == len(rows)
        if len(set(label[rows])) > 1:
            assert window["window_auc"] == pytest.approx(roc_auc_score(label[rows], scores), abs=1e-4)
    assert windows[-1]["lifetime_rows"] == ROWS


def test_windows_of_event_time_close_with_the_newest_row_of_any_process(two):
    assert len(two[0]["event time"]["windows"]) >= 4


def test_a_short_last_batch_of_one_process_is_enough_for_the_tables_of_all(two):
    assert rows_of(two[0], "tables") == [*range(20)]
    assert rows_of(two[1], "tables") == [*range(20, 36)]
    assert [len(step) for step in two[0]["tables"]["steps"]] == [16, 4]


def test_one_process_that_asks_to_stop_stops_all_at_the_same_step(two):
    for found in two:
        assert found["stopped"]["progress"]["global_step"] == 3
        assert found["stopped"]["stop"] == "user"
        assert found["stopped"]["open"]["window_rows"] == 96


def test_a_further_call_goes_on_behind_the_row_trained_last(two):
    for found in two:
        assert not {*rows_of(found, "stopped")} & {*rows_of(found, "went on")}
    rows = [row for found in two for name in ("stopped", "went on") for row in rows_of(found, name)]
    assert sorted(rows) == list(range(ROWS))


def test_a_stream_is_idle_when_it_is_idle_on_all_processes(two):
    for rank, found in enumerate(two):
        assert found["idle"]["stop"] == "idle"
        assert sorted(rows_of(found, "idle")) == list(range(rank * 40, rank * 40 + 40))


def test_tables_of_all_processes_wait_for_no_row_beyond_the_limits_nor_for_newer_ones_than_the_snapshots(two):
    for found in two:
        ends = {
            name: (found[name]["progress"]["samples_seen"], found[name]["stop"]) for name in ("silent", "out of time")
        }
        assert ends == {"silent": (0, "idle"), "out of time": (0, "limit")}
        assert (found["resumed"]["progress"]["samples_seen"], found["resumed"]["stop"]) == (500, "idle")


def test_the_position_of_all_is_in_one_snapshot(folder):
    snapshot = checkpoint.find(folder / "snapshots")
    position = snapshot.state["loop"]["position"]
    assert [len(names) for names in position["dealt"]] == [3, 3]
    state = {name: value for name, value in position["state"].items() if name.startswith("files:")}
    assert state == {f"files:{place}": [f"part-{place:03d}.jsonl@end", 0] for place in range(6)}


def test_every_process_commits_its_own_partitions_up_to_the_last_snapshot(two):
    for rank, found in enumerate(two):
        commits = found["files"]["commits"]
        assert len(commits) >= 2
        assert {int(name.rpartition(":")[2]) % 2 for position in commits for name in position} == {rank}
        assert len(commits[-1]) == 3


def test_what_cannot_be_shared_is_refused_with_the_cure(two):
    for found in two:
        assert "the processes read different rows" in found["other rows"]
        assert "a function that returns the same rows on every process" in found["generator"]
        assert "MAE has no merge" in found["foreign"]


def test_a_snapshot_that_rank_0_could_not_write_is_an_error_on_all_processes(two):
    for found in two:
        assert "File too large" in found["full"]
