"""Whatever happens to the files of a published model: the right predictions or a documented error, and no litter."""

import contextlib
import errno
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

from callbacks import Callback
from trainer import Trainer
from trainer.embedding import Embedding
from trainer.errors import (
    CheckpointDamagedError,
    CheckpointError,
    CheckpointNotFoundError,
    ConfigurationError,
    FolderInUseError,
    GraphError,
)
from trainer.serving import version_update
from trainer.serving.publisher import Publish
from trainer.serving.served_model import ServedModel

ROOT = Path(__file__).parents[3]
QUESTION = np.arange(12).reshape(6, 2)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.table = Embedding(3, name="table", mode="sparse")
        self.head = nn.Dense(6, 1)

    def construct(self, ids):
        return self.head(self.table(ids).reshape(-1, 6)).reshape(-1)


def clicks():
    rng = np.random.default_rng(3)
    while True:
        ids = rng.integers(0, 30, (8, 2))
        yield {"ids": ids, "label": (ids.sum(1) % 3 == 0).astype(np.float32)}


class Copies(Callback):
    """Copies the published folder after each version."""

    def __init__(self, publish, folder):
        self.publish, self.folder = publish, folder

    def on_train_step_end(self, trainer):
        self.publish.wait()
        shutil.copytree(self.publish.root, self.folder / str(trainer.state.progress.global_step))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A trainer, and the published folder as it was after each of four versions; the third holds everything anew."""
    ms.set_seed(1)
    network = Net()
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 0.1))
    publish = Publish(tmp_path_factory.mktemp("served"), every=1e-6, compact=1, batch=8)
    copies = tmp_path_factory.mktemp("copies")
    trainer.online_train(clicks, max_steps=4, callbacks=[publish, Copies(publish, copies)])
    return trainer, copies


@pytest.fixture
def published(trained, tmp_path):
    """Return a function: version -> a folder in which it is the newest."""

    def copy(version):
        shutil.rmtree(tmp_path / "root", ignore_errors=True)
        return Path(shutil.copytree(trained[1] / str(version), tmp_path / "root"))

    return copy


@pytest.fixture(scope="module")
def answers(trained):
    """What an undamaged server answers to `QUESTION`, by version."""
    found = {}
    for version in (2, 3, 4):
        with ServedModel(trained[1] / str(version), follow=False) as model:
            found[version] = model.predict(QUESTION)
    return found


def files_of(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path.name != ".lock")


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[int(place * (len(content) - 1))] ^= 1 << int(place * 7)
    path.write_bytes(content)


DAMAGES = {
    **{f"flip at {place}": lambda path, place=place: flip(path, place) for place in (0, 0.1, 0.35, 0.6, 0.85, 1)},
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "more": lambda path: path.write_bytes(path.read_bytes() + b" x"),
    "missing": Path.unlink,
    "nonsense": lambda path: path.write_text("[1, {}]"),
    "empty mapping": lambda path: path.write_text("{}"),
    "folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.long
def test_a_damaged_file_is_named_when_the_model_is_opened_and_never_used(published, answers):
    names = files_of(published(4))
    assert {Path(name).name for name in names} == {
        *("current.json", "graph.json", "manifest.json", "network.mindir"),
        *("weights.safetensors", "rows.safetensors", "full.safetensors"),
    }
    told = []
    for name in names:
        for what, damage in DAMAGES.items():
            root = published(4)
            damage(root / name)
            try:
                with ServedModel(root, follow=False) as model:
                    np.testing.assert_array_equal(model.predict(QUESTION), answers[4], f"{name}, {what}")
                break  # a file that is not needed any more
            except (CheckpointDamagedError, CheckpointNotFoundError) as error:
                told.append((name, what, error))
    assert len(told) > 8 * len(DAMAGES)
    for name, what, error in told:
        shown = "no model has been published" if what == "missing" and name == "current.json" else name.split("/")[-1]
        assert shown in str(error) or f"/{Path(name).parent.name}" in str(error), f"{name}, {what}: {error}"
        assert isinstance(error, CheckpointDamagedError) or (name, what) == ("current.json", "missing")


@pytest.mark.parametrize("newest", [3, 4], ids=["everything anew", "changes"])
def test_a_server_that_meets_damage_stays_on_the_last_good_version(published, answers, trained, newest):
    root = published(2)
    with ServedModel(root, follow=False) as model:
        for name in files_of(trained[1] / str(newest)):
            for damage in DAMAGES.values():
                published(newest)
                damage(root / name)
                with contextlib.suppress(CheckpointDamagedError, CheckpointNotFoundError):
                    model.refresh()
                np.testing.assert_array_equal(model.predict(QUESTION), answers[model.version])
                assert model.problem or model.version == newest
                if model.version == newest:  # a file that is not needed any more
                    published(2)
                    model.refresh()
                    break
        published(newest)
        assert model.refresh()
        np.testing.assert_array_equal(model.predict(QUESTION), answers[newest])
        assert model.problem is None


def test_a_following_server_warns_once_and_goes_on_when_a_sound_version_appears(published, trained, answers, caplog):
    root = published(2)
    with caplog.at_level(logging.WARNING), ServedModel(root, poll=0.005) as model:
        damaged = trained[1] / "4" / "v_00000004"
        shutil.copytree(damaged, root / "v_00000004")
        shutil.copytree(trained[1] / "4" / "v_00000003", root / "v_00000003")
        flip(root / "v_00000004" / "weights.safetensors", 0.5)
        shutil.copy(trained[1] / "4" / "current.json", root / "next.json")
        os.replace(root / "next.json", root / "current.json")
        wait_for(lambda: model.problem is not None)
        time.sleep(0.3)
        np.testing.assert_array_equal(model.predict(QUESTION), answers[2])
        warnings = [record.message for record in caplog.records if "is still served" in record.message]
        assert len(warnings) == 1
        assert "version 2 of" in warnings[0]
        assert "v_00000004/weights.safetensors does not match its checksum" in warnings[0]
        shutil.copy(damaged / "weights.safetensors", root / "v_00000004")
        shutil.copy(trained[1] / "4" / "current.json", root / "next.json")
        os.replace(root / "next.json", root / "current.json")
        wait_for(lambda: model.version == 4)
        np.testing.assert_array_equal(model.predict(QUESTION), answers[4])


def wait_for(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def seal(path, changes):
    """Change a sealed document and make its checksum right again."""
    document = json.loads(path.read_text())
    (kind,) = set(document) - {"crc32"}
    changes(document[kind])
    canonical = json.dumps(document[kind], sort_keys=True, separators=(",", ":")).encode()
    path.write_text(json.dumps({"crc32": f"{zlib.crc32(canonical):08x}", kind: document[kind]}))


@pytest.mark.parametrize(
    "changes",
    [
        lambda body: body["graph"].update(name="../../../../etc"),
        lambda body: body["chain"][0].update(name="../graph"),
        lambda body: body["chain"][0].update(name="/etc/v_00000001"),
        lambda body: body["chain"].clear(),
        lambda body: body.update(chain="v_00000001"),
        lambda body: body.update(chain=[7]),
        lambda body: body.update(full="../x"),
        lambda body: body.update(version="4"),
        lambda body: body.update(version=True),
        lambda body: body.update(event_time=[]),
        lambda body: body.pop("step"),
        lambda body: body["chain"].reverse(),
        lambda body: body["chain"][0].update(digest="0" * 64),
        lambda body: body.update(graph=None),
    ],
)
def test_a_forged_current_is_refused_and_leads_nowhere_else(published, changes):
    root = published(4)
    seal(root / "current.json", changes)
    with pytest.raises(CheckpointDamagedError, match=r"current.json|v_0000000"):
        ServedModel(root, follow=False)


def test_a_model_without_checksums_is_refused_with_what_to_do(published):
    root = published(4)
    (root / "current.json").write_text('{"version": 1, "chain": ["v_00000001"], "graph": "graph-1"}')
    with pytest.raises(CheckpointDamagedError, match="published without checksums: publish the model again"):
        ServedModel(root, follow=False)


# -- what is left behind ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def tmpfs(folder, size):
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"mounting a tmpfs is not permitted: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize("size", ["20k", "40k", "56k"], ids=["the graph", "the first version", "a later version"])
def test_a_full_disk_leaves_no_litter_and_does_not_end_training(trained, tmp_path, caplog, size):
    trainer, _ = trained
    with tmpfs(tmp_path / "disk", size) as disk:
        (disk / "ballast").write_bytes(bytes(4096))
        publish = Publish(disk / "root", every=1e-6, compact=50, batch=8)
        before = trainer.state.progress.global_step
        steps = 4 if size == "20k" else 40
        trainer.online_train(clicks, max_steps=steps, callbacks=[publish])
        assert trainer.state.progress.global_step == before + steps
        assert "No space left" in caplog.text
        assert "the next version will contain all rows" in caplog.text
        left = {path.name.rstrip("0123456789abcdef") for path in (disk / "root").glob("*")}
        assert left <= {"v_", "graph-", "current.json"}
        for path in disk.rglob("v_*"):
            assert (path / "manifest.json").stat().st_size > 0
        if size == "56k":
            with ServedModel(disk / "root", follow=False) as model:
                assert np.isfinite(model.predict(QUESTION)).all()


SCRIPT = """
import sys
from tests.trainer.serving.test_published import Net, Publish, Trainer, clicks, nn
network = Net()
trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 0.1))
trainer.online_train(clicks, callbacks=[Publish(sys.argv[1], every=1e-6, compact=3, batch=8)])
"""


@pytest.mark.long
@pytest.mark.process
def test_what_kills_leave_is_removed_by_the_next_run(trained, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOG_v": "3"}
    root = tmp_path / "root"
    for seconds in (0.0, 0.1):
        process = subprocess.Popen([sys.executable, "-c", SCRIPT, root], env=environment, cwd=tmp_path)
        try:
            wait_for(lambda root=root, process=process: list(root.glob("graph-*")) or process.poll() is not None)
            time.sleep(seconds)
        finally:
            process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    (root / ".v_00000099.0a1b2c3d.1.0123456789ab.tmp").mkdir()  # of another host, and young
    (root / "v_00000098").mkdir()  # nobody's
    (root / "graph-of-the-user.png").write_text("")
    trained[0].online_train(clicks, max_steps=2, callbacks=[Publish(root, every=1e-6, compact=3, batch=8)])
    names = sorted(path.name for path in root.iterdir())
    assert len([name for name in names if name.startswith("graph-") and "." not in name]) == 1
    assert [name for name in names if name.startswith(".")] == []
    assert {"v_00000098", "graph-of-the-user.png"} <= set(names)
    with ServedModel(root, follow=False) as model:
        np.testing.assert_allclose(model.predict(QUESTION), trained[0].predict(QUESTION), rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_the_last_version_is_written_again_when_it_fails(trained, tmp_path, caplog, monkeypatch):
    trainer, _ = trained
    rename, calls = os.rename, []

    def fail(*arguments):
        if Path(arguments[1]).name.startswith("v_"):
            calls.append(arguments)
            if len(calls) < 3:  # the first version, and the last
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(*arguments)

    monkeypatch.setattr(os, "rename", fail)
    publish = Publish(tmp_path, every=1e-6, batch=8)
    trainer.online_train(clicks, max_steps=1, callbacks=[publish])
    assert (len(calls), caplog.text.count("Input/output error")) == (3, 2)
    with ServedModel(tmp_path, follow=False) as model:
        assert model.step == trainer.state.progress.global_step
        np.testing.assert_allclose(model.predict(QUESTION), trainer.predict(QUESTION), rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_a_server_that_opens_a_model_slowly_is_waited_for(trained, tmp_path, monkeypatch):
    """Versions that are old by then are removed once it has read them."""
    trainer, _ = trained
    publish = Publish(tmp_path, every=1e-6, compact=1, batch=8)
    trainer.online_train(clicks, max_steps=2, callbacks=[publish])
    verify, opened = version_update.Folder.verify, []

    def slow(folder):
        opened.append(folder)
        if len(opened) == 1:
            trainer.online_train(clicks, max_steps=6, callbacks=[publish, Copies(publish, tmp_path.with_suffix(".x"))])
        verify(folder)

    monkeypatch.setattr(version_update.Folder, "verify", slow)
    with ServedModel(tmp_path, follow=False) as model:
        first = model.version
        assert len(set(opened)) == 1  # verified before and after it is loaded
        model.refresh()
        assert model.version > first + 4
    trainer.online_train(clicks, max_steps=1, callbacks=[publish])
    assert f"v_{first:08d}" not in os.listdir(tmp_path)


def test_two_runs_do_not_publish_to_one_folder(trained, tmp_path):
    trainer, _ = trained
    publish = Publish(tmp_path / "root", batch=8)
    publish.setup(trainer)
    with pytest.raises(FolderInUseError, match=f"is being written by process {os.getpid()} on"):
        trainer.online_train(clicks, max_steps=1, callbacks=[Publish(tmp_path / "root", batch=8)])
    publish.teardown(trainer)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_refused_before_the_first_step(trained, tmp_path):
    trainer, _ = trained
    (tmp_path / "file").write_text("in the way")
    before = trainer.state.progress.global_step
    with pytest.raises(ConfigurationError, match=r"cannot write publish folder .*file/root.*choose another folder"):
        trainer.online_train(clicks, max_steps=1, callbacks=[Publish(tmp_path / "file" / "root")])
    assert trainer.state.progress.global_step == before


def test_what_is_refused_is_documented():
    assert issubclass(FolderInUseError, CheckpointError)


def test_files_that_change_while_a_model_is_opened_are_not_served(published, answers, monkeypatch):
    check, load = version_update.table_rows, version_update.ServedGraph

    def check_and_spoil(tensors, dims, where):
        rows = check(tensors, dims, where)
        file = Path(f"{where}.safetensors")
        file.write_bytes(bytes(file.stat().st_size))
        return rows

    with monkeypatch.context() as patched:
        patched.setattr(version_update, "table_rows", check_and_spoil)
        with ServedModel(published(4), follow=False) as model:
            np.testing.assert_array_equal(model.predict(QUESTION), answers[4])

    def load_and_spoil(path):
        graph = load(path)
        flip(path / "network.mindir", 0.5)
        return graph

    monkeypatch.setattr(version_update, "ServedGraph", load_and_spoil)
    with pytest.raises(CheckpointDamagedError, match=r"network\.mindir does not match its checksum"):
        ServedModel(published(4), follow=False)


class ListOutputs(nn.Cell):
    def __init__(self):
        super().__init__()
        self.body = nn.Dense(2, 1)

    def construct(self, x):
        return [self.body(x)[:, 0], x * 2]


class FirstOutputLoss(nn.Cell):
    def construct(self, outputs, y):
        return ((outputs[0] - y) ** 2).mean()


@pytest.mark.parametrize("amp_level", ["O0", "O2"])
def test_a_list_of_outputs_is_published_as_a_tuple(tmp_path, amp_level):
    x = np.random.default_rng(0).random((6, 2), np.float32)
    network = ListOutputs()
    trainer = Trainer(network, FirstOutputLoss(), nn.SGD(network.trainable_params(), 0.1), amp_level=amp_level)
    trainer.fit((x, x[:, 0]), batch_size=6, epochs=1, callbacks=[Publish(tmp_path, batch=6)])
    with ServedModel(tmp_path, follow=False) as model:
        served = model.predict(x)
    for part, expected in zip(served, trainer.predict(x, batch_size=6), strict=True):
        np.testing.assert_allclose(part, expected, rtol=1e-3, atol=1e-3)


class WithoutRows(nn.Cell):
    def __init__(self, extra):
        super().__init__()
        self.dense, self.extra = nn.Dense(2, 1), extra

    def construct(self, x):
        y = self.dense(x)[:, 0]
        return (y, y.mean()) if self.extra == "scalar" else (y, self.dense.weight)


@pytest.mark.parametrize("extra", ["scalar", "weight"])
def test_an_output_without_rows_is_refused_or_warned_of(extra, tmp_path, caplog):
    x = np.random.default_rng(0).random((6, 2), np.float32)
    network = WithoutRows(extra)
    trainer = Trainer(network, FirstOutputLoss(), nn.SGD(network.trainable_params(), 0.1))
    trainer.fit((x, x[:, 0]), batch_size=6, epochs=1, callbacks=[Publish(tmp_path, batch=6)])
    with ServedModel(tmp_path, follow=False) as model:
        if extra == "scalar":
            with pytest.raises(GraphError, match=r"output 1 .* shape \[\]"):
                model.predict(x)
        else:  # as versions of earlier releases may have
            np.testing.assert_allclose(model.predict(x)[0], trainer.predict(x, batch_size=6)[0], rtol=1e-6)
            assert "output 1 of the published network has no row for each of the 6 rows" in caplog.text


class Frozen(nn.Cell):
    """Sets the modes of its own cells, as networks do whose normalization is frozen."""

    def __init__(self):
        super().__init__()
        self.normalized, self.head = nn.BatchNorm1d(3), nn.Dense(3, 1)

    def set_train(self, mode=True):
        super().set_train(mode)
        self.normalized.set_train(False)
        return self

    def construct(self, x):
        return self.head(self.normalized(x))


def test_publishing_changes_nothing_of_the_training(tmp_path):
    """The last batch is a shorter one, whose program is compiled after the export."""
    x = np.random.default_rng(0).normal(3.0, size=(30, 3)).astype(np.float32)

    def trained(*callbacks):
        ms.set_seed(1)
        network = Frozen()
        trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.01))
        trainer.fit((x, x[:, :1]), batch_size=4, sink_size=1, callbacks=callbacks)
        return {parameter.name: parameter.asnumpy() for parameter in network.get_parameters()}

    alone = trained()
    for name, value in trained(Publish(tmp_path, batch=4)).items():
        np.testing.assert_array_equal(value, alone[name], err_msg=name)
