"""A snapshot whose checksums are right and whose content makes no sense is refused, and changes nothing."""

import os
import random
import shutil

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

from callbacks import EarlyStopping, History, LearningRateMonitor, ModelCheckpoint, ReduceLROnPlateau
from tests.trainer.checkpoint.forge import forged_states, forged_tensors, put
from trainer import Trainer, Window
from trainer.checkpoint.capture import generator_states
from trainer.embedding import Embedding, Eviction
from trainer.errors import CheckpointError, TrainerError

CASES = int(os.environ.get("TRAINER_TEST_CASES", "200"))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.table = Embedding(3, 40, name="table", mode="sparse", eviction=Eviction("lru"))
        self.head = nn.Dense(6, 1)

    def construct(self, ids):
        return self.head(self.table(ids).reshape(-1, 6)).reshape(-1)


def columns(seed, rows=64):
    ids = np.random.default_rng(seed).integers(0, 60, (rows, 2))
    return {"ids": ids, "label": (ids.sum(1) % 3 == 0).astype(np.float32)}


def make():
    ms.set_seed(1)
    network = Net()
    return Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 0.1), seed=1)


def callbacks(root=None):
    return [
        *([ModelCheckpoint(root, monitor="val_loss", every=2)] if root else []),
        EarlyStopping("val_loss", patience=50),
        ReduceLROnPlateau("val_loss", patience=50),
        LearningRateMonitor(),
        History(),
    ]


def contents(trainer):
    """Everything that a snapshot restores, as bytes and plain values."""
    cells = (trainer.network, trainer.optimizer, trainer.builder.step)
    parameters = {p.name: p.asnumpy().tobytes() for cell in cells for p in cell.get_parameters()}
    tables = {}
    for name, table in trainer.tables.tables.tables.items():
        ids, rows = table.map.items()
        order = np.argsort(ids)
        tables[name] = (ids[order].tobytes(), rows[order].tobytes(), table.store.read(np.sort(rows)).tobytes())
        tables[name] += (table.next_row, table.step, table.plans, dict(table.counters))
    state = trainer.state
    values = (parameters, tables, state.progress, state.metrics, state.snapshot, generator_states())
    return repr(values), repr(trainer.callbacks.state_dict())


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A trainer after six steps, and its snapshot after four."""
    root = tmp_path_factory.mktemp("snapshots")
    trainer = make()
    options = {"batch_size": 16, "valid_dataset": columns(2), "sink_size": 1}
    trainer.fit(columns(1), 1, callbacks=callbacks(root), **options)
    trainer.fit(columns(3), 1, callbacks=callbacks(), max_steps=2, **options)
    return trainer, root / "step_00000004", options


@pytest.fixture
def forged(fitted, tmp_path):
    """Return a function: file and content -> a snapshot that has it in place of its own."""

    def make(file, content):
        path = tmp_path / fitted[1].name
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(fitted[1], path)
        put(path, file, content)
        return path

    return make


def cases(snapshot, seed):
    rng = random.Random(seed)
    yield from forged_states(snapshot, rng, CASES)
    yield from forged_tensors(snapshot, rng, CASES // 2)


@pytest.mark.long
def test_loading_either_succeeds_or_changes_nothing(fitted, forged):
    trainer, snapshot, _ = fitted
    before = contents(trainer)
    refused = []
    for what, file, content in cases(snapshot, 5):
        path = forged(file, content)
        try:
            trainer.load(path)
        except CheckpointError as error:
            refused.append((what, str(error)))
            assert contents(trainer) == before, what
        else:
            trainer.load(snapshot)
            before = contents(trainer)
    assert len(refused) > CASES // 2
    named = (str(path), "the snapshot ", "the saved table 'table' ", "table 'table' ")
    unnamed = [case for case in refused if not case[1].startswith(named)]
    assert unnamed == []


def test_resuming_raises_documented_errors_only(fitted, forged):
    trainer, snapshot, options = fitted
    rng = random.Random(6)
    refused = 0
    for what, file, content in forged_states(snapshot, rng, CASES // 4):
        try:
            trainer.fit(columns(1), 2, callbacks=callbacks(), max_steps=1, resume=forged(file, content), **options)
        except TrainerError:
            refused += 1
        except Exception as error:
            pytest.fail(f"{what}: {error!r}")
    assert refused > CASES // 8


def test_a_stream_resumed_from_nonsense_raises_documented_errors_only(tmp_path):
    trainer = make()
    batches = [{name: column[first : first + 16] for name, column in columns(1).items()} for first in range(0, 64, 16)]
    window = Window(rows=32)
    trainer.online_train(batches, [ModelCheckpoint(tmp_path / "root", every="window")], max_steps=3, window=window)
    snapshot = tmp_path / "root" / "step_00000003"
    rng = random.Random(7)
    refused = 0
    cases = [*forged_states(snapshot, rng, CASES // 4), *forged_tensors(snapshot, rng, CASES // 4)]
    for what, file, content in cases:
        shutil.rmtree(tmp_path / "forged", ignore_errors=True)
        path = shutil.copytree(snapshot.parent, tmp_path / "forged") / snapshot.name  # with the one that it builds on
        put(path, file, content)
        try:
            trainer.online_train(batches, [], max_steps=1, window=window, resume=path)
        except TrainerError:
            refused += 1
        except Exception as error:
            pytest.fail(f"{what}: {error!r}")
    assert CASES // 8 < refused < len(cases), "those that are harmless are taken"
