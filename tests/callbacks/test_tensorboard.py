import struct
from collections import defaultdict

import pytest

from callbacks import TensorBoard


def read(folder):
    """Return {tag: {step: value}} of all event files in a folder, what was purged left out."""
    from tensorboardX.proto.event_pb2 import Event

    found = defaultdict(dict)
    for path in sorted(folder.glob("events.*"), key=lambda path: path.stat().st_mtime_ns):
        data, place = path.read_bytes(), 0
        while place < len(data):
            (length,) = struct.unpack_from("<Q", data, place)
            event = Event.FromString(data[place + 12 : place + 12 + length])
            place += length + 16
            if event.WhichOneof("what") == "session_log":
                for values in found.values():
                    for step in [step for step in values if step >= event.step]:
                        del values[step]
            for value in event.summary.value:
                text = value.tensor.string_val[0].decode() if value.tensor.string_val else value.simple_value
                found[value.tag][event.step] = text
    return found


def test_loss_rate_speed_and_validation_are_written(driver, tmp_path):
    trainer = driver(TensorBoard(every=4))
    trainer.fit(epochs=2)
    found = read(tmp_path / "tensorboard")
    assert list(found["train/loss"]) == [4, 8, 12, 16]
    assert found["train/loss"][16] == pytest.approx(trainer.state.outputs.loss)
    assert found["train/learning_rate"][4] == pytest.approx(0.01)
    assert found["train/samples_per_second"][8] > 0
    assert found["epoch/loss"][16] == pytest.approx(trainer.state.train_loss)
    assert found["val/accuracy"][16] == pytest.approx(trainer.state.metrics["val_accuracy"])
    assert "| optimizer | Adam |" in found["hparams/text_summary"][0]
    assert "train/loss_scale" not in found


def test_windows_and_given_hyperparameters(driver, tmp_path):
    driver(TensorBoard(tmp_path / "tb", hparams={"dim": 16})).online([{"auc": 0.5}, {"window_auc": 0.6}])
    found = read(tmp_path / "tb")
    assert found["window/auc"] == pytest.approx({1: 0.5, 2: 0.6})
    assert "| dim | 16 |" in found["hparams/text_summary"][0]


def test_a_resumed_run_discards_what_was_written_after_its_snapshot(driver, tmp_path):
    trainer = driver(TensorBoard(every=4))
    path = []
    trainer.callbacks = type(trainer.callbacks)([*trainer.callbacks, _save_at(8, tmp_path / "snapshots", path)])
    trainer.fit(epochs=2, valid=False)
    driver(TensorBoard(every=4)).fit(epochs=2, valid=False, resume=path[0])
    assert list(read(tmp_path / "tensorboard")["train/loss"]) == [4, 8, 12, 16]


def _save_at(step, root, path):
    from callbacks import LambdaCallback

    def save(trainer):
        if trainer.state.progress.global_step == step:
            path.append(trainer.save(root))

    return LambdaCallback(on_checkpoint=save)
