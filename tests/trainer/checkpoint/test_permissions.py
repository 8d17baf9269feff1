"""Folders that this user may not look into are named with what to do, by everything that reads one."""

import errno
import os
import tempfile
from pathlib import Path

import pytest

from trainer import checkpoint
from trainer.checkpoint.ckpt_files import load_ckpt
from trainer.checkpoint.folder_lock import claim
from trainer.checkpoint.saver import snapshots_of
from trainer.errors import CheckpointError, CheckpointNotFoundError, ConfigurationError
from trainer.serving.served_model import ServedModel
from trainer.streams import FileStream

NOBODY = 65534


@pytest.fixture
def closed():
    """A folder in one that nobody but root may enter; root is nobody meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        inner = Path(folder, "closed")
        inner.mkdir(mode=0)
        root = os.geteuid() == 0
        if root:
            os.seteuid(NOBODY)
        try:
            yield inner / "run"
        finally:
            if root:
                os.seteuid(0)
            inner.chmod(0o755)


@pytest.mark.parametrize(
    "read",
    [
        lambda path: checkpoint.find(snapshots_of(path)),
        checkpoint.find,
        lambda path: checkpoint.find(path / "step_00000001"),
        lambda path: load_ckpt(path / "net.ckpt"),
        ServedModel,
    ],
    ids=["run folder", "folder of snapshots", "snapshot", "ckpt", "published model"],
)
def test_reading_what_is_closed_names_the_permission(closed, read):
    with pytest.raises(
        CheckpointError, match=r"Permission denied; give (this user read permission|a folder this user may read)"
    ) as refused:
        read(closed)
    assert not isinstance(refused.value, CheckpointNotFoundError)


def test_writing_and_following_what_is_closed_is_refused_at_once(closed):
    with pytest.raises(ConfigurationError, match=r"Permission denied .*give this user write permission"):
        claim(closed, "checkpoint folder")
    with pytest.raises(ConfigurationError, match=r"FileStream cannot look for .*: Permission denied"):
        FileStream(closed / "a.jsonl", {"columns": {"x": "float32"}})


def test_a_lock_that_cannot_be_written_is_given_back(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.write", full)
    with pytest.raises(ConfigurationError, match=r"cannot write folder .*ENOSPC"):
        claim(tmp_path, "folder")
    monkeypatch.undo()
    claim(tmp_path, "folder").release()
    assert os.listdir(tmp_path) == []
