"""Trainings of sparse tables that N processes and one do alike; run on every rank by test_tables.py, and by it alone.

python table_program.py FOLDER
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from mindspore.dataset import NumpySlicesDataset

from callbacks import Callback, Every, ModelCheckpoint
from tests.trainer.distributed import jobs
from trainer import Trainer, Window
from trainer.data import table_feed
from trainer.embedding import Embedding, EmbeddingBag, Eviction, MinSightings, RowAdagrad, RowSGD
from trainer.errors import ConfigurationError, DataError
from trainer.mindspore_internals import device
from trainer.serving.publisher import Publish
from trainer.streams import ReplayStream

FIT_OPTIONS = ("sink_size", "max_steps", "epochs", "valid_dataset", "valid_every")
ROWS, STEP = 500, 32  # of the data; of a step, over all processes


class ScaledAdagrad(RowAdagrad):
    """A row optimizer of the user's own, for which there is no kernel, with a slot for each number of a row."""

    def construct(self, packed, gradient, lr, step):
        return super().construct(packed, 0.5 * gradient, lr, step)


class Pairs(nn.Cell):
    """Users and items."""

    def __init__(self, optimizer=None, dtype="float32"):
        super().__init__()
        self.users = Embedding(4, mode="sparse", name="users", optimizer=optimizer, dtype=dtype)
        self.items = Embedding(4, mode="sparse", name="items", padding=0, optimizer=optimizer, dtype=dtype)
        self.head = nn.Dense(16, 1, weight_init="ones", bias_init="zeros")

    def construct(self, user, items):
        vectors = ops.concat((ops.expand_dims(self.users(user), 1), self.items(items)), 1)
        return self.head(ops.reshape(vectors, (-1, 16)))


class Clicks(Pairs):
    """And an item's bias, which shares the ids but not their rules; and what is known of it, not trained."""

    def __init__(self, optimizer=None, bias=None):
        super().__init__(optimizer)
        self.bias = Embedding(1, mode="sparse", name="bias", initializer="zeros", **(bias or {}))
        ids = np.arange(700) * 1_000_003
        self.known = Embedding.from_pretrained(np.log(1.0 + ids[:, None]) / 40, ids, trainable=False, name="known")

    def construct(self, user, items):
        return super().construct(user, items) + (self.bias(items) + self.known(items)).sum(axis=1)


class Baskets(nn.Cell):
    """Users, and the mean of their items."""

    def __init__(self):
        super().__init__()
        self.users = Embedding(4, mode="sparse", name="users")
        self.items = EmbeddingBag(4, mode="sparse", name="items", combiner="mean", padding=0)
        self.head = nn.Dense(8, 1, weight_init="ones", bias_init="zeros")

    def construct(self, user, items):
        return self.head(ops.concat((self.users(user), self.items(items)), 1))


RULES = {"admission": MinSightings(3), "eviction": Eviction(None, ttl=3600.0)}


def clicks(rows=ROWS):
    rng = np.random.default_rng(0)
    user = np.char.add("user ", (rng.zipf(1.4, rows) % 200).astype(str))
    return {
        "user": user,
        "items": rng.zipf(1.3, (rows, 3)) % 900 * 1_000_003,
        "label": (rng.random((rows, 1)) < 0.4).astype(np.float32),
    }


def build(network, **options):
    optimizer = nn.Adam(network.trainable_params(), 0.05)
    return Trainer(network, nn.BCEWithLogitsLoss(), optimizer, metrics={"auc", "loss"}, seed=3, **options)


def content(trainer):
    """Return what all processes hold together, ordered by ids: on rank 0."""
    state = trainer.tables.tables.take("test")
    arrays = {name: np.asarray(array) for name, array in state["arrays"].items()}
    found = {}
    for table, json in state["json"].items():
        own = {key.partition("/")[2]: value for key, value in arrays.items() if key.startswith(f"{table}/")}
        rows = own.pop("rows")
        order = np.lexsort((own["ids"], rows != 0))
        found |= {f"{table}/{key}": value[order] for key, value in own.items() if len(value) == len(rows)}
        if "sketch" in own:
            found[f"{table}/sketch"] = own["sketch"]
        counters = [json["counters"][name] for name in sorted(json["counters"])]
        found[f"{table}/numbers"] = np.array([json["step"], json["plans"], json["updates"], *counters])
        assert len(np.unique(rows)) == len(rows)
        assert rows.max() < json["next_row"]
    return found


class StopAfter(Callback):
    """Ends the training after so many calls."""

    def __init__(self, calls):
        self.left = calls

    def on_train_step_end(self, trainer):
        self.left -= 1
        if not self.left:
            trainer.stop()


class Held(Callback):
    """Notes the largest number of rows that this process has kept of the users."""

    def __init__(self):
        self.rows = 0

    def on_train_step_end(self, trainer):
        self.rows = max(self.rows, len(trainer.tables.tables.tables["users"]))


def train(folder, group, name, data, *, network=None, optimizer=None, bias=None, callbacks=(), resume=None, **options):
    network = network or Clicks(optimizer() if optimizer else None, bias)
    arguments = {"epochs": 2, "batch_size": STEP // group.size, "callbacks": list(callbacks), "resume": resume}
    arguments |= {key: options.pop(key) for key in FIT_OPTIONS if key in options}
    trainer = build(network, **options)
    trainer.fit(data, **arguments)
    found = {f"{name}/loss": np.array(trainer.history.history["loss"]), f"{name}/head": network.head.weight.asnumpy()}
    return trainer, found | {f"{name}/rows/{key}": value for key, value in content(trainer).items()}


def cut_inside_a_window(folder, group, data):
    """Train with gradients accumulated over three steps; with several processes resumed from inside such a window."""
    found, first, batches = {}, 0, []
    for rows in (32, 16, 32, 16, 32):  # steps of changing shape come one by one
        for _ in range(group.size):
            batches.append({name: column[first : first + rows // group.size] for name, column in data.items()})
            first += rows // group.size
    root = f"{folder}/window_{group.size}"
    trainer, resume = build(Pairs(), gradient_accumulation_steps=3), None
    if group.size > 1:
        trainer.fit(batches, 1, callbacks=[ModelCheckpoint(root), StopAfter(4)], sink_size=1)
        trainer.fit(batches, 1, callbacks=[], sink_size=1)  # nothing of which is left: what is read is the snapshot's
        resume = root
    trainer.fit(batches, 1, callbacks=[], resume=resume, sink_size=1)
    found |= {f"window/rows/{key}": value for key, value in content(trainer).items()}
    found["window/loss"] = np.array(trainer.history.history["loss"][-1:])
    return found


def more(folder, group, data, whole):
    """Return what long tests alone look at."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(device.DEVICES, "CPU", replace(device.CPU, runs_python=False))
        if group.size > 1:
            with pytest.raises(ConfigurationError, match=r"on the CPU only; received users, items in 2 processes"):
                train(folder, group, "refused", whole, network=Pairs())
    found = {}
    # in the graph, for there is no kernel for the user's own rule
    options = {"bias": RULES, "optimizer": ScaledAdagrad, "clip_norm": 0.1, "sink_size": 2, "epochs": 1}
    trainer, one = train(folder, group, "own rule, accumulated", whole, gradient_accumulation_steps=3, **options)
    found |= one
    found["own rule, accumulated/by_owner"] = np.array(trainer.tables.tables.by_owner)
    options = {"bias": {"capacity": 5000, "eviction": Eviction("lfu")}, "clip_norm": 0.1, "epochs": 1}
    options["amp_level"] = "O2"
    trainer, one = train(folder, group, "half", whole, **options)
    found |= one
    found["half/by_owner"] = np.array(trainer.tables.tables.by_owner)
    options = {"network": Pairs(RowSGD(), "float16"), "callbacks": [ModelCheckpoint(f"{folder}/float16_{group.size}")]}
    trainer, one = train(folder, group, "float16", whole, epochs=1, **options)
    found |= one
    if group.size > 1:  # rows that another number of processes has written
        trainer.load(f"{folder}/float16_1", strict=False)
        found |= {f"float16 restored/{key}": value for key, value in content(trainer).items()}
    baskets = {**whole, "items": np.where(np.arange(3) < np.arange(448)[:, None] % 4, whole["items"], 0)}
    options = {"network": Baskets(), "clip_norm": 0.1, "epochs": 2, "sink_size": 2}
    trainer, one = train(folder, group, "bags", baskets, **options)
    found |= one
    found["bags/predicted"] = trainer.predict({key: baskets[key] for key in ("user", "items")}, batch_size=56)
    return found | cut_inside_a_window(folder, group, data)


def main(folder):
    group = jobs.member()
    table_feed.usable_cores = lambda: 2  # with a single core the processes would exchange ids on the graph's thread
    data, found = clicks(), {}
    held = Held()
    whole = {name: column[:448] for name, column in data.items()}
    # 14 steps of one size, for every size is compiled
    publish = Publish(f"{folder}/served_{group.size}", every=Every(steps=7), batch=100)
    trainer, one = train(folder, group, "plain", whole, callbacks=[held, publish], sink_size=1)
    found |= one
    figures = trainer.read_tables()["users"]
    found["plain/figures"] = np.array([figures["rows"], figures["bytes"]])
    found["plain/held"] = np.array([held.rows, len(trainer.tables.tables.tables["users"])])
    short = {name: column[:480] for name, column in data.items()}  # ten batches, the last of 30 rows
    found["plain/evaluated"] = np.array(sorted(trainer.evaluate(short, batch_size=50).items()))
    odd = {name: column[:51] for name, column in data.items()}  # the second batch: one row, of one process alone
    found["odd/evaluated"] = np.array(sorted(trainer.evaluate(odd, batch_size=50).items()))
    found["plain/predicted"] = trainer.predict({key: data[key] for key in ("user", "items")}, batch_size=50)
    if group.size > 1:
        # The user has divided these rows: rank 0 has four batches, rank 1 has one.
        own = {name: column[:400] if group.is_main else column[400:] for name, column in data.items()}
        part = NumpySlicesDataset(own, shuffle=False, num_shards=group.size, shard_id=group.rank).batch(50)
        together = {name: np.concatenate((column[:400:2], column[401::2])) for name, column in data.items()}
        found["plain/divided"] = np.array(sorted(trainer.evaluate(part).items()))
        found["plain/together"] = np.array(sorted(trainer.evaluate(together, batch_size=50).items()))
        with pytest.raises(DataError, match="divided among 2 processes") as told:
            trainer.network.items(Tensor([5]))
        assert "Trainer.predict" in str(told.value)
    snapshots = ModelCheckpoint(f"{folder}/rules_{group.size}", every=6, keep_last=20)
    options = {"bias": RULES, "optimizer": RowAdagrad, "clip_norm": 0.1, "sink_size": 2}
    # The ids of the next calls are planned while rows are read to validate.
    options |= {"valid_dataset": {name: column[400:] for name, column in data.items()}, "valid_every": 4}
    trainer, one = train(folder, group, "rules", whole, callbacks=[snapshots], **options)
    found["rules/val_loss"] = np.array(trainer.history.history["val_loss"])
    found |= one
    found["rules/deltas"] = np.array(trainer.tables.delta_policy._delta_count)
    # Its programs are compiled: they go on with a stream, whose last batch falls to one process; the other takes part
    # with made-up rows.
    stream = ReplayStream({name: column[:496] for name, column in data.items()})
    trainer.online_train(stream, [], batch_size=STEP // group.size, sink_size=2, window=Window(rows=200))
    found |= {f"stream/rows/{key}": value for key, value in content(trainer).items()}
    found["stream/loss"] = np.array([trainer.state.window["window_loss"], trainer.state.window["window_auc"]])
    if not Path(folder, "quick").exists():
        found |= more(folder, group, data, whole)
    # What another number of processes has written, deltas included, is taken up, and gone on with.
    other = 1 if group.size > 1 else 2
    if group.size > 1:
        restored = build(Clicks(RowAdagrad(), RULES))
        restored.predict({key: data[key] for key in ("user", "items")}, batch_size=250)  # knows its tables from here on
        restored.load(f"{folder}/rules_{other}", strict=False)  # it has no training step
        found |= {f"restored/{key}": value for key, value in content(restored).items()}
        restored.load(f"{folder}/rules_{group.size}", strict=False)
        found |= {f"own/{key}": value for key, value in content(restored).items()}
    np.savez(f"{folder}/found_{group.size}_{group.rank}.npz", **found)


if __name__ == "__main__":
    main(sys.argv[1])
