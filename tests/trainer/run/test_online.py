"""`online_train`: streams that end and streams that do not, windows, exact resume, clean stops."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import threading
import time

import mindspore
import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore import nn
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score

from callbacks import Callback, EarlyStopping, LambdaCallback, ModelCheckpoint
from trainer import Trainer, Window
from trainer.embedding import Embedding, Eviction, MinSightings
from trainer.errors import CheckpointError, ConfigurationError, DataError, StreamError
from trainer.streams import Column, DelayedLabelJoin, FileStream, IterableStream, ReplayStream, Schema

ROWS = 1138


class Logistic(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(30, 1, weight_init="zeros", bias_init="zeros")

    def construct(self, features):
        return self.dense(features)


class SqueezedLogistic(Logistic):
    def construct(self, features):
        return self.dense(features)[:, 0]


@pytest.fixture(scope="module")
def table():
    data = load_breast_cancer()
    order = np.random.default_rng(0).permutation(np.tile(np.arange(569), 2))
    features = ((data.data - data.data.mean(0)) / data.data.std(0)).astype(np.float32)[order]
    return {
        "features": features,
        "label": data.target[order].astype(np.float32)[:, None],
        "site": (np.arange(ROWS) % 2).astype(np.int32),
        "time": np.arange(float(ROWS)),
    }


class OfAUser(nn.BCEWithLogitsLoss):
    """A loss of which nothing is known."""


def make(loss=None, **options):
    network = Logistic()
    optimizer = nn.Adam(network.trainable_params(), 1e-2)
    return Trainer(network, loss or nn.BCEWithLogitsLoss(), optimizer, **options)


def weights(trainer):
    return np.concatenate([np.array(p.asnumpy()).ravel() for p in trainer.network.get_parameters()])


def replay(table):
    return ReplayStream(table, event_time="time")


@pytest.fixture(scope="module")
def whole(table):
    """An uninterrupted run and every prediction it made, in order."""
    seen = []
    trainer = make()
    note = LambdaCallback(on_train_step_end=lambda t: seen.append(t.state.outputs.predictions.ravel()))
    trainer.online_train(replay(table), [note], batch_size=32, window=256)
    return trainer, np.concatenate(seen)


def test_every_row_is_trained_once_and_the_end_is_reported(whole):
    trainer, predictions = whole
    assert trainer.state.stop_reason.kind == "stream_end"
    assert trainer.state.progress.samples_seen == len(predictions) == ROWS
    assert trainer.state.progress.global_step == -(-ROWS // 32)
    assert trainer.state.progress.epoch == 0


def test_each_batch_is_scored_before_it_is_learned(whole, table):
    trainer, predictions = whole
    assert np.all(predictions[:32] == 0), "the first batch is scored by the untrained network"
    exact = roc_auc_score(table["label"].ravel(), predictions)
    assert trainer.state.window["lifetime_auc"] == pytest.approx(exact, abs=1e-3)
    assert trainer.state.window["lifetime_rows"] == ROWS


def test_sunk_steps_give_the_same_weights(whole, table):
    trainer = make()
    trainer.online_train(replay(table), [], sink_size=8, batch_size=32, window=256)
    assert trainer.sink_mode == "graph loop of 8 steps"
    np.testing.assert_array_equal(weights(trainer), weights(whole[0]))
    assert trainer.state.window["lifetime_auc"] == pytest.approx(whole[0].state.window["lifetime_auc"], abs=1e-9)


def test_windows_close_by_rows_and_by_event_time(table):
    closed = []
    note = LambdaCallback(on_window_end=lambda t: closed.append((t.state.progress.samples_seen, dict(t.state.window))))
    trainer = make(metrics=["auc/site"])
    trainer.online_train(replay(table), [note], batch_size=32, window=Window(event_time=300))
    assert [rows for rows, _ in closed[:3]] == [320, 608, 928]
    first = closed[0][1]
    assert {"window_auc", "window_loss", "window_auc/site=0", "window_auc/site=1", "lag", "staleness"} <= set(first)
    assert 0 <= first["lag"] <= ROWS - 320, "rows that were read ahead do not count as waiting upstream"
    assert history_of(trainer, "window_auc") == [window["window_auc"] for _, window in closed]


def history_of(trainer, name):
    return trainer.history.history[name]


@pytest.mark.long(but=["4"])
@pytest.mark.parametrize("sink_size", [1, 4])
def test_a_resumed_stream_ends_with_the_same_bits(whole, table, tmp_path, sink_size):
    checkpoint = ModelCheckpoint(tmp_path, every=7)
    first = make()
    first.online_train(replay(table), [checkpoint], sink_size=sink_size, batch_size=32, window=256, max_steps=20)
    assert (first.state.stop_reason.kind, first.state.progress.global_step) == ("limit", 20)
    second = make()
    second.online_train(
        replay(table), [ModelCheckpoint(tmp_path)], sink_size=sink_size, batch_size=32, window=256, resume=tmp_path
    )
    assert second.state.progress.samples_seen == ROWS
    np.testing.assert_array_equal(weights(second), weights(whole[0]))
    assert second.state.window["lifetime_auc"] == pytest.approx(whole[0].state.window["lifetime_auc"], abs=1e-3)


def test_only_durable_positions_are_committed_to_the_source(table, tmp_path):
    committed = []

    class Watched(ReplayStream):
        def commit(self, position):
            committed.append((position["table"][1], (tmp_path / "last").read_text().strip()))

    make().online_train(
        Watched(table, event_time="time"), [ModelCheckpoint(tmp_path, every=10)], batch_size=32, max_steps=25
    )
    assert committed == [(320, "step_00000010"), (640, "step_00000020"), (800, "step_00000025")]


def test_a_snapshot_from_outside_of_a_training_is_said_to_hold_no_position(table, tmp_path, caplog):
    trainer = make()
    trainer.online_train(replay(table), [], batch_size=32, max_steps=2)
    trainer.save(tmp_path)
    resumed = make()
    resumed.online_train(replay(table), [], batch_size=32, max_steps=3, resume=tmp_path)
    assert resumed.state.progress.samples_seen == 96
    assert "it does not say where in the stream the 64 rows trained on end" in caplog.text


def test_a_file_stream_is_followed_while_it_grows(table, tmp_path):
    def segment(number, first, last):
        lines = [
            json.dumps({"features": table["features"][i].tolist(), "label": [float(table["label"][i, 0])]})
            for i in range(first, last)
        ]
        aside = tmp_path / "aside"
        aside.write_text("\n".join(lines) + "\n")
        aside.rename(tmp_path / f"{number}.jsonl")

    schema = Schema({"features": Column("float32", (30,)), "label": Column("float32", (1,))}, label="label")
    segment(1, 0, 100)
    writer = threading.Timer(0.5, segment, (2, 100, 256))
    writer.start()
    trainer = make()
    trainer.online_train(FileStream(tmp_path, schema, pattern="*.jsonl"), [], batch_size=32, idle_timeout=2.0)
    assert trainer.state.stop_reason.kind == "idle"
    assert trainer.state.progress.samples_seen == 256


def test_waiting_batches_are_trained_when_the_source_falls_silent(table):
    release = threading.Event()
    rows = []

    def source():
        for start in range(0, 96, 32):
            yield {name: column[start : start + 32] for name, column in table.items()}
        release.wait(20)

    def note(trainer):
        rows.append(trainer.state.progress.samples_seen)
        release.set()

    trainer = make()
    stream = IterableStream(source, event_time="time")
    polls = stream.poll
    stream.poll = lambda n, timeout: polls(n, timeout) if stream.position()["iterable"][0] < 3 else silent(polls, n)

    def silent(polls, n):
        return polls(n, 0.0) if release.is_set() else time.sleep(0.05)

    trainer.online_train(stream, LambdaCallback(on_train_step_end=note), sink_size=8, flush_after=0.2)
    assert rows == [96], "three batches, fewer than a full call, were trained before the source went on"


@pytest.mark.parametrize("how", ["callback", "trainer", "seconds"])
def test_a_stop_is_honoured_within_one_call(table, how):
    endless = ReplayStream(table, event_time="time", repeat=None)

    class Stop(Callback):
        def on_train_step_end(self, trainer):
            if trainer.state.progress.global_step == 12 and how == "trainer":
                trainer.stop("enough")

    class RequestStop(mindspore.train.Callback):
        def step_end(self, run_context):
            if run_context.original_args().cur_step_num == 12:
                run_context.request_stop()

    trainer = make()
    limit = {"max_time": 0.5} if how == "seconds" else {}
    callbacks = [RequestStop()] if how == "callback" else [Stop()]
    trainer.online_train(endless, callbacks, batch_size=32, sink_size=4, **limit)
    if how == "seconds":
        assert trainer.state.stop_reason.kind == "limit"
    else:
        assert trainer.state.progress.global_step == 12
        assert trainer.state.stop_reason.kind in ("callback", "user")


def some_rows(table, first, last):
    return [{"features": table["features"][i].tolist(), "label": [float(i)]} for i in range(first, last)]


class FirstFour(Callback):
    """Notes the numbers of the rows, which stand in the label; stops after four steps where it is told to."""

    def __init__(self, stops):
        self.stops, self.rows = stops, []

    def on_train_step_end(self, trainer):
        self.rows += trainer.state.outputs.chunk.rows(1)[:, 0].astype(int).tolist()
        if self.stops and len(self.rows) >= 64:
            if self.stops == "fails":
                raise OSError("a side output of the callback's own")
            trainer.stop("enough")


def test_a_further_call_goes_on_behind_the_row_trained_last(table, tmp_path):
    for part in range(4):
        lines = map(json.dumps, some_rows(table, 200 * part, 200 * part + 200))
        (tmp_path / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "_DONE").touch()
    schema = Schema({"features": Column("float32", (30,)), "label": Column("float32", (1,))}, label="label")
    stream, rows = FileStream(tmp_path, schema), []
    trainer = make()
    for stops in (True, "fails", False):
        notes = FirstFour(stops)
        with pytest.raises(OSError, match="of the callback's own") if stops == "fails" else contextlib.nullcontext():
            trainer.online_train(stream, notes, batch_size=16, sink_size=1)
        rows += notes.rows
        assert len(notes.rows) == 64 or not stops
    assert rows == list(range(800))


def test_rows_that_an_iterator_cannot_give_again_are_warned_of(table, caplog):
    items = iter(
        [{"features": table["features"][i : i + 16], "label": table["label"][i : i + 16]} for i in range(0, 800, 16)]
    )
    make().online_train(items, FirstFour(True), sink_size=1)
    assert "rows were read ahead but not trained on, and the next call starts after them" in caplog.text


def test_a_signal_while_the_stream_is_silent_leaves_a_snapshot(table, tmp_path):
    class Silent(ReplayStream):
        exhausted = False

    before = signal.getsignal(signal.SIGTERM)
    trainer = make()
    threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
    with pytest.raises(SystemExit) as left:
        trainer.online_train(Silent(table, event_time="time"), [ModelCheckpoint(tmp_path, every=1000)], batch_size=32)
    assert left.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before
    assert trainer.state.snapshot.name == f"step_{trainer.state.progress.global_step:08d}"


@pytest.mark.long
def test_a_bounded_and_an_endless_pipeline_are_streams(table):
    pipeline = ds.NumpySlicesDataset({k: table[k] for k in ("features", "label")}, shuffle=False).batch(32)
    trainer = make()
    trainer.online_train(pipeline, [])
    assert trainer.state.progress.samples_seen == ROWS
    trainer.online_train(pipeline.repeat(-1), [], max_steps=60, sink_size=4)
    assert trainer.state.progress.global_step == -(-ROWS // 32) + 60


def test_mistakes_are_named(table, tmp_path):
    with pytest.raises(ConfigurationError, match="batch_size takes a whole number >= 1"):
        make().online_train(replay(table), batch_size=0)
    with pytest.raises(DataError, match=r"no column 'sites'.*did you mean 'site'"):
        make(metrics=["auc/sites"]).online_train(replay(table), [], window=10)
    with pytest.raises(CheckpointError, match="no snapshot"):
        make().online_train(replay(table), [], resume=tmp_path)
    with pytest.raises(ConfigurationError, match="did you mean 'window_auc'"):
        make().online_train(replay(table), [ModelCheckpoint(tmp_path, monitor="window_acu", mode="max")])


def test_a_stream_of_batches_of_many_sizes_gets_a_warning_of_the_cost(table, caplog):
    def uneven():
        for rows in range(3, 10):
            yield {name: table[name][:rows] for name in ("features", "label")}

    make(loss=OfAUser()).online_train(uneven, callbacks=[])
    assert caplog.text.count("compiled separately, 3, 4, 5 so far") == 1
    assert "batch_size=" in caplog.text
    caplog.clear()
    make().online_train(uneven, callbacks=[], batch_size=6)
    assert "compiled separately" not in caplog.text


@pytest.mark.parametrize(
    ("sizes", "sink_size", "stop_at", "done"), [((8, 4, 8, 4), 1, 8, (0, 0)), ((8, 8, 8, 4), 2, 24, (1, 16))]
)
def test_a_further_call_trains_the_rows_of_an_update_that_was_not_complete(sizes, sink_size, stop_at, done):
    random = np.random.default_rng(0)
    batches = [(random.standard_normal((rows, 4)).astype(np.float32), np.ones((rows, 1), np.float32)) for rows in sizes]
    weights = []
    for stops in (False, True):
        net = nn.Dense(4, 1, weight_init="ones", bias_init="zeros")
        trainer = Trainer(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1), gradient_accumulation_steps=2)
        stream = IterableStream(lambda: iter(batches))
        if stops:
            stop = LambdaCallback(on_train_step_end=lambda t: t.state.progress.samples_seen >= stop_at and t.stop())
            trainer.online_train(stream, [stop], sink_size=sink_size)
            assert (trainer.state.progress.global_step, trainer.state.progress.samples_seen) == done
        trainer.online_train(stream, [], sink_size=sink_size)
        assert trainer.state.progress.samples_seen == sum(sizes)
        weights.append(net.weight.asnumpy().copy())
    np.testing.assert_array_equal(*weights)


def test_rows_that_a_failed_start_has_looked_at_are_trained(tmp_path):
    class ByIds(nn.Cell):
        def __init__(self):
            super().__init__()
            self.table, self.top = Embedding(1, mode="sparse"), nn.Dense(1, 1)

        def construct(self, ids):
            return self.top(self.table(ids))

    labels = np.ones((40, 1), np.float32)
    labels[3] = np.nan
    stream = ReplayStream({"ids": np.arange(40), "label": labels}, dead_letter=tmp_path)
    network = ByIds()
    trainer = Trainer(network, nn.MSELoss(), nn.Adam(network.trainable_params(), 0.01))
    with pytest.raises(
        StreamError, match="Is a directory"
    ):  # before the tables are known, when they look for their ids
        trainer.online_train(stream, [], batch_size=8)
    stream.dead_letter.path = tmp_path / "bad.jsonl"
    with pytest.raises(ConfigurationError, match="no metric of that name"):
        trainer.online_train(stream, [EarlyStopping("window_los")], batch_size=8)
    trainer.online_train(stream, [], batch_size=8)
    assert trainer.state.progress.samples_seen == 39
    assert len(trainer.tables.tables.tables["table"]) == 39


def test_a_stream_that_cannot_go_back_does_not_hide_why_the_training_ended(table, caplog):
    class Forward(ReplayStream):
        def seek(self, position):
            raise RuntimeError("this source only goes forward")

    with pytest.raises(OSError, match="of the callback's own"):
        make().online_train(Forward(table, event_time="time"), FirstFour("fails"), batch_size=16)
    assert "next call starts after them: this source only goes forward" in caplog.text


def test_a_source_that_is_away_when_the_training_stops_goes_back_all_the_same(table):
    class Away(ReplayStream):
        retrying = False

        def position(self):
            if self.retrying:
                raise StreamError("the server does not answer")
            return super().position()

    def leave(trainer):
        stream.retrying = True
        trainer.stop("enough")

    stream, trainer = Away(table, event_time="time"), make()
    trainer.online_train(stream, [LambdaCallback(on_train_step_end=leave)], batch_size=16)
    assert trainer.state.progress.samples_seen == 16
    stream.retrying = False
    trainer.online_train(stream, [], batch_size=16)
    assert trainer.state.progress.samples_seen == ROWS


def test_a_stream_that_was_closed_is_named_as_such(table, tmp_path):
    trainer = make()
    for stream in (replay(table), IterableStream(lambda: iter([table]), event_time="time")):
        stream.close()
        with pytest.raises(StreamError, match=f"{type(stream).__name__} is closed.*open a new one"):
            trainer.online_train(stream, [], batch_size=32, max_time=20.0)


def test_rows_read_ahead_by_a_thread_that_still_waits_are_warned_of(table, caplog, monkeypatch):
    monkeypatch.setattr("trainer.data.waiting.JOIN_SECONDS", 0.1)
    release = threading.Event()

    class Blocking(ReplayStream):
        def poll(self, max_rows, timeout=0.0):
            return super().poll(max_rows, timeout) if self.position()["table"][1] < 64 else release.wait(20) and None

    trainer = make()
    stop = LambdaCallback(on_train_step_end=lambda t: t.stop("enough"))
    trainer.online_train(Blocking(table, event_time="time"), [stop], batch_size=32)
    release.set()
    assert "32 rows were read ahead but not trained on, and the next call starts after them" in caplog.text
    assert "still waits" in caplog.text


def test_the_label_of_a_join_is_the_column_that_it_names(table):
    class Single(Logistic):
        def construct(self, features):
            return self.dense(features).reshape(-1)

    shown = {"key": np.arange(96), "features": table["features"][:96], "time": table["time"][:96]}
    chosen = {"key": np.arange(0, 96, 3), "time": table["time"][:96:3] + 0.5}
    stream = DelayedLabelJoin(replay(shown), replay(chosen), "key", 5.0, label="clicked")
    network, labels = Single(), []
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 1e-2))
    note = LambdaCallback(on_train_step_end=lambda t: labels.extend(t.state.outputs.chunk.arrays[-1].tolist()))
    trainer.online_train(stream, [note], batch_size=32)
    assert (len(labels), sum(labels)) == (96, 32)


class UnevenBatches:
    """Batches of 16 rows, one of 8 among `every`: two of an update do not share a call. It continues at a state."""

    def __init__(self, table, every):
        self.table, self.every, self.number = table, every, 0

    def __iter__(self):
        return self

    def __next__(self):
        first = 16 * self.number
        if first >= 320:
            raise StopIteration
        self.number += 1
        end = first + (16 if self.number % self.every else 8)
        return {name: self.table[name][first:end] for name in ("features", "label")}

    def state_dict(self):
        return {"number": self.number}

    def load_state_dict(self, state):
        self.number = state["number"]


def test_a_snapshot_within_an_update_leaves_the_rows_of_the_update_to_a_further_call(table, tmp_path):
    def save_within_an_update(trainer):
        if trainer.position["batch"] == 3:
            trainer.save(tmp_path)
            trainer.stop("enough")

    trainer, stream = make(gradient_accumulation_steps=2), IterableStream(UnevenBatches(table, 3))
    trainer.online_train(stream, [LambdaCallback(on_train_step_end=save_within_an_update)])
    assert "fill" in json.loads((tmp_path / "step_00000001" / "state.json").read_text())["loop"]["position"]
    trainer.online_train(stream, [])
    whole = make(gradient_accumulation_steps=2)
    whole.online_train(IterableStream(UnevenBatches(table, 3)), [])
    assert trainer.state.progress.samples_seen == whole.state.progress.samples_seen
    np.testing.assert_array_equal(weights(trainer), weights(whole))


def test_a_join_keeps_its_state_for_as_many_rows_as_are_read_ahead(table, tmp_path, monkeypatch):
    monkeypatch.setattr("trainer.streams.sources.join._KEPT_ROWS", 16)
    monkeypatch.setattr("trainer.streams.sources.pending._READ_ROWS", 8)
    shown = {**{name: table[name] for name in ("features", "time")}, "key": np.arange(ROWS)}
    acted = {"key": np.arange(0, ROWS, 3), "time": table["time"][::3] + 2.0}

    def join():
        return DelayedLabelJoin(*(ReplayStream(side, event_time="time") for side in (shown, acted)), "key", 5.0)

    def train(callbacks, **options):
        network = SqueezedLogistic()
        trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 1e-2))
        trainer.online_train(join(), callbacks, batch_size=32, sink_size=4, **options)
        return weights(trainer)

    snapshots = ModelCheckpoint(tmp_path, every=4)
    train([snapshots], max_steps=12)
    np.testing.assert_array_equal(train([snapshots], resume=tmp_path), train([]))


def test_rows_of_an_update_that_are_read_again_count_once_in_tables_and_calibration():
    class ByIds(nn.Cell):
        def __init__(self):
            super().__init__()
            rules = {"admission": MinSightings(3, width=1024), "eviction": Eviction("lfu")}
            self.table = Embedding(1, 99, name="users", mode="sparse", initializer="zeros", **rules)
            self.top = nn.Dense(1, 1, weight_init="ones", bias_init="zeros")

        def construct(self, user):
            return self.top(self.table(user)).reshape(-1)

    ids = [np.arange(first, last) % 20 for first, last in itertools.pairwise([0, 8, 12, 20, 24, 32, 36, 44, 48])]
    states = []
    for stops in (False, True):
        network, stream = ByIds(), IterableStream([{"user": part, "label": part % 2 * 1.0} for part in ids])
        trainer = Trainer(
            network,
            nn.BCEWithLogitsLoss(),
            nn.SGD(network.trainable_params(), 0.1),
            gradient_accumulation_steps=4,
            calibration={"min_rows": 1},
        )
        if stops:
            stop = LambdaCallback(on_train_step_end=lambda t: t.state.progress.samples_seen >= 36 and t.stop())
            trainer.online_train(stream, [stop])
            assert trainer.state.progress.samples_seen == 24
        trainer.online_train(stream, [])
        table = trainer.tables.tables.take()
        counted = [np.array(table["arrays"][f"users/{name}"]).tolist() for name in ("sketch", "frequency")]
        states.append((counted, table["json"]["users"]["step"], trainer.fitted_calibration().to_json()))
    assert states[0] == states[1]


def test_tables_wait_for_no_newer_row_than_those_behind_the_snapshot_nor_beyond_the_idle_timeout(tmp_path):
    class ByUser(nn.Cell):
        def __init__(self):
            super().__init__()
            self.table, self.top = Embedding(1, name="users", mode="sparse"), nn.Dense(1, 1)

        def construct(self, user):
            return self.top(self.table(user))

    class Latest(ReplayStream):
        """A stream that begins behind its newest row, as a topic with start="latest", unless it seeks."""

        exhausted = False

        def __init__(self, table):
            super().__init__(table)
            self.seek({"table": [0, 40]})

        def poll(self, max_rows, timeout=0.0):
            return super().poll(max_rows, timeout) if self.position()["table"][0] == 0 else None

    def train(stream, **options):
        network = ByUser()
        trainer = Trainer(network, nn.MSELoss(), nn.Adam(network.trainable_params(), 0.01))
        trainer.online_train(stream, [ModelCheckpoint(tmp_path)], **{"batch_size": 8, "idle_timeout": 0.3, **options})
        return trainer.state

    rows = {"user": np.arange(40), "label": np.ones((40, 1), np.float32)}
    assert train(ReplayStream(rows), max_steps=2).progress.samples_seen == 16
    ended = train(Latest(rows))
    assert (ended.progress.samples_seen, ended.stop_reason.kind) == (0, "idle")
    ended = train(Latest(rows), idle_timeout=None, max_time=0.3)
    assert (ended.progress.samples_seen, str(ended.stop_reason)) == (0, "limit: seconds=0.3")
    ended = train(Latest(rows), resume=tmp_path)
    assert (ended.progress.samples_seen, ended.stop_reason.kind) == (40, "idle")


@pytest.mark.parametrize("hook", ["on_train_step_begin", "on_train_step_end", "on_checkpoint"])
def test_a_snapshot_of_on_exception_goes_on_where_the_training_failed(hook, table, tmp_path):
    def fail(trainer):
        if trainer.position["batch"] == 5:
            raise OSError("the disk is away")

    def train(*callbacks, **options):
        trainer = make(gradient_accumulation_steps=3)
        trainer.online_train(IterableStream(UnevenBatches(table, 2)), callbacks, window=1000, **options)
        return trainer

    whole = train()
    failing = LambdaCallback(**{hook: fail}, on_exception=lambda trainer: trainer.save(tmp_path))
    with pytest.raises(OSError, match="away"):
        train(failing)
    resumed = train(resume=tmp_path)
    np.testing.assert_array_equal(weights(resumed), weights(whole))
    assert vars(resumed.state.progress) == vars(whole.state.progress)
    for name in ("window_rows", "window_loss", "window_auc"):
        assert resumed.state.window[name] == pytest.approx(whole.state.window[name], rel=1e-6)


def test_the_loss_of_epochs_is_no_metric_of_a_stream(table):
    stream = IterableStream([{name: table[name][:64] for name in ("features", "label")}])
    with pytest.raises(ConfigurationError, match=r"EarlyStopping\(monitor='loss'\).*did you mean 'window_loss'"):
        make().online_train(stream, callbacks=[EarlyStopping("loss")])
