import os
import shutil
import signal

import numpy as np
import pytest
from mindspore import nn

from callbacks import EarlyStopping, Every, LambdaCallback, ModelCheckpoint
from trainer.checkpoint.saver import Saver
from trainer.embedding import Embedding
from trainer.errors import CheckpointError, ConfigurationError, FolderInUseError
from trainer.trainer import Trainer


def names(folder):
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir())


def scores(values):
    iterator = iter(values)
    return LambdaCallback(on_eval_end=lambda trainer: trainer.state.metrics.update(val_auc=next(iterator)))


def test_by_default_the_last_two_epochs_are_kept_and_no_step_is_written_twice(fit, tmp_path, monkeypatch):
    save, saved = Trainer.save, []
    monkeypatch.setattr(
        Trainer, "save", lambda self, *a, **k: saved.append(self.state.progress.epoch) or save(self, *a, **k)
    )
    fit(ModelCheckpoint(), epochs=4, valid=False)
    assert names(tmp_path / "checkpoints") == ["step_00000024", "step_00000032"]
    assert saved == [1, 2, 3, 4]


def test_a_cadence_in_steps_and_a_last_one_when_the_run_ends(fit, tmp_path):
    fit(ModelCheckpoint(tmp_path / "c", every=5, keep_last=None), epochs=2, valid=False)
    assert names(tmp_path / "c") == ["step_00000005", "step_00000010", "step_00000015", "step_00000016"]


def test_nothing_but_the_cadence_on_request(fit, tmp_path):
    fit(ModelCheckpoint(tmp_path / "c", every=Every(epochs=2), save_on_exit=False), epochs=3, valid=False)
    assert names(tmp_path / "c") == ["step_00000016"]


def test_the_best_and_the_last_are_kept_and_the_best_is_pointed_at(fit, tmp_path):
    checkpoint = ModelCheckpoint(monitor="val_auc", keep_best=2, keep_last=1)
    fit(scores([0.2, 0.9, 0.8, 0.1, 0.3]), checkpoint, epochs=5)
    assert names(tmp_path / "checkpoints") == ["step_00000016", "step_00000024", "step_00000040"]
    assert (tmp_path / "checkpoints" / "best").read_text().strip() == "step_00000016"


@pytest.mark.parametrize("first", [0, 1])
def test_two_of_one_folder_keep_the_best_snapshots_of_each_other(fit, tmp_path, first):
    other = iter([0.1, 0.2, 0.3])
    measure = LambdaCallback(on_eval_end=lambda trainer: trainer.state.metrics.update(val_loss=-next(other)))
    both = [
        ModelCheckpoint(tmp_path, monitor="val_loss", keep_last=1),
        ModelCheckpoint(tmp_path, monitor="val_auc", keep_last=1, restore_best=True),
    ]
    fit(measure, scores([0.5, 0.9, 0.8]), both[first], both[1 - first], epochs=3)
    assert names(tmp_path) == ["step_00000016", "step_00000024"]  # the best of val_auc, and of val_loss


def test_a_further_network_is_not_given_the_best_weights_of_the_first(fit, tmp_path):
    """As in a cross-validation with one list of callbacks."""
    checkpoint, seen = ModelCheckpoint(tmp_path, monitor="val_auc", restore_best=True), []
    note = LambdaCallback(on_eval_end=lambda trainer: seen.append(weights(trainer)), order=-1)
    fit(scores([0.5, 0.9, 0.8]), checkpoint, epochs=3)
    trainer = fit(note, scores([0.7, 0.6]), checkpoint, epochs=2)  # begins again with a new state
    assert weights(trainer) == seen[0]
    assert (tmp_path / "best").read_text().strip() == "step_00000008"


@pytest.mark.parametrize("background", [False, True])
def test_a_finished_run_has_the_best_weights_and_a_longer_one_goes_on_from_the_last(fit, tmp_path, background):
    def make():
        return ModelCheckpoint(monitor="val_auc", restore_best=True, background=background)

    seen = []
    note = LambdaCallback(on_eval_end=lambda trainer: seen.append(weights(trainer)), order=-1)
    trainer = fit(note, scores([0.2, 0.9, 0.8]), make(), epochs=3)
    assert weights(trainer) == seen[1] != seen[2]
    kill = LambdaCallback(on_eval_end=lambda trainer: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(SystemExit):  # a signal: the run is to be continued, so nothing is restored
        fit(scores([0.5]), kill, make(), epochs=9, resume=tmp_path / "checkpoints")
    assert weights(trainer) not in seen
    resumed = fit(scores([0.1]), make(), epochs=5, resume=tmp_path / "checkpoints")
    assert weights(resumed) == seen[1]
    with pytest.raises(ConfigurationError, match=r"restore_best=True\) needs monitor"):
        ModelCheckpoint(restore_best=True)


def test_what_a_run_begins_with_is_kept_where_it_is_best(fit, tmp_path):
    def callbacks(values, patience=2):
        checkpoint = ModelCheckpoint(monitor="val_auc", restore_best=True)
        return scores(values), EarlyStopping("val_auc", patience=patience), checkpoint

    seen = []
    note = LambdaCallback(on_eval_end=lambda trainer: seen.append(weights(trainer)), order=-1)
    trainer = fit(note, *callbacks([0.9, 0.5, 0.6]), epochs=5, valid_on_start=True)
    assert trainer.history.steps["val_auc"] == [0, 8, 16]
    assert weights(trainer) == seen[0] != seen[2]
    assert names(tmp_path / "checkpoints") == ["step_00000000", "step_00000008", "step_00000016"]
    assert (tmp_path / "checkpoints" / "best").read_text().strip() == "step_00000000"
    resumed = fit(*callbacks([0.95], patience=3), epochs=3, valid_on_start=True, resume=tmp_path / "checkpoints")
    assert resumed.history.steps["val_auc"] == [0, 8, 16, 24]  # the resumed run did not begin with a validation
    assert (tmp_path / "checkpoints" / "best").read_text().strip() == "step_00000024"
    with pytest.raises(ConfigurationError, match=r"valid_on_start=True.*valid_dataset"):
        fit(valid=False, valid_on_start=True)


def test_a_run_that_begins_worse_keeps_no_snapshot_of_its_beginning_for_long(fit, tmp_path):
    fit(scores([0.1, 0.5, 0.6]), ModelCheckpoint(monitor="val_auc", keep_last=1), epochs=2, valid_on_start=True)
    assert names(tmp_path / "checkpoints") == ["step_00000016"]


def weights(trainer):
    return [parameter.asnumpy().tobytes() for parameter in trainer.network.get_parameters()]


def test_a_good_validation_between_two_cadences_gets_its_own_snapshot(fit, tmp_path):
    checkpoint = ModelCheckpoint(monitor="val_auc", every=8, keep_last=1)
    fit(scores([0.2, 0.9, 0.3, 0.4]), checkpoint, epochs=2, valid_every=4)
    # Validations at 4, 8, 12 and 16; the one at 8 stays the best.
    assert names(tmp_path / "checkpoints") == ["step_00000008", "step_00000016"]
    assert checkpoint.best_name == "step_00000008"


def test_nothing_is_removed_before_a_newer_snapshot_is_durable(fit, tmp_path, monkeypatch):
    prune, left = Saver.prune, []

    def watched(saver, root, keep):
        left.append((saver.newest.name, names(root)))
        return prune(saver, root, keep)

    monkeypatch.setattr(Saver, "prune", watched)
    fit(ModelCheckpoint(every=4, keep_last=1, background=True), epochs=1, valid=False)
    assert left == [("step_00000008", ["step_00000004", "step_00000008"])]
    assert names(tmp_path / "checkpoints") == ["step_00000008"]


def test_snapshots_of_other_runs_are_left_alone(fit, tmp_path):
    other = tmp_path / "checkpoints" / "step_00000003"
    other.mkdir(parents=True)
    fit(ModelCheckpoint(every=4, keep_last=1), epochs=1, valid=False)
    assert names(tmp_path / "checkpoints") == ["step_00000003", "step_00000008"]


def test_a_resumed_run_knows_and_ranks_what_the_first_one_kept(fit, tmp_path):
    def make():
        return ModelCheckpoint(monitor="val_auc", keep_best=1, keep_last=1)

    fit(scores([0.9, 0.1]), make(), epochs=2)
    assert names(tmp_path / "checkpoints") == ["step_00000008", "step_00000016"]
    second = make()
    fit(scores([0.5]), second, epochs=3, resume=tmp_path / "checkpoints" / "step_00000016")
    assert names(tmp_path / "checkpoints") == ["step_00000008", "step_00000024"]
    assert second.best_name == "step_00000008"
    fit(scores([0.95]), second, epochs=1, fresh=False)
    assert names(tmp_path / "checkpoints") == ["step_00000032"]
    assert second.best_name == "step_00000032"


def test_a_resumed_run_with_another_monitor_ranks_by_values_of_that_one(fit, tmp_path):
    fit(scores([0.1, 0.05]), ModelCheckpoint(monitor="val_auc", mode="min", keep_last=1), epochs=2)
    assert (tmp_path / "checkpoints" / "best").read_text().strip() == "step_00000016"
    losses = iter([0.7, 0.5, 0.6])
    note = LambdaCallback(on_eval_end=lambda trainer: trainer.state.metrics.update(val_loss=next(losses)))
    checkpoint, stopping = ModelCheckpoint(monitor="val_loss", keep_last=1), EarlyStopping("val_loss", patience=2)
    fit(note, stopping, checkpoint, epochs=5, resume=tmp_path / "checkpoints")
    assert names(tmp_path / "checkpoints") == ["step_00000032", "step_00000040"]
    assert (tmp_path / "checkpoints" / "best").read_text().strip() == checkpoint.best_name == "step_00000032"


@pytest.mark.parametrize("earlier", [False, True])
def test_a_run_resumed_from_another_folder_ranks_and_removes_its_own_snapshots_alone(fit, tmp_path, earlier):
    def make(folder):
        return ModelCheckpoint(tmp_path / folder, monitor="val_auc", keep_last=1, restore_best=True)

    fit(scores([0.9, 0.1]), make("first"), epochs=2)
    if earlier:  # another run's snapshots of the same names
        fit(ModelCheckpoint(tmp_path / "second"), epochs=2, valid=False)
    fit(scores([0.5, 0.2]), make("second"), epochs=4, resume=tmp_path / "first")
    kept = {"step_00000024", "step_00000032"} | ({"step_00000008", "step_00000016"} if earlier else set())
    assert set(names(tmp_path / "second")) == kept
    assert (tmp_path / "second" / "best").read_text().strip() == "step_00000024"
    assert names(tmp_path / "first") == ["step_00000008", "step_00000016"]


def test_two_folders_of_one_run_are_both_known_after_a_resume(fit, tmp_path):
    def make():
        best = ModelCheckpoint(tmp_path / "best", monitor="val_auc", keep_last=1, save_on_exit=False)
        return ModelCheckpoint(tmp_path / "all", keep_last=1), best

    fit(scores([0.9, 0.1]), *make(), epochs=2)
    fit(scores([0.5]), *make(), epochs=3, resume=tmp_path / "best")
    assert names(tmp_path / "best") == ["step_00000008", "step_00000024"]
    assert names(tmp_path / "all") == ["step_00000024"]


@pytest.mark.parametrize("other", [7, 3])
def test_auto_resumes_from_the_latest_snapshot_of_all_folders(fit, tmp_path, other):
    """One callback keeps the best epochs in the run folder, another one is for the case of a failure."""

    def make():
        return ModelCheckpoint(monitor="val_auc"), ModelCheckpoint(tmp_path / "often", every=other)

    with pytest.raises(OSError, match="the disk is gone"):
        fit(scores([0.5, 0.6]), *make(), epochs=3, fail_at=9)
    begun = []
    note = LambdaCallback(on_train_begin=lambda trainer: begun.append(trainer.state.progress.global_step))
    fit(scores([0.5, 0.6]), note, *make(), epochs=3, resume="auto")
    assert begun == [9 if other == 3 else 8]


def test_snapshots_that_others_built_on_are_removed_with_these(tmp_path):
    """Tables are saved as changes since an earlier snapshot, which has to stay as long as these do."""
    network = nn.SequentialCell(Embedding(2, name="ids", mode="sparse"), nn.Dense(2, 1))
    trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1))
    ids = [np.arange(400), *np.arange(23)[:, None]]
    batches = [(row.astype(np.int32), np.ones((len(row), 1), np.float32)) for row in ids]
    trainer.fit(batches, callbacks=[ModelCheckpoint(tmp_path, every=1, keep_last=2)], sink_size=1)
    # Of nine snapshots that follow each other the first one is full: 1, 10 and 19.
    assert names(tmp_path) == [f"step_{step:08d}" for step in range(19, 25)]


def test_the_snapshot_holds_the_state_of_callbacks_that_run_before_it(fit, tmp_path):
    stopping = EarlyStopping("val_auc", patience=5)
    fit(ModelCheckpoint(), scores([0.9, 0.1, 0.1]), stopping, epochs=3)
    again = EarlyStopping("val_auc", patience=5)
    fit(ModelCheckpoint(), scores([]), again, epochs=3, resume=tmp_path / "checkpoints" / "step_00000024")
    assert (again.best, again.wait) == (0.9, 2)


def test_each_window_of_a_stream_can_have_a_snapshot(online, tmp_path):
    online([{"auc": 0.5}] * 5, ModelCheckpoint(every="window", keep_last=2))
    assert names(tmp_path / "checkpoints") == ["step_00000004", "step_00000005"]


def test_a_run_that_stops_in_the_middle_of_an_epoch_is_saved(fit, tmp_path):
    def stop(trainer):
        if trainer.state.progress.global_step == 3:
            trainer.stop("enough")

    fit(ModelCheckpoint(), LambdaCallback(on_train_step_end=stop), valid=False)
    assert names(tmp_path / "checkpoints") == ["step_00000003"]


def test_a_failed_write_is_not_counted_as_a_snapshot(fit, tmp_path):
    checkpoint = ModelCheckpoint(tmp_path / "c", every=4)

    def put_a_file_in_the_way(trainer):
        shutil.rmtree(tmp_path / "c")
        (tmp_path / "c").write_text("in the way")

    with pytest.raises(CheckpointError):
        fit(checkpoint, LambdaCallback(on_train_begin=put_a_file_in_the_way), valid=False)
    assert checkpoint.state_dict()["records"] == []


def test_a_folder_that_cannot_be_written_is_refused_before_training(fit, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigurationError, match=r"cannot write checkpoint folder .*file/c: .*choose another folder"):
        fit(ModelCheckpoint(tmp_path / "file" / "c", every=4), valid=False)
    assert fit.trainer.state.progress.global_step == 0
    assert os.listdir(tmp_path) == ["file"]


def test_two_runs_do_not_write_into_one_folder(fit, tmp_path):
    def start_another(trainer):
        with pytest.raises(FolderInUseError, match=f"being written by process {os.getpid()} on"):
            Trainer(trainer.network, trainer.loss_fn, trainer.optimizer).save(tmp_path / "checkpoints")

    # two callbacks of one run may share a folder
    fit(ModelCheckpoint(), ModelCheckpoint(every=5), LambdaCallback(on_train_step_end=start_another), valid=False)
    assert checkpoints_of(tmp_path) == {"step_00000008", "step_00000015", "step_00000016", "last"}


def checkpoints_of(folder):
    return {entry.name for entry in (folder / "checkpoints").iterdir()}


def test_behind_a_link_the_restored_snapshot_is_counted_removed_and_can_be_the_best(fit, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")

    def make():
        return ModelCheckpoint(monitor="val_auc", keep_best=1, keep_last=1)

    fit(scores([0.9]), make(), epochs=1, run_dir=tmp_path / "link")
    checkpoint = make()
    fit(scores([0.5]), checkpoint, epochs=2, run_dir=tmp_path / "link", resume="auto")
    assert checkpoints_of(tmp_path / "link") == {"step_00000008", "step_00000016", "best", "last"}
    assert (tmp_path / "link" / "checkpoints" / "best").read_text().strip() == "step_00000008"
    fit(scores([0.95]), make(), epochs=3, run_dir=tmp_path / "real", resume=tmp_path / "link")
    assert checkpoints_of(tmp_path / "link") == {"step_00000024", "best", "last"}


def test_a_path_that_no_file_system_can_hold_is_a_misconfiguration(fit, tmp_path):
    for resume in ("auto", tmp_path / ("x" * 300)):
        with pytest.raises(ConfigurationError, match=r"xxx.* cannot be a path"):
            fit(epochs=1, run_dir=tmp_path / ("x" * 300), resume=resume)


def test_without_a_folder_it_is_refused_before_training(fit):
    with pytest.raises(ValueError, match="ModelCheckpoint needs a folder"):
        fit(ModelCheckpoint(), run_dir=None)
    assert fit.trainer.state.progress.global_step == 0


@pytest.mark.parametrize("every", [None, "window", 2])
def test_a_cadence_of_epochs_is_said_to_save_nothing_of_a_stream_on_the_way(every, tmp_path, caplog):
    network = nn.Dense(2, 1)
    trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1))
    rows = [(np.ones((4, 2), np.float32), np.ones((4, 1), np.float32))]
    trainer.online_train(rows, callbacks=[ModelCheckpoint(tmp_path, every=every)])
    assert ("a stream has no epochs, so only the end of the run is saved" in caplog.text) == (every is None)
