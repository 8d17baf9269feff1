import json

import pytest

from callbacks import Every, History, ModelCheckpoint
from callbacks.history import Curve
from trainer.run.tally import LossMeter
from trainer.state import StepOutputs


def test_keeps_one_loss_an_epoch_one_value_a_validation_and_a_curve_between(fit):
    history = History(every=2)
    trainer = fit(history, epochs=2)
    assert history.epoch == [1, 2]
    assert history.steps == {"loss": [8, 16], "val_loss": [8, 16], "val_auc": [8, 16]}
    assert history.history["loss"][1] < history.history["loss"][0]
    assert history.history["val_auc"][-1] == trainer.state.metrics["val_auc"]
    assert history.curve.steps == [2, 4, 6, 8, 10, 12, 14, 16]
    assert history.stop_reason == "limit: epochs=2"
    assert json.loads(json.dumps(history.as_dict())) == history.as_dict()


def test_the_best_value_names_its_step_and_the_snapshot_where_it_lies(fit, tmp_path):
    history = History()
    fit(ModelCheckpoint(tmp_path, keep_last=9), history, epochs=4)
    values = history.history["val_auc"]
    best = history.best["val_auc"]
    assert best.value == max(values)
    assert best.step == history.steps["val_auc"][values.index(max(values))]
    assert best.snapshot == f"step_{best.step:08d}"
    assert history.best["val_loss"].value == min(history.history["val_loss"])


def test_a_step_without_a_due_point_copies_nothing(fit, monkeypatch):
    read = []
    losses = StepOutputs.losses.fget

    def counted(outputs):
        read.append(outputs)
        return losses(outputs)

    monkeypatch.setattr(StepOutputs, "losses", property(counted))
    monkeypatch.setattr(LossMeter, "value", lambda self: None)
    fit(History(every=4), epochs=1, valid=False)
    assert len(read) == 2


def test_an_exception_is_the_reason_of_the_end(fit):
    history = History()
    with pytest.raises(OSError, match="disk"):
        fit(history, fail_at=3)
    assert history.stop_reason == "exception: OSError: the disk is gone"


def test_window_metrics_are_kept_under_their_names(online):
    history = History()
    online([{"window_auc": 0.5 + i / 100, "lag": i} for i in range(8)], history)
    assert history.history["window_auc"][:2] == [0.5, 0.51]
    assert history.steps["lag"] == list(range(1, 9))
    assert history.stop_reason.startswith("stream_end")


def test_a_stream_records_what_its_windows_really_measured(online):
    history = History()
    online([None] * 8, history)
    assert history.history["lifetime_auc"][-1] > history.history["lifetime_auc"][0]
    assert len(history.history["window_loss"]) == 8


def test_a_resumed_run_goes_on_with_the_record(fit):
    first = History(every=Every(steps=3))
    fit(first, epochs=1)
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
