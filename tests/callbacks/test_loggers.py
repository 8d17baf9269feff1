"""Every logger gets the same numbers of a run; files are read as a user would, MLflow and W&B by their own readers."""

import csv
import json
import struct
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from mindspore import nn

from callbacks import (
    CSVLogger,
    JSONLinesLogger,
    LambdaCallback,
    MLflowLogger,
    ModelCheckpoint,
    TensorBoard,
    WandbLogger,
)
from callbacks.loggers.mlflow import mlflow_name
from trainer import Trainer
from trainer.errors import ConfigurationError

from .test_tensorboard import read

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks are not installed

from benchmarks.fault_calls import Faults, Plan


def lines_of(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def rows_of(folder):
    with open(folder / "log.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_a_logger_of_two_runs_logs_each_to_its_own_folder(tmp_path):
    loggers, x = [JSONLinesLogger(), CSVLogger()], np.ones((8, 2), np.float32)
    for name in ("first", "second"):
        net = nn.Dense(2, 1)
        trainer = Trainer(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1), run_dir=tmp_path / name)
        trainer.fit((x, x[:, :1]), batch_size=4, epochs=1 if name == "first" else 2, callbacks=loggers)
    assert [rows_of(tmp_path / name)[-1]["step"] for name in ("first", "second")] == ["2", "4"]
    assert [lines_of(tmp_path / name)[-1]["step"] for name in ("first", "second")] == [2, 4]


def test_several_loggers_of_one_run_hold_the_same_values(fit, tmp_path):
    trainer = fit(JSONLinesLogger(), CSVLogger(), TensorBoard(), ModelCheckpoint(), epochs=2, sink_size=4)
    lines, rows, events = lines_of(tmp_path), rows_of(tmp_path), read(tmp_path / "tensorboard")
    losses = {line["step"]: line["train/loss"] for line in lines if "train/loss" in line}
    assert list(losses) == list(range(1, 17))  # each step, though a call trains four of them
    assert losses[16] == pytest.approx(trainer.state.outputs.loss)
    assert {int(row["step"]): float(row["train/loss"]) for row in rows} == losses
    assert events["train/loss"] == pytest.approx(losses)
    auc = {line["step"]: line["val/auc"] for line in lines if "val/auc" in line}
    assert list(auc) == [8, 16]
    assert [float(row["val/auc"]) for row in rows if row["val/auc"]] == list(auc.values())
    assert events["val/auc"] == pytest.approx(auc)
    (described,) = [line["hyperparameters"] for line in lines if "hyperparameters" in line]
    assert (described["optimizer"], described["batch_size"], described["epochs"]) == ("Adam", 64, 2)
    assert "not decided" not in described["sink_mode"]
    (results,) = [line["results"] for line in lines if "results" in line]
    assert results["best_val_auc"] == max(auc.values())
    assert events["hparam/best_val_auc"][16] == pytest.approx(max(auc.values()))
    assert [line["snapshot"] for line in lines if "snapshot" in line][-1].endswith("step_00000016")


def test_the_loss_of_a_step_is_that_of_its_own_micro_batches(tmp_path):
    """13 micro-batches in calls of two steps: the last call has one step of four and one of one."""
    seen = []
    note = LambdaCallback(on_train_step_end=lambda trainer: seen.extend(trainer.state.outputs.losses.tolist()))
    x = np.random.default_rng(0).normal(size=(52, 4)).astype(np.float32)
    network = nn.Dense(4, 1)
    trainer = Trainer(
        network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.01), gradient_accumulation_steps=4, run_dir=tmp_path
    )
    trainer.fit((x, x[:, :1]), batch_size=4, sink_size=2, callbacks=[JSONLinesLogger(), note])
    logged = [line["train/loss"] for line in lines_of(tmp_path) if "train/loss" in line]
    assert logged == pytest.approx([np.mean(seen[first : first + 4]) for first in range(0, 13, 4)])


def test_a_resumed_run_drops_what_was_logged_after_its_snapshot(fit, tmp_path):
    first = [JSONLinesLogger(), CSVLogger(), ModelCheckpoint(keep_last=None)]
    fit(*first, epochs=2)
    whole = lines_of(tmp_path)
    with open(tmp_path / "log.jsonl", "a") as file:
        file.write('{"step": 17, "train/lo')  # killed while it wrote
    fit(JSONLinesLogger(), CSVLogger(), epochs=2, resume=tmp_path / "checkpoints" / "step_00000008")
    lines = lines_of(tmp_path)
    assert [line["step"] for line in lines if "train/loss" in line] == list(range(1, 17))
    assert [line["val/auc"] for line in lines if "val/auc" in line] == [
        line["val/auc"] for line in whole if "val/auc" in line
    ]
    assert sum("hyperparameters" in line for line in lines) == 1
    assert [int(row["step"]) for row in rows_of(tmp_path)] == list(range(1, 17))


def test_a_step_has_one_row_wherever_the_file_is_flushed(fit, tmp_path):
    logger = CSVLogger()
    fit(logger, LambdaCallback(on_eval_begin=lambda trainer: logger.flush()), epochs=2)
    rows = rows_of(tmp_path)
    assert [int(row["step"]) for row in rows] == list(range(1, 17))
    measured = [row for row in rows if row["val/auc"]]
    assert [row["step"] for row in measured] == ["8", "16"]
    assert all(row["train/loss"] for row in measured)


@pytest.mark.long
def test_a_run_of_any_length_has_at_least_200_points_and_not_many_more(fit, online, tmp_path):
    fit(JSONLinesLogger(), epochs=100, valid=False, sink_size=8)
    points = [line for line in lines_of(tmp_path) if "train/loss" in line]
    assert 200 <= len(points) <= 400
    online([None] * 8, JSONLinesLogger(tmp_path / "stream.jsonl"))
    assert sum("train/loss" in json.loads(line) for line in (tmp_path / "stream.jsonl").open()) == 8


def test_a_log_needs_somewhere_to_go(fit):
    with pytest.raises(ConfigurationError, match=r"CSVLogger\(path=...\) or Trainer\(run_dir=...\)"):
        fit(CSVLogger(), run_dir=None)


@pytest.mark.parametrize("kind", [CSVLogger, JSONLinesLogger])
def test_two_logs_of_one_file_are_refused(kind, fit, tmp_path):
    """Lines of one were lost, or came before those that were written earlier."""
    with pytest.raises(ConfigurationError, match=r"two loggers would write to .*log\."):
        fit(kind(), kind(every=4))
    fit(kind(), kind(tmp_path / "seldom", every=4))


def test_histograms_of_weights_are_written_when_asked_for(fit, tmp_path):
    trainer = fit(TensorBoard(histograms=8), epochs=1, valid=False)
    events = read(tmp_path / "tensorboard")
    weight = trainer.network[0].weight
    assert events[f"weight_norm/{weight.name}"][8] == pytest.approx(np.linalg.norm(weight.asnumpy()), rel=1e-5)
    assert f"weights/{weight.name}" in events


@pytest.mark.long
def test_mlflow_holds_metrics_parameters_and_the_state_of_the_run(fit, tmp_path):
    from mlflow.tracking import MlflowClient

    logger = MLflowLogger(log_snapshots=True)
    trainer = fit(logger, ModelCheckpoint(), epochs=2)
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    run = client.get_run(logger.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["optimizer"] == "Adam"
    assert run.data.metrics["best_val_auc"] == trainer.history.best["val_auc"].value
    assert [point.step for point in client.get_metric_history(logger.run_id, "train/loss")] == list(range(1, 17))
    assert any(path.name == "manifest.json" for path in (tmp_path / "mlartifacts").rglob("*"))
    again = MLflowLogger()
    fit(again, epochs=3, resume=tmp_path / "checkpoints")
    assert again.run_id == logger.run_id
    with pytest.raises(OSError, match="disk"):
        fit(failing := MLflowLogger(), fail_at=3)
    assert client.get_run(failing.run_id).info.status == "FAILED"


@pytest.mark.long
def test_weights_and_biases_gets_the_run_offline(fit, tmp_path):
    logger = WandbLogger(log_snapshots=True, mode="offline", options={"settings": {"silent": True}})
    fit(logger, ModelCheckpoint(), epochs=2)
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    deadline = time.monotonic() + 60  # W&B's own process may still write when the run has ended
    losses, uploads = [], []
    while (len(losses), len(uploads)) != (16, 2) and time.monotonic() < deadline:
        time.sleep(0.2)
        losses = [record for record in history(path) if "train/loss" in record]
        uploads = [artifact for record in offline_records(path) for artifact in artifacts(record)]
    assert [int(record["global_step"]) for record in losses] == list(range(1, 17))
    assert logger.run_id in path.name
    assert {artifact.name for artifact in uploads} == {f"snapshot-{logger.run_id}"}
    steps = [json.loads(artifact.metadata)["step"] for artifact in uploads]
    assert steps == [8, 16]


def history(path):
    """Return the values logged at each point."""
    points = []
    for record in offline_records(path):
        items = record.history.item
        points.append({".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items})
    return points


def artifacts(record):
    """Return the artifact that a record uploads, if any."""
    held = [record.artifact, record.request.log_artifact.artifact]
    return [artifact for artifact in held if artifact.name]


def offline_records(path):
    """Return the records of W&B's transaction log: LevelDB's log format after a header of seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, parts, found = path.read_bytes(), 7, b"", []
    while position + 7 <= len(data):
        if (left := 32768 - position % 32768) < 7:
            position += left
            continue
        length, kind = struct.unpack_from("<HB", data, position + 4)
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last of several
            record, parts = Record.FromString(parts), b""
            found.append(record)
    return found


@pytest.mark.parametrize("kind", [JSONLinesLogger, CSVLogger])
def test_a_line_that_a_failed_write_cut_does_not_spoil_the_next(kind, tmp_path):
    """A disk that was full for a moment."""
    path = tmp_path / "case" / "log"
    path.parent.mkdir()
    log, faults = kind(path), Faults(path.parent)
    with faults.active(), faults.arm(None):
        log.open(None, 0)
        for step in (1, 2):
            log.log_metrics({"loss": 0.5}, step)
            log.flush()
        with faults.arm(Plan("write", 0, "ENOSPC")), pytest.raises(OSError, match="No space left"):  # noqa: PT012
            log.log_metrics({"loss": 0.125}, 3)
            log.log_metrics({"loss": 0.125}, 4)  # a row of CSV is written when the next one starts
        log.log_metrics({"loss": 0.25}, 14)
        log.close()
    lines = path.read_text().splitlines()
    assert lines[-1] in ('{"step": 14, "loss": 0.25}', "14,0.25")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("val/ndcg@5", "val/ndcg_at_5"),
        ("val/auc/city=Zürich (west), 8+", "val/auc/city_Zürich _west__ 8_"),
        ("val/auc/path=/a//b/", "val/auc/path_/a/b"),
        ("train/loss", "train/loss"),
        ("", "_"),
        ("/ratio", "_ratio"),
        ("val/auc/url=" + "x" * 300, "val/auc/url_" + "x" * 188),
    ],
)
def test_names_of_metrics_are_changed_where_mlflow_refuses_them(name, expected):
    """MLflow refuses all numbers of a point for one such name."""
    assert mlflow_name(name) == expected


@pytest.mark.long
def test_mlflow_holds_slices_and_metrics_of_the_first_rows(fit, tmp_path):
    from mlflow.tracking import MlflowClient

    def replace(trainer):
        grades = {"val_auc/grade=A+": 0.75, "val_auc/grade=A*": 0.875}  # they differ in a sign alone
        trainer.state.metrics = {"val_ndcg@5": 0.5, **grades, "val_auc": 0.25}

    logger = MLflowLogger()
    fit(LambdaCallback(order=-100, on_eval_end=replace), logger, epochs=1)
    metrics = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}").get_run(logger.run_id).data.metrics
    assert (metrics["val/ndcg_at_5"], metrics["val/auc"]) == (0.5, 0.25)
    assert (metrics["val/auc/grade_A_"], metrics["val/auc/grade_A__"]) == (0.75, 0.875)


@pytest.mark.long
def test_mlflow_holds_the_parameters_of_each_training_by_any_name(tmp_path):
    from mlflow.tracking import MlflowClient

    logger, ids, x = (
        MLflowLogger(hparams={"rate:η": 0.1, "a+b": 1, "a=b": 2, 3: "three"}),
        [],
        np.ones((8, 2), np.float32),
    )
    net = nn.Dense(2, 1)
    trainer = Trainer(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1), run_dir=tmp_path)
    for _ in range(2):
        trainer.fit((x, x[:, :1]), batch_size=4, callbacks=logger)
        ids.append(logger.run_id)
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    for run_id in ids:
        assert client.get_run(run_id).data.params == {"rate_η": "0.1", "a_b": "1", "a_b_": "2", "3": "three"}


def test_a_column_that_found_no_room_does_not_shift_later_rows(tmp_path):
    path = tmp_path / "case" / "log"
    path.parent.mkdir()
    log, faults = CSVLogger(path), Faults(path.parent)
    with faults.active(), faults.arm(None):
        log.open(None, 0)
        log.log_metrics({"loss": 0.5}, 1)
        log.log_metrics({"loss": 0.25, "auc": 0.75}, 2)
        with faults.arm(Plan("write", 1, "ENOSPC")), pytest.raises(OSError, match="No space left"):
            log.log_metrics({"loss": 0.125}, 3)
        for step in (3, 4):
            log.log_metrics({"loss": 0.125, "auc": 0.875}, step)
        log.close()
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    assert all(None not in row for row in rows)
    assert rows[-1] == {"step": "4", "loss": "0.125", "auc": "0.875"}
