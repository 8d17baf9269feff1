"""A run that was cut and resumed ends in the very bits of one that was not."""

import itertools
import os
import signal

import mindspore.dataset as ms_dataset
import numpy as np
import pytest
from mindspore import nn

from trainer import Callback, Every, LambdaCallback, ModelCheckpoint, ReduceLROnPlateau, Trainer
from trainer.data.finite.shards import DividedSource, ShardedArrays
from trainer.data.finite.sources import ArraySource
from trainer.data.position import Position
from trainer.distributed.agreement import StopHooks
from trainer.distributed.group import Group
from trainer.errors import CheckpointMismatchError, DataError
from trainer.run.cursor import Cursor
from trainer.state import Progress

ROWS, BATCH = 320, 32  # ten batches


class StatefulLoader:
    """A shuffling loader that tells its own position, as stateful data loaders do."""

    def __init__(self, data, seed=4):
        self.data, self.seed, self.place = data, seed, {"epoch": -1, "next": 0}
        self._resumed = False

    def state_dict(self):
        return self.place  # changes while batches are read ahead

    def load_state_dict(self, state):
        self.place, self._resumed = dict(state), True

    def __iter__(self):
        if not self._resumed:
            self.place.update(epoch=self.place["epoch"] + 1, next=0)
        self._resumed = False
        order = np.random.default_rng([self.seed, self.place["epoch"]]).permutation(len(self.data["y"]))
        while self.place["next"] * BATCH < len(order):
            rows = order[self.place["next"] * BATCH : (self.place["next"] + 1) * BATCH]
            self.place["next"] += 1
            yield {name: column[rows] for name, column in self.data.items()}


def datasets(kind, cancer):
    """Return a new dataset object over the same rows, and its batch size."""
    data = {name: column[:ROWS] for name, column in cancer.items()}
    if kind == "arrays":
        return data, BATCH
    if kind == "pipeline":
        return ms_dataset.NumpySlicesDataset(data, shuffle=True).batch(BATCH), None
    return StatefulLoader(data), None


@pytest.fixture(scope="module")
def run(mlp, linear, cancer, values):
    """Return a function that fits a new trainer and returns (its values, history, trainer)."""

    def fit(kind, folder, options, max_steps=None, resume=None, every=100, callbacks=(), network=None, **more):
        network = network or mlp(seed=0 if resume is None else 1)  # a resumed run does not begin with these weights
        optimizer = nn.Adam(network.trainable_params(), 0.01)
        trainer = Trainer(network, nn.BCEWithLogitsLoss(), optimizer, metrics=["auc"], seed=9, **options)
        data, batch_size = datasets(kind, cancer)
        history = trainer.fit(
            data,
            3,
            callbacks=[ModelCheckpoint(folder, every=every, keep_last=None), *callbacks],
            batch_size=batch_size,
            max_steps=max_steps,
            resume=resume,
            **more,
        )
        return values(network, optimizer, trainer.builder.step), history, trainer

    return fit


CASES = [
    # kind, amp level, accumulation, sink size, step of the snapshot: all in the middle of the second epoch
    ("arrays", "O0", 1, 8, 18),
    ("arrays", "O2", 4, 1, 4),
    ("pipeline", "O0", 4, 1, 5),
    ("pipeline", "O2", 1, 8, 18),
    ("loader", "O0", 1, 1, 13),
]


@pytest.mark.long(but=["arrays-O0-1-8-18", "pipeline-O2-1-8-18", "loader-O0-1-1-13"])
@pytest.mark.parametrize(("kind", "amp_level", "accumulate", "sink_size", "step"), CASES)
def test_from_the_middle_of_an_epoch_bit_for_bit(kind, amp_level, accumulate, sink_size, step, run, same, tmp_path):
    options = {"amp_level": amp_level, "gradient_accumulation_steps": accumulate}
    whole, history, trainer = run(kind, tmp_path, options, every=step, sink_size=sink_size)
    steps_in_epoch = []

    class Begin(Callback):
        def on_train_begin(self, trainer):
            steps_in_epoch.append(trainer.state.progress.step_in_epoch)

    resumed, resumed_history, again = run(
        kind, tmp_path / "more", options, resume=tmp_path / f"step_{step:08d}", callbacks=[Begin()], sink_size=sink_size
    )
    assert 0 < steps_in_epoch[0] < trainer.state.steps_per_epoch
    assert same(whole, resumed)
    assert resumed_history.history == history.history
    assert vars(again.state.progress) == vars(trainer.state.progress)
    assert again.loss_scale == trainer.loss_scale


def test_from_where_a_limit_cut_a_sunk_call(run, linear, same, tmp_path):
    whole, _, _ = run("arrays", tmp_path / "whole", {}, network=linear(), sink_size=4)
    run("arrays", tmp_path, {}, network=linear(), max_steps=13, sink_size=4)
    resumed, _, _ = run("arrays", tmp_path, {}, network=linear(1), resume=tmp_path, sink_size=4)
    assert same(whole, resumed)


def test_auto_starts_over_where_there_is_nothing_and_goes_on_where_there_is(run, linear, tmp_path, caplog):
    _, _, trainer = run("arrays", tmp_path, {}, network=linear(), resume="auto", max_steps=7, sink_size=1)
    assert "starting from the beginning" in caplog.text
    assert trainer.state.progress.global_step == 7
    _, _, trainer = run("arrays", tmp_path, {}, network=linear(), resume="auto", max_steps=20, sink_size=1)
    assert trainer.state.progress.global_step == 20


def test_validation_cadence_goes_on_where_it_was(run, linear, cancer, tmp_path):
    options = {"valid_dataset": {name: column[:ROWS] for name, column in cancer.items()}, "sink_size": 1}
    options["valid_every"] = Every(steps=6)
    _, whole, _ = run("arrays", tmp_path, {}, network=linear(), every=8, **options)
    again = tmp_path / "step_00000008"
    _, resumed, _ = run("arrays", tmp_path / "more", {}, network=linear(1), resume=again, **options)
    assert whole.steps["val_auc"] == [6, 12, 18, 24, 30]
    assert (resumed.steps, resumed.history) == (whole.steps, whole.history)


def test_other_data_restarts_its_epoch_and_says_so(run, linear, tmp_path, caplog):
    run("arrays", tmp_path, {}, network=linear(), max_steps=13, sink_size=1)
    _, _, trainer = run("pipeline", tmp_path, {}, network=linear(), resume=tmp_path, sink_size=1)
    assert "the dataset differs from that of the snapshot (kind 'ArraySource' -> 'PipelineSource'" in caplog.text
    assert "3 batches are repeated" in caplog.text
    assert trainer.state.progress.epoch == 3
    assert trainer.state.progress.global_step == 33


def test_another_network_is_refused_and_nothing_changed(run, mlp, linear, values, same, tmp_path):
    run("arrays", tmp_path, {}, network=linear(), max_steps=2, sink_size=1)
    network = mlp()
    before = values(network)
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1))
    with pytest.raises(CheckpointMismatchError, match=r"0\.weight .*\(8, 30\), the snapshot \(1, 30\)"):
        trainer.load(tmp_path)
    assert same(before, values(network))


def test_rollback_takes_weights_and_optimizer_back(run, linear, values, same, tmp_path):
    seen = {}

    class Back(Callback):
        def on_train_step_end(self, trainer):
            step = trainer.state.progress.global_step
            now = values(trainer.network, trainer.optimizer)
            if step == 4:
                seen["saved"] = now
            if step == 6:
                seen["moved"] = now
                trainer.rollback()
                seen["back"] = values(trainer.network, trainer.optimizer)

    run("arrays", tmp_path, {}, network=linear(), max_steps=7, every=4, callbacks=[Back()], sink_size=1)
    assert not same(seen["saved"], seen["moved"])
    assert same(seen["saved"], seen["back"])


def test_a_training_stopped_inside_an_accumulation_window_leaves_nothing_to_the_next():
    random = np.random.default_rng(0)
    batches = [
        {"x": random.standard_normal((rows, 4)).astype(np.float32), "y": np.ones((rows, 1), np.float32)}
        for rows in (8, 4, 8, 4)
    ]
    weights = []
    for interrupted in (False, True):
        net = nn.Dense(4, 1, weight_init="ones", bias_init="zeros")
        trainer = Trainer(
            net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1), gradient_accumulation_steps=2, amp_level="O0"
        )
        if interrupted:
            trainer.fit(batches, callbacks=[LambdaCallback(on_train_step_end=lambda trainer: trainer.stop())])
            assert trainer.state.progress.global_step == 0
        trainer.fit(batches, 1, callbacks=[])
        weights.append(net.weight.asnumpy().copy())
    np.testing.assert_array_equal(*weights)


@pytest.mark.parametrize(("stopped", "ended"), [(20, 30), (23, 33)])
def test_a_snapshot_saved_after_a_training_goes_on_with_the_epoch_that_comes(
    stopped, ended, run, linear, same, tmp_path
):
    """Inside an epoch nothing tells how far the data was read, so this epoch begins anew."""
    whole, _, _ = run("arrays", tmp_path / "whole", {}, network=linear(), sink_size=1)
    _, _, trainer = run("arrays", tmp_path / "cut", {}, network=linear(), sink_size=1, max_steps=stopped)
    trainer.save(tmp_path)
    resumed, _, again = run("arrays", tmp_path / "more", {}, network=linear(1), sink_size=1, resume=tmp_path)
    assert same(whole, resumed) == (stopped == 20)
    progress = again.state.progress
    assert (progress.epoch, progress.global_step, again.state.steps_per_epoch) == (3, ended, 10)


@pytest.mark.parametrize("every", [Every(epochs=1), Every(steps=6)])
def test_a_cadence_that_a_resumed_run_adds_is_not_due_for_what_was_before(every, run, linear, cancer, tmp_path):
    run("arrays", tmp_path, {}, network=linear(), max_steps=13, sink_size=1)
    valid = {name: column[:ROWS] for name, column in cancer.items()}
    options = {"valid_dataset": valid, "valid_every": every, "sink_size": 1}
    _, history, _ = run("arrays", tmp_path, {}, network=linear(), resume=tmp_path, **options)
    assert history.steps["val_auc"] == ([20, 30] if every.unit == "epochs" else [18, 24, 30])


@pytest.mark.parametrize("hook", ["on_eval_step_end", "on_train_step_begin"])
def test_a_validation_that_a_signal_prevented_is_made_up_for(hook, run, linear, cancer, same, tmp_path):
    """The learning rate depends on it; a snapshot of that step may be the best."""

    def kill(trainer):
        step = trainer.state.progress.global_step
        if step == (10 if hook == "on_eval_step_end" else 9) and trainer.state.stop_reason is None:
            os.kill(os.getpid(), signal.SIGTERM)

    def options(folder):
        plateau = ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=10.0)
        best = ModelCheckpoint(folder, monitor="val_loss", mode="max")
        valid = {name: column[:ROWS] for name, column in cancer.items()}
        return {"callbacks": [plateau, best], "valid_dataset": valid, "sink_size": 1}

    whole, history, _ = run("arrays", tmp_path / "whole", {}, network=linear(), **options(tmp_path / "best"))
    cut = options(tmp_path / "kept")
    cut["callbacks"].append(LambdaCallback(**{hook: kill}))
    with pytest.raises(SystemExit):
        run("arrays", tmp_path / "cut", {}, network=linear(), **cut)
    resume = tmp_path / "kept"
    resumed, again, _ = run("arrays", tmp_path / "more", {}, network=linear(1), resume=resume, **options(resume))
    assert again.history == history.history
    assert same(whole, resumed)
    assert (resume / "best").read_text() == (tmp_path / "best" / "best").read_text()


def test_a_snapshot_that_a_hook_saves_after_the_last_step_of_an_epoch(run, linear, cancer, same, tmp_path):
    def save(trainer):
        if trainer.state.progress.global_step == 20:
            trainer.save(tmp_path)

    options = {"valid_dataset": {name: column[:ROWS] for name, column in cancer.items()}, "sink_size": 1}
    hook = LambdaCallback(on_train_step_end=save)
    whole, history, trainer = run("arrays", tmp_path / "a", {}, network=linear(), callbacks=[hook], **options)
    resumed, again, other = run("arrays", tmp_path / "b", {}, network=linear(1), resume=tmp_path, **options)
    assert vars(other.state.progress) == vars(trainer.state.progress)
    assert same(whole, resumed)
    assert again.steps["val_auc"] == history.steps["val_auc"] == [10, 20, 30]


def test_an_epoch_that_is_limited_to_fewer_batches_than_were_trained_says_so(run, linear, tmp_path):
    run("arrays", tmp_path, {}, network=linear(), max_steps=6, sink_size=1)
    with pytest.raises(DataError, match="no batches after the first 6, where the resumed run continues; give it"):
        run("arrays", tmp_path, {}, network=linear(), resume=tmp_path, sink_size=1, limit_train_batches=4)


class Alike(Group):
    """Rank 0 of processes that give the same answers."""

    def __init__(self, size):
        self.size = size

    def gather_json(self, value):
        return [value] * self.size


def cursor_of_parts(size, batch=0):
    """Return the cursor of a training on one of `size` parts of the data, behind so many batches."""
    hooks = StopHooks(lambda: None, lambda reason: None)
    source = DividedSource(ArraySource({"x": np.zeros((96, 1), np.float32)}, 4), Alike(size), hooks)
    cursor = Cursor(source, Progress(step_in_epoch=batch))
    cursor.position = Position(0, batch)
    return cursor


def test_data_in_another_number_of_parts_restart_the_epoch(caplog):
    saved = cursor_of_parts(3, batch=4).state_dict()
    same, other = cursor_of_parts(3), cursor_of_parts(2)
    same.load_state_dict(saved)
    assert same.position == Position(0, 4)
    assert not caplog.records
    other.load_state_dict(saved)
    assert other.position == Position(0, 0)
    assert "parts 3 -> 2" in caplog.text
    assert "the epoch restarts, and 4 batches are repeated" in caplog.text
    del saved["loop"]["source"]["parts"]  # as releases did that did not name it
    same.load_state_dict(saved)
    assert same.position == Position(0, 4)


def test_arrays_instead_of_a_pipeline_on_more_processes_restart_the_epoch(caplog):
    source = ShardedArrays({"x": np.zeros((96, 1), np.float32)}, 4, Alike(2))
    cursor = Cursor(source, Progress())
    cursor.position = Position(0, 3)
    saved = cursor.state_dict()
    saved["loop"]["source"] = {"kind": "PipelineSource", "size": 10, "seed": 0}
    cursor.load_state_dict(saved)
    assert cursor.position == Position(0, 0)
    assert "'PipelineSource' -> 'ArraySource'" in caplog.text


def test_a_training_that_goes_on_from_the_snapshot_of_a_stream_reads_the_epoch_that_comes(tmp_path):
    rows = {"x": np.arange(12, dtype=np.float32)[:, None], "y": np.zeros((12, 1), np.float32)}

    def fit(folder=None, epochs=1, **options):
        seen, net = [], nn.Dense(1, 1)
        note = LambdaCallback(on_train_step_end=lambda t: seen.extend(t.state.outputs.chunk.arrays[0].ravel().tolist()))
        trainer = Trainer(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 1e-3), seed=1)
        trainer.fit(rows, epochs, callbacks=[note], batch_size=4, sink_size=1, **options)
        return trainer, seen

    trainer, _ = fit(epochs=2)
    trainer.online_train([tuple(rows.values())], callbacks=[ModelCheckpoint(tmp_path)])
    _, resumed = fit(resume=tmp_path)
    _, whole = fit(epochs=3)
    assert resumed == whole[24:]


@pytest.mark.parametrize(("saved_after", "updates"), [(3, (0, 4, 6, 8)), (2, (0, 3, 5, 7, 8))])
def test_an_update_of_fewer_micro_batches_than_were_open_ends_with_the_next_one(saved_after, updates, tmp_path):
    random = np.random.default_rng(0)
    batches = [
        (random.standard_normal((rows, 4)).astype(np.float32), np.ones((rows, 1), np.float32))
        for rows in (8, 4, 8, 4, 8, 4, 8, 4)
    ]

    def fit(batches, accumulate, *callbacks, **options):
        net = nn.Dense(4, 1, weight_init="ones", bias_init="zeros")
        optimizer = nn.SGD(net.trainable_params(), 0.1)
        trainer = Trainer(net, nn.MSELoss(), optimizer, gradient_accumulation_steps=accumulate)
        trainer.fit(batches, 1, callbacks=list(callbacks), **options)
        return net.weight.asnumpy().copy(), trainer.state.progress.global_step

    def save(trainer):
        if trainer.position["batch"] == saved_after:
            trainer.save(tmp_path)
            trainer.stop()

    fit(batches, 4, LambdaCallback(on_train_step_end=save))
    weight, steps = fit(batches, 2, resume=tmp_path)
    whole = [
        tuple(np.concatenate(column) for column in zip(*batches[first:last], strict=True))
        for first, last in itertools.pairwise(updates)
    ]
    expected, expected_steps = fit(whole, 1)
    np.testing.assert_allclose(weight, expected, rtol=1e-5)
    assert steps == expected_steps


def test_a_validation_that_failed_is_made_up_for(run, linear, cancer, same, tmp_path):
    def fail(trainer):
        if trainer.state.progress.global_step == 10:
            raise OSError("the disk is away")

    def fit(folder, *callbacks, **options):
        plateau = ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=10.0)
        valid = {name: column[:ROWS] for name, column in cancer.items()}
        options |= {"callbacks": [plateau, *callbacks], "valid_dataset": valid, "sink_size": 1}
        return run("arrays", tmp_path / folder, {}, **options)

    whole, history, _ = fit("whole", network=linear())
    failing = LambdaCallback(on_eval_begin=fail, on_exception=lambda trainer: trainer.save(tmp_path / "failed"))
    with pytest.raises(OSError, match="away"):
        fit("cut", failing, network=linear())
    resumed, again, _ = fit("more", network=linear(1), resume=tmp_path / "failed")
    assert again.history["val_loss"] == history.history["val_loss"]
    assert same(whole, resumed)
