"""A snapshot taken inside an accumulation holds the gradients gathered so far, of dense parameters and rows."""

import functools
import os
import signal

import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from tests.trainer.contents import assert_same, content
from trainer import LambdaCallback, ModelCheckpoint, Trainer, checkpoint
from trainer.embedding import Embedding
from trainer.errors import CheckpointError

SIZES = (
    8,
    4,
    8,
    8,
    4,
    8,
    4,
    4,
)  # of changing shape, so each is a call, and calls end inside accumulations of three


class Mixed(nn.Cell):
    """Two tables over the same ids, one with ids of its own, moving statistics and a dense part."""

    def __init__(self, sparse=True, seed=0):
        super().__init__()
        self.sparse = sparse
        width = 3
        if sparse:
            self.taste = Embedding(4, mode="sparse", name="taste", padding=0, scale=1.0)
            self.bias = Embedding(1, mode="sparse", name="bias", padding=0, scale=1.0)
            self.film = Embedding(4, mode="sparse", name="film", scale=1.0)
            width += 9
        self.norm = nn.BatchNorm1d(width)
        self.top = nn.Dense(width, 1, bias_init="zeros")
        weights = np.random.default_rng(seed).standard_normal((1, width)).astype(np.float32)
        self.top.weight.set_data(Tensor(weights))

    def construct(self, users, films, x):
        if self.sparse:
            x = ops.concat((self.taste(users).sum(axis=1), self.bias(users).sum(axis=1), self.film(films), x), 1)
        return self.top(self.norm(x))


def batches():
    random = np.random.default_rng(0)
    made = []
    for rows in SIZES:
        users, films = random.integers(0, 30, (rows, 3)), random.integers(0, 20, rows)
        x = random.standard_normal((rows, 3)).astype(np.float32)
        made.append({"users": users, "films": films, "x": x, "y": (users[:, :1] % 2).astype(np.float32)})
    return made


def make(sparse, seed=0, lr=0.05, **options):
    net = Mixed(sparse, seed)
    options = {"amp_level": "O2", "gradient_accumulation_steps": 3, "clip_norm": 0.5, "seed": 3, **options}
    return Trainer(net, nn.BCEWithLogitsLoss(), nn.Adam(net.trainable_params(), lr), **options)


def after(calls, action):
    """Return a callback that does something, once, after so many calls."""
    left = [calls]

    def count(trainer):
        left[0] -= 1
        if not left[0]:
            action(trainer)

    return LambdaCallback(on_train_step_end=count)


def interrupt(trainer):
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a function: what an undisturbed run ends in, its snapshots, one inside an accumulation, its trainer.

    With tables a signal ends the one that is cut; without, the undisturbed one saves a snapshot at that place.
    """

    @functools.cache
    def cut(sparse):
        saved, root, whole = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("cut"), make(sparse)
        callbacks = [] if sparse else [after(5, lambda trainer: trainer.save(root))]
        whole.fit(batches(), 2, callbacks=[ModelCheckpoint(saved, every=4, keep_last=None), *callbacks])
        assert whole.read_counters()["skipped"] <= 1  # by the loss scale, which begins high
        if not sparse:
            return content(whole), saved, checkpoint.find(root), whole
        trainer = make(sparse)
        with pytest.raises(SystemExit):
            trainer.fit(batches(), 2, callbacks=[ModelCheckpoint(root), after(12, interrupt)])
        return content(whole), saved, checkpoint.find(root), trainer

    return cut


@pytest.mark.long
@pytest.mark.parametrize(("sparse", "step", "fill"), [(False, 1, 2), (True, 4, 1)], ids=["dense", "tables"])
def test_a_resumed_run_ends_in_the_bits_of_an_undisturbed_one(sparse, step, fill, runs):
    whole, _, snapshot, _ = runs(sparse)
    assert (snapshot.step, snapshot.state["loop"]["position"]["fill"]) == (step, fill)
    resumed = make(sparse, seed=1)
    resumed.fit(batches(), 2, callbacks=[], resume=snapshot.path)
    assert resumed.state.progress.global_step == 6
    assert_same(content(resumed), whole)


@pytest.mark.long
def test_a_trainer_that_goes_back_to_a_snapshot_between_accumulations_discards_the_open_one(runs):
    whole, saved, _, stopped = runs(True)
    stopped.fit(batches(), 2, callbacks=[], resume=saved / "step_00000004")
    assert_same(content(stopped), whole)


def test_a_rollback_inside_an_accumulation_keeps_its_end(tmp_path):
    steps, weights = [], []

    def look(trainer):
        steps.append(trainer.state.progress.global_step)
        if len(steps) == 5:  # two batches into an accumulation of three; the snapshot was taken between two
            trainer.rollback()
        weights.append(trainer.network.top.weight.asnumpy().copy())

    callbacks = [ModelCheckpoint(tmp_path, every=1), LambdaCallback(on_train_step_end=look)]
    make(True, amp_level="O0").fit(batches(), 1, callbacks=callbacks)
    assert steps == [0, 0, 1, 1, 1, 2, 2, 3]
    moved = [not np.array_equal(*weights[place : place + 2]) for place in range(7)]
    assert moved == [False, True, False, False, True, False, True]


@pytest.mark.long
def test_forged_gradients_of_rows_are_refused(runs, tmp_path):
    _, _, found, _ = runs(True)
    groups = {group: dict(found.tensors(group)) for group in found.groups}
    resumed = make(True, seed=1)
    for key, wrong in {
        "accumulated_rows": lambda array: array + 1000,
        "accumulated_positions": lambda array: array * 0,
        "accumulated_gradients": lambda array: array[1:],
    }.items():
        forged = {**groups["part.tables"], f"bias/{key}": wrong(groups["part.tables"][f"bias/{key}"])}
        checkpoint.write(tmp_path, found.step, {**groups, "part.tables": forged}, found.state)
        with pytest.raises(CheckpointError, match="gradients saved for table 'bias'"):
            resumed.fit(batches(), 2, callbacks=[], resume=tmp_path)
