"""What was wrong in `mindspore.Model` and `RecModel` and is right here; one test a fault."""

import errno

import mindspore
import mindspore.dataset as ms_dataset
import numpy as np
import pytest
from mindspore import nn
from mindspore.train import Callback as MindSporeCallback
from sklearn.metrics import log_loss, roc_auc_score

from trainer import Callback, Every, LossMonitor, ModelCheckpoint, Trainer, checkpoint
from trainer.checkpoint import durable
from trainer.errors import CheckpointError


@pytest.fixture(scope="module")
def trainer(linear):
    network = linear()
    return Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.05), metrics=["auc"])


@pytest.fixture(scope="module")
def sorted_by_class(cancer):
    """All malignant rows first: the last batch alone would give a loss and an AUC far from those of all rows."""
    order = np.argsort(cancer["y"][:, 0], kind="stable")
    return {name: column[order] for name, column in cancer.items()}


def test_evaluation_is_of_all_batches(trainer, sorted_by_class):
    results = trainer.evaluate(sorted_by_class, batch_size=64)
    logits = trainer.predict(sorted_by_class["x"]).astype(np.float64)
    assert results["loss"] == pytest.approx(log_loss(sorted_by_class["y"], 1 / (1 + np.exp(-logits))), rel=1e-5)
    assert results["auc"] == pytest.approx(roc_auc_score(sorted_by_class["y"], logits), abs=1e-3)


@pytest.fixture(scope="module")
def stream(batches):
    return lambda: ({"x": x, "label": y} for x, y in batches(64, 8))


class StopAtThree(MindSporeCallback):
    def step_end(self, run_context):
        if run_context.original_args().cur_step_num % 100 == 3:
            run_context.request_stop()


@pytest.mark.parametrize("verb", ["fit", "online_train"])
def test_a_stop_that_is_requested_is_made(verb, trainer, batches, stream):
    trainer.state.progress.global_step = 0
    if verb == "fit":
        trainer.fit(batches(64, 8), 5, callbacks=StopAtThree(), sink_size=1)
    else:
        trainer.online_train(stream, callbacks=StopAtThree())
    assert trainer.state.progress.global_step == 3
    assert "StopAtThree requested a stop" in str(trainer.state.stop_reason)


def test_streams_train_several_steps_a_call_and_keep_their_place(linear, stream, tmp_path):
    def online(network, **options):
        trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.05))
        saving = ModelCheckpoint(tmp_path, every=Every(steps=1000))
        trainer.online_train(stream, callbacks=[saving], sink_size=2, **options)
        return trainer, network[0].weight.asnumpy()

    _, whole = online(linear())
    checkpoint.prune(tmp_path, [])
    network = linear()
    first, _ = online(network, max_steps=4)
    assert first.state.progress.global_step == 4
    second, weight = online(linear(1), resume=tmp_path / "step_00000004")
    assert second.state.progress.global_step == 8
    assert (weight == whole).all()


def test_the_loss_is_copied_only_when_a_line_is_due(trainer, batches, monkeypatch, capsys):
    copies = []
    for name in ("asnumpy", "item"):
        original = getattr(mindspore.Tensor, name)

        def counted(self, *args, _original=original):
            copies.append(1)
            return _original(self, *args)

        monkeypatch.setattr(mindspore.Tensor, name, counted)
    seen = []

    class Count(Callback):
        order = 1000

        def on_train_begin(self, trainer):
            copies.clear()

        def on_train_step_end(self, trainer):
            seen.append(len(copies))

    trainer.state.progress.global_step = 0
    trainer.fit(batches(16, 30), 1, callbacks=[LossMonitor(10), Count()], sink_size=1, max_steps=25)
    assert seen == [0] * 9 + [1] * 10 + [2] * 6
    assert capsys.readouterr().out.count("loss") == 2


def test_an_old_snapshot_stays_until_the_new_one_is_durable(trainer, batches, monkeypatch, tmp_path):
    trainer.state.progress.global_step = 0
    trainer.fit(batches(64, 4), callbacks=[ModelCheckpoint(tmp_path, keep_last=1)], sink_size=1)
    assert [entry.name for entry in checkpoint.available(tmp_path)] == ["step_00000004"]
    write_file = durable.write_file

    def full_disk(path, blocks):
        if path.name == "model.safetensors":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_file(path, blocks)

    monkeypatch.setattr(durable, "write_file", full_disk)
    with pytest.raises(CheckpointError, match="No space left on device"):
        trainer.fit(batches(64, 4), callbacks=[ModelCheckpoint(tmp_path, keep_last=1)], sink_size=1)
    assert [entry.name for entry in checkpoint.available(tmp_path)] == ["step_00000004"]
    trainer.load(tmp_path)
    assert trainer.state.progress.global_step == 4
    assert trainer.state.phase == "idle"


def test_a_dataset_serves_a_second_trainer(trainer, linear, cancer):
    data = ms_dataset.NumpySlicesDataset(cancer, shuffle=False).batch(64)
    network = linear()
    other = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.05), metrics=["auc"])
    for each in (trainer, other, trainer):
        each.fit(data, 1, data, callbacks=[], sink_size=1)
        assert each.evaluate(data)["auc"] > 0.9
