"""Sparse tables inside the trainer: whatever surrounds them, ids get the rows and updates that are theirs."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import mindspore.dataset as ms_dataset
import numpy as np
import pytest
from mindspore import Tensor, nn

from tests.trainer.contents import assert_same, content
from trainer import Every, LambdaCallback, ModelCheckpoint, Trainer
from trainer.embedding import Embedding, Eviction, RowAdagrad, RowAdam, RowFTRL, RowSGD
from trainer.embedding.tables.hashing import initial_rows
from trainer.errors import CheckpointError, CheckpointMismatchError, ConfigurationError, DataError
from trainer.streams import Column, FileStream, ReplayStream, Schema

ROWS, BATCH = 640, 32
FACTOR = 1_000_003  # far apart, so nobody can take ids for row numbers


class Taste(nn.Cell):
    """Two tables over the same ids, a dense part, and repeatable first weights."""

    def __init__(self, seed=0, names=("taste", "bias"), optimizer=None):
        super().__init__()
        self.taste = Embedding(4, name=names[0], optimizer=optimizer)
        self.bias = Embedding(1, name=names[1], initializer="zeros", optimizer=optimizer)
        self.top = nn.Dense(12, 1)
        rng = np.random.default_rng(seed)
        for parameter in self.trainable_params():
            parameter.set_data(Tensor(rng.normal(0, 0.3, parameter.shape).astype(np.float32)))

    def construct(self, ids, x):
        return self.top(self.taste(ids).reshape(-1, 12)) + self.bias(ids).sum(axis=1) + x


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(3)
    number = np.minimum(rng.zipf(1.3, (ROWS, 3)), 300)
    x = rng.standard_normal((ROWS, 1)).astype(np.float32)
    label = (number[:, :1] % 2 + 0.3 * x > 0.5).astype(np.float32)
    return {"ids": number.astype(np.int64) * FACTOR, "x": x, "label": label}


def build(network=None, lr=1e-2, **options):
    network = network or Taste()
    options = {"seed": 3, **options}
    return Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), lr), **options)


def fit(
    data, *, callbacks=(), epochs=2, sink_size=1, max_steps=None, resume=None, network=None, batch=BATCH, **options
):
    trainer = build(network, **options)
    trainer.fit(
        data,
        epochs,
        callbacks=list(callbacks),
        batch_size=batch,
        sink_size=sink_size,
        max_steps=max_steps,
        resume=resume,
    )
    return trainer


@pytest.fixture(scope="module")
def trained(data):
    """Trained in single steps; not to be trained on."""
    return fit(data, clip_norm=1.0, metrics=["auc"])


@pytest.fixture(scope="module")
def reference(trained):
    """What single steps without anything special end in."""
    return content(trained)


def test_eight_steps_a_call_are_eight_single_steps(data, reference):
    assert_same(content(fit(data, clip_norm=1.0, sink_size=8)), reference)
    distinct = np.unique(data["ids"])
    np.testing.assert_array_equal(reference["taste ids"][1:], distinct)  # the first is the default row
    assert reference["taste rows"].shape == (len(distinct) + 1, 12)  # lazy Adam keeps two slots per column
    assert np.abs(reference["bias rows"][1:, 0]).min() > 0


@pytest.mark.long
def test_float16_with_accumulation_comes_to_the_same_sunk_and_resumed(data, tmp_path):
    options = {"amp_level": "O2", "gradient_accumulation_steps": 4, "clip_norm": 1.0}
    whole = content(fit(data, callbacks=[ModelCheckpoint(tmp_path, every=3, keep_last=None)], sink_size=1, **options))
    # step 3 is twelve batches into an epoch of twenty, within a sunk call of eight
    resumed = fit(data, network=Taste(seed=9), resume=tmp_path / "step_00000003", sink_size=8, **options)
    assert resumed.state.progress.global_step == 10
    assert_same(content(resumed), whole)


def test_four_small_batches_are_one_large_one(data):
    whole = {name: column[: ROWS // 128 * 128] for name, column in data.items()}
    small = content(fit(whole, gradient_accumulation_steps=4, sink_size=2, clip_norm=0.5))
    large = content(fit(whole, batch=4 * BATCH, clip_norm=0.5))
    assert small.keys() == large.keys()
    for name in small:
        np.testing.assert_allclose(small[name], large[name], rtol=2e-4, atol=2e-6, err_msg=name)


class Dense(nn.Cell):
    """The same network with numbered ids, for what dense training comes to."""

    def __init__(self, sparse, count, seed=0):
        super().__init__()
        self.taste = nn.Embedding(count, 4)
        self.bias = nn.Embedding(count, 1, embedding_table="zeros")
        self.taste.embedding_table.set_data(Tensor(sparse))
        self.top = nn.Dense(12, 1)
        for mine, theirs in zip(self.top.trainable_params(), Taste(seed).top.trainable_params(), strict=True):
            mine.set_data(theirs)

    construct = Taste.construct


def test_clipping_takes_the_norm_over_dense_parameters_and_touched_rows(data):
    """One step of SGD moves every weight by its clipped gradient, so dense training says what is right."""
    numbers = np.unique(data["ids"][:BATCH])
    weights = initial_rows(numbers, 4, Taste().taste.host_table().seed, "normal", 0.01)
    one = {name: column[:BATCH] for name, column in data.items()}
    numbered = {**one, "ids": np.searchsorted(numbers, one["ids"]).astype(np.int32)}
    results = []
    for network, columns in ((Taste(), one), (Dense(weights, len(numbers)), numbered)):
        trainer = Trainer(
            network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 1.0), clip_norm=0.01, seed=3
        )
        trainer.fit(columns, 1, callbacks=[], batch_size=BATCH, shuffle=False)
        results.append(trainer)
    sparse, dense = results
    rows = content(sparse)
    np.testing.assert_allclose(rows["taste rows"][1:], dense.network.taste.embedding_table.asnumpy(), atol=1e-7)
    np.testing.assert_allclose(rows["bias rows"][1:], dense.network.bias.embedding_table.asnumpy(), atol=1e-7)
    moved = [rows["taste rows"][1:] - weights, rows["bias rows"][1:]]
    before = {p.name: p.asnumpy() for p in Taste().trainable_params()}
    moved += [rows[name] - before[name] for name in before]
    assert np.sqrt(sum((m.astype(np.float64) ** 2).sum() for m in moved)) == pytest.approx(0.01, rel=1e-3)


def test_strings_are_ids_too(data):
    words = np.char.add("film ", (data["ids"] // FACTOR).astype(str))
    trainer = fit({**data, "ids": words}, epochs=1, sink_size=8)
    assert len(trainer.tables.tables.tables["taste"]) == len(np.unique(words))
    known = trainer.predict(words[:5], data["x"][:5])
    mixed = trainer.predict(np.array([["nobody", *row[1:]] for row in words[:5]]), data["x"][:5])
    assert (known != mixed).all()


@pytest.fixture(scope="module")
def texts(data):
    """Return rows whose text ids are longest in every third batch, and its content when all have one width."""
    rows = {name: column[: 11 * BATCH - 5] for name, column in data.items()}
    found = [["n" * (1 + 2 * (row // BATCH % 3)) + str(one) for one in ids] for row, ids in enumerate(rows["ids"])]
    rows["ids"] = np.array(found)
    trainer = build()
    trainer.fit(rows, callbacks=[], batch_size=BATCH, shuffle=False, sink_size=1)
    return rows, content(trainer)


@pytest.mark.long
@pytest.mark.parametrize("sink_size", [1, 4])
def test_text_of_another_width_in_every_batch_is_trained_like_text_of_one_width(texts, sink_size):
    rows, expected = texts

    def batches():
        for first in range(0, len(rows["ids"]), BATCH):
            batch = {name: column[first : first + BATCH] for name, column in rows.items()}
            yield {**batch, "ids": np.array(batch["ids"].tolist())}

    assert len({batch["ids"].dtype for batch in batches()}) > 1
    trainer = fit(batches, epochs=1, batch=None, sink_size=sink_size)
    assert_same(content(trainer), expected)


@pytest.mark.long
def test_text_of_another_width_in_every_file_is_trained_like_text_of_one_width(texts, tmp_path):
    rows, expected = texts
    count = range(len(rows["ids"]))
    lines = [json.dumps({name: column[row].tolist() for name, column in rows.items()}) for row in count]
    for first in range(0, len(lines), BATCH):
        (tmp_path / f"{first:03}.jsonl").write_text("\n".join(lines[first : first + BATCH]) + "\n")
    schema = Schema(
        {"ids": Column("str", (3,)), "x": Column("float32", (1,)), "label": Column("float32", (1,))}, label="label"
    )
    trainer = build()
    stream = FileStream(tmp_path, schema, pattern="*.jsonl")
    trainer.online_train(stream, [], batch_size=BATCH, sink_size=4, idle_timeout=0.3)
    assert trainer.state.progress.samples_seen == len(rows["ids"])
    assert_same(content(trainer), expected)


def test_reading_unknown_ids_gives_the_default_row_and_keeps_nothing(data, trained, reference):
    strange = {**data, "ids": -data["ids"]}
    assert trained.evaluate(strange, batch_size=BATCH)["auc"] < trained.evaluate(data, batch_size=BATCH)["auc"]
    predicted = trained.predict(strange["ids"][:7], data["x"][:7])
    # the default row is zeros
    np.testing.assert_allclose(predicted, data["x"][:7] + reference["top.bias"][0], rtol=1e-5)
    assert_same(content(trained), reference)


@pytest.mark.long
def test_tables_and_dense_parameters_have_optimizers_of_their_own(data):
    network = Taste(optimizer=RowAdagrad(lr=0.5))
    trained = content(fit(data, network=network, sink_size=8, lr=0.0))
    untouched = {p.name: p.asnumpy() for p in Taste().trainable_params()}
    for name, value in untouched.items():
        np.testing.assert_array_equal(trained[name], value)  # Adam at rate 0
    assert trained["taste rows"].shape[1] == 8  # one accumulator per column
    assert (trained["taste rows"][1:, 4:] >= np.float32(0.1)).all()  # where it began
    assert np.abs(trained["bias rows"][1:, 0]).max() > 0.3


def test_a_snapshot_of_other_tables_is_refused_by_name(data, trained, tmp_path):
    trained.save(tmp_path)
    other = build(Taste(names=("flavour", "bias")))
    with pytest.raises(CheckpointMismatchError, match="flavour, taste has no counterpart"):
        other.fit(data, 2, callbacks=[], batch_size=BATCH, resume=tmp_path)


class SlowAdam(RowAdam):
    """A user's own optimizer, with the slots of the one it derives from."""


@pytest.mark.parametrize("other", [RowFTRL, RowSGD])
def test_a_snapshot_of_another_row_optimizer_is_refused_by_name(data, trained, tmp_path, other):
    """FTRL has as many slots as Adam, of another meaning."""
    trained.save(tmp_path)
    match = f"table 'taste' has optimizer {other.__name__}, the saved one RowAdam: "
    with pytest.raises(CheckpointMismatchError, match=match):
        fit(data, network=Taste(optimizer=other()), resume=tmp_path)
    build(Taste(optimizer=SlowAdam())).load(tmp_path)


class Plain(nn.Cell):
    """What is left of `Taste` without tables."""

    def __init__(self):
        super().__init__()
        self.top = nn.Dense(12, 1)

    def construct(self, ids, x):
        return self.top(x.repeat(12, 1)) + x


def test_a_snapshot_of_tables_is_refused_by_a_network_without_any(data, trained, tmp_path):
    trained.save(tmp_path)
    with pytest.raises(CheckpointMismatchError, match=r"the sparse tables \['bias', 'taste'\], the network has none"):
        build(Plain()).load(tmp_path)
    build(Plain()).load(tmp_path, strict=False)


def test_rows_that_a_loaded_snapshot_has_are_not_read_before_they_are_restored(data, trained, tmp_path):
    trained.save(tmp_path)
    trainer, ids = build(), Tensor(data["ids"][:5])
    trainer.load(tmp_path)
    with pytest.raises(CheckpointError, match="init_from: the sparse tables of the loaded snapshot are restored with"):
        trainer.init_from(tmp_path)
    with pytest.raises(
        DataError, match=r"table 'taste': .* restored with the first data.*call fit, evaluate or predict"
    ):
        trainer.network.taste(ids)
    trainer.predict({name: data[name] for name in ("ids", "x")}, batch_size=BATCH)
    assert np.array_equal(trainer.network.taste(ids).asnumpy(), trained.network.taste(ids).asnumpy())


class Computed(nn.Cell):
    def __init__(self):
        super().__init__()
        self.taste = Embedding(1, name="computed")
        self.scale = nn.Dense(1, 1)

    def construct(self, ids, x):
        return self.taste(ids % 7).sum(axis=1) + self.scale(x)


def test_computed_ids_are_refused_before_anything_is_compiled(data):
    trainer = build(Computed())
    with pytest.raises(ConfigurationError, match=r"'computed' receives do not come unchanged .*\(columns: ids, x\)"):
        trainer.fit(data, 1, callbacks=[], batch_size=BATCH)


@pytest.mark.long
def test_two_trainers_in_one_process_do_not_meddle(data, reference):
    first, second = build(clip_norm=1.0), build(Taste(seed=5), clip_norm=1.0)
    for _ in range(2):  # turn and turn about, an epoch each
        first.fit(data, 1, callbacks=[], batch_size=BATCH, sink_size=1)
        second.fit(data, 1, callbacks=[], batch_size=BATCH, sink_size=1)
    assert_same(content(first), reference)
    assert (content(second)["taste rows"] != reference["taste rows"]).any()


# ------------------------------------------------------------------------------------------------------------ streams


def online(data, folder, *, sink_size=4, network=None, times=None, **options):
    table = {**data, "time": np.arange(float(ROWS)) if times is None else times}
    trainer = build(network)
    callbacks = [] if folder is None else [ModelCheckpoint(folder, every=Every(steps=4), keep_last=None)]
    stream = ReplayStream(table, event_time="time")
    trainer.online_train(stream, callbacks, sink_size=sink_size, batch_size=BATCH, window=200, **options)
    return trainer


@pytest.mark.long
def test_a_stream_is_learned_the_same_sunk_cut_and_resumed(data, tmp_path):
    whole = online(data, None, sink_size=1)
    online(data, tmp_path, max_steps=10)
    resumed = online(data, tmp_path / "more", network=Taste(seed=8), resume=tmp_path)
    assert_same(content(resumed), content(whole))
    assert resumed.state.window["lifetime_auc"] == whole.state.window["lifetime_auc"]
    assert resumed.state.progress.samples_seen == ROWS


class Forgetful(nn.Cell):
    def __init__(self):
        super().__init__()
        self.taste = Embedding(1, name="forgetful", eviction=Eviction(when_full=None, ttl=100.0))
        self.scale = nn.Dense(1, 1)

    def construct(self, ids, x):
        return self.taste(ids).sum(axis=1) + self.scale(x)


def test_ids_are_forgotten_by_the_time_of_their_events(data):
    """Every batch is 50 s of the stream's own time with ids of its own; the wall clock hardly moves."""
    ids = np.repeat(np.arange(ROWS // BATCH), BATCH)[:, None] * FACTOR + np.array([[0, 1, 2]])
    times = np.repeat(np.arange(ROWS // BATCH), BATCH) * 50.0
    trainer = online({**data, "ids": ids}, None, sink_size=1, times=times, network=Forgetful())
    table = trainer.tables.tables.tables["forgetful"]
    live = table.columns["id"][: table.next_row][table.columns["live"][: table.next_row]]
    assert table.counters["expired"] > 0
    assert len(table) < 3 * ROWS // BATCH
    assert ids[-1, 0] in live
    assert ids[0, 0] + FACTOR not in live
    assert table.next_row < 3 * ROWS // BATCH  # rows of forgotten ids are used again


VICTIM = """
import sys
sys.path.insert(0, {folder!r})
import test_table_feed as t
import numpy as np
data = dict(np.load(sys.argv[1]))
trainer = t.build()
stream = t.ReplayStream({{**data, "time": np.arange(float(len(data["x"])))}}, event_time="time")
trainer.online_train(stream, [t.ModelCheckpoint(sys.argv[2], every=t.Every(steps=2), background=True)],
    sink_size=2, batch_size=t.BATCH, window=200, resume="auto")
np.savez(sys.argv[3], **t.content(trainer))
"""


@pytest.mark.long
@pytest.mark.process
def test_kill_9_loses_no_row_and_trains_none_twice(data, tmp_path):
    """Killed at random, resumed on deltas, and in the end the tables of a run nobody killed."""
    whole = content(online(data, None, sink_size=1))
    np.savez(tmp_path / "data.npz", **data)
    command = [sys.executable, "-c", VICTIM.format(folder=str(Path(__file__).parent))]
    command += [str(tmp_path / name) for name in ("data.npz", "snapshots", "end.npz")]
    environment = {**os.environ, "GLOG_v": "3"}
    victim = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 90
    # once there are snapshots the run is well under way
    while victim.poll() is None and len(list(tmp_path.glob("snapshots/step_*"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    time.sleep(random.random() * 0.02)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    assert not (tmp_path / "end.npz").exists()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert_same(dict(np.load(tmp_path / "end.npz")), whole)
    manifests = [json.loads(path.read_text()) for path in tmp_path.glob("snapshots/step_*/manifest.json")]
    assert any(manifest["snapshot"]["base"] for manifest in manifests)


@pytest.mark.long
def test_a_network_without_an_optimizer_is_applied_but_not_trained(data):
    trainer = Trainer(Taste())
    assert trainer.predict(data["ids"][:5], data["x"][:5]).shape == (5, 1)
    with pytest.raises(ConfigurationError, match="2 sparse Embedding cells"):
        trainer.fit(data, batch_size=BATCH)


class Recent(nn.Cell):
    """A table that keeps the ids seen last."""

    def __init__(self):
        super().__init__()
        self.table = Embedding(2, 96, mode="sparse", name="recent", eviction=Eviction("lru"), scale=1.0)
        self.top = nn.Dense(2, 1, weight_init="ones", bias_init="zeros")

    def construct(self, ids):
        return self.top(self.table(ids))


def test_a_validation_reads_what_was_trained_whatever_is_evicted_ahead():
    ids = np.arange(20 * 8).reshape(20, 8)
    data = [{"ids": part, "label": (part[:, None] % 2).astype(np.float32)} for part in ids]

    def losses(steps, callbacks=(), valid=None, every=None):
        network = Recent()
        trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.5))
        trainer.fit(data, 1, valid, every, callbacks=list(callbacks), max_steps=steps, sink_size=1)
        return trainer

    # give the thread that prepares time to plan, and evict for, the steps that come next
    wait = LambdaCallback(
        on_train_step_end=lambda trainer: time.sleep(0.3 if trainer.state.progress.global_step > 9 else 0)
    )
    trained = losses(14, [wait], data[:14], Every(steps=1))
    measured = dict(zip(trained.history.steps["val_loss"], trained.history.history["val_loss"], strict=True))
    assert len({measured[step] for step in (11, 12, 13)}) == 3
    assert measured[12] == losses(12).evaluate(data[:14])["loss"]
    assert trained.tables.tables.tables["recent"].counters["evicted"] > 0


def test_a_pipeline_is_stopped_when_its_columns_turn_out_to_be_unusable(data):
    class Shifted(Recent):
        def construct(self, x):
            return self.top(self.table((x * 2).astype("int32")).sum(axis=1))

    pipeline = ms_dataset.NumpySlicesDataset({"x": data["x"], "label": data["label"]}).shuffle(9).batch(BATCH)
    made, make = [], pipeline.create_tuple_iterator

    def watched(*given, **options):
        made.append(mock.MagicMock())
        iterator = make(*given, **options)
        made[-1].__iter__.side_effect = lambda: iter(iterator)
        made[-1].stop.side_effect = iterator.stop
        return made[-1]

    pipeline.create_tuple_iterator = watched
    network = Shifted()
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1))
    with pytest.raises(ConfigurationError, match="no input column holds integers"):
        trainer.fit(pipeline, callbacks=[])
    assert made
    assert all(iterator.stop.called for iterator in made)
