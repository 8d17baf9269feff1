import logging

import numpy as np
import pytest

from callbacks import ModelCheckpoint, SkipNonFinite, TerminateOnNaN


@pytest.fixture
def poisoned(digits):
    """Return a function: batch numbers -> the digits with NaN in one pixel of each of these batches."""

    def poison(*batches):
        x, y = digits["train"]
        x = x.copy()
        for batch in batches:
            x[batch * 64 + 5, 3] = np.nan
        return {**digits, "train": (x, y)}

    return poison


def test_a_bad_step_ends_the_run_with_sound_weights(driver, poisoned):
    trainer = driver(TerminateOnNaN(every=1), data=poisoned(3))
    trainer.fit(epochs=2, valid=False)
    assert trainer.state.progress.global_step == 4
    assert trainer.state.stop_reason.kind == "non_finite"
    assert trainer.state.skipped_steps == 1
    assert all(np.isfinite(p.asnumpy()).all() for p in trainer.network.get_parameters())


def test_a_bad_step_between_two_readings_is_found_at_the_epoch_end(driver, poisoned):
    trainer = driver(TerminateOnNaN(every=1000), data=poisoned(3))
    trainer.fit(epochs=3, valid=False)
    assert trainer.state.progress.epoch == 1
    assert trainer.state.stop_reason.kind == "non_finite"


def test_a_healthy_run_reads_the_counters_only_when_due(driver):
    trainer = driver(TerminateOnNaN(every=4))
    trainer.fit(epochs=1, valid=False)
    # Begin, steps 4 and 8, epoch end, end.
    assert trainer.copies == 5
    assert trainer.state.stop_reason.kind == "limit"


def test_a_bad_step_is_skipped_counted_and_placed(driver, poisoned, caplog):
    skip = SkipNonFinite(max_consecutive=3, every=4)
    with caplog.at_level(logging.WARNING):
        trainer = driver(skip, data=poisoned(5))
        trainer.fit(epochs=1, valid=False)
    assert trainer.state.stop_reason.kind == "limit"
    assert trainer.state.skipped_steps == 1
    assert skip.skipped == [{"count": 1, "first_step": 5, "last_step": 8, "positions": [{"row": 256}, {"row": 448}]}]
    assert "1 update(s) skipped between steps 5 and 8" in caplog.text


def test_too_many_in_a_row_roll_back_to_the_last_snapshot_and_end_the_run_when_that_does_not_help(driver, poisoned):
    skip = SkipNonFinite(max_consecutive=2, max_rollbacks=2, every=1)
    trainer = driver(ModelCheckpoint(every=3, keep_last=None), skip, data=poisoned(4, 5))
    trainer.fit(epochs=1, valid=False)
    assert trainer.rollbacks >= 1
    assert trainer.state.snapshot.name >= "step_00000003"


def test_without_a_snapshot_or_with_rollback_off_the_run_ends(driver, poisoned):
    trainer = driver(SkipNonFinite(max_consecutive=2, every=1), data=poisoned(1, 2, 3))
    trainer.fit(epochs=1, valid=False)
    assert trainer.state.progress.global_step == 3
    assert (
        "2 non-finite steps in a row (max_consecutive=2), and there is no snapshot" in trainer.state.stop_reason.detail
    )
    trainer = driver(SkipNonFinite(max_consecutive=1, rollback=False, every=1), data=poisoned(0))
    trainer.fit(epochs=1, valid=False)
    assert trainer.state.stop_reason.kind == "non_finite"
    assert trainer.state.progress.global_step == 1


def test_a_whole_chunk_of_steps_is_looked_at(driver, poisoned):
    trainer = driver(TerminateOnNaN(every=1), data=poisoned(1), sink_size=4)
    trainer.fit(epochs=1, valid=False)
    assert trainer.state.progress.global_step == 4
    assert trainer.state.stop_reason.kind == "non_finite"
