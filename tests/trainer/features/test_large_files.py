"""Files that are not held in memory are learned from, trained on, evaluated and predicted piece by piece."""

import logging
import tracemalloc

import numpy as np
import pandas as pd
import pytest
from mindspore import nn, set_seed

from callbacks import Callback, ModelCheckpoint
from tests.trainer.features.test_training import Small
from trainer import Trainer
from trainer.errors import DataError
from trainer.features import Categorical, Expression, Features, Numeric, RawFiles
from trainer.features.feature_data import inputs_of

ROWS = 2000


def table(rows=ROWS):
    rng = np.random.default_rng(0)
    x = rng.normal(5, 2, rows).round(3)
    return pd.DataFrame({"x": x, "c": rng.choice([*"abcdefgh"], rows), "y": (x > 5).astype(int), "n": np.arange(rows)})


def write(data, path, forbidden=()):
    """Write three files, one of each form; labels of the rows `forbidden` are missing."""
    path.mkdir()
    data = data.astype({"y": float})
    data.loc[list(forbidden), "y"] = None
    third = len(data) // 3
    data[:third].to_csv(path / "1.csv", index=False)
    data[third : 2 * third].to_json(path / "2.jsonl", orient="records", lines=True)
    data[2 * third :].to_parquet(path / "3.parquet", row_group_size=200)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(table(), tmp_path_factory.mktemp("data") / "rows")


def large(path, **options):
    return RawFiles(path, in_memory=False, **{"shuffled_rows": 300, **options})


def make_trainer(**options):
    set_seed(0)
    features = Features([Numeric("x", normalize="standard"), Categorical("c", vocabulary="learn")], label="y")
    net = Small(features)
    optimizer = nn.Adam(net.trainable_params(), 1e-2)
    return Trainer(net, nn.BCEWithLogitsLoss(), optimizer, {"auc"}, features=features, seed=3, **options)


@pytest.mark.long
def test_without_shuffling_training_is_that_of_a_table(folder):
    whole, pieces = make_trainer(), make_trainer()
    whole.fit(table(), epochs=2, batch_size=64, shuffle=False, callbacks=[])
    pieces.fit(large(folder), epochs=2, batch_size=64, shuffle=False, callbacks=[])
    new = table()[:500].drop(columns="y")
    np.testing.assert_array_equal(pieces.predict(new), whole.predict(new))
    assert pieces.evaluate(large(folder), batch_size=64) == whole.evaluate(folder, batch_size=64)
    path = folder.parent / "unlabelled.csv"
    new.to_csv(path, index=False)
    np.testing.assert_array_equal(pieces.predict(large(path), batch_size=100), whole.predict(new, batch_size=100))


class Rows(nn.Cell):
    """The loss of each row, and which rows came, by their number in column `n`."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Dense(1, 1)

    def construct(self, numbers):
        return self.weight(numbers[:, :1] * 0).reshape(-1)


class Seen(Callback):
    def __init__(self):
        self.rows = []

    def on_train_step_end(self, trainer):
        self.rows += [array.reshape(-1) for array in trainer.state.outputs.chunk.arrays[:1]]


def seen_rows(data, callbacks=(), **options):
    features = Features([Numeric("n")], label="y")
    net = Rows()
    trainer = Trainer(net, nn.BCEWithLogitsLoss(), nn.Adam(net.trainable_params()), features=features, seed=7)
    seen = Seen()
    trainer.fit(
        data, batch_size=64, callbacks=[seen, *callbacks], **{"epochs": 2, "dataset_sink_mode": False, **options}
    )
    return np.concatenate(seen.rows).astype(int)


def test_every_epoch_has_all_rows_in_another_order(folder):
    rows = seen_rows(large(folder))
    first, second = rows[:ROWS], rows[ROWS:]
    np.testing.assert_array_equal(np.sort(first), np.arange(ROWS))
    np.testing.assert_array_equal(np.sort(second), np.arange(ROWS))
    assert (first != second).mean() > 0.9
    assert np.abs(np.diff(first)).mean() > 30  # shuffled within blocks,
    assert first[:300].max() - first[:300].min() > 250  # which come in any order
    np.testing.assert_array_equal(seen_rows(large(folder)), rows)


def test_a_run_that_was_interrupted_goes_on_with_the_next_row(folder, tmp_path):
    whole = seen_rows(large(folder))
    begun = seen_rows(large(folder), [ModelCheckpoint(tmp_path, every=40)], max_steps=40)
    rest = seen_rows(large(folder), resume=tmp_path)
    np.testing.assert_array_equal(np.concatenate([begun, rest]), whole)


@pytest.mark.long
def test_parts_are_those_that_are_held_in_memory(folder):
    for part in ("train", "valid", "test"):
        features = Features([Numeric("n")], label="y")
        expected = inputs_of(features, RawFiles(folder, part))["numbers"][:, 0].astype(int)
        np.testing.assert_array_equal(seen_rows(large(folder, part=part), shuffle=False, epochs=1), expected)


def test_rows_that_are_set_aside_are_counted_once(tmp_path, caplog):
    path = write(table(), tmp_path / "rows", forbidden=[5, 700, 1999])
    with caplog.at_level(logging.WARNING):
        rows = seen_rows(large(path), epochs=1)
    assert set(range(ROWS)) - set(rows) == {5, 700, 1999}
    messages = [record.message for record in caplog.records if "set aside" in record.message]
    assert len(messages) == 1
    assert "3 of 2000 rows set aside: y is missing 3; the first is line 7 of 1.csv" in messages[0]


def test_files_that_change_between_epochs_are_noticed(tmp_path):
    path = tmp_path / "rows.csv"
    table().to_csv(path, index=False)

    class Truncate(Callback):
        def on_train_epoch_end(self, trainer):
            table(500).to_csv(path, index=False)

    with pytest.raises(DataError, match="has changed"):
        seen_rows(large(path), [Truncate()], epochs=4)


@pytest.mark.long
def test_memory_holds_a_few_blocks(tmp_path):
    rows = 200_000
    path = tmp_path / "rows.csv"
    path.write_text("n,y\n" + "".join(f"{n},{n % 2}\n" for n in range(rows)))
    wide = [Expression(f"n{number}", expression=f"n + {number}") for number in range(64)]
    features = Features([Numeric("n", normalize="standard"), *wide], label="y")
    net = Rows()
    trainer = Trainer(net, nn.BCEWithLogitsLoss(), nn.Adam(net.trainable_params()), features=features)
    options = {"batch_size": 1024, "callbacks": [], "dataset_sink_mode": False}
    trainer.fit(large(path), max_steps=1, **options)  # what is imported and compiled does not count
    tracemalloc.start()
    try:
        trainer.fit(large(path, shuffled_rows=4096), **options)
        piecewise = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        trainer.fit(RawFiles(path, in_memory=True), **options)
        at_once = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert trainer.state.progress.samples_seen == 2 * rows + 1024
    assert piecewise < rows * 65 * 4 < at_once  # bytes of all inputs
