"""Writing in the background: what was submitted is written, one at a time, and failures surface."""

import os
import threading

import numpy as np
import pytest

from trainer import checkpoint
from trainer.checkpoint.snapshot_writer import BackgroundWriter
from trainer.checkpoint.tensor_file import LazyArray
from trainer.errors import CheckpointError


def tensors(step: int) -> dict[str, dict[str, np.ndarray]]:
    return {"model": {"w": np.full((100, 100), step, np.float32), "b": np.float32(step)}}


def test_writes_what_the_tensors_were_at_submit_one_at_a_time(tmp_path):
    writer, most = BackgroundWriter(), 0
    for step in (1, 2, 3):
        given = tensors(step)
        state = {"history": [step]}
        writer.submit(tmp_path, step, given, state)
        most = max(most, sum(thread.name == "snapshot-writer" for thread in threading.enumerate()))
        given["model"]["w"][...] = 0
        state["history"].append("later")
    writer.wait()
    assert most <= 1
    assert writer.check() == [tmp_path / f"step_0000000{step}" for step in (1, 2, 3)]
    assert writer.check() == []
    writer.close()
    assert len(writer.hold_seconds) == 3
    for step in (1, 2, 3):
        snapshot = checkpoint.find(tmp_path / f"step_0000000{step}")
        np.testing.assert_array_equal(snapshot.tensors("model")["w"], tensors(step)["model"]["w"])
        assert snapshot.state == {"history": [step]}


def test_a_failure_surfaces_at_the_next_check_once(tmp_path):
    (tmp_path / "file").write_text("")
    writer = BackgroundWriter()
    writer.submit(tmp_path / "file", 1, tensors(1), {})
    while not writer.has_news:
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


def test_a_snapshot_is_reported_once_even_while_the_next_one_is_written(tmp_path):
    writer, go = BackgroundWriter(), threading.Event()
    writer.submit(tmp_path, 1, tensors(1), {})

    def late():
        go.wait(30)
        return np.zeros(3, np.float32)

    begun = tensors(2)
    begun["model"]["late"] = LazyArray(late, np.float32)
    writer.submit(tmp_path, 2, begun, {})
    while not list(tmp_path.glob(".*step_00000002*")):
        pass
    assert writer.check() == [tmp_path / "step_00000001"]
    go.set()
    writer.wait()
    assert writer.check() == [tmp_path / "step_00000002"]
