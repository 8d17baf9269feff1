import json
import urllib.error
import urllib.request

import pytest

from callbacks import DriftMonitor, HealthFile, LambdaCallback, ModelCheckpoint, PrometheusMonitor
from trainer.drift import PageHinkley


def scrape(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_the_endpoint_serves_the_run_and_closes_with_it(driver):
    seen = []
    monitor = PrometheusMonitor(port=0, every=1)
    trainer = driver(
        monitor, LambdaCallback(on_train_end=lambda t: seen.append(scrape(monitor.port))), ModelCheckpoint()
    )
    trainer.fit(epochs=1)
    (values,) = seen
    assert values["trainer_global_step"] == 8
    assert values["trainer_samples_seen"] == 512
    assert values["trainer_val_accuracy"] == pytest.approx(trainer.state.metrics["val_accuracy"])
    assert values["trainer_last_snapshot_timestamp_seconds"] > 1e9
    with pytest.raises(urllib.error.URLError):
        scrape(monitor.port)


def test_a_second_run_in_the_same_process_gets_its_own_registry(driver):
    seen = []
    monitor = PrometheusMonitor(port=0, every=1)
    watch = LambdaCallback(on_window_end=lambda t: seen.append(scrape(monitor.port)))
    for auc in (0.6, 0.7):
        driver(watch, monitor).online([{"auc": auc}] * 2)
    assert "trainer_window_auc" not in seen[2]
    assert seen[3]["trainer_window_auc"] == pytest.approx(0.7)


def test_a_taken_port_is_an_error_that_leaves_no_thread(driver):
    first, second = PrometheusMonitor(port=0), None
    trainer = driver(first)
    first.setup(trainer)
    try:
        second = PrometheusMonitor(port=first.port)
        with pytest.raises(OSError, match="in use"):
            driver(second).fit()
    finally:
        first.teardown(trainer)


def test_the_health_file_says_how_the_run_is_doing(driver, tmp_path):
    path, seen = tmp_path / "health" / "run.json", []
    watch = LambdaCallback(order=200, on_window_end=lambda t: seen.append(json.loads(path.read_text())))
    trainer = driver(watch, HealthFile(path, every=1), ModelCheckpoint(every=4))
    trainer.online([{"auc": 0.7, "lag": 30}, {"auc": float("nan"), "lag": 20}] * 3)
    assert [report["last_step"] for report in seen] == [1, 2, 3, 4, 5, 6]
    assert (seen[1]["status"], seen[1]["auc"], seen[1]["lag"]) == ("running", 0.7, 30)
    assert seen[2]["auc"] is None
    assert seen[5]["last_snapshot"].endswith("step_00000004")
    last = json.loads(path.read_text())
    assert (last["status"], last["stop_reason"]) == ("ended", "stream_end")
    assert [entry.name for entry in path.parent.iterdir()] == ["run.json"]


def test_the_health_file_of_a_failed_run_says_why(driver, tmp_path):
    with pytest.raises(OSError, match="disk"):
        driver(HealthFile(tmp_path / "h.json")).fit(fail_at=2)
    report = json.loads((tmp_path / "h.json").read_text())
    assert (report["status"], report["exception"]) == ("failed", "OSError: the disk is gone")


def test_a_drift_reaches_every_callback_and_raises_the_rate_for_some_windows(driver):
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
    driver(monitor, other).online([{"log_loss": loss} for loss in [0.5] * 5 + [0.9] + [0.9] * 2])
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


def test_the_detector_and_the_response_survive_a_resume(driver):
    first = DriftMonitor(PageHinkley(threshold=0.1), lr_factor=2.0, lr_windows=3)
    driver(first).online([{"log_loss": loss} for loss in [0.5] * 5 + [0.9] * 2])
    second = DriftMonitor(PageHinkley(threshold=0.1), lr_factor=2.0, lr_windows=3)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    trainer = driver(second)
    trainer.learning_rate = 0.02
    trainer.state.window = {"log_loss": 0.9}
    for expected in (0.02, 0.01):
        second.on_window_end(trainer)
        assert trainer.learning_rate == pytest.approx(expected)
    assert second.detector.state_dict()["count"] == 3
