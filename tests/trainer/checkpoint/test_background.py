"""Writing in the background: what was submitted is written, one at a time, and failures surface."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from trainer import checkpoint
from trainer.checkpoint.background import BackgroundWriter
from trainer.errors import CheckpointError


def tensors(step: int) -> dict[str, dict[str, np.ndarray]]:
    return {"model": {"w": np.full((100, 100), step, np.float32), "b": np.float32(step)}}


def test_writes_what_the_tensors_were_at_submit(tmp_path):
    done = []
    with BackgroundWriter(then=done.append) as writer:
        for step in (1, 2, 3):
            given = tensors(step)
            state = {"history": [step]}
            writer.submit(tmp_path, step, given, state)
            given["model"]["w"][...] = 0
            state["history"].append("later")
        writer.wait()
        assert writer.check() == done == [tmp_path / f"step_0000000{step}" for step in (1, 2, 3)]
        assert writer.check() == []
    assert len(writer.hold_seconds) == 3
    assert writer.max_hold == max(writer.hold_seconds)
    for step in (1, 2, 3):
        snapshot = checkpoint.find(tmp_path / f"step_0000000{step}")
        np.testing.assert_array_equal(snapshot.tensors("model")["w"], tensors(step)["model"]["w"])
        assert snapshot.state == {"history": [step]}


def test_at_most_one_write_is_in_flight(tmp_path):
    running, most = [], []

    def then(path: Path) -> None:
        running.append(path)
        most.append(sum(thread.name == "snapshot-writer" for thread in threading.enumerate()))

    with BackgroundWriter(then) as writer:
        for step in range(6):
            writer.submit(tmp_path, step, tensors(step), {})
    assert len(running) == 6
    assert max(most) == 1


def test_a_failure_surfaces_at_the_next_check_once(tmp_path):
    (tmp_path / "file").write_text("")
    writer = BackgroundWriter()
    writer.submit(tmp_path / "file", 1, tensors(1), {})
    while writer.busy:
        pass
    with pytest.raises(CheckpointError, match="choose another folder"):
        writer.check()
    assert writer.check() == []
    writer.submit(tmp_path / "file", 2, tensors(2), {})
    with pytest.raises(CheckpointError, match="choose another folder"):
        writer.submit(tmp_path / "run", 3, tensors(3), {})
    writer.submit(tmp_path / "run", 4, tensors(4), {})
    writer.close()
    assert os.listdir(tmp_path / "run") == ["step_00000004"]


def test_a_failing_write_does_not_hide_the_error_that_ends_the_run(tmp_path, caplog):
    (tmp_path / "file").write_text("")

    def run() -> None:
        with BackgroundWriter() as writer:
            writer.submit(tmp_path / "file", 1, tensors(1), {})
            raise KeyError("the run's own")

    with pytest.raises(KeyError):
        run()
    assert "choose another folder" in caplog.text


def test_what_runs_after_the_write_may_fail_too(tmp_path):
    writer = BackgroundWriter(then=lambda path: 1 // 0)
    writer.submit(tmp_path, 1, tensors(1), {})
    with pytest.raises(CheckpointError, match="ZeroDivisionError"):
        writer.close()
    assert writer.check() == [tmp_path / "step_00000001"], "it is durable all the same"
