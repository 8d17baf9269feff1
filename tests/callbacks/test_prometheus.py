import threading
import urllib.error
import urllib.request

import pytest

from callbacks import LambdaCallback, ModelCheckpoint, PrometheusMonitor

pytestmark = pytest.mark.server


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


def test_slices_whose_names_differ_in_signs_alone_are_two_gauges(online):
    seen = []
    monitor = PrometheusMonitor(port=0, every=1)
    watch = LambdaCallback(order=200, on_train_end=lambda t: seen.append(scrape(monitor.port)))
    online([{"window_auc/grade=A+": 0.6, "window_auc/grade=A-": 0.7, "window_auc/city=Köln": 0.8}], monitor, watch)
    named = {name: value for name, value in seen[0].items() if name.startswith("trainer_window_auc_")}
    assert named == pytest.approx(
        {"trainer_window_auc_grade_A_": 0.6, "trainer_window_auc_grade_A__": 0.7, "trainer_window_auc_city_K_ln": 0.8}
    )
