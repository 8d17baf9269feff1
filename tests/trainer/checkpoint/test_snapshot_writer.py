"""Snapshots: what is written is read back, damage is named and passed over, disk trouble spares what was there."""

import contextlib
import logging
import math
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import trainer
from trainer import checkpoint
from trainer.errors import CheckpointDamagedError, CheckpointError, CheckpointNotFoundError

ROOT = Path(__file__).parents[3]


def tensors(step: int, rows: int = 50) -> dict[str, dict[str, np.ndarray]]:
    generator = np.random.default_rng(step)
    return {
        "model": {"weight": generator.normal(size=(rows, 4)).astype(np.float32), "bias": np.float32(step)},
        "optimizer": {"moment": generator.normal(size=rows), "mask": np.array([True, False]), "none": np.zeros((0, 3))},
    }


def assert_holds(snapshot: checkpoint.Snapshot, step: int) -> None:
    assert snapshot.step == step
    for group, arrays in tensors(step).items():
        found = snapshot.tensors(group)
        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_array_equal(found[name], array, strict=True)


def write(root: Path, *steps: int, **options) -> None:
    for step in steps:
        checkpoint.write(root, step, tensors(step), {"step": step}, **options)


@contextlib.contextmanager
def tmpfs(folder: Path, size: str):
    """A small file system of its own, or a skip where this user may not mount one."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"mounting a tmpfs is not permitted: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


class TestContents:
    def test_everything_comes_back_as_given(self, tmp_path):
        random.seed(5)
        state = {
            "progress": {"global_step": 7, "samples_seen": 2**70},
            "scale": np.float32(1024.5),
            "best": -math.inf,
            "last": math.nan,
            "numpy": np.random.RandomState(3).get_state(),
            "python": random.getstate(),
            "offsets": {0: (17, 3), 1: (2**62, 0)},
            "$escaped": {"$float": "x"},
            "cursor": b"\x00\xff",
            "text": "窗口 \ud800",
            "none": None,
            "flag": True,
        }
        path = checkpoint.write(tmp_path / "a" / "run", 7, tensors(7), state, config="lr: 0.1  # ü\n")

        snapshot = checkpoint.read(path)
        assert path == tmp_path / "a" / "run" / "step_00000007"
        assert_holds(snapshot, 7)
        assert snapshot.groups == ("model", "optimizer")
        assert snapshot.config == "lr: 0.1  # ü\n"
        assert snapshot.versions["numpy"] == np.__version__
        assert snapshot.versions["mindspore-trainer"] == trainer.__version__
        assert math.isnan(snapshot.state["last"])
        assert snapshot.state["numpy"][1].dtype == np.uint32
        np.testing.assert_array_equal(snapshot.state["numpy"][1], state["numpy"][1])
        for key in state.keys() - {"last", "numpy"}:
            assert snapshot.state[key] == state[key]
        random.setstate(snapshot.state["python"])
        np.random.RandomState().set_state(snapshot.state["numpy"])

    def test_tensor_files_are_safetensors(self, tmp_path):
        arrays = {str(dtype): np.arange(7).astype(dtype) for dtype in ("?", "u1", "i2", "f2", "f4", ">f4", "f8", "i8")}
        arrays["strided"] = np.arange(12.0).reshape(3, 4).T[::2]
        path = checkpoint.write(tmp_path, 1, {"model": arrays}, {})
        peer = load_file(path / "model.safetensors")
        ours = checkpoint.read(path).tensors("model")
        for name, array in arrays.items():
            np.testing.assert_array_equal(peer[name], array)
            np.testing.assert_array_equal(ours[name], array)
            assert not ours[name].flags.writeable
            assert ours[name].flags.aligned

    def test_bfloat16(self, tmp_path):
        from mindspore.common import np_dtype

        array = np.array([1.5, -2.0, 3e30]).astype(np_dtype.bfloat16)
        found = checkpoint.read(checkpoint.write(tmp_path, 1, {"model": {"w": array}}, {})).tensors("model")["w"]
        assert found.dtype == array.dtype
        assert found.tobytes() == array.tobytes()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"state": {"callbacks": [{"x": object()}]}}, r"callbacks\[0\].x is a builtins.object"),
            ({"tensors": {"model": {"w": np.array(["a"])}}}, "tensor 'w' has dtype <U1"),
            ({"tensors": {"../model": {}}}, "'../model' is not a plain file name"),
            ({"config": "name: \ud800"}, "config of step_00000004 cannot be stored"),
            ({"step": -1}, "step takes a whole number >= 0; received -1"),
            ({"base": "step_00000003"}, "there is no such snapshot"),
        ],
    )
    def test_what_cannot_be_stored_is_named_and_leaves_nothing(self, tmp_path, arguments, message):
        given = {"step": 4, "tensors": tensors(4), "state": {}, **arguments}
        with pytest.raises(CheckpointError, match=message):
            checkpoint.write(tmp_path, given.pop("step"), given.pop("tensors"), given.pop("state"), **given)
        assert os.listdir(tmp_path) == []

    def test_an_unknown_group_names_the_nearest(self, tmp_path):
        write(tmp_path, 1)
        snapshot = checkpoint.find(tmp_path)
        with pytest.raises(CheckpointError, match="did you mean 'optimizer'"):
            snapshot.tensors("optimiser")

    @pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
    def test_every_file_is_on_the_disk_before_the_name_appears(self, tmp_path, monkeypatch):
        events = []
        fsync, rename = os.fsync, os.rename
        monkeypatch.setattr(
            os, "fsync", lambda fd: (events.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name), fsync(fd))
        )
        monkeypatch.setattr(
            os, "rename", lambda old, new: (events.append(("rename", Path(old).name)), rename(old, new))
        )
        path = checkpoint.write(tmp_path, 1, tensors(1), {}, config="a: 1\n")
        renamed = next(index for index, event in enumerate(events) if event[0] == "rename")
        assert set(os.listdir(path)) < set(events[:renamed])
        assert events[renamed - 2] == "manifest.json"
        assert events[renamed - 1] == events[renamed][1], "the folder itself comes last"
        assert events[renamed + 1] == tmp_path.name, "then the root, which holds the name"


class TestDamage:
    """Two snapshots; the newer one is damaged: reading it says what is wrong, finding falls back and warns."""

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            (
                lambda path: os.truncate(path / "model.safetensors", 300),
                "model.safetensors has 300 bytes; its manifest",
            ),
            (
                lambda path: flip(path / "optimizer.safetensors", -3),
                "optimizer.safetensors does not match its checksum",
            ),
            (lambda path: flip(path / "state.json", 4), "state.json does not match its checksum"),
            (lambda path: flip(path / "manifest.json", 40), "manifest.json"),
            (lambda path: (path / "model.safetensors").unlink(), "model.safetensors is missing"),
            (lambda path: (path / "manifest.json").unlink(), "manifest.json is missing"),
            (lambda path: [file.unlink() for file in path.iterdir()], "manifest.json is missing"),
            (lambda path: (shutil.rmtree(path), path.write_text("x")), "no folder|Not a directory|cannot read"),
        ],
        ids=["truncated", "flipped", "flipped_state", "flipped_manifest", "missing", "no_manifest", "empty", "file"],
    )
    def test_is_named_and_the_newest_sound_one_is_used(self, tmp_path, caplog, damage, message):
        write(tmp_path, 1, 2)
        checkpoint.set_pointer(tmp_path, "last", "step_00000002")
        damage(tmp_path / "step_00000002")
        with pytest.raises(CheckpointDamagedError, match=message):
            checkpoint.read(tmp_path / "step_00000002")
        with pytest.raises(CheckpointDamagedError, match=r"next to it there are .*step_00000001"):
            checkpoint.find(tmp_path / "last")
        with caplog.at_level(logging.WARNING):
            assert_holds(checkpoint.find(tmp_path), 1)
        assert [record.message for record in caplog.records if "step_00000002 is skipped" in record.message]

    def test_of_all_snapshots_is_an_error_naming_each_never_a_restart(self, tmp_path):
        write(tmp_path, 1, 2)
        for step in (1, 2):
            flip(tmp_path / f"step_0000000{step}" / "model.safetensors", -1)
        with pytest.raises(CheckpointDamagedError, match=r"step_00000002.*step_00000001"):
            checkpoint.find(tmp_path)
        assert checkpoint.prune(tmp_path, []) == [], "what may be salvaged is not removed"

    def test_nothing_there_is_distinguished_from_damage(self, tmp_path):
        with pytest.raises(CheckpointNotFoundError, match="there is no folder"):
            checkpoint.find(tmp_path / "nowhere")
        with pytest.raises(CheckpointNotFoundError, match="holds no snapshot"):
            checkpoint.find(tmp_path)
        write(tmp_path, 10, 20)
        with pytest.raises(CheckpointNotFoundError, match="did you mean 'step_00000020'"):
            checkpoint.find(tmp_path / "step_00000021")

    def test_a_newer_format_asks_for_an_update(self, tmp_path, monkeypatch):
        monkeypatch.setattr("trainer.checkpoint.manifest.FORMAT_VERSION", 99)
        write(tmp_path, 1)
        monkeypatch.undo()
        with pytest.raises(CheckpointError, match=r"format 99.*update"):
            checkpoint.find(tmp_path)

    @pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
    def test_leaves_no_file_open(self, tmp_path, caplog):
        write(tmp_path, 1, 2)
        flip(tmp_path / "step_00000002" / "optimizer.safetensors", -1)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            assert checkpoint.find(tmp_path).step == 1
        assert len(os.listdir("/proc/self/fd")) == before

    def test_is_not_what_a_lack_of_file_descriptors_is_taken_for(self, tmp_path):
        resource = pytest.importorskip("resource")
        write(tmp_path, 1, 2)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 10, limits[1]))
        taken = []
        try:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
            with pytest.raises(CheckpointError, match="Too many open files") as found:
                checkpoint.find(tmp_path)
            with pytest.raises(CheckpointError, match="Too many open files"):
                checkpoint.prune(tmp_path, [])
        finally:
            for descriptor in taken:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert not isinstance(found.value, CheckpointDamagedError)
        assert checkpoint.find(tmp_path).step == 2

    def test_a_garbage_pointer_is_no_pointer(self, tmp_path):
        write(tmp_path, 1)
        (tmp_path / "best").write_bytes(b"\xff../../etc")
        assert checkpoint.read_pointer(tmp_path, "best") is None
        with pytest.raises(CheckpointDamagedError, match="best"):
            checkpoint.find(tmp_path / "best")


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


class TestDiskTrouble:
    @pytest.mark.process
    def test_a_full_disk_leaves_the_earlier_snapshots(self, tmp_path):
        with tmpfs(tmp_path / "disk", "256k") as disk:
            write(disk, 1)
            with pytest.raises(CheckpointError, match=r"step_00000002: No space left.*ENOSPC.*free space on that"):
                checkpoint.write(disk, 2, tensors(2, rows=20_000), {})
            assert os.listdir(disk) == ["step_00000001"]
            assert_holds(checkpoint.find(disk), 1)
            write(disk, 2)
            assert_holds(checkpoint.find(disk), 2)

    @pytest.mark.long
    @pytest.mark.process
    def test_a_file_size_limit_leaves_the_earlier_snapshots(self, tmp_path):
        write(tmp_path, 1)
        script = (
            "import resource, sys, numpy as np; from trainer import checkpoint\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
            "try: checkpoint.write(sys.argv[1], 2, {'model': {'w': np.zeros(50_000)}}, {})\n"
            "except checkpoint.CheckpointError as error: print(error)"
        )
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, env=environment)
        assert "EFBIG" in done.stdout, done.stderr
        assert os.listdir(tmp_path) == ["step_00000001"]

    @pytest.mark.process
    def test_a_read_only_folder_says_so(self, tmp_path):
        if os.geteuid() == 0:  # root passes permission bits: a read-only mount is needed
            with tmpfs(tmp_path / "disk", "1m") as disk:
                write(disk, 0, 1)
                subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
                self.check_read_only(disk, "EROFS.*mounted read-only")
        else:
            disk = tmp_path / "disk"
            write(disk, 0, 1)
            disk.chmod(0o555)
            self.check_read_only(disk, "EACCES.*write permission")
            disk.chmod(0o755)

    def check_read_only(self, disk: Path, message: str) -> None:
        with pytest.raises(CheckpointError, match=f"cannot write snapshot {disk / 'step_00000002'}.*{message}"):
            write(disk, 2)
        with pytest.raises(CheckpointError, match=message):
            checkpoint.set_pointer(disk, "last", "step_00000001")
        with pytest.raises(CheckpointError, match="cannot remove snapshot"):
            checkpoint.prune(disk, [])
        assert_holds(checkpoint.find(disk), 1)

    def test_a_root_that_is_a_file_says_so(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(CheckpointError, match="choose another folder"):
            write(tmp_path / "file", 1)
