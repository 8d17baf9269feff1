import json
import threading
import urllib.error
import urllib.request

import pytest

from callbacks import DriftMonitor, HealthFile, LambdaCallback, ModelCheckpoint, PrometheusMonitor
from trainer.metrics.drift import PageHinkley


def scrape(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_the_endpoint_serves_the_run_and_closes_with_it(fit):
    seen = []
    monitor = PrometheusMonitor(port=0, every=1)
    watch = LambdaCallback(order=200, on_train_end=lambda t: seen.append(scrape(monitor.port)))
    trainer = fit(monitor, watch, ModelCheckpoint(), epochs=1)
    (values,) = seen
    assert values["trainer_global_step"] == 8
    assert values["trainer_samples_seen"] == 512
    assert values["trainer_val_auc"] == pytest.approx(trainer.state.metrics["val_auc"])
    assert values["trainer_last_snapshot_timestamp_seconds"] > 1e9
    with pytest.raises(urllib.error.URLError):
        scrape(monitor.port)


def test_a_second_run_in_the_same_process_gets_its_own_registry(online):
    seen = []
    monitor = PrometheusMonitor(port=0, every=1)
    watch = LambdaCallback(on_train_step_begin=lambda t: seen.append(scrape(monitor.port)))
    for auc in (0.6, 0.7):
        online([{"window_auc": auc}] * 2, watch, monitor)
    assert "trainer_window_auc" not in seen[2]
    assert seen[3]["trainer_window_auc"] == pytest.approx(0.7)


def test_a_taken_port_is_an_error_that_leaves_no_thread(fit):
    first = PrometheusMonitor(port=0)
    first.setup(None)
    try:
        with pytest.raises(OSError, match="in use"):
            fit(PrometheusMonitor(port=first.port))
    finally:
        first.teardown(None)
    assert "prometheus" not in {thread.name for thread in threading.enumerate()}


def test_the_health_file_says_how_the_run_is_doing(online, tmp_path):
    path, seen = tmp_path / "health" / "run.json", []
    watch = LambdaCallback(order=200, on_train_step_end=lambda t: seen.append(json.loads(path.read_text())))
    windows = [{"window_auc": 0.7, "lag": 30}, {"window_auc": float("nan"), "lag": 20}] * 3
    online(windows, watch, HealthFile(path, every=1), ModelCheckpoint(every=4))
    assert [report["last_step"] for report in seen] == [1, 2, 3, 4, 5, 6]
    assert (seen[0]["status"], seen[0]["auc"], seen[0]["lag"]) == ("running", 0.7, 30)
    assert seen[1]["auc"] is None
    assert seen[5]["last_snapshot"].endswith("step_00000004")
    last = json.loads(path.read_text())
    assert (last["status"], last["stop_reason"].split(":")[0]) == ("ended", "stream_end")
    assert [entry.name for entry in path.parent.iterdir()] == ["run.json"]


def test_the_health_file_of_a_failed_run_says_why(fit, tmp_path):
    with pytest.raises(OSError, match="disk"):
        fit(HealthFile(tmp_path / "h.json"), fail_at=2)
    report = json.loads((tmp_path / "h.json").read_text())
    assert (report["status"], report["exception"]) == ("failed", "OSError: the disk is gone")


def test_a_drift_reaches_every_callback_and_raises_the_rate_for_some_windows(online):
    events, rates = [], []
    monitor = DriftMonitor(
        PageHinkley(threshold=0.1),
        "window_log_loss",
        on_drift=lambda t: events.append("own"),
        lr_factor=4.0,
        lr_windows=2,
    )
    other = LambdaCallback(
        on_drift=lambda t: events.append(dict(t.state.drift)),
        on_train_step_begin=lambda t: rates.append(round(t.learning_rate, 6)),
    )
    online([{"window_log_loss": loss} for loss in [0.5] * 5 + [0.9] + [0.9] * 2], monitor, other)
    assert events[0] == "own"
    assert events[1] == {
        "detector": "PageHinkley",
        "key": "window_log_loss",
        "value": 0.9,
        "count": 1,
        "global_step": 6,
        "samples_seen": 384,
    }
    assert len(events) == 2
    assert rates == [0.01] * 6 + [0.04] * 2


def test_the_detector_and_the_response_survive_a_resume(online):
    first = DriftMonitor(PageHinkley(threshold=0.1), lr_factor=2.0, lr_windows=3)
    online([{"window_log_loss": loss} for loss in [0.5] * 5 + [0.9] * 2], first)
    second = DriftMonitor(PageHinkley(threshold=0.1), lr_factor=2.0, lr_windows=3)
    rates = []
    watch = LambdaCallback(
        on_train_begin=lambda t: second.load_state_dict(json.loads(json.dumps(first.state_dict()))),
        on_train_step_begin=lambda t: rates.append(round(t.learning_rate, 6)),
    )
    # The rate came back with the optimizer's own state: two windows of the response are left, then it is divided.
    online([{"window_log_loss": 0.9}] * 3, watch, second)
    assert rates == [0.01, 0.01, 0.005]
    assert second.detector.state_dict()["count"] == 4
