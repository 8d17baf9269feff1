"""Shortened trainings: what is trained and validated on, and what is left out."""

from datetime import timedelta

import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore import nn

from callbacks import CSVLogger, LambdaCallback, ModelCheckpoint, SkipNonFinite
from trainer import Trainer
from trainer.errors import ConfigurationError, DataError

DATA = {"x": np.arange(40, dtype=np.float32).reshape(40, 1) / 40, "y": np.ones((40, 1), np.float32)}
VALID = {"x": np.zeros((20, 1), np.float32), "y": np.ones((20, 1), np.float32)}


@pytest.fixture(scope="module")
def net_and_trainer():
    network = nn.Dense(1, 1)
    return Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.01))


@pytest.fixture
def trained_rows(net_and_trainer):
    """Return a function: options of fit -> (rows of each epoch in order, batches of each validation)."""

    def run(data=DATA, **options):
        epochs, valid = [], []

        def note(trainer):
            if not epochs:  # resumed in the middle of an epoch
                epochs.append([])
            epochs[-1].append(np.ravel(trainer.state.chunk.arrays[0]) * 40)

        seen = LambdaCallback(
            on_train_epoch_begin=lambda trainer: epochs.append([]),
            on_train_step_begin=note,
            on_eval_begin=lambda trainer: valid.append(0),
            on_eval_step_end=lambda trainer: valid.append(valid.pop() + 1),
        )
        extra = options.pop("callbacks", [])
        batch = {"batch_size": 4} if isinstance(data, dict) else {}
        history = net_and_trainer.fit(
            data, callbacks=[seen, *extra], valid_dataset=VALID if batch else None, sink_size=1, **batch, **options
        )
        return [np.concatenate(rows).round().astype(int).tolist() for rows in epochs], valid, history

    return run


@pytest.mark.parametrize(("limit", "batches"), [(3, 3), (0.25, 2), (99, 10), (1.0, 10)])
def test_an_epoch_has_as_many_batches_as_asked_for(limit, batches, trained_rows):
    epochs, valid, history = trained_rows(epochs=2, limit_train_batches=limit, limit_valid_batches=2)
    assert [len(rows) for rows in epochs] == [4 * batches] * 2
    assert epochs[0] != epochs[1]  # shuffled anew, so other rows
    assert valid == [2, 2]
    assert history.epoch[-1] - history.epoch[0] == 1


def test_overfitting_takes_the_same_batches_again(trained_rows):
    epochs, _, _ = trained_rows(epochs=3, overfit_batches=2)
    assert len(epochs[0]) == 8
    assert epochs == [epochs[0]] * 3
    pipeline = ds.NumpySlicesDataset({"x": DATA["x"], "y": DATA["y"]}, shuffle=True).batch(4)
    epochs, _, _ = trained_rows(pipeline, epochs=3, overfit_batches=0.2)
    assert len(epochs[0]) == 8
    assert epochs == [epochs[0]] * 3
    made = trained_rows(lambda: ((DATA["x"][i : i + 4], DATA["y"][i : i + 4]) for i in (0, 8, 16)), overfit_batches=2)
    assert made[0] == [[0, 1, 2, 3, 8, 9, 10, 11]]


def numbered(count):
    """Batches of four rows, all of which hold the number of their batch."""
    for number in range(count):
        yield np.full((4, 1), number / 40, np.float32), np.ones((4, 1), np.float32)


def endless_pipeline(count):
    rows = {"x": DATA["x"][: 4 * count], "y": DATA["y"][: 4 * count]}
    return ds.NumpySlicesDataset(rows, shuffle=False).batch(4).repeat()


class Remembering:
    """An iterator without end that states its own position."""

    def __init__(self):
        self.number = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.number += 1
        return np.full((4, 1), (self.number - 1) / 40, np.float32), np.ones((4, 1), np.float32)

    def state_dict(self):
        return {"number": self.number}

    def load_state_dict(self, state):
        self.number = state["number"]


def batches_of(epochs, of_pipeline):
    return [[row // 4 if of_pipeline else row for row in rows[::4]] for rows in epochs]


@pytest.mark.parametrize("kind", ["iterator", "iterator with a state", "pipeline"])
def test_data_that_cannot_begin_again_go_on_from_epoch_to_epoch_and_at_a_resume(kind, trained_rows, tmp_path):
    kinds = {"iterator": lambda: numbered(40), "iterator with a state": Remembering}
    data = kinds.get(kind, lambda: endless_pipeline(9))
    wanted = [[0, 1, 2, 3], [4, 5, 6, 7], [8, *((0, 1, 2) if kind == "pipeline" else (9, 10, 11))]]
    saving = ModelCheckpoint(tmp_path / "c", every=1, keep_last=None)
    epochs, _, _ = trained_rows(data(), epochs=3, limit_train_batches=4, callbacks=[saving])
    assert batches_of(epochs, kind == "pipeline") == wanted
    snapshots = sorted((tmp_path / "c").glob("step_*"))
    for trained in (2, 4, 5, 8, 11):  # in the middle of an epoch and at its end
        after, _, _ = trained_rows(data(), epochs=3, limit_train_batches=4, resume=snapshots[trained - 1])
        rest = [batch for epoch in wanted for batch in epoch][trained:]
        assert [batch for epoch in batches_of(after, kind == "pipeline") for batch in epoch] == rest


def test_an_iterator_goes_on_after_what_was_read_without_the_limit_too(trained_rows, tmp_path):
    saving = ModelCheckpoint(tmp_path / "c", every=1, keep_last=None)
    trained_rows(numbered(40), epochs=2, limit_train_batches=4, callbacks=[saving])
    snapshot = sorted((tmp_path / "c").glob("step_*"))[5]  # two batches of the second epoch
    saving = ModelCheckpoint(tmp_path / "d", every=1, keep_last=None)
    after, _, _ = trained_rows(numbered(10), epochs=2, resume=snapshot, callbacks=[saving])
    assert batches_of(after, False) == [[6, 7, 8, 9]]
    after, _, _ = trained_rows(numbered(10), epochs=2, resume=sorted((tmp_path / "d").glob("step_*"))[1])
    assert batches_of(after, False) == [[8, 9]]


def test_the_end_of_data_that_cannot_begin_again(trained_rows):
    with pytest.raises(DataError, match="used up after one pass"):
        trained_rows(numbered(8), epochs=3, limit_train_batches=4)
    passes, _, _ = trained_rows(endless_pipeline(4), epochs=2, limit_train_batches=4)
    assert passes == [list(range(16))] * 2
    pipeline = ds.GeneratorDataset(lambda: iter(zip(DATA["x"], DATA["y"], strict=True)), ["x", "y"], shuffle=False)
    passes, _, _ = trained_rows(pipeline.batch(4), epochs=5, limit_train_batches=5)  # of ten without a size
    assert passes == [list(range(20)), list(range(20, 40))] * 2 + [list(range(20))]


def test_no_validation_when_it_is_limited_to_nothing(trained_rows):
    assert trained_rows(limit_valid_batches=0, limit_train_batches=1)[1] == []


@pytest.mark.parametrize(("given", "batches"), [(True, 1), (3, 3)])
def test_a_fast_dev_run_tries_everything_once_and_leaves_nothing_behind(given, batches, trained_rows, tmp_path):
    callbacks = [ModelCheckpoint(tmp_path / "c"), CSVLogger(tmp_path / "log.csv")]
    epochs, valid, history = trained_rows(epochs=5, fast_dev_run=given, callbacks=callbacks, valid_every=100)
    assert [len(rows) for rows in epochs] == [4 * batches]
    assert valid == [batches]
    assert "val_loss" in history.history
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("time", [timedelta(seconds=1), "00:00:01", "00:00:00:01", 1])
def test_a_run_ends_when_its_time_is_over(time, trained_rows):
    _, _, history = trained_rows(epochs=10**6, max_time=time, limit_valid_batches=0)
    assert history.stop_reason == "limit: seconds=1.0"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit_train_batches": 0}, r"limit_train_batches takes a whole number of batches >= 1, a share"),
        ({"limit_valid_batches": 1.5}, r"limit_valid_batches takes .*received 1.5"),
        ({"overfit_batches": True}, r"overfit_batches takes .*received True"),
        ({"overfit_batches": 1, "limit_train_batches": 1}, "give one of them"),
        ({"fast_dev_run": -1}, "fast_dev_run takes a whole number >= 0, True or False"),
        ({"max_time": "1h"}, r'max_time takes .*"HH:MM:SS".*received \'1h\''),
        ({"max_time": 0}, "max_time takes seconds > 0.*received 0"),
        ({"limit_train_batches": 0.05}, "0.05 of 10 batches is less than one"),
        ({"data": lambda: iter(()), "limit_train_batches": 0.5}, "number of batches is not known"),
    ],
)
def test_what_cannot_be_meant_is_refused(options, message, trained_rows):
    with pytest.raises(ConfigurationError, match=message):
        trained_rows(**options)


@pytest.mark.parametrize("verb", ["fit", "online_train"])
def test_callbacks_of_a_generator_are_called(verb, linear, batches, tmp_path):
    network = linear()
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1))
    callbacks = (callback for callback in [SkipNonFinite(rollback=False), ModelCheckpoint(tmp_path)])
    getattr(trainer, verb)(batches(64, 2), callbacks=callbacks, resume="auto")
    assert (tmp_path / "last").is_file()
