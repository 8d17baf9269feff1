import json
import struct
import time
import urllib.request
from collections import defaultdict

import numpy as np
import pytest
from mindspore import nn

from callbacks import ModelCheckpoint, TensorBoard
from callbacks.loggers import score_pictures
from callbacks.loggers.tensorboard import EventFile
from trainer import Trainer
from trainer.errors import ConfigurationError

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


@pytest.mark.long(but=["4"])
@pytest.mark.parametrize("sink_size", [1, 4])
def test_norms_are_those_of_the_step_and_change_no_bit(cancer, tmp_path, sink_size):
    x, y = cancer["train"]["x"], cancer["train"]["y"]
    weights = {}
    for logged in (False, True):
        network = nn.Dense(30, 1)
        network.weight.set_data(type(network.weight.value())(np.full((1, 30), 0.1, np.float32)))
        network.bias.set_data(type(network.bias.value())(np.zeros(1, np.float32)))
        trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.01), clip_norm=0.5)
        loggers = [TensorBoard(tmp_path / "tb", every=sink_size, norms=4)] if logged else []
        options = {"batch_size": 64, "sink_size": sink_size, "shuffle": False, "max_steps": 8}
        trainer.fit(cancer["train"], callbacks=loggers, **options)
        weights[logged] = network.weight.asnumpy().copy()
    np.testing.assert_array_equal(weights[False], weights[True])
    found = read(tmp_path / "tb")
    assert list(found["train/gradient_norm"]) == ([1, 5] if sink_size == 1 else [4, 8])
    if sink_size == 1:  # the first step's, in NumPy
        x, y = x[:64].astype(np.float64), y[:64]
        error = 2 * (x @ np.full((30, 1), 0.1) - y) / 64
        expected = np.linalg.norm(error.T @ x), abs(error.sum())
        assert found["gradient_norm/weight"][1] == pytest.approx(expected[0], rel=1e-4)
        assert found["gradient_norm/bias"][1] == pytest.approx(expected[1], rel=1e-4)
        assert found["train/gradient_norm"][1] == pytest.approx(np.hypot(*expected), rel=1e-4)  # before clipping
        assert found["weight_norm/weight"][1] == pytest.approx(0.1 * 30**0.5, rel=1e-4)  # before the update


def test_norms_are_no_state_of_a_run(fit, tmp_path):
    trainer = fit(TensorBoard(norms=4), ModelCheckpoint(keep_last=None), epochs=1, valid=False)
    snapshot = tmp_path / "checkpoints" / "step_00000008"
    assert trainer.builder.norms is not None
    trainer = fit(epochs=2, valid=False, resume=snapshot)
    assert trainer.builder.norms is None
    assert trainer.state.progress.global_step == 16


def test_norms_of_a_whole_training_step_are_refused(cancer):
    network = nn.Dense(30, 1)
    step = nn.TrainOneStepCell(
        nn.WithLossCell(network, nn.MSELoss()), nn.SGD(network.trainable_params(), learning_rate=0.01)
    )
    with pytest.raises(ConfigurationError, match="norms of gradients"):
        Trainer(step).fit(cancer["train"], batch_size=64, callbacks=[TensorBoard("unused", norms=4)])


@pytest.mark.long
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
    for name in ("roc/val", "calibration/val"):
        picture = found[name][16]
        assert picture.encoded_image_string.startswith(b"\x89PNG")
        assert picture.width > picture.height > 200


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

    trainer = fit(TensorBoard(every=1, norms=4, histograms=8), epochs=2)
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    tags = events.Tags()
    assert {"train/loss", "train/learning_rate", "train/samples_per_second", "train/gradient_norm"} <= {
        *tags["scalars"]
    }
    assert {"roc/val", "calibration/val"} <= {*tags["images"]}
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


@pytest.mark.long
def test_calls_without_an_update_have_no_norms(cancer, tmp_path, monkeypatch):
    norms = []
    monkeypatch.setattr(
        EventFile,
        "scalar",
        lambda file, name, value, step: name == "train/gradient_norm" and norms.append((step, value > 0)),
    )
    network = nn.Dense(30, 1)
    optimizer = nn.SGD(network.trainable_params(), 0.01)
    trainer = Trainer(network, nn.MSELoss(), optimizer, gradient_accumulation_steps=4)
    train, sizes = cancer["train"], [64, 32] * 6  # calls of one micro-batch each, for the next has another shape
    batches = [{name: column[:size] for name, column in train.items()} for size in sizes]
    logger = TensorBoard(tmp_path / "tb", every=100, norms=1)
    trainer.fit(batches, epochs=1, batch_size=None, sink_size=1, callbacks=[logger])
    assert norms == [(1, True), (2, True), (3, True)]


def test_a_picture_that_cannot_be_drawn_ends_no_run(fit, caplog, monkeypatch):
    monkeypatch.setattr(score_pictures, "roc_picture", lambda *_: 1 / 0)
    trainer = fit(TensorBoard(), epochs=2)
    assert trainer.state.progress.global_step == 16
    assert caplog.text.count("no more curves are drawn: ZeroDivisionError") == 1


@pytest.mark.long(but=["8"])
@pytest.mark.parametrize("sink_size", [1, 8])
def test_accumulated_micro_batches_are_logged_at_their_optimizer_step(cancer, tmp_path, sink_size):
    network = nn.Dense(30, 1)
    optimizer = nn.SGD(network.trainable_params(), 0.01)
    trainer = Trainer(network, nn.MSELoss(), optimizer, gradient_accumulation_steps=4)
    options = {"batch_size": 32, "sink_size": sink_size, "max_steps": 4}
    trainer.fit(cancer["train"], callbacks=[TensorBoard(tmp_path / "tb", every=1)], **options)
    assert list(read(tmp_path / "tb")["train/loss"]) == [1, 2, 3, 4]
