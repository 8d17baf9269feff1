"""Versions by hand: servers go back and forward at once, and publishing and pruning go on around what is pinned."""

import errno
import fcntl
import json
import os
import shutil
import time

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

from callbacks import Callback
from trainer import Trainer
from trainer.embedding import Embedding
from trainer.errors import CheckpointDamagedError, CheckpointNotFoundError, ConfigurationError
from trainer.experiment.cli import main
from trainer.serving import Publish, ServedModel, Versions
from trainer.serving.version_records import version_lock

QUESTION = np.arange(24).reshape(12, 2)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.table = Embedding(3, name="table", mode="sparse")
        self.head = nn.Dense(6, 1)

    def construct(self, ids):
        return self.head(self.table(ids).reshape(-1, 6)).reshape(-1)


def rows(seed, count=8):
    ids = np.random.default_rng(seed).integers(0, 30, (count, 2))
    return ids, (ids.sum(1) % 3 == 0).astype(np.float32)


def clicks():
    for seed in range(10_000):
        ids, label = rows(seed)
        yield {"ids": ids, "label": label}


class Wait(Callback):
    """Publishes a version for each step."""

    def __init__(self, publish):
        self.publish = publish

    def on_train_step_end(self, trainer):
        self.publish.wait()


class Answers(Callback):
    """Notes what a server answers after each version."""

    end_order = 120  # after Publish

    def __init__(self, publish):
        self.publish, self.by_version, self.model = publish, {}, None

    def on_train_step_end(self, trainer):
        self.publish.wait()
        self.model = self.model or ServedModel(self.publish.root, version="newest", follow=False)
        self.model.refresh()
        self.by_version[self.model.version] = self.model.predict(QUESTION)

    on_train_end = on_train_step_end


def new_trainer(seed):
    ms.set_seed(seed)
    network = Net()
    return Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 0.1))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A trainer, the folder of its eleven versions, the last eight to be gone back to, and the answers of each."""
    trainer = new_trainer(1)
    publish = Publish(tmp_path_factory.mktemp("served"), every=1e-6, compact=3, keep=7, batch=16)
    answers = Answers(publish)
    trainer.online_train(clicks, max_steps=11, callbacks=[publish, answers])
    return trainer, publish.root, answers.by_version


@pytest.fixture
def root(trained, tmp_path):
    return shutil.copytree(trained[1], tmp_path / "root")


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def marks(versions):
    return {version.number: version.marks for version in versions.list() if version.marks}


def test_a_running_server_goes_back_and_forward_with_the_answers_of_each_version(trained, root):
    answers = trained[2]
    versions = Versions(root)
    newest = versions.newest()
    known = [version.number for version in versions.list() if version.problem is None]
    assert known[-8:] == list(range(newest - 7, newest + 1))
    with ServedModel(root, poll=0.005) as model:
        for change, expected in (
            (lambda: versions.roll_back(), newest - 1),
            (lambda: versions.roll_back(), newest - 2),
            (lambda: versions.roll_back(newest - 7), newest - 7),
            (lambda: versions.promote(newest - 3), newest - 3),
            (lambda: versions.pin(newest - 5), newest - 5),
            (lambda: versions.promote(), newest),
        ):
            assert change() == expected
            wait_for(lambda expected=expected: model.version == expected)
            np.testing.assert_array_equal(model.predict(QUESTION), answers[expected])
            assert model.problem is None
            assert versions.served() == expected
        assert marks(versions) == {newest: ("newest", "served", "pinned")}
        versions.roll_back()
        assert marks(versions) == {newest: ("newest",), newest - 1: ("served", "pinned")}
        assert versions.follow() == newest
        wait_for(lambda: model.version == newest)
        assert marks(versions) == {newest: ("newest", "served")}
    for which in (newest - 4, "newest"):
        with ServedModel(root, version=which, follow=False) as model:
            np.testing.assert_array_equal(model.predict(QUESTION), answers[model.version])
            assert model.version == (newest if which == "newest" else which)


def test_a_second_publisher_and_pruning_leave_what_is_pinned_and_kept(trained, root):
    _, _, answers = trained
    versions = Versions(root)
    old = versions.newest()
    versions.pin(old - 5)
    versions.keep(old - 6)
    with ServedModel(root) as model:
        second = Publish(root, every=1e-6, compact=1, keep=1, batch=16)
        new_trainer(2).online_train(clicks, max_steps=6, callbacks=[second, Wait(second)])
        assert versions.newest() == old + 7  # one a step, and one at the end
        assert (model.version, model.problem) == (old - 5, None)
        np.testing.assert_array_equal(model.predict(QUESTION), answers[old - 5])
        assert marks(versions) == {
            old - 6: ("kept",),
            old - 5: ("served", "pinned"),
            old + 7: ("newest",),
        }
        for kept in (old - 6, old - 5):
            with ServedModel(root, version=kept, follow=False) as other:
                np.testing.assert_array_equal(other.predict(QUESTION), answers[kept])
        assert not (root / f"v_{old - 4:08d}").exists(), "which none of them builds on"
        versions.follow()
        wait_for(lambda: model.version == old + 7)
    versions.release(old - 6)
    versions.keep(old - 5)  # nothing else needs it any more
    new_trainer(3).online_train(clicks, max_steps=1, callbacks=[Publish(root, every=1e-6, compact=1, batch=16)])
    assert max(version.number for version in versions.list() if version.number <= old) == old - 5
    versions.release(old - 5)
    new_trainer(3).online_train(clicks, max_steps=1, callbacks=[Publish(root, every=1e-6, compact=1, batch=16)])
    assert min(version.number for version in versions.list()) > old
    assert len(list(root.glob("graph-*"))) <= 2


def test_nothing_is_removed_while_a_version_is_being_pinned(trained, root):
    versions = Versions(root)
    before = {version.number for version in versions.list()}
    publish = Publish(root, every=1e-6, compact=1, keep=1, batch=16)
    with version_lock(root):
        new_trainer(2).online_train(clicks, max_steps=3, callbacks=[publish, Wait(publish)])
        assert before <= {version.number for version in versions.list()}
    publish.setup(trained[0])
    publish.teardown(trained[0])
    assert before.isdisjoint(version.number for version in versions.list())


def test_a_file_system_without_locks_is_enough_to_serve_and_to_pin(root, monkeypatch):
    def no_locks(descriptor, operation):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    version = Versions(root).roll_back()
    with ServedModel(root, follow=False) as model:
        assert model.version == version


def test_what_cannot_be_served_is_refused_and_changes_nothing(root):
    versions = Versions(root)
    newest = versions.newest()
    with pytest.raises(CheckpointNotFoundError, match=rf"no version 77 in .*; it has .*{newest}"):
        versions.pin(77)
    with pytest.raises(ConfigurationError, match=f"cannot roll back to version {newest}: .* use promote"):
        versions.roll_back(newest)
    damaged = root / f"v_{newest - 1:08d}" / "weights.safetensors"
    damaged.write_bytes(bytes(damaged.stat().st_size))
    with pytest.raises(CheckpointDamagedError, match=r"weights\.safetensors does not match its checksum"):
        versions.pin(newest - 1)
    assert versions.roll_back() < newest - 1, "the damaged version is passed over"
    with pytest.raises(ConfigurationError, match="cannot promote version"):
        versions.promote(newest - 7)
    with pytest.raises(ConfigurationError, match="is not kept; kept versions: none"):
        versions.release(newest)
    with pytest.raises(CheckpointNotFoundError, match="no model has been published"):
        Versions(root.parent / "elsewhere")
    with pytest.raises(ConfigurationError, match="whose mirror follows it; received the URL s3://bucket/run"):
        Versions("s3://bucket/run")
    root.rename(root.parent / "published")
    with pytest.raises(CheckpointNotFoundError, match=f"at {root.parent}; there is one at {root.parent}/published"):
        ServedModel(root.parent)
    (root.parent / "published").rename(root)
    (root / "pins.json").write_text("{}")
    with pytest.raises(CheckpointDamagedError, match=r"pins\.json is damaged"):
        versions.list()
    with pytest.raises(ConfigurationError, match="did you mean 'newest'"):
        ServedModel(root, version="newst")


@pytest.mark.long
def test_the_command_lists_and_rolls_back(root, tmp_path, capsys):
    folder = str(root)
    assert main(["versions", folder, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    newest = listed[-1]["number"]
    assert listed[-1]["marks"] == ["newest", "served"]
    assert main(["versions", folder, "roll-back"]) == 0
    assert f"roll-back: version {newest - 1} is served, before it {newest}" in capsys.readouterr().out
    assert main(["versions", folder]) == 0
    assert "served, pinned" in capsys.readouterr().out
    assert main(["versions", folder, "rollback"]) == 2
    assert "did you mean 'roll-back'" in capsys.readouterr().err
    assert main(["versions", folder, "follow"]) == 0
    assert main(["versions", str(tmp_path), "list"]) == 1
    assert not os.path.exists(tmp_path / "pins.json")
