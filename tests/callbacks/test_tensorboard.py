import struct
import time
from collections import defaultdict

import pytest

from callbacks import ModelCheckpoint, TensorBoard


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
                assert event.step not in found[value.tag], f"{value.tag} was written twice at {event.step}"
                text = value.tensor.string_val[0].decode() if value.tensor.string_val else value.simple_value
                found[value.tag][event.step] = text
    return found


def test_loss_rate_speed_and_validation_are_written(fit, tmp_path):
    trainer = fit(TensorBoard(every=4), epochs=2)
    found = read(tmp_path / "tensorboard")
    assert list(found["train/loss"]) == [4, 8, 12, 16]
    assert found["train/loss"][16] == pytest.approx(trainer.state.outputs.loss)
    assert found["train/learning_rate"][4] == pytest.approx(0.01)
    assert found["train/samples_per_second"][8] > 0
    assert found["epoch/loss"][16] == pytest.approx(trainer.state.train_loss)
    assert found["val/auc"][16] == pytest.approx(trainer.state.metrics["val_auc"])
    assert "| optimizer | Adam |" in found["hparams/text_summary"][0]
    assert "train/loss_scale" not in found


def test_windows_and_given_hyperparameters(online, tmp_path):
    online([{"window_auc": 0.5}, {"window_auc": 0.6}], TensorBoard(tmp_path / "tb", hparams={"dim": 16}))
    found = read(tmp_path / "tb")
    assert found["window/auc"] == pytest.approx({1: 0.5, 2: 0.6})
    assert "| dim | 16 |" in found["hparams/text_summary"][0]


def test_a_resumed_run_discards_what_was_written_after_its_snapshot(fit, tmp_path, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1.7e9)  # file names have whole seconds: two runs within one
    fit(TensorBoard(every=4), ModelCheckpoint(keep_last=None), epochs=2, valid=False)
    fit(TensorBoard(every=4), epochs=2, valid=False, resume=tmp_path / "checkpoints" / "step_00000008")
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2
    assert list(read(tmp_path / "tensorboard")["train/loss"]) == [4, 8, 12, 16]
