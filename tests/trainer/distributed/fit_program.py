"""Trainings that N processes and one do alike; run on every rank by test_fit.py, and by the test itself alone.

python fit_program.py FOLDER
"""

import sys

import numpy as np
from mindspore import Tensor, amp, nn, ops
from sklearn.datasets import load_breast_cancer

from callbacks import Callback, ModelCheckpoint, SkipNonFinite
from trainer import Trainer
from trainer.distributed.group import join
from trainer.embedding import Embedding

ROWS = 64  # of a step, over all processes


def data():
    x, y = load_breast_cancer(return_X_y=True)
    return ((x - x.mean(0)) / x.std(0)).astype(np.float32), y[:, None].astype(np.float32)


def make_network(seed=0, *, norm=False):
    rng = np.random.default_rng(seed)
    middle = [nn.BatchNorm1d(8)] if norm else []
    network = nn.SequentialCell(nn.Dense(30, 8), *middle, nn.ReLU(), nn.Dense(8, 1))
    for parameter in network.trainable_params():
        if "gamma" not in parameter.name:
            parameter.set_data(Tensor(rng.normal(0, 0.3, parameter.shape).astype(np.float32)))
    return network


class Clicks(nn.Cell):
    """A network on raw ids."""

    def __init__(self):
        super().__init__()
        self.items = Embedding(4, mode="sparse", name="items")
        self.head = nn.Dense(8, 1, weight_init="ones", bias_init="zeros")

    def construct(self, ids):
        return self.head(ops.reshape(self.items(ids), (ids.shape[0], 8)))


def clicks(rows=256):
    rng = np.random.default_rng(0)
    return rng.zipf(1.3, (rows, 2)) % 5000, (rng.random((rows, 1)) < 0.4).astype(np.float32)


def rows_by_id(trainer):
    """The ids and packed rows of the whole table, the default row first: on rank 0."""
    held = trainer.tables.tables.take("test")["arrays"]
    if not trainer.group.is_main:
        return {}
    ids, rows, values = (np.asarray(held[f"items/{name}"]) for name in ("ids", "rows", "values"))
    order = np.lexsort((ids, rows > 0))
    return {"ids": ids[order], "values": values[order]}


class Losses(Callback):
    """Notes the loss of every step; one rank may ask to stop."""

    def __init__(self, stop_at=None):
        self.losses, self.stop_at = [], stop_at

    def on_train_step_end(self, trainer):
        self.losses.extend(trainer.state.outputs.losses.tolist())
        if self.stop_at is not None and len(self.losses) >= self.stop_at:
            trainer.stop("enough")


class Trained:
    """What is left of one training: every number of it."""

    def __init__(self, group):
        self.group, self.found = group, {}

    def fit(self, name, dataset=None, *, seed=0, norm=False, stop_at=None, callbacks=(), options=None, **arguments):
        network = make_network(seed, norm=norm)
        optimizer = nn.Adam(network.trainable_params(), 0.01)
        trainer = Trainer(network, nn.BCEWithLogitsLoss(), optimizer, metrics={"auc"}, **(options or {}))
        losses = Losses(stop_at)
        if dataset is None:
            x, y = data()
            dataset, arguments["batch_size"] = {"x": x, "y": y}, ROWS // self.group.size
        trainer.fit(dataset, callbacks=[losses, *callbacks], **{"epochs": 2, **arguments})
        progress, counters = trainer.state.progress, trainer.read_counters()
        self.found[f"{name}/losses"] = np.array(losses.losses)
        self.found[f"{name}/progress"] = np.array([progress.epoch, progress.global_step, progress.samples_seen])
        self.found[f"{name}/skipped"] = np.array([counters["skipped"], trainer.loss_scale or 0])
        self.found[f"{name}/history"] = np.array([v for k, v in sorted(trainer.history.history.items())])
        self.found[f"{name}/stop"] = np.array(trainer.state.stop_reason.kind)
        for parameter in [*network.get_parameters(), *optimizer.get_parameters()]:
            self.found[f"{name}/parameters/{parameter.name}"] = parameter.asnumpy().copy()
        return trainer


def main(folder):
    group = join()
    run = Trained(group)
    rank, size = group.rank, group.size
    x, y = data()
    # Every rank begins with other weights: those of rank 0 count. The last step of the epoch has 57 rows.
    run.fit("accumulated", seed=rank, options={"gradient_accumulation_steps": 2, "clip_norm": 0.1}, epochs=1)
    # Rows 64 to 95 of the second step overflow, all of them on one rank.
    bad = x.copy()
    bad[64:96, 3] = np.inf
    options = {"amp_level": "O2", "loss_scale": amp.DynamicLossScaler(1024.0, 2, 3)}
    arrays = {"x": bad[:512], "y": y[:512]}
    skip = [SkipNonFinite(rollback=False)]
    run.fit("overflow", arrays, batch_size=ROWS // size, shuffle=False, options=options, callbacks=skip)
    each = ROWS // size  # the batches of N processes are N parts of those of one
    batches = [(x[first : first + each], y[first : first + each]) for first in range(0, 512, each)]
    valid = {"x": x, "y": y}
    run.fit("batches", batches, valid_dataset=valid, batch_size=100, epochs=1)
    checkpoint = ModelCheckpoint(f"{folder}/snapshots_{size}", every=4)
    trainer = run.fit("normed", norm=True, sink_size=1, stop_at=5 if rank == size - 1 else None, callbacks=[checkpoint])
    run.found["normed/predictions"] = trainer.predict({"x": x}, batch_size=100)
    boosted = {"boost_level": "O2", "boost_config": {"gradient_freezing": False}}
    arrays = {"x": x[:256], "y": y[:256]}
    run.fit("adasum", arrays, batch_size=each, options=boosted, epochs=1, sink_size=1)
    network = Clicks()
    optimizer = nn.Adam(network.trainable_params(), 0.1)
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), optimizer, gradient_accumulation_steps=2)
    ids, label = clicks()
    trainer.fit({"ids": ids, "label": label}, epochs=2, batch_size=ROWS // size, callbacks=[])
    run.found |= {f"tables/parameters/{name}": array for name, array in rows_by_id(trainer).items()}
    run.found["tables/parameters/head"] = network.head.weight.asnumpy().copy()
    run.found["tables/losses"] = np.array(trainer.history.history["loss"])
    run.found["tables/predictions"] = trainer.predict({"ids": ids}, batch_size=100)
    # Seven batches, the last of 59 rows: two a step on two processes, and a step in which one has none.
    network = make_network(norm=True)
    untrained = Trainer(network, nn.BCEWithLogitsLoss(), metrics={"auc", "mae", "loss"})
    run.found["evaluated"] = np.array(sorted(untrained.evaluate({"x": x, "y": y}, batch_size=85).items()))
    run.found["predicted"] = untrained.predict({"x": x}, batch_size=85)
    run.found["predicted one by one"] = np.array(
        [len(part) for part in untrained.predict({"x": x}, batch_size=85, stream=True)]
    )
    if size == 2:
        own = slice(0, 300) if rank == 0 else slice(300, None)
        run.fit("own rows", {"x": x[own], "y": y[own]}, batch_size=32, shuffle=False, sharded=True)
    np.savez(f"{folder}/found_{size}_{rank}.npz", **run.found)


if __name__ == "__main__":
    main(sys.argv[1])
