"""A folder that cannot be published to is refused before training; what fails later ends a run where that was asked."""

import logging
import os
import resource
import shutil
import tempfile

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from callbacks import Callback, LambdaCallback, ModelCheckpoint
from tests.trainer.serving.test_finite_values import publish_and_wait
from tests.trainer.serving.test_published import Net, clicks, tmpfs
from trainer import Every, Trainer
from trainer.errors import CheckpointError, ConfigurationError, NonFiniteError
from trainer.serving import Publish, ServedModel, Versions

QUESTION = np.arange(12).reshape(6, 2)


@pytest.fixture(scope="module")
def trainer():
    ms.set_seed(1)
    network = Net()
    return Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 0.1))


@pytest.mark.long(but=["it's (new) [v2] + $HOME"])
@pytest.mark.parametrize("name", ["my models", "modèles-日本", "it's (new) [v2] + $HOME"])
def test_a_folder_whose_name_mindspore_refuses_is_published_to(trainer, tmp_path, monkeypatch, name):
    temporary = tmp_path / f"temporary {name}"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))  # as TMPDIR sets it
    root = tmp_path / name / "served"
    trainer.online_train(clicks, max_steps=2, callbacks=[Publish(root, every=1e-6, batch=8, on_error="raise")])
    with ServedModel(root, follow=False) as model:
        assert model.step == trainer.state.progress.global_step
        np.testing.assert_allclose(model.predict(QUESTION), trainer.predict(QUESTION), rtol=1e-5, atol=1e-6)
    assert list(temporary.iterdir()) == []


def test_a_full_disk_is_named_before_the_first_step(trainer, tmp_path):
    before = trainer.state.progress.global_step
    with tmpfs(tmp_path / "disk", "12k") as disk:
        (disk / "ballast").write_bytes(bytes(4096))
        with pytest.raises(ConfigurationError, match=r"cannot write .*disk/root.*No space left on device.*free space"):
            trainer.online_train(clicks, max_steps=1, callbacks=[Publish(disk / "root", batch=8)])
        assert [path.name for path in disk.iterdir()] == ["ballast"]
    assert trainer.state.progress.global_step == before


def test_little_room_is_a_warning_before_the_first_step(tmp_path, caplog):
    network = nn.Dense(64, 64)
    trainer = Trainer(network, nn.MSELoss(), nn.Adam(network.trainable_params()))
    publish = Publish(tmp_path / "disk" / "root", batch=8)
    with tmpfs(tmp_path / "disk", "16k"), caplog.at_level(logging.WARNING):
        publish.setup(trainer)
        publish.teardown(trainer)
    assert "bytes free; a version takes 16,640 at least" in caplog.text


def test_a_failing_version_ends_the_run_where_that_was_asked(trainer, tmp_path):
    before = trainer.state.progress.global_step
    with tmpfs(tmp_path / "disk", "56k") as disk:
        publish = Publish(disk / "root", every=1e-6, batch=8, compact=50, on_error="raise")
        with pytest.raises(CheckpointError, match=r"publishing to .*disk/root failed.*No space left"):
            trainer.online_train(clicks, max_steps=4000, callbacks=[publish])
        assert trainer.state.progress.global_step < before + 4000
        with ServedModel(disk / "root", follow=False) as model:
            assert np.isfinite(model.predict(QUESTION)).all()


def test_a_version_that_fails_as_its_run_ends_is_no_error_of_the_next_run(trainer, tmp_path):
    publish, bias = Publish(tmp_path, batch=8, on_error="raise"), trainer.network.head.bias
    sound = bias.asnumpy().copy()

    def fail(trainer):
        ops.assign(bias, Tensor(sound))
        raise RuntimeError("an error of the user's own")

    spoil = LambdaCallback(on_train_step_end=lambda trainer: ops.assign(bias, Tensor(sound * np.nan)))
    callbacks = [spoil, publish, LambdaCallback(on_train_step_end=fail)]
    with pytest.raises(RuntimeError, match="of the user's own"):
        trainer.online_train(clicks, max_steps=2, callbacks=callbacks)
    assert "'head.bias' holds 1 of 1 values that are NaN" in publish.problem
    trainer.online_train(clicks, max_steps=2, callbacks=[publish])
    assert publish.problem is None


def test_a_folder_that_is_emptied_while_a_run_publishes_there_is_filled_again(trainer, tmp_path, caplog):
    """As by someone who makes room on the disk, or a program that clears folders of temporary files."""
    publish, first = Publish(tmp_path, every=1e-6, batch=8), trainer.state.progress.global_step

    def empty(trainer):
        publish.wait()
        if trainer.state.progress.global_step == first + 3:
            for path in tmp_path.glob("*[0-9a-f]"):
                shutil.rmtree(path)

    trainer.online_train(clicks, max_steps=4, callbacks=[LambdaCallback(on_train_step_end=empty), publish])
    assert "folders that versions build on are gone" in caplog.text
    with ServedModel(tmp_path, follow=False) as model:
        np.testing.assert_allclose(model.predict(QUESTION), trainer.predict(QUESTION), rtol=1e-5, atol=1e-6)


def test_a_cadence_that_is_given_twice_is_due_for_each(tmp_path):
    every, validations = Every(steps=2), []
    network = nn.Dense(2, 1)
    trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.01))
    rows = (np.ones((32, 2), np.float32), np.ones((32, 1), np.float32))
    publish = [Publish(tmp_path / name, every, batch=8) for name in "ab"]
    wait = LambdaCallback(on_train_step_begin=lambda trainer: [each.wait() for each in publish])
    count = LambdaCallback(on_eval_end=lambda trainer: validations.append(trainer.state.progress.global_step))
    options = {"valid_dataset": rows, "valid_every": every, "sink_size": 1}
    trainer.fit(rows, batch_size=4, callbacks=[wait, *publish, count], **options)
    assert validations == [2, 4, 6, 8]
    for name in "ab":
        assert [version.step for version in Versions(tmp_path / name).list()] == [1, 2, 4, 6, 8, 8]


def test_versions_that_could_not_be_written_do_not_count_as_versions_to_go_back_to(trainer, tmp_path):
    publish, bias = Publish(tmp_path, batch=8, compact=1, keep=2), trainer.network.head.bias
    sound = bias.asnumpy().copy()
    trainer.online_train(clicks, max_steps=1, callbacks=[publish])
    last, seen = Versions(tmp_path).newest(), trainer.first_batch(next(clicks()), 8)
    publish.setup(trainer)
    ops.assign(bias, Tensor(sound * np.nan))
    for _ in range(4):
        with pytest.raises(NonFiniteError):
            publish_and_wait(publish, trainer, seen)
    ops.assign(bias, Tensor(sound))
    publish_and_wait(publish, trainer, seen)
    publish.teardown(trainer)
    assert Versions(tmp_path).newest() == last + 5
    assert Versions(tmp_path).roll_back() == last


def test_a_run_that_has_nothing_left_to_train_says_that_its_version_is_older(tmp_path, caplog):
    def fit(**options):
        network = nn.Dense(2, 1)
        trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.01))
        rows = (np.ones((8, 2), np.float32), np.ones((8, 1), np.float32))
        publish = Publish(tmp_path / "served", every=3600, batch=8)
        trainer.fit(rows, epochs=2, batch_size=4, sink_size=1, callbacks=[publish, *options.pop("more", ())], **options)

    with tmpfs(tmp_path / "served", "1m"):
        ballast = tmp_path / "served" / "ballast"
        full = LambdaCallback(
            on_train_end=lambda trainer: ballast.write_bytes(bytes(shutil.disk_usage(ballast.parent).free))
        )
        fit(more=[full, ModelCheckpoint(tmp_path / "snapshots")])
        ballast.unlink()
        caplog.clear()
        fit(resume=tmp_path / "snapshots")
        assert "nothing is published: the newest version of" in caplog.text
        assert "is of step 1, the weights are of step 4" in caplog.text


class NoMoreFiles(Callback):
    """Lets this process open no file any more."""

    def __init__(self):
        self.hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    def teardown(self, trainer):
        lowest_free = os.dup(0)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, self.hard))


@pytest.mark.long
def test_the_folder_is_given_back_although_no_file_can_be_opened_at_the_end(trainer, tmp_path, caplog):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        trainer.online_train(clicks, max_steps=1, callbacks=[NoMoreFiles(), Publish(tmp_path, batch=8)])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert f"no version of {tmp_path} is removed: [Errno 24] Too many open files" in caplog.text
    trainer.online_train(clicks, max_steps=1, callbacks=[Publish(tmp_path, batch=8)])


class NotExported(nn.Cell):
    """Runs operator by operator: MindSpore compiles no function that is made inside a call."""

    def __init__(self):
        super().__init__()
        self.scale = Parameter(Tensor(np.ones(1, np.float32)), name="scale")

    def construct(self, x):
        return (lambda value: value * self.scale)(float(1) * x).sum(1) + len(str(x.shape)) * 0


@pytest.mark.long
@pytest.mark.parametrize("on_error", ["warn", "raise"])
def test_a_network_that_cannot_be_exported_is_named_once_in_a_while(tmp_path, caplog, on_error):
    network = NotExported()
    trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.01), compile=False)
    data = {"x": np.ones((320, 3), np.float32), "y": np.ones(320, np.float32)}
    publish = Publish(tmp_path, every=1e-6, batch=8, on_error=on_error)
    if on_error == "raise":
        with pytest.raises(CheckpointError, match=r"publishing to .* failed"):
            trainer.fit(data, epochs=1, batch_size=8, callbacks=[publish])
        assert trainer.state.progress.global_step == 1
    else:
        trainer.fit(data, epochs=1, batch_size=8, callbacks=[publish])
        assert trainer.state.progress.global_step == 40
        assert publish.problem
        assert 2 <= caplog.text.count("the next version will contain all rows") < 40
