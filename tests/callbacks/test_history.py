import json

import pytest

from callbacks import Every, History
from callbacks.curve import Curve


def test_keeps_one_loss_an_epoch_one_value_a_validation_and_a_curve_between(driver):
    history = History(every=2)
    trainer = driver(history)
    trainer.fit(epochs=2)
    assert history.epoch == [1, 2]
    assert history.steps == {"loss": [8, 16], "val_loss": [8, 16], "val_accuracy": [8, 16]}
    assert history.history["loss"][1] < history.history["loss"][0]
    assert history.history["val_accuracy"][-1] == trainer.state.metrics["val_accuracy"]
    assert history.curve.steps == [2, 4, 6, 8, 10, 12, 14, 16]
    assert history.stop_reason == "limit: epochs=2"
    assert json.loads(json.dumps(history.as_dict())) == history.as_dict()


def test_a_step_without_a_due_point_copies_nothing(driver, monkeypatch):
    from trainer.state import StepOutputs

    read = []
    losses = StepOutputs.losses.fget
    trainer = driver(History(every=4))
    monkeypatch.setattr(trainer, "_epoch", _one_epoch_without_mean(trainer))
    monkeypatch.setattr(StepOutputs, "losses", property(lambda self: read.append(self) or losses(self)))
    trainer.fit(epochs=1)
    assert len(read) == 2


def _one_epoch_without_mean(trainer):
    from trainer.state import StepOutputs

    def epoch(*_):
        for chunk in trainer.chunks(0):
            trainer.state.outputs = StepOutputs(trainer.call_program(chunk), None, chunk, 1, chunk.num_samples)
            trainer.state.progress.global_step += 1
            trainer.callbacks.call("on_train_step_end", trainer)
        trainer.state.progress.epoch += 1

    return epoch


def test_an_exception_is_the_reason_of_the_end(driver):
    history = History()
    with pytest.raises(OSError, match="disk"):
        driver(history).fit(fail_at=3)
    assert history.stop_reason == "exception: OSError: the disk is gone"


def test_window_metrics_are_kept_under_their_names(driver):
    history = History()
    driver(history).online([{"auc": 0.5 + i / 100, "window_lag": i} for i in range(8)])
    assert history.history["window_auc"][:2] == [0.5, 0.51]
    assert history.steps["window_lag"] == list(range(1, 9))
    assert history.stop_reason == "stream_end"


def test_a_resumed_run_goes_on_with_the_record(driver):
    first = History(every=Every(steps=3))
    driver(first).fit(epochs=1)
    second = History(every=Every(steps=3))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.as_dict() == {**first.as_dict(), "stop_reason": None}


def test_a_curve_of_any_length_stays_bounded_and_evenly_spaced():
    curve = Curve(max_points=100)
    for step in range(10_000):
        curve.add(step, step / 2)
    assert 50 <= len(curve) < 100
    assert {b - a for a, b in zip(curve.steps, curve.steps[1:], strict=False)} == {128}
    assert curve.values == [step / 2 for step in curve.steps]
