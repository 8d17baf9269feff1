"""Versions whose rows several processes wrote: read like those of one process, and none at all without a part."""

import dataclasses
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

from tests.trainer.serving.test_published import QUESTION, ROOT, Copies, Net, clicks, flip
from trainer import Trainer
from trainer.checkpoint import manifest, parts
from trainer.checkpoint.tensor_file import LazyArray
from trainer.distributed.group import Group
from trainer.errors import CheckpointDamagedError, CheckpointError
from trainer.serving import Publish, ServedModel, Versions
from trainer.serving.packed_rows import pack_tables
from trainer.serving.published import FULL, ROWS, VERSION, WEIGHTS, Current, Folder, FolderRef, publish_folder
from trainer.serving.version_parts import VersionRows, write_own_rows
from trainer.serving.version_records import VersionRecords
from trainer.storage.location import Location
from trainer.storage.mirror_pass import MirrorPass

RANKS = {1: 3, 2: 2, 3: 1, 4: 4}  # that write each version; the third holds everything again


class Ranks(Group):
    """Rank 0, and others that report the process ids given."""

    def __init__(self, *others):
        self.size, self.others = 1 + len(others), others

    def gather_json(self, value):
        if len(value) == 2:  # what rank 0 has made, and its error
            return [value] * self.size
        return [value, *([value[0], process, True] for process in self.others)]


def begin(root, number, *others):
    """Return the shared folder of a version; every rank runs in this process unless others are given."""
    shared = parts.open_parts(Ranks(*others), root / f"v_{number:08d}", ROWS, "version")
    assert shared is not None
    return shared


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# -- reading ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A trainer, and the folder in which it alone published four versions: all, changes, all again, changes."""
    ms.set_seed(1)
    network = Net()
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 0.1))
    publish = Publish(tmp_path_factory.mktemp("served"), every=1e-6, compact=1, keep=10, batch=8)
    copies = Copies(publish, tmp_path_factory.mktemp("copies"))
    trainer.online_train(clicks, max_steps=4, callbacks=[publish, copies])
    return trainer, copies.folder / "4"


def owned(arrays, rank, size):
    """Return the rows of a rank: those whose id leaves the remainder `rank`; the default row is rank 0's."""
    mine = arrays["table/ids"] % size == rank
    part = {key: value[mine] for key, value in arrays.items() if key in ("table/ids", "table/weights")}
    part["table/removed"] = arrays["table/removed"][arrays["table/removed"] % size == rank]
    return part | {"table/default": arrays["table/default"][: 1 if rank == 0 else 0]}


def write_in_parts(source, target, number, size, before):
    """Write a version as `size` processes do; return its name and digest."""
    folder = Folder(source, VERSION, VersionRecords(source).reference(number))
    files = {name: folder.tensors(name) for name in (ROWS, FULL) if f"{name}.safetensors" in names(folder.path)}
    shared = begin(target, number, *[os.getpid()] * (size - 1))
    for rank in range(1, size):
        write_own_rows(VersionRows({name: owned(a, rank, size) for name, a in files.items()}, shared), rank)
    rows = VersionRows({name: owned(arrays, 0, size) for name, arrays in files.items()}, shared)
    body = manifest.unseal(folder.path / manifest.MANIFEST, VERSION)
    kept = {key: body[key] for key in ("version", "step", "event_time", "time", "graph", "restart", "full")}
    with rows.folder(target / folder.path.name) as writer:
        shutil.copy(folder.path / f"{WEIGHTS}.safetensors", writer.path)
        writer.adopt(f"{WEIGHTS}.safetensors")
        return publish_folder(
            target, writer, VERSION, folder.path.name, {**kept, "before": before, **rows.write(writer)}
        )


@pytest.fixture
def divided(whole, tmp_path):
    """The same four versions, each written by a number of processes of its own."""
    source, target = whole[1], tmp_path / "divided"
    target.mkdir()
    for path in source.glob("graph-*"):
        shutil.copytree(path, target / path.name)
    chain, last = [], None
    for number, size in RANKS.items():
        last = write_in_parts(source, target, number, size, None if last is None else vars(last))
        chain = [last] if number in (1, 3) else [*chain, last]
        now = dataclasses.replace(VersionRecords(source).record_of(number), chain=tuple(chain))
        now.write(target)
    return target


def answer(root, version="served"):
    with ServedModel(root, version=version, follow=False) as model:
        return model.predict(QUESTION)


def test_the_folders_hold_a_part_of_each_process(divided):
    listed = {WEIGHTS, *(f"{file}.{rank}" for file in (ROWS, FULL) for rank in range(1))}
    assert set(names(divided / "v_00000003")) == {"manifest.json", *(f"{name}.safetensors" for name in listed)}
    body = json.loads((divided / "v_00000004" / "manifest.json").read_bytes())["version"]
    assert (body["format_version"], body["parts"]) == (2, {ROWS: 4})


@pytest.mark.parametrize("version", RANKS)
def test_every_version_answers_as_that_of_one_process(whole, divided, version):
    np.testing.assert_array_equal(answer(divided, version), answer(whole[1], version))


def test_a_chain_of_parts_of_different_numbers_is_followed(whole, divided):
    newest = Current.read(divided)
    records = VersionRecords(divided)
    records.record_of(1).write(divided)
    with ServedModel(divided, follow=False) as model:
        for version in (2, 3, 4):
            records.record_of(version).write(divided)
            assert model.refresh()
            np.testing.assert_array_equal(model.predict(QUESTION), answer(whole[1], version))
    assert Current.read(divided) == newest


def test_they_are_listed_and_pinned(whole, divided):
    versions = Versions(divided)
    assert [(version.number, version.problem) for version in versions.list()] == [(n, None) for n in RANKS]
    assert versions.roll_back() == 3
    np.testing.assert_array_equal(answer(divided), answer(whole[1], 3))
    flip(divided / "v_00000002" / f"{ROWS}.1.safetensors", 0.9)
    with pytest.raises(CheckpointDamagedError, match=r"v_00000002/rows\.1\.safetensors"):
        versions.pin(2)
    assert versions.served() == 3


def test_a_mirror_takes_all_parts_along(whole, divided, tmp_path):
    url = f"file://{tmp_path}/mirror"
    assert MirrorPass({"": divided}, Location(url)).run()
    np.testing.assert_array_equal(answer(url), answer(whole[1]))


def test_a_training_begins_with_them(whole, divided):
    network = Net()
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 0.1))
    trainer.init_from(divided)
    np.testing.assert_allclose(trainer.predict(QUESTION), whole[0].predict(QUESTION), rtol=1e-5, atol=1e-6)


@pytest.mark.long(but=["0-missing", "2-altered"])
@pytest.mark.parametrize(
    "damage", [lambda path: path.unlink(), lambda path: flip(path, 0.7)], ids=["missing", "altered"]
)
@pytest.mark.parametrize("rank", range(4))
def test_a_server_meets_a_damaged_part(whole, divided, rank, damage):
    newest = Current.read(divided)
    VersionRecords(divided).record_of(3).write(divided)
    with ServedModel(divided, follow=False) as model:
        damage(divided / "v_00000004" / f"{ROWS}.{rank}.safetensors")
        newest.write(divided)
        with pytest.raises(CheckpointDamagedError, match=rf"rows\.{rank}\.safetensors"):
            model.refresh()
        np.testing.assert_array_equal(model.predict(QUESTION), answer(whole[1], 3))


@pytest.mark.parametrize("given", [{ROWS: 5}, {ROWS: 0}, {ROWS: 2**61}, {"other": 1}, {ROWS: "4"}, [ROWS], 3])
def test_a_manifest_that_lists_other_parts_is_refused(divided, given):
    path = divided / "v_00000004" / manifest.MANIFEST
    body = {**manifest.unseal(path, VERSION), "parts": given}
    path.write_bytes(manifest.seal(VERSION, body))
    with pytest.raises(CheckpointDamagedError, match="not a manifest of a version"):
        Folder(divided, VERSION, FolderRef("v_00000004", manifest.digest(body)))


def test_parts_that_do_not_fit_together_are_refused(tmp_path):
    shared = begin(tmp_path, 1, os.getpid())
    write_own_rows(VersionRows({ROWS: {"t/weights": np.ones((2, 3), np.float32)}}, shared), 1)
    rows = VersionRows({ROWS: {"t/weights": np.ones((2, 4), np.float32)}}, shared)
    with rows.folder(tmp_path / "v_00000001") as folder:
        part = publish_folder(tmp_path, folder, VERSION, "v_00000001", rows.write(folder))
    with pytest.raises(CheckpointDamagedError, match=r"the parts of rows in .* do not fit together"):
        Folder(tmp_path, VERSION, part).tensors(ROWS)


# -- writing ----------------------------------------------------------------------------------------------------------


def some_rows(rank):
    return {ROWS: {"t/ids": np.arange(rank + 1)}, FULL: {"t/ids": np.arange(rank + 5)}}


def close(root, number, shared):
    """Finish a version on rank 0."""
    rows, name = VersionRows(some_rows(0), shared), f"v_{number:08d}"
    try:
        with rows.folder(root / name) as folder:
            return publish_folder(root, folder, VERSION, name, rows.write(folder))
    finally:
        rows.close()


def ended_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_rows_are_read_from_the_tables_when_they_are_written():
    """On the writing thread: training does not wait for it."""
    read = []
    values = np.arange(6, dtype=np.float32).reshape(3, 2)

    def saved(name, array):
        return LazyArray(lambda: (read.append(name), array)[1], array.dtype)

    arrays = {"rows": np.array([0, 4, 2], np.int32), "ids": np.array([0, 70, 90]), "values": values}
    arrays = {f"t/{name}": saved(name, array) for name, array in arrays.items()}
    packed = pack_tables({"json": {"t": {"dim": 1}}, "arrays": {**arrays, "t/removed": np.array([5])}}, "float32")
    assert read == []
    assert {key: np.asarray(array).tolist() for key, array in packed.items()} == {
        "t/ids": [70, 90],
        "t/removed": [5],
        "t/default": [[0]],
        "t/weights": [[2], [4]],
    }
    assert sorted(read) == ["ids", "rows", "values"]


def test_rank_0_waits_for_a_part_that_is_still_computed(tmp_path):
    shared, go = begin(tmp_path, 1, os.getpid()), threading.Event()

    def late():
        assert go.wait(60)
        return np.arange(9)

    rows = VersionRows({name: {"t/ids": LazyArray(late, np.int64)} for name in (ROWS, FULL)}, shared)
    other = threading.Thread(target=write_own_rows, args=(rows, 1))
    other.start()
    closing = threading.Thread(target=close, args=(tmp_path, 1, shared))
    closing.start()
    time.sleep(0.1)
    assert not (tmp_path / "v_00000001").exists()
    go.set()
    closing.join()
    other.join()
    parts_of = {f"{file}.{rank}.safetensors" for file in (ROWS, FULL) for rank in (0, 1)}
    assert set(names(tmp_path / "v_00000001")) == {*parts_of, manifest.MANIFEST}
    assert names(tmp_path) == ["v_00000001"]


@pytest.mark.process
def test_a_rank_that_ended_before_or_while_it_wrote_leaves_no_version(tmp_path):
    for written in ([], [ROWS]):
        shared = begin(tmp_path, 2, os.getpid(), ended_process())
        write_own_rows(VersionRows(some_rows(1), shared), 1)
        for name in written:
            parts.write_part(dataclasses.replace(shared, group=name), 2, some_rows(2)[name])
        shared.path.joinpath(f"{FULL}.2.safetensors").write_bytes(b"half")
        file = FULL if written else ROWS
        with pytest.raises(
            CheckpointError, match=rf"rank 2 has ended before its part .*{file}\.2\.safetensors was written"
        ):
            close(tmp_path, 2, shared)
        assert names(tmp_path) == []


@pytest.mark.long
@pytest.mark.process
def test_a_rank_that_ended_after_its_part_does_no_harm(tmp_path):
    shared = begin(tmp_path, 2, ended_process())
    write_own_rows(VersionRows(some_rows(1), shared), 1)
    part = close(tmp_path, 2, shared)
    assert Folder(tmp_path, VERSION, part).tensors(FULL)["t/ids"].tolist() == [*range(5), *range(6)]


@pytest.mark.parametrize("failing", [ROWS, FULL])
def test_a_full_disk_of_one_rank_is_the_error_of_the_version(tmp_path, failing, caplog):
    shared = begin(tmp_path, 2, os.getpid())

    def refuse():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    rows = some_rows(1) | {failing: {"t/ids": LazyArray(refuse, np.int64)}}
    write_own_rows(VersionRows(rows, shared), 1)
    with pytest.raises(CheckpointError, match=rf"rank 1: cannot write part of a version .*{failing}\.1.*No space left"):
        close(tmp_path, 2, shared)
    assert names(tmp_path) == []
    assert "of a version cannot be written" in caplog.text


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.trainer.serving.test_version_parts import *
root, number = Path(sys.argv[1]), int(sys.argv[2])
shared = begin(root, number, os.getpid())
write_own_rows(VersionRows(some_rows(1), shared), 1)
close(root, number + 1, begin(root, number + 1))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.long
@pytest.mark.process
def test_what_rank_0_leaves_when_it_is_killed_is_removed_by_the_next_run(whole, tmp_path):
    """Killed before one version was closed, and before the pointer moved to the next."""
    trainer, _ = whole
    root = tmp_path / "root"
    trainer.online_train(clicks, max_steps=1, callbacks=[Publish(root, batch=8)])
    newest = Versions(root).newest()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOG_v": "3"}
    command = [sys.executable, "-c", KILLED, str(root), str(newest + 1)]
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    left = [name for name in names(root) if name.startswith(".v_")]
    assert len(left) == 1, "a folder with parts"
    assert (root / f"v_{newest + 2:08d}").is_dir()
    assert answer(root).shape == (6,)
    assert Versions(root).newest() == newest
    trainer.online_train(clicks, max_steps=1, callbacks=[Publish(root, batch=8)])
    assert Versions(root).newest() > newest + 2, "its number is not given twice"
    assert [name for name in names(root) if name.startswith(".v_")] == []
    np.testing.assert_allclose(answer(root), trainer.predict(QUESTION), rtol=1e-5, atol=1e-6)
