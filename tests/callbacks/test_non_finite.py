import logging
import time

import numpy as np
import pytest
from mindspore import amp, nn

from callbacks import ModelCheckpoint, SkipNonFinite, TerminateOnNaN
from trainer.checkpoint import read, snapshot_writer
from trainer.trainer import Trainer


@pytest.fixture
def poisoned(cancer):
    """Return a function: batch numbers -> the data with an infinite value in each of these batches."""

    def poison(*batches):
        x = cancer["train"]["x"].copy()
        for batch in batches:
            x[batch * 64 + 5, 3] = np.inf
        return {**cancer["train"], "x": x}

    return poison


@pytest.fixture
def copies(monkeypatch):
    """Count the readings of the device's counters."""
    made, read = [], Trainer.read_counters
    monkeypatch.setattr(Trainer, "read_counters", lambda self: made.append(self) or read(self))
    return made


def test_a_bad_step_ends_the_run_with_sound_weights(fit, poisoned):
    trainer = fit(TerminateOnNaN(every=1), data=poisoned(3), epochs=2, valid=False)
    assert trainer.state.progress.global_step == 4
    assert trainer.state.stop_reason.kind == "non_finite"
    assert trainer.state.skipped_steps == 1
    assert all(np.isfinite(p.asnumpy()).all() for p in trainer.network.get_parameters())


def test_a_bad_step_between_two_readings_is_found_at_the_epoch_end(fit, poisoned):
    trainer = fit(TerminateOnNaN(every=1000), data=poisoned(3), epochs=3, valid=False)
    assert trainer.state.progress.epoch == 1
    assert trainer.state.stop_reason.kind == "non_finite"


def test_a_bad_step_of_an_earlier_training_does_not_keep_updates_from_the_next(fit, poisoned, tmp_path):
    """Every step after a fatal one is left out: where that lasts, the next training learns nothing."""
    stopped = fit(TerminateOnNaN(every=1), data=poisoned(3), valid=False)
    assert stopped.state.stop_reason.kind == "non_finite"
    stopped.save(tmp_path)
    before = stopped.network[0].weight.asnumpy().copy()
    trainer = fit(TerminateOnNaN(every=1), epochs=1, valid=False, fresh=False)
    assert trainer.state.stop_reason.kind == "limit"
    again = trainer.network[0].weight.asnumpy().copy()
    assert np.abs(again - before).max() > 0
    trainer = fit(TerminateOnNaN(every=1), epochs=3, valid=False, resume=tmp_path)
    assert trainer.state.stop_reason.kind == "limit"
    assert np.abs(trainer.network[0].weight.asnumpy() - before).max() > 0


def test_a_healthy_run_reads_the_counters_only_when_due(fit, copies):
    trainer = fit(TerminateOnNaN(every=4), epochs=1, valid=False)
    # Begin, steps 4 and 8, epoch end, end.
    assert len(copies) == 5
    assert trainer.state.stop_reason.kind == "limit"


def test_a_bad_step_is_skipped_counted_and_placed(fit, poisoned, caplog):
    skip = SkipNonFinite(max_consecutive=3, every=4)
    with caplog.at_level(logging.WARNING):
        trainer = fit(skip, data=poisoned(5), epochs=1, valid=False)
    assert trainer.state.stop_reason.kind == "limit"
    assert trainer.state.skipped_steps == 1
    (record,) = skip.skipped
    assert record["step"] == 6
    assert [place["batch"] for place in record["between"]] == [5, 6]
    assert "skipped step 6" in caplog.text


def test_too_many_in_a_row_roll_back_to_the_last_snapshot(fit, poisoned, monkeypatch):
    rolled, rollback = [], Trainer.rollback

    def watched(trainer):
        rollback(trainer)
        weights = {p.name: p.asnumpy().copy() for p in trainer.network.get_parameters()}
        rolled.append((trainer.state.progress.global_step, trainer.state.snapshot, weights))

    monkeypatch.setattr(Trainer, "rollback", watched)
    skip = SkipNonFinite(max_consecutive=2, every=1)
    trainer = fit(ModelCheckpoint(every=3, keep_last=None), skip, data=poisoned(4, 5), epochs=1, valid=False)
    ((step, snapshot, weights),) = rolled
    assert (step, snapshot.name) == (6, "step_00000003")
    for name, value in read(snapshot).tensors("model").items():
        np.testing.assert_array_equal(weights[name], value)
    assert trainer.state.progress.global_step == 8
    assert trainer.state.stop_reason.kind == "limit"


def test_rollbacks_that_do_not_help_end_the_run(fit, poisoned):
    skip = SkipNonFinite(max_consecutive=2, max_rollbacks=1, every=1)
    trainer = fit(ModelCheckpoint(every=2), skip, data=poisoned(2, 3, 4, 5, 6, 7), epochs=1, valid=False)
    assert trainer.state.progress.global_step == 6
    assert trainer.state.stop_reason.detail == "2 non-finite steps in a row (max_consecutive=2) again after 1 rollbacks"


def test_without_a_snapshot_or_with_rollback_off_the_run_ends(fit, poisoned):
    trainer = fit(SkipNonFinite(max_consecutive=2, every=1), data=poisoned(1, 2, 3), epochs=1, valid=False)
    assert trainer.state.progress.global_step == 3
    assert (
        "2 non-finite steps in a row (max_consecutive=2), and there is no snapshot" in trainer.state.stop_reason.detail
    )
    trainer = fit(SkipNonFinite(max_consecutive=1, rollback=False, every=1), data=poisoned(0), epochs=1, valid=False)
    assert trainer.state.stop_reason.kind == "non_finite"
    assert trainer.state.progress.global_step == 1


def test_a_whole_chunk_of_steps_is_looked_at(fit, poisoned):
    trainer = fit(TerminateOnNaN(every=4), data=poisoned(1), sink_size=4, epochs=1, valid=False)
    assert trainer.state.progress.global_step == 4
    assert trainer.state.stop_reason.kind == "non_finite"


@pytest.mark.parametrize("callback", [TerminateOnNaN(every=1), SkipNonFinite(max_consecutive=3, every=1)])
def test_an_overflow_that_the_loss_scale_answers_is_no_reason_to_end(callback, cancer):
    network = nn.SequentialCell(nn.Dense(30, 8), nn.ReLU(), nn.Dense(8, 1))
    optimizer = nn.Adam(network.trainable_params(), learning_rate=0.01)
    scaler = amp.DynamicLossScaler(2.0**40, 2, 1000)
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), optimizer, amp_level="O2", loss_scale=scaler)
    data, options = cancer["train"], {"batch_size": 64, "shuffle": False, "sink_size": 1}
    before = network[0].weight.asnumpy().copy()
    trainer.fit(data, epochs=3, callbacks=callback, **options)
    assert trainer.state.stop_reason.kind == "limit"
    assert 3 < trainer.state.skipped_steps < 24
    assert np.abs(network[0].weight.asnumpy() - before).max() > 0
    trainer.fit({**data, "y": np.full_like(data["y"], np.nan)}, callbacks=callback, **options)
    assert trainer.state.stop_reason.kind == "non_finite", "the loss itself is not finite"


def test_an_earlier_training_is_no_reason_to_roll_back_and_a_rollback_keeps_the_numbers_of_steps(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(6, 8, 4)).astype(np.float32), np.ones((8, 1), np.float32)

    def batches(*bad):
        return [(np.full_like(rows, np.inf) if index in bad else rows, y) for index, rows in enumerate(x)]

    net = nn.Dense(4, 1)
    trainer = Trainer(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.01))
    trainer.fit(batches(1, 2), callbacks=[SkipNonFinite(max_consecutive=5)])
    trainer.save(tmp_path)
    trainer.fit(batches(4), callbacks=[SkipNonFinite(max_consecutive=2)])
    assert trainer.read_counters()["skipped"] == 3  # a rollback would restore 2
    assert trainer.read_bad_steps() == [2, 3, 11]
    trainer.rollback()
    assert trainer.read_bad_steps() == [2, 3, 11]


@pytest.mark.parametrize("verb", ["init_from", "load"])
def test_weights_that_were_loaded_are_not_rolled_back_to_those_before(verb, fit, poisoned, tmp_path):
    trainer = fit(SkipNonFinite(), epochs=1, valid=False)
    trainer.save(tmp_path / "others")
    fit(SkipNonFinite(), epochs=1, valid=False, fresh=False).save(tmp_path / "own")
    options = {"weights_only": True} if verb == "load" else {}
    getattr(trainer, verb)(tmp_path / "others", **options)
    before = trainer.network[0].weight.asnumpy().copy()
    skip = SkipNonFinite(max_consecutive=2, every=1)
    trainer = fit(skip, data=poisoned(0, 1), epochs=1, valid=False, fresh=False)
    assert "there is no snapshot to roll back to" in trainer.state.stop_reason.detail
    np.testing.assert_array_equal(trainer.network[0].weight.asnumpy(), before)


def test_a_rollback_waits_for_the_first_snapshot_that_is_being_written(fit, poisoned, tmp_path, monkeypatch):
    store = snapshot_writer.store
    monkeypatch.setattr(snapshot_writer, "store", lambda *given: time.sleep(0.5) or store(*given))
    checkpoint, skip = ModelCheckpoint(tmp_path, every=2, background=True), SkipNonFinite(max_consecutive=2, every=1)
    trainer = fit(checkpoint, skip, data=poisoned(2, 3), epochs=1, valid=False)
    assert trainer.state.stop_reason.kind == "limit"
    assert trainer.state.skipped_steps == 0, "those of the snapshot"
