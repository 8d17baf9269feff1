"""A root of snapshots: their order, replacement, bases, pointers, and what may be removed."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from trainer import checkpoint
from trainer.checkpoint import durable
from trainer.errors import CheckpointDamagedError, CheckpointError

ROOT = Path(__file__).parents[3]


def write(root: Path, *steps: int, **options) -> None:
    for step in steps:
        checkpoint.write(root, step, {"model": {"w": np.full(20, step)}}, {"step": step}, **options)


def names(root: Path) -> list[str]:
    return [entry.name for entry in checkpoint.available(root)]


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


class TestOrder:
    def test_newest_is_the_last_written_even_after_going_back(self, tmp_path):
        write(tmp_path, 1, 2, 3, 2)
        assert names(tmp_path) == ["step_00000001", "step_00000003", "step_00000002"]
        assert checkpoint.find(tmp_path).step == 2

    def test_the_same_step_is_replaced(self, tmp_path):
        write(tmp_path, 5)
        checkpoint.write(tmp_path, 5, {}, {"again": True})
        assert checkpoint.find(tmp_path).state == {"again": True}
        assert os.listdir(tmp_path) == ["step_00000005"]

    @pytest.mark.process
    def test_a_kill_between_the_two_renames_of_a_replacement_loses_nothing(self, tmp_path):
        write(tmp_path, 5)
        script = (
            "import os, sys; from trainer import checkpoint; rename = os.rename\n"
            "os.rename = lambda old, new: os._exit(9) if old.name.endswith('.tmp') else rename(old, new)\n"
            "checkpoint.write(sys.argv[1], 5, {}, {'never': 1})"
        )
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        assert subprocess.run([sys.executable, "-c", script, tmp_path], env=environment).returncode == 9
        assert not (tmp_path / "step_00000005").exists()
        assert names(tmp_path) == ["step_00000005"]
        assert checkpoint.find(tmp_path).state == {"step": 5}
        assert checkpoint.find(tmp_path / "step_00000005").state == {"step": 5}
        write(tmp_path, 6)
        assert sorted(os.listdir(tmp_path)) == ["step_00000005", "step_00000006"], "put back, leftovers removed"

    def test_the_temporary_of_a_live_writer_is_left_alone(self, tmp_path, monkeypatch):
        monkeypatch.setattr(durable, "FRESH_SECONDS", -1.0)  # age protects nothing here: only the lock does
        write(tmp_path, 1)
        halfway, go_on = threading.Event(), threading.Event()

        class Slow(dict):
            def items(self):
                halfway.set()
                go_on.wait(30)
                return super().items()

        thread = threading.Thread(target=checkpoint.write, args=(tmp_path, 2, {"model": Slow(a=np.ones(3))}, {}))
        thread.start()
        assert halfway.wait(30)
        write(tmp_path, 3)
        checkpoint.prune(tmp_path, ["step_00000001"])
        assert checkpoint.find(tmp_path).step == 3
        go_on.set()
        thread.join()
        assert checkpoint.find(tmp_path / "step_00000002").tensors("model")["a"].sum() == 3


class TestPrune:
    def test_keeps_what_is_asked_the_newest_sound_and_what_pointers_name(self, tmp_path):
        write(tmp_path, 1, 2, 3, 4, 5)
        checkpoint.set_pointer(tmp_path, "best", "step_00000002")
        flip(tmp_path / "step_00000005" / "model.safetensors", -1)
        removed = checkpoint.prune(tmp_path, ["step_00000001"])
        assert removed == ["step_00000005", "step_00000003"]
        assert names(tmp_path) == ["step_00000001", "step_00000002", "step_00000004"]

    def test_a_base_stays_as_long_as_what_builds_on_it(self, tmp_path):
        write(tmp_path, 1, 2)
        write(tmp_path, 3, base="step_00000001")
        write(tmp_path, 4, base="step_00000003")
        assert checkpoint.prune(tmp_path, []) == ["step_00000002"]
        assert [snapshot.step for snapshot in checkpoint.find(tmp_path).chain()] == [1, 3, 4]
        write(tmp_path, 5)
        assert checkpoint.prune(tmp_path, []) == ["step_00000004", "step_00000003", "step_00000001"]

    @pytest.mark.parametrize("damage", ["remove", "flip", "replace"])
    def test_a_damaged_base_makes_what_builds_on_it_unsound(self, tmp_path, caplog, damage):
        write(tmp_path, 1, 2)
        write(tmp_path, 3, base="step_00000002")
        if damage == "remove":
            shutil.rmtree(tmp_path / "step_00000002")
        elif damage == "flip":
            flip(tmp_path / "step_00000002" / "model.safetensors", -1)
        else:
            write(tmp_path, 2)
            assert "can no longer be used" in caplog.text
        with pytest.raises(CheckpointDamagedError, match="step_00000002"):
            checkpoint.read(tmp_path / "step_00000003")
        assert checkpoint.find(tmp_path).step == (2 if damage == "replace" else 1)

    @pytest.mark.process
    def test_leftovers_of_dead_writers_are_removed(self, tmp_path):
        write(tmp_path, 1)
        dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
        ours = durable.temporary_name(tmp_path / "step_00000009", "tmp")
        gone = tmp_path / ours.name.replace(f".{os.getpid()}.", f".{int(dead.stdout)}.")
        fresh = tmp_path / "unrelated.tmp"
        for path in (gone, ours, fresh):
            path.mkdir()
        checkpoint.prune(tmp_path, [])
        assert not gone.exists()
        assert ours.exists(), "young, and its process lives"
        assert fresh.exists(), "not ours to remove"

    @pytest.mark.parametrize("place", ["prune", "replace"])
    def test_what_no_manifest_proves_to_be_a_snapshot_is_never_removed(self, tmp_path, caplog, place):
        root = tmp_path / "root"
        write(root, 1, 2, 3)
        write(tmp_path / "elsewhere", 4)
        (root / "step_00000004").symlink_to(tmp_path / "elsewhere" / "step_00000004")
        (root / "step_00000005").write_text("a file of the user's")
        (root / "step_00000006").symlink_to("nowhere")
        (root / "step_00000007").mkdir()
        (root / "step_00000007" / "notes.txt").write_text("a folder of the user's")
        (root / "step_00000002" / "notes.txt").write_text("beside the snapshot's files")
        (root / "step_00000001" / "manifest.json").write_text("{}")
        before = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
        if place == "prune":
            write(root, 8)
            assert checkpoint.prune(root, []) == ["step_00000003"]
            assert "step_00000002 is not removed: it holds notes.txt" in caplog.text
            before = [name for name in before if "step_00000003" not in name]
        else:
            write(root, 1, 2, 4, 5, 6, 7)
            assert "step_00000005 makes room for a snapshot and is kept as step_00000005.kept-1" in caplog.text
        after = {str(path.relative_to(tmp_path)).replace(".kept-1", "") for path in tmp_path.rglob("*")}
        assert set(before) <= after
        assert (tmp_path / "elsewhere" / "step_00000004" / "model.safetensors").exists()
        texts = {path.read_text() for path in root.rglob("*") if path.suffix != ".safetensors" and path.is_file()}
        assert {"a file of the user's", "a folder of the user's", "beside the snapshot's files", "{}"} <= texts

    def test_a_base_is_named_by_its_content(self, tmp_path):
        write(tmp_path, 1, identity="first")
        write(tmp_path, 2, base=("step_00000001", "first"))
        snapshot = checkpoint.find(tmp_path)
        write(tmp_path, 1, identity="second")  # another writer's, with sound files of its own
        with pytest.raises(CheckpointDamagedError, match="step_00000001 that was replaced"):
            checkpoint.read(snapshot.path)
        with pytest.raises(
            CheckpointError, match=r"cannot build on .*step_00000001: it was replaced by another writer"
        ):
            write(tmp_path, 3, base=("step_00000001", "first"))
        shutil.rmtree(tmp_path / "step_00000001")
        checkpoint.write(tmp_path, 1, {"model": {"w": np.full(20, -1)}}, {}, identity="first")
        with pytest.raises(CheckpointDamagedError, match="builds on a step_00000001 that was replaced"):
            checkpoint.read(tmp_path / "step_00000002")

    def test_pointers(self, tmp_path):
        write(tmp_path, 1, 2)
        assert checkpoint.read_pointer(tmp_path, "best") is None
        checkpoint.set_pointer(tmp_path, "best", "step_00000001")
        checkpoint.set_pointer(tmp_path, "last", "step_00000002")
        assert checkpoint.find(tmp_path / "best").step == 1
        assert (tmp_path / "last").read_text() == "step_00000002\n"
        with pytest.raises(CheckpointError, match="no such snapshot"):
            checkpoint.set_pointer(tmp_path, "last", "step_00000007")
        with pytest.raises(CheckpointError, match="did you mean 'last'"):
            checkpoint.read_pointer(tmp_path, "lst")


def test_a_manifest_is_read_once_and_again_when_it_is_another_one(tmp_path, monkeypatch):
    """Each save of a run lists its snapshots, of which there may be thousands."""
    read_bytes, read = durable.read_bytes, []

    def count(path, *limit):
        read.append(path.parent.name)
        return read_bytes(path, *limit)

    monkeypatch.setattr(durable, "read_bytes", count)
    write(tmp_path, *range(1, 31))
    checkpoint.available(tmp_path)
    assert len(read) < 3 * 30
    read.clear()
    write(tmp_path, 7)
    flip(tmp_path / "step_00000003" / "manifest.json", 40)
    problems = {entry.step: entry.problem for entry in checkpoint.available(tmp_path)}
    assert {step for step, problem in problems.items() if problem} == {3}
    assert {*read} <= {"step_00000003", "step_00000007"}
