"""NaN and infinite values: set aside as bad rows in streams, else named once, by every verb."""

import json
import logging

import mindspore
import numpy as np
import pytest
from mindspore import nn

from callbacks import ModelCheckpoint
from trainer import MultiTaskLoss, SkipNonFinite, Trainer
from trainer.errors import StreamError
from trainer.streams import Column, DeadLetter, FileStream, IterableStream, ReplayStream, Schema

ROWS = 24
X = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
Y = X[:, :1].copy()
BAD = (5, 11, 12, 23)


def data(**changed):
    return {"x": X.copy(), "label": Y.copy()} | changed


def poisoned():
    x, y = X.astype(np.float64), Y.copy()
    y[5], y[11], x[12, 1], x[23, 0] = np.nan, np.inf, np.nan, 1e300  # the last one is no float32
    return {"x": x, "label": y}


def trained(stream, loss=nn.MSELoss, outputs=1, **options):
    network = nn.Dense(3, outputs, weight_init=mindspore.Tensor(np.ones((outputs, 3), np.float32)), bias_init="zeros")
    trainer = Trainer(network, loss(), nn.SGD(network.trainable_params(), 0.1))
    trainer.online_train(stream, options.pop("callbacks", []), batch_size=4, **options)
    return trainer


def batches(table, size=3):
    return [{name: column[i : i + size] for name, column in table.items()} for i in range(0, ROWS, size)]


def rows(table):
    return [{name: column[i] for name, column in table.items()} for i in range(ROWS)]


SOURCES = {
    "replay": lambda table, **options: ReplayStream(table, **options),
    "batches": lambda table, **options: IterableStream(batches(table), **options),
    "rows": lambda table, **options: IterableStream(rows(table), rows="single", **options),
}


@pytest.mark.long(but=["batches"])
@pytest.mark.parametrize("source", SOURCES)
def test_rows_of_a_stream_that_are_not_finite_are_set_aside(source, tmp_path, caplog):
    bad = DeadLetter(tmp_path / "bad.json", max_bad_share=0.5)
    trainer = trained(SOURCES[source](poisoned(), dead_letter=bad))
    kept = np.setdiff1d(np.arange(ROWS), BAD)
    expected = trained(ReplayStream(data(x=X[kept], label=Y[kept])))
    assert trainer.network.weight.asnumpy() == pytest.approx(expected.network.weight.asnumpy(), rel=1e-5)
    assert trainer.state.progress.samples_seen == len(kept) == bad.good
    lines = [json.loads(line) for line in (tmp_path / "bad.json").read_text().splitlines()]
    assert [line["reason"].split("'")[1] for line in lines] == ["label", "label", "x", "x"]
    per_item = {"replay": ROWS, "batches": 3, "rows": 1}[source]
    of_item = [line["offset"] * per_item + line["row"] for line in lines]
    assert of_item == list(BAD)


def test_a_stream_without_a_dead_letter_counts_bad_rows_and_names_the_first(caplog):
    stream = ReplayStream(poisoned())
    with caplog.at_level(logging.WARNING):
        trained(stream)
    assert stream.dead_letter.bad == len(BAD)
    assert caplog.text.count("column 'label' holds NaN or an infinite value") == 1
    y = np.full((2000, 1), np.nan, np.float32)
    with pytest.raises(StreamError, match=r"max_bad_share=0\.01 allows; the newest: column 'label' holds NaN"):
        trained([{"x": np.ones((2000, 3), np.float32), "label": y}])


@pytest.mark.long
def test_a_position_behind_bad_rows_is_reached_again(tmp_path):
    """A run that is stopped and resumed among bad rows trains on every good row once."""
    whole = trained(ReplayStream(poisoned()))
    first = trained(ReplayStream(poisoned()), callbacks=[ModelCheckpoint(tmp_path, every=1)], max_steps=2)
    assert first.state.progress.samples_seen == 8
    again = trained(ReplayStream(poisoned()), resume=tmp_path)
    assert again.state.progress.samples_seen == ROWS - len(BAD)
    assert again.network.weight.asnumpy() == pytest.approx(whole.network.weight.asnumpy(), rel=1e-6)


@pytest.mark.long
def test_columns_that_may_hold_nan_are_let_through(tmp_path, caplog):
    table = data()
    table["x"][3] = np.nan
    stream = ReplayStream(table, allow_nan=["x"])
    trained(stream)
    assert stream.dead_letter.bad == 0
    assert "SkipNonFinite: skipped step 1" in caplog.text
    lines = "".join(json.dumps({"x": [float("nan"), 1.0, 2.0], "label": [1.0]}) + "\n" for _ in range(4))
    (tmp_path / "part.jsonl").write_text(lines)
    for allowed, seen in ((True, 4), (False, 0)):
        schema = Schema(
            {"x": Column("float32", (3,), allow_nan=allowed), "label": Column("float32", (1,))}, label="label"
        )
        stream = FileStream(tmp_path, schema, end="at_last")
        assert trained(stream).state.progress.samples_seen == seen
        assert stream.dead_letter.bad == 4 - seen


def test_allow_nan_false_lets_no_column_through():
    stream = ReplayStream(poisoned(), allow_nan=False)
    assert trained(stream).state.progress.samples_seen == ROWS - len(BAD)


@pytest.mark.long
def test_labels_that_a_task_masks_may_be_nan():
    def two_tasks():
        mse = nn.MSELoss
        return MultiTaskLoss({"click": mse(reduction="none"), "buy": mse(reduction="none")}, masks={"buy": "click"})

    click = (X[:, 0] > 0).astype(np.float32)
    table = {"x": X, "click": click, "buy": np.where(click > 0, X[:, 1], 0).astype(np.float32)}
    masked = {**table, "buy": np.where(click > 0, table["buy"], np.nan).astype(np.float32)}
    unmasked = {**masked, "buy": np.where(np.arange(ROWS) == np.argmax(click), np.nan, masked["buy"])}
    expected = trained(ReplayStream(table), two_tasks, 2)
    trainer = trained(ReplayStream(masked), two_tasks, 2)
    assert trainer.network.weight.asnumpy() == pytest.approx(expected.network.weight.asnumpy(), rel=1e-5)
    assert trainer.evaluate(masked, batch_size=8) == pytest.approx(expected.evaluate(table, batch_size=8), rel=1e-5)
    stream = ReplayStream(unmasked)
    assert trained(stream, two_tasks, 2).state.progress.samples_seen == ROWS - 1
    assert stream.dead_letter.bad == 1


VERBS = {
    "fit": lambda trainer, table: trainer.fit(batches(table, 4), 2, table, callbacks=[], batch_size=4),
    "fit to a limit": lambda trainer, table: trainer.fit(batches(table, 4), callbacks=[], max_steps=3),
    "online_train": lambda trainer, table: trainer.online_train(
        ReplayStream(table, allow_nan=True), [], batch_size=4, window=8, skip_non_finite=False
    ),
    "evaluate": lambda trainer, table: trainer.evaluate(table, batch_size=4),
    "predict": lambda trainer, table: trainer.predict(table["x"], batch_size=4),
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_warns_once_of_what_is_not_finite(verb, caplog):
    network = nn.Dense(3, 1)
    trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1))
    table = data()
    table["x"][1] = np.nan
    with caplog.at_level(logging.WARNING, "trainer.run"):
        VERBS[verb](trainer, table)
    (told,) = [r.message for r in caplog.records if "the loss is" in r.message or "predictions are NaN" in r.message]
    assert ("SkipNonFinite()" in told) is (verb != "predict")
    caplog.clear()
    sound = Trainer(nn.Dense(3, 1), nn.MSELoss())
    sound.evaluate(data(), batch_size=4)
    assert not caplog.records


def test_a_guarded_training_says_what_it_skipped_alone(caplog):
    table = data()
    table["x"][1] = np.nan
    trainer = trained(ReplayStream(table, allow_nan=True), callbacks=[SkipNonFinite()])
    assert np.isfinite(trainer.network.weight.asnumpy()).all()
    assert "the loss is" not in caplog.text
    assert "SkipNonFinite: skipped step 1" in caplog.text
