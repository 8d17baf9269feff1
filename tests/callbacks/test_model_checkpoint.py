import pytest

from callbacks import EarlyStopping, Every, LambdaCallback, ModelCheckpoint


def names(folder):
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir())


def scores(values):
    iterator = iter(values)
    return LambdaCallback(on_eval_end=lambda trainer: trainer.state.metrics.update(val_accuracy=next(iterator)))


def test_by_default_the_last_two_epochs_are_kept(driver, tmp_path):
    driver(ModelCheckpoint()).fit(epochs=4, valid=False)
    assert names(tmp_path / "checkpoints") == ["step_00000024", "step_00000032"]


def test_a_cadence_in_steps_and_a_last_one_when_the_run_ends(driver, tmp_path):
    driver(ModelCheckpoint(tmp_path / "c", every=5, keep_last=None)).fit(epochs=2, valid=False)
    assert names(tmp_path / "c") == ["step_00000005", "step_00000010", "step_00000015", "step_00000016"]


def test_nothing_but_the_cadence_when_told_so(driver, tmp_path):
    driver(ModelCheckpoint(tmp_path / "c", every=Every(epochs=2), save_on_exit=False)).fit(epochs=3, valid=False)
    assert names(tmp_path / "c") == ["step_00000016"]


def test_the_best_and_the_last_are_kept_and_the_best_is_pointed_at(driver, tmp_path):
    checkpoint = ModelCheckpoint(monitor="val_accuracy", keep_best=2, keep_last=1)
    driver(scores([0.2, 0.9, 0.8, 0.1, 0.3]), checkpoint).fit(epochs=5)
    assert names(tmp_path / "checkpoints") == ["step_00000016", "step_00000024", "step_00000040"]
    assert (tmp_path / "checkpoints" / "best").read_text() == "step_00000016"


def test_a_good_validation_between_two_cadences_gets_its_own_snapshot(driver, tmp_path):
    checkpoint = ModelCheckpoint(monitor="val_accuracy", every=8, keep_last=1)
    driver(scores([0.2, 0.9, 0.3, 0.4]), checkpoint).fit(epochs=2, valid_steps=4)
    # Validations at 4, 8, 12 and 16; the one at 8 stays the best.
    assert names(tmp_path / "checkpoints") == ["step_00000008", "step_00000016"]
    assert checkpoint.best_name == "step_00000008"


def test_nothing_is_removed_before_a_newer_snapshot_is_durable(driver, tmp_path):
    trainer = driver(ModelCheckpoint(every=4, keep_last=1))
    prune = trainer.prune
    left = []

    def watched(root, keep):
        left.append((trainer.state.snapshot.name, names(root)))
        prune(root, keep)

    trainer.prune = watched
    trainer.fit(epochs=1, valid=False)
    assert left == [("step_00000008", ["step_00000004", "step_00000008"])]


def test_snapshots_of_other_runs_are_left_alone(driver, tmp_path):
    other = tmp_path / "checkpoints" / "step_00000003"
    other.mkdir(parents=True)
    driver(ModelCheckpoint(every=4, keep_last=1)).fit(epochs=1, valid=False)
    assert names(tmp_path / "checkpoints") == ["step_00000003", "step_00000008"]


def test_a_resumed_run_knows_and_ranks_what_the_first_one_kept(driver, tmp_path):
    def make():
        return ModelCheckpoint(monitor="val_accuracy", keep_best=1, keep_last=1)

    driver(scores([0.9, 0.1]), make()).fit(epochs=2)
    assert names(tmp_path / "checkpoints") == ["step_00000008", "step_00000016"]
    second = make()
    resumed = driver(scores([0.5, 0.95]), second)
    resumed.fit(epochs=3, resume=tmp_path / "checkpoints" / "step_00000016")
    assert names(tmp_path / "checkpoints") == ["step_00000008", "step_00000024"]
    assert second.best_name == "step_00000008"
    resumed.fit(epochs=4)
    assert names(tmp_path / "checkpoints") == ["step_00000032"]
    assert second.best_name == "step_00000032"


def test_the_snapshot_holds_the_state_of_callbacks_that_run_before_it(driver, tmp_path):
    stopping = EarlyStopping("val_accuracy", patience=5)
    driver(ModelCheckpoint(), scores([0.9, 0.1, 0.1]), stopping).fit(epochs=3)
    again = EarlyStopping("val_accuracy", patience=5)
    trainer = driver(ModelCheckpoint(), scores([]), again)
    trainer.fit(epochs=3, resume=tmp_path / "checkpoints" / "step_00000024")
    assert (again.best, again.wait) == (0.9, 2)


def test_each_window_of_a_stream_can_have_a_snapshot(driver, tmp_path):
    driver(ModelCheckpoint(every="window", keep_last=2)).online([{"auc": 0.5}] * 5)
    assert names(tmp_path / "checkpoints") == ["step_00000004", "step_00000005"]


def test_a_run_that_stops_in_the_middle_of_an_epoch_is_saved(driver, tmp_path):
    def stop(trainer):
        if trainer.state.progress.global_step == 3:
            trainer.stop("SIGTERM", kind="signal")

    driver(ModelCheckpoint(), LambdaCallback(on_train_step_end=stop)).fit(valid=False)
    assert names(tmp_path / "checkpoints") == ["step_00000003"]


def test_a_failed_write_is_not_counted_as_a_snapshot(driver, tmp_path):
    checkpoint = ModelCheckpoint(every=4)
    trainer = driver(checkpoint)
    trainer.save = lambda root, background: (_ for _ in ()).throw(OSError("no space left on device"))
    with pytest.raises(OSError, match="no space"):
        trainer.fit(valid=False)
    assert checkpoint.state_dict()["records"] == []


def test_without_a_folder_it_is_refused_before_training(driver):
    trainer = driver(ModelCheckpoint(), run_dir=None)
    with pytest.raises(ValueError, match="ModelCheckpoint needs a folder"):
        trainer.fit()
    assert trainer.state.progress.global_step == 0
