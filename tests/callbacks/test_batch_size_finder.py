"""`BatchSizeFinder` on real runs: what it suggests, why it ends, and that everything is as before."""

import random

import numpy as np
import pytest
from mindspore import nn

from callbacks import BatchSizeFinder, LambdaCallback
from trainer import Trainer
from trainer.embedding import Embedding
from trainer.errors import ConfigurationError
from trainer.experiment.cli import main
from trainer.mindspore_internals.shared_memory import overwrite

ROWS = 4096


@pytest.fixture(scope="module")
def data():
    x = np.random.default_rng(0).standard_normal((ROWS, 8)).astype(np.float32)
    return {"x": x, "y": x[:, :1].copy()}


def make_trainer(**options):
    network = nn.SequentialCell(nn.Dense(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dense(16, 1))
    return Trainer(network, nn.MSELoss(), nn.Adam(network.trainable_params(), 0.01), **options)


def parameters(trainer):
    cells = (trainer.network, trainer.optimizer, trainer.builder.step)
    found = {p.name: p.asnumpy().copy() for cell in cells if cell is not None for p in cell.get_parameters()}
    return found | {"scale": trainer.loss_scale}


def test_small_steps_gain_by_larger_batches_and_everything_is_put_back(data, tmp_path, capsys):
    trainer = make_trainer(loss_scale=128.0, amp_level="O2")
    trainer.fit(data, batch_size=64, max_steps=4, callbacks=[])
    before, drawn = parameters(trainer), (random.getstate(), np.random.get_state()[1].copy())
    finder = BatchSizeFinder(calls=3, most=128, patience=9)
    trainer.fit(data, batch_size=16, epochs=2, callbacks=[finder])
    assert [record["batch_size"] for record in finder.records] == [16, 32, 64, 128]
    speed = [record["samples_per_second"] for record in finder.records]
    assert speed[-1] > speed[0]
    assert finder.suggestion > 16
    assert finder.suggestion == min(
        r["batch_size"] for r in finder.records if r["samples_per_second"] * 1.05 >= max(speed)
    )
    after = parameters(trainer)
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)
    assert random.getstate() == drawn[0]
    np.testing.assert_array_equal(np.random.get_state()[1], drawn[1])
    assert trainer.state.progress.global_step == 4
    assert trainer.state.stop_reason.kind == "callback"
    assert f"suggests batch_size={finder.suggestion}" in capsys.readouterr().out
    losses = trainer.fit(data, batch_size=finder.suggestion, epochs=3, callbacks=[]).history["loss"]
    assert losses[-1] < losses[0]
    assert "suggested batch size" in finder._repr_html_()


def test_a_training_after_a_search_is_that_without_one(data):
    weights = []
    for search in (False, True):
        np.random.seed(0)
        first = {"0.weight": np.full((16, 8), 0.1, np.float32), "3.weight": np.full((1, 16), 0.1, np.float32)}
        trainer = make_trainer(seed=3)
        for parameter in trainer.network.trainable_params():
            if parameter.name in first:
                parameter.set_data(type(parameter.value())(first[parameter.name]))
        if search:
            trainer.fit(data, batch_size=64, callbacks=[BatchSizeFinder(calls=2, most=128, verbose=False)])
        trainer.fit(data, batch_size=64, max_steps=8, callbacks=[])
        weights.append(trainer.network[0].weight.asnumpy().copy())
    np.testing.assert_array_equal(*weights)


def test_the_search_ends_where_rows_or_memory_do(data):
    finder = BatchSizeFinder(calls=1, min_gain=0, patience=99, mode="binary", verbose=False)
    make_trainer().fit(data, batch_size=1500, callbacks=[finder], sink_size=1)
    sizes = [record["batch_size"] for record in finder.records]
    assert sizes[:2] == [1500, 3000]
    assert ROWS - ROWS // 8 - 300 < max(sizes) <= ROWS  # halved down to the rows that there are
    assert "the data have fewer than" in finder.reason
    limited = BatchSizeFinder(calls=1, memory_limit_mb=1e9, patience=99, verbose=False)
    limited._process = None
    grown = LambdaCallback(setup=lambda trainer: setattr(limited, "_process", Process()), order=1)
    make_trainer().fit(data, batch_size=64, callbacks=[limited, grown], sink_size=1)
    assert [record["batch_size"] for record in limited.records] == [64, 128, 256]
    assert limited.reason.startswith("512 rows would need")  # before it is tried


class Process:
    """A process whose memory grows as if rows were large: 200, 400, 800 million MB."""

    def __init__(self):
        self.readings = iter([2e14, 4e14, 8e14])

    def memory_info(self):
        return type("Memory", (), {"rss": next(self.readings)})


def test_data_and_networks_that_cannot_be_searched_are_refused(data):
    batches = [{name: column[:64] for name, column in data.items()}] * 4
    with pytest.raises(ConfigurationError, match="batches of their own"):
        make_trainer().fit(batches, callbacks=[BatchSizeFinder()])
    with pytest.raises(ConfigurationError, match="goes with fit"):
        make_trainer().online_train(batches, callbacks=[BatchSizeFinder()])
    network = nn.SequentialCell(Embedding(4), nn.Dense(4, 1))
    trainer = Trainer(network, nn.MSELoss(), nn.Adam(network.trainable_params()))
    with pytest.raises(ConfigurationError, match="rows of sparse tables"):
        trainer.fit({"x": np.arange(8), "y": np.ones((8, 1), np.float32)}, callbacks=[BatchSizeFinder()], batch_size=4)
    with pytest.raises(ConfigurationError, match="'power', 'binary'"):
        BatchSizeFinder(mode="double")


def test_an_experiment_searches_by_a_callback_of_its_file(tmp_path, capsys):
    rows = "\n".join(f"{i % 7},{i % 3},{i % 2}" for i in range(400))
    (tmp_path / "rows.csv").write_text(f"a,b,y\n{rows}\n")
    (tmp_path / "search.yaml").write_text(
        f"""\
experiment: search
features: {{columns: [{{kind: numeric, name: a}}, {{kind: numeric, name: b}}], label: y}}
network: {{class_path: mindspore.nn.Dense, init_args: {{in_channels: 2, out_channels: 1}}}}
loss: {{class_path: mindspore.nn.BCEWithLogitsLoss}}
optimizer: {{class_path: mindspore.nn.Adam}}
data: {{train: {{class_path: trainer.features.RawFiles, init_args: {{path: {tmp_path}/rows.csv}}}}}}
fit: {{batch_size: 32}}
callbacks: [{{class_path: callbacks.BatchSizeFinder, init_args: {{calls: 2, most: 128}}}}]
"""
    )
    assert main(["fit", str(tmp_path / "search.yaml"), "--set", f"run_dir={tmp_path}/run"]) == 0
    assert "BatchSizeFinder suggests batch_size=" in capsys.readouterr().out


def test_an_update_that_is_half_gathered_is_not_searched_over(data):
    trainer = make_trainer(gradient_accumulation_steps=4)
    trainer.fit(data, batch_size=64, max_steps=1, callbacks=[], sink_size=1)

    def gather(trainer):  # as after a resume in the middle of an update
        overwrite(trainer.builder.accumulation.count, np.array(1, np.int32))

    opened = LambdaCallback(on_train_begin=gather, order=-5000)
    with pytest.raises(ConfigurationError, match="wait for their optimizer update"):
        trainer.fit(data, batch_size=64, callbacks=[opened, BatchSizeFinder(verbose=False)])


def test_a_run_that_is_to_end_is_not_searched(data):
    finder = BatchSizeFinder(calls=1, verbose=False)
    stop = LambdaCallback(on_train_begin=lambda trainer: trainer.stop("enough"), order=-5000)
    trainer = make_trainer()
    trainer.fit(data, batch_size=64, callbacks=[stop, finder])
    assert finder.records == []
    assert finder.suggestion is None
    assert "enough" in finder.reason
