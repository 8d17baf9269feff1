import json

from callbacks import DriftMonitor, LambdaCallback
from trainer.metrics.drift import PageHinkley


def test_a_drift_reaches_every_callback_which_may_set_the_rate(online):
    events, rates = [], []

    def on_drift(trainer):
        events.append(dict(trainer.state.drift))
        trainer.learning_rate = 0.04

    monitor = DriftMonitor(PageHinkley(threshold=0.1), "window_log_loss")
    other = LambdaCallback(
        on_drift=on_drift,
        on_train_step_begin=lambda t: rates.append(round(t.learning_rate, 6)),
    )
    online([{"window_log_loss": loss} for loss in [0.5] * 5 + [0.9] + [0.9] * 2], monitor, other)
    assert events == [
        {
            "detector": "PageHinkley",
            "key": "window_log_loss",
            "value": 0.9,
            "count": 1,
            "global_step": 6,
            "samples_seen": 384,
        }
    ]
    assert rates == [0.01] * 6 + [0.04] * 2


def test_the_detector_survives_a_resume(online):
    first = DriftMonitor(PageHinkley(threshold=0.1))
    online([{"window_log_loss": loss} for loss in [0.5] * 5 + [0.9] * 2], first)
    second = DriftMonitor(PageHinkley(threshold=0.1))
    watch = LambdaCallback(
        on_train_begin=lambda t: second.load_state_dict(json.loads(json.dumps(first.state_dict()))),
    )
    online([{"window_log_loss": 0.9}] * 3, watch, second)
    assert second.detector.state_dict()["count"] == 4


def test_the_detector_of_another_metric_begins_anew():
    first = DriftMonitor(PageHinkley(threshold=0.1))
    for loss in [0.5] * 5:
        first.detector.update(loss)
    second = DriftMonitor(PageHinkley(threshold=0.1), key="window_auc")
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.detector.state_dict()["count"] == 0
