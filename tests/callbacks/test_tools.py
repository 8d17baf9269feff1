"""DeviceStats and LRFinder on real runs."""

import json

import numpy as np
import pytest
from mindspore import nn

from callbacks import DeviceStats, EarlyStopping, JSONLinesLogger, LambdaCallback, LRFinder
from trainer import Trainer
from trainer.embedding import Embedding
from trainer.errors import ConfigurationError


def test_stats_of_process_and_machine_are_measured_and_logged(fit, tmp_path):
    stats = DeviceStats(every=4)
    fit(stats, JSONLinesLogger(), epochs=2, valid=False)
    assert [record["step"] for record in stats.records] == [4, 8, 12, 16]
    newest = stats.records[-1]
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * 4096 / 1e6
    assert newest["process_memory_mb"] == pytest.approx(resident, rel=0.2)
    assert all(record["process_cpu"] >= 0 for record in stats.records)  # whole ticks of the kernel
    assert 0 <= newest["machine_memory"] <= 1
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").open()]
    (logged,) = [line["device/process_memory_mb"] for line in lines if line.get("step") == 16 and "train/loss" in line]
    assert logged == newest["process_memory_mb"]


def test_the_learning_rate_finder_suggests_a_rate_that_trains_and_puts_everything_back(cancer):
    network = nn.Dense(30, 1)
    first = network.weight.asnumpy().copy()
    optimizer = nn.SGD(network.trainable_params(), 0.125)
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), optimizer)
    finder = LRFinder(1e-4, 1e3, steps=60)
    trainer.fit(cancer["train"], epochs=100, batch_size=64, sink_size=1, callbacks=[finder])
    np.testing.assert_allclose(finder.rates[:2], [1e-4, 1e-4 * 1e7 ** (1 / 59)], rtol=1e-5)
    assert trainer.state.stop_reason.kind == "callback"
    np.testing.assert_array_equal(network.weight.asnumpy(), first)
    assert trainer.learning_rate == pytest.approx(0.125)
    assert 1e-3 < finder.suggestion < 10
    trainer.learning_rate = finder.suggestion
    losses = trainer.fit(cancer["train"], epochs=3, batch_size=64, callbacks=[]).history["loss"]
    assert losses[-1] < losses[0] < 0.6


def test_the_learning_rate_finder_puts_everything_back_after_an_error_too(cancer):
    def fail(trainer):
        if trainer.state.progress.global_step == 20:
            raise OSError("the disk is gone")

    network = nn.Dense(30, 1)
    first = network.weight.asnumpy().copy()
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.125))
    callbacks = [LRFinder(1e-4, 1e3, steps=60), LambdaCallback(on_train_step_end=fail)]
    with pytest.raises(OSError, match="the disk is gone"):
        trainer.fit(cancer["train"], epochs=100, batch_size=64, sink_size=1, callbacks=callbacks)
    np.testing.assert_array_equal(network.weight.asnumpy(), first)
    assert trainer.learning_rate == pytest.approx(0.125)


def test_rows_of_tables_could_not_be_put_back(cancer):
    network = nn.SequentialCell(Embedding(4), nn.Dense(4, 1))
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params()))
    rows = {"x": np.arange(8), "y": cancer["train"]["y"][:8]}
    with pytest.raises(ConfigurationError, match="rows of sparse tables"):
        trainer.fit(rows, callbacks=[LRFinder()], batch_size=4)


def test_a_scheduled_rate_cannot_be_searched(cancer):
    network = nn.Dense(30, 1)
    schedule = nn.CosineDecayLR(1e-5, 1e-2, 100)
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), schedule))
    with pytest.raises(ConfigurationError, match="learning rate"):
        trainer.fit(cancer["train"], batch_size=64, callbacks=[LRFinder()])


class OfTables(nn.Cell):
    """The vector of an id, from a dense or a sparse table."""

    def __init__(self, mode):
        super().__init__()
        self.table, self.top = Embedding(2, 40, mode=mode, name="ids"), nn.Dense(2, 1)

    def construct(self, ids):
        return self.top(self.table(ids))


def test_dense_tables_are_parameters_as_others():
    data = {"ids": np.arange(40), "label": np.ones((40, 1), np.float32)}

    def build(mode):
        network = OfTables(mode)
        return Trainer(network, nn.MSELoss(), nn.Adam(network.trainable_params(), 1e-3))

    trainer = build("dense")
    for _ in range(2):
        trainer.compile(data, batch_size=20, sink_size=1)
    for callback in (LRFinder(steps=10), EarlyStopping("loss", restore_best=True)):
        trainer.fit(data, 6, batch_size=20, callbacks=[callback], sink_size=1)
    with pytest.raises(
        ConfigurationError, match="programs with sparse tables are compiled when the first ids are known"
    ):
        build("sparse").compile(data, batch_size=20, sink_size=1)
