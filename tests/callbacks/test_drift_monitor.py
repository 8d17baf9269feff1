import json

from callbacks import DriftMonitor, LambdaCallback
from trainer.metrics.drift import PageHinkley


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
