import json
import struct
import time
import urllib.request
from collections import defaultdict

import numpy as np
import pytest
from mindspore import nn

from callbacks import ModelCheckpoint, TensorBoard
from callbacks.loggers import tensorboard
from trainer import Trainer

wall_times = defaultdict(list)  # of the files read last


def read(folder):
    """Return {tag: {step: value}} of all event files in a folder, what was purged left out."""
    from tensorboardX.proto.event_pb2 import Event

    found = defaultdict(dict)
    wall_times.clear()
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
                text = value.image if value.HasField("image") else text
                text = list(value.tensor.float_val) if value.tensor.float_val else text
                found[value.tag][event.step] = text
                wall_times[value.tag].append(event.wall_time)
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


def test_curves_of_a_binary_target_are_those_of_its_predictions(fit, cancer, tmp_path):
    trainer = fit(TensorBoard(), epochs=2)
    found = read(tmp_path / "tensorboard")
    scores = 1 / (1 + np.exp(-trainer.predict(cancer["valid"]["x"])[:, 0].astype(np.float64)))
    positive = cancer["valid"]["y"][:, 0] > 0.5
    hits, false_alarms, correct, misses, precision, recall = np.reshape(found["precision_recall/val"][16], (6, -1))
    for place, threshold in enumerate(np.linspace(0, 1, len(hits))):
        above = scores >= threshold
        counts = (above & positive).sum(), (above & ~positive).sum(), (~above & ~positive).sum()
        np.testing.assert_allclose((hits[place], false_alarms[place], correct[place]), counts, atol=1e-6)
    np.testing.assert_allclose(recall, hits / positive.sum(), rtol=1e-5)
    np.testing.assert_allclose(misses, positive.sum() - hits, atol=1e-5)
    assert precision[0] == pytest.approx(positive.mean())


def test_loss_scale_and_overflows_are_logged(cancer, tmp_path):
    network = nn.Dense(30, 1)
    optimizer = nn.SGD(network.trainable_params(), 0.01)
    trainer = Trainer(network, nn.MSELoss(), optimizer, amp_level="O2", run_dir=tmp_path)
    bad = {"x": cancer["train"]["x"].copy(), "y": cancer["train"]["y"]}
    bad["x"][100] = np.inf
    trainer.fit(bad, batch_size=64, shuffle=False, sink_size=1, callbacks=[TensorBoard(every=1)])
    found = read(tmp_path / "tensorboard")
    skipped = found["train/skipped_steps"]
    assert skipped[2] == skipped[1] + 1
    assert found["train/loss_scale"][2] == found["train/loss_scale"][1] / 2
    assert 0 <= found["train/data_wait"][8] <= 1


def test_windows_are_there_over_event_time_too(online, tmp_path):
    now = time.time()
    online([{"window_auc": 0.5, "staleness": 3600.0}, {"window_auc": 0.6, "staleness": 60.0}], TensorBoard(tmp_path))
    found = read(tmp_path)
    assert list(found["window_by_event_time/auc"]) == [1, 2]
    times = wall_times["window_by_event_time/auc"]
    assert times == pytest.approx([now - 3600, now - 60], abs=30)
    assert wall_times["window/auc"][0] >= now - 1


@pytest.mark.long
def test_tensorboards_own_reader_reads_all_of_it(fit, tmp_path):
    from tensorboard.backend.event_processing import event_accumulator as accumulator

    trainer = fit(TensorBoard(every=1, histograms=8), epochs=2)
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    tags = events.Tags()
    assert {"train/loss", "train/learning_rate", "train/samples_per_second"} <= {*tags["scalars"]}
    assert "precision_recall/val" in tags["tensors"]
    assert any(tag.startswith("weights/") for tag in tags["histograms"])
    assert events.Scalars("val/auc")[-1].value == pytest.approx(trainer.state.metrics["val_auc"])


@pytest.mark.long
@pytest.mark.server
def test_tensorboards_server_lists_hyperparameters_with_final_and_best_metrics(fit, tmp_path, caplog):
    from tensorboard import program

    trainer = fit(TensorBoard(), epochs=2)
    server = program.TensorBoard()
    server.configure(argv=["tensorboard", "--logdir", str(tmp_path), "--port", "0", "--load_fast", "false"])
    url = server.launch()

    def ask(path, body=None):
        request = urllib.request.Request(f"{url}data/{path}", None if body is None else json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    deadline = time.monotonic() + 60
    while not (plugins := ask("plugins_listing"))["hparams"]["enabled"] and time.monotonic() < deadline:
        time.sleep(0.2)
    assert plugins["scalars"]["enabled"]
    experiment = ask("plugin/hparams/experiment", {"experimentName": ""})
    names = [info["name"] for info in experiment["metricInfos"]]
    wanted = {"experimentName": "", "allowedStatuses": ["STATUS_SUCCESS"], "startIndex": 0, "sliceSize": 10}
    wanted["colParams"] = [{"metric": name} for name in names]
    (group,) = ask("plugin/hparams/session_groups", wanted)["sessionGroups"]
    assert (group["hparams"]["optimizer"], group["hparams"]["batch_size"]) == ("Adam", 64)
    values = {value["name"]["tag"]: value["value"] for value in group["metricValues"]}
    assert values["hparam/val_auc"] == pytest.approx(trainer.state.metrics["val_auc"])
    assert values["hparam/best_val_auc"] == pytest.approx(trainer.history.best["val_auc"].value)


def test_a_curve_that_cannot_be_drawn_ends_no_run(fit, caplog, monkeypatch):
    monkeypatch.setattr(tensorboard, "_precision_recall", lambda *_: 1 / 0)
    trainer = fit(TensorBoard(), epochs=2)
    assert trainer.state.progress.global_step == 16
    assert caplog.text.count("drawing curves has stopped: ZeroDivisionError") == 1


@pytest.mark.long(but=["8"])
@pytest.mark.parametrize("sink_size", [1, 8])
def test_accumulated_micro_batches_are_logged_at_their_optimizer_step(cancer, tmp_path, sink_size):
    network = nn.Dense(30, 1)
    optimizer = nn.SGD(network.trainable_params(), 0.01)
    trainer = Trainer(network, nn.MSELoss(), optimizer, gradient_accumulation_steps=4)
    options = {"batch_size": 32, "sink_size": sink_size, "max_steps": 4}
    trainer.fit(cancer["train"], callbacks=[TensorBoard(tmp_path / "tb", every=1)], **options)
    assert list(read(tmp_path / "tb")["train/loss"]) == [1, 2, 3, 4]
