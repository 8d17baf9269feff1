"""Snapshots whose rows several processes write: whole with all parts, and none at all without one."""

import errno
import json
import logging
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from mindspore import nn

from trainer import checkpoint
from trainer.checkpoint import parts
from trainer.checkpoint.manifest import MANIFEST, seal
from trainer.checkpoint.saver import Saver
from trainer.checkpoint.snapshot_writer import BackgroundWriter
from trainer.checkpoint.tensor_file import LazyArray
from trainer.distributed.group import Group
from trainer.errors import CheckpointDamagedError, CheckpointError
from trainer.graph.accumulation import OpenAccumulation
from trainer.state import State

GROUP = "part.tables"
RANKS = 3


class Ranks(Group):
    """Rank 0 of three, of which the others report the process ids and the view of the folder that they are given."""

    size = RANKS

    def __init__(self, *others):
        self.others = others or [(os.getpid(), True)] * (RANKS - 1)

    def gather_json(self, value):
        if len(value) == 2:  # what rank 0 has made, and its error
            return [value] * RANKS
        return [value, *([value[0], *other] for other in self.others)]


def rows(rank, width=2):
    """A part: rank r has r + 1 rows, so that no two parts have one length."""
    ids = np.arange(rank + 1) + 10 * rank
    return {"t/ids": ids, "t/values": np.outer(ids, np.ones(width)).astype(np.float32)}


def begin(root, step, *others):
    return parts.open_parts(Ranks(*others), root / checkpoint.step_name(step), GROUP)


def finish(root, step, shared, **options):
    tensors = {"model": {"w": np.ones(3, np.float32)}, shared.part_group(0): rows(0)}
    return checkpoint.write(root, step, tensors, {"a": 1}, parts=shared, **options)


def save(root, step):
    shared = begin(root, step)
    for rank in range(1, RANKS):
        parts.write_part(shared, rank, rows(rank))
    return finish(root, step, shared)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_parts_are_read_as_one_group(tmp_path):
    path = save(tmp_path, 1)
    snapshot = checkpoint.read(path)
    assert snapshot.groups == ("model", GROUP)
    tensors = snapshot.tensors(GROUP)
    assert tensors["t/ids"].tolist() == [0, 10, 11, 20, 21, 22]
    np.testing.assert_array_equal(np.asarray(tensors["t/values"])[:, 1], tensors["t/ids"])
    np.testing.assert_array_equal(tensors["t/values"].take(np.array([0, 2, 5]))[:, 0], [0, 11, 22])
    assert tensors["t/values"].shape == (6, 2)
    listed = {MANIFEST, "state.json", "versions.json", "model.safetensors"}
    assert set(names(path)) == listed | {f"{GROUP}.{rank}.safetensors" for rank in range(RANKS)}


def test_it_says_that_it_needs_a_version_which_knows_parts(tmp_path):
    body = json.loads((save(tmp_path, 1) / MANIFEST).read_bytes())["snapshot"]
    assert body["format_version"] == 2
    alone = checkpoint.write(tmp_path, 2, {"model": {"w": np.ones(3)}}, {})
    assert json.loads((alone / MANIFEST).read_bytes())["snapshot"]["format_version"] == 1


def test_parts_are_written_in_the_background_and_read_late(tmp_path):
    """Rank 0's writer waits for a part that is still being computed."""
    writer, others, shared = BackgroundWriter(), [parts.WriterThread() for _ in range(RANKS - 1)], begin(tmp_path, 1)
    writer.submit(tmp_path, 1, {shared.part_group(0): rows(0)}, {}, parts=shared)
    assert writer.check() == []
    for rank, other in enumerate(others, 1):
        lazy = {name: LazyArray(lambda array=array: array, array.dtype) for name, array in rows(rank).items()}
        other.run(parts.write_part, shared, rank, lazy)
    for other in others:
        other.wait()
    writer.close()
    assert [path.name for path in writer.check()] == ["step_00000001"]
    assert len(checkpoint.find(tmp_path).tensors(GROUP)["t/ids"]) == 6


def ended_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.process
def test_a_rank_that_ends_before_its_part_leaves_the_former_snapshot(tmp_path):
    save(tmp_path, 1)
    shared = begin(tmp_path, 2, (os.getpid(), True), (ended_process(), True))
    parts.write_part(shared, 1, rows(1))
    with pytest.raises(CheckpointError, match=r"rank 2 has ended before its part .* was written"):
        finish(tmp_path, 2, shared)
    assert names(tmp_path) == ["step_00000001"]
    assert checkpoint.find(tmp_path).step == 1


@pytest.mark.long
@pytest.mark.process
def test_a_rank_that_ends_right_after_its_part_does_no_harm(tmp_path):
    shared = begin(tmp_path, 2, (ended_process(), True), (ended_process(), True))
    for rank in range(1, RANKS):
        parts.write_part(shared, rank, rows(rank))
    assert checkpoint.read(finish(tmp_path, 2, shared)).step == 2


@pytest.mark.long
@pytest.mark.process
def test_half_a_part_is_none(tmp_path):
    """The rank was killed while it wrote: the file is there, its note is not."""
    save(tmp_path, 1)
    shared = begin(tmp_path, 2, (ended_process(), True), (ended_process(), True))
    shared.files(1)[0].write_bytes(b"half")
    with pytest.raises(CheckpointError, match="rank 1 has ended"):
        finish(tmp_path, 2, shared)
    assert checkpoint.find(tmp_path).step == 1


def test_a_rank_on_another_machine_is_given_up_when_it_makes_no_progress(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "IDLE_SECONDS", 0.05)
    with pytest.raises(CheckpointError, match=r"rank 1 shows no progress for 0\.05 s"):
        finish(tmp_path, 2, begin(tmp_path, 2))
    assert names(tmp_path) == []


def test_a_full_disk_of_one_rank_is_the_error_of_the_snapshot(tmp_path, caplog):
    save(tmp_path, 1)
    shared = begin(tmp_path, 2)

    def refuse():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    parts.write_part(shared, 1, rows(1))
    parts.write_part(shared, 2, {"t/ids": LazyArray(refuse, np.int64)})
    with pytest.raises(CheckpointError, match=r"rank 2: cannot write part of a snapshot .*No space left.*free space"):
        finish(tmp_path, 2, shared)
    assert names(tmp_path) == ["step_00000001"]
    assert "part.tables.2.safetensors" in caplog.text


def test_rank_0_that_dies_before_the_manifest_leaves_the_former_snapshot(tmp_path):
    save(tmp_path, 1)
    shared = begin(tmp_path, 2)
    for rank in range(1, RANKS):
        parts.write_part(shared, rank, rows(rank))
    assert checkpoint.find(tmp_path).step == 1
    shared.folder.close()
    parts.write_part(shared, 1, rows(1))  # the folder is gone: nothing to do, nothing raised
    assert names(tmp_path) == ["step_00000001"]


def test_without_one_of_its_parts_a_snapshot_is_damaged(tmp_path):
    save(tmp_path, 1)
    for change in (lambda path: path.unlink(), lambda path: path.write_bytes(path.read_bytes()[::-1])):
        change(save(tmp_path, 2) / f"{GROUP}.1.safetensors")
        assert checkpoint.find(tmp_path).step == 1
        with pytest.raises(CheckpointDamagedError, match=r"part\.tables\.1\.safetensors"):
            checkpoint.find(tmp_path / "step_00000002")


@pytest.mark.parametrize("given", [{GROUP: 4}, {GROUP: 0}, {GROUP: 2**61}, {"other": 1}, {GROUP: "3"}, [GROUP], 3])
def test_a_manifest_that_lists_other_parts_is_refused(tmp_path, given):
    path = save(tmp_path, 1)
    body = json.loads((path / MANIFEST).read_bytes())["snapshot"]
    (path / MANIFEST).write_bytes(seal("snapshot", {**body, "parts": given}))
    with pytest.raises(CheckpointDamagedError, match="not a manifest of a snapshot"):
        checkpoint.read(path)


def test_parts_that_do_not_fit_together_are_refused(tmp_path):
    shared = begin(tmp_path, 1)
    parts.write_part(shared, 1, rows(1))
    parts.write_part(shared, 2, rows(2, width=3))
    with pytest.raises(CheckpointDamagedError, match="do not fit together"):
        checkpoint.read(finish(tmp_path, 1, shared))


def test_a_folder_that_one_rank_cannot_write_to_is_named_and_left_alone(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        assert begin(tmp_path, 1, (os.getpid(), True), (os.getpid(), False)) is None
    assert "rank 2 cannot write to" in caplog.text
    assert names(tmp_path) == []


def test_a_snapshot_in_parts_is_pruned_and_built_on(tmp_path):
    save(tmp_path, 1)
    shared = begin(tmp_path, 2)
    for rank in range(1, RANKS):
        parts.write_part(shared, rank, rows(rank))
    finish(tmp_path, 2, shared, base="step_00000001")
    save(tmp_path, 3)
    assert [link.step for link in checkpoint.read(tmp_path / "step_00000002").chain()] == [1, 2]
    assert checkpoint.prune(tmp_path, []) == ["step_00000002", "step_00000001"]
    assert names(tmp_path) == ["step_00000003"]


class Follower(Group):
    """Rank 1 of two, which rank 0 tells nothing."""

    rank, size = 1, 2

    def gather_json(self, value):
        return [[None, None]] * 2


def test_a_snapshot_between_two_trainings_lets_no_process_commit_rows_too_early(tmp_path):
    content = SimpleNamespace(
        state=State(),
        network=nn.ReLU(),
        optimizer=nn.ReLU(),
        accumulation=OpenAccumulation(None),
        parts={},
        tables=None,
    )
    committed = []
    owner = SimpleNamespace(
        snapshot_content=lambda: content, report_snapshot=lambda path: None, commit=committed.append
    )
    saver = Saver(Follower(), owner)
    content.cursor = None
    saver.save(tmp_path)
    content.cursor = SimpleNamespace(shared_position=lambda: {"epoch": 3})
    saver.save(tmp_path, background=True)
    saver.commit_durable(1)  # the first snapshot is durable, which is of no position
    assert {"epoch": 3} not in committed
    saver.commit_durable(2)
    assert {"epoch": 3} in committed
