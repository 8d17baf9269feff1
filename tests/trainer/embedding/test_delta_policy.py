"""Snapshots of a run with sparse tables: deltas between full ones, exact resume, going back."""

import errno

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

from callbacks import Callback
from trainer import Trainer, checkpoint
from trainer.checkpoint import durable
from trainer.embedding import Embedding, Eviction
from trainer.errors import DataError

BATCH, STEPS = 16, 24


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embedding = Embedding(4, 300, name="ids", eviction=Eviction("lru"), mode="sparse")
        self.head = nn.Dense(12, 1)

    def construct(self, ids):
        return self.head(self.embedding(ids).reshape(ids.shape[0], -1)).reshape(-1)


class SaveEach(Callback):
    def __init__(self, root, steps, background=False):
        self.root, self.steps, self.background, self.paths = root, steps, background, []

    def on_train_step_end(self, trainer):
        step = trainer.state.progress.global_step
        if step in self.steps:
            self.paths.append(trainer.saver.save(self.root, background=self.background))


def batches():
    rng = np.random.default_rng(0)
    numbers = np.where(rng.random((STEPS, BATCH, 3)) < 0.5, 0, rng.integers(0, 5_000, (STEPS, BATCH, 3)))
    return [(ids * 10**12, rng.standard_normal(BATCH).astype(np.float32)) for ids in numbers]


def trainer():
    ms.set_seed(3)
    network = Net()
    return Trainer(network, nn.MSELoss(), nn.Adam(network.trainable_params(), 0.05))


def fit(run, stop=None, **options):
    return run.fit(batches, max_steps=stop, sink_size=2, shuffle=False, **options)


def content(run):
    table = run.tables.tables.tables["ids"]
    ids, rows = table.map.items()
    order = np.argsort(ids)
    weights = {parameter.name: parameter.asnumpy().tolist() for parameter in run.network.get_parameters()}
    return ids[order].tolist(), table.store.read(rows[order]).tolist(), table.counters, weights


@pytest.fixture(scope="module")
def straight():
    run = trainer()
    fit(run)
    return content(run)


@pytest.mark.long(but=["True"])
@pytest.mark.parametrize("background", [False, True])
def test_a_chain_of_deltas_resumes_bit_for_bit(straight, tmp_path, background):
    saving = SaveEach(tmp_path, (8, 16, 18), background)
    first = trainer()
    fit(first, stop=18, callbacks=[saving])
    links = checkpoint.find(tmp_path).chain()
    assert [link.step for link in links] == [8, 16, 18]
    assert all(link.state["parts"]["tables"]["ids"]["full"] == (place == 0) for place, link in enumerate(links))
    resumed = trainer()
    fit(resumed, resume=tmp_path)
    assert content(resumed) == straight
    assert straight[2]["evicted"] > 0


@pytest.mark.long
def test_a_failed_write_makes_the_next_snapshot_full(tmp_path, monkeypatch):
    run = trainer()
    saving = SaveEach(tmp_path, (8, 10))
    fit(run, stop=10, callbacks=[saving])

    def refuse(path):
        raise OSError(errno.EIO, "the disk refuses", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(durable, "sync_folder", refuse)
        with pytest.raises(checkpoint.CheckpointError, match="the disk refuses"):
            run.saver.save(tmp_path / "another")
    fit(run, stop=4, callbacks=[SaveEach(tmp_path, (12,))])
    newest = checkpoint.find(tmp_path)
    assert newest.step == 12
    assert newest.base is None


def test_rolling_back_puts_the_rows_back(tmp_path):
    run = trainer()
    fit(run, stop=8, callbacks=[SaveEach(tmp_path, (4, 8))])
    before = content(run)
    fit(run, stop=2)
    run.saver.rollback()
    after = content(run)
    rows = dict(zip(after[0], after[1], strict=True))
    kept = [(i, row) for i, row in zip(before[0], before[1], strict=True) if i in rows]
    assert len(kept) > 100
    assert all(rows[i] == row for i, row in kept)
    assert after[3] == before[3]


@pytest.mark.long
def test_weights_alone_bring_the_rows_along(tmp_path):
    run = trainer()
    fit(run, stop=4, callbacks=[SaveEach(tmp_path, (4,))])
    other = trainer()
    fit(other, stop=2)
    other.load(tmp_path, weights_only=True)
    assert content(other)[:2] == content(run)[:2]


def test_dense_tables_name_an_id_out_of_range():
    network = nn.SequentialCell(Embedding(4, 10, name="small"), nn.Flatten(), nn.Dense(8, 1))
    run = Trainer(network, nn.MSELoss(), nn.Adam(network.trainable_params()))
    labels = np.zeros((16, 1), np.float32)
    run.fit((np.full((16, 2), 9), labels), batch_size=8)
    with pytest.raises(DataError, match=r"'small' takes ids from 0 to 9; received 10"):
        run.fit((np.full((16, 2), 10), labels), batch_size=8)
