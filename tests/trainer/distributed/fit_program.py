"""Trainings that N processes and one do alike; run on every rank by test_fit.py, and by the test itself alone.

python fit_program.py FOLDER
"""

import dataclasses
import logging
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, amp, nn

from callbacks import EMA, Callback, ModelCheckpoint, SkipNonFinite
from tests.trainer.distributed import jobs
from trainer import Trainer
from trainer.run import run as training_run

ROWS = 64  # of a step, over all processes


def data():
    """Breast cancer, from scikit-learn's own file: to import it takes every process longer than a training."""
    folder = Path(find_spec("sklearn").submodule_search_locations[0])
    table = np.loadtxt(folder / "datasets/data/breast_cancer.csv", delimiter=",", skiprows=1)
    x, y = table[:, :-1], table[:, -1:]
    return ((x - x.mean(0)) / x.std(0)).astype(np.float32), y.astype(np.float32)


def make_network(seed=0, *, norm=False):
    rng = np.random.default_rng(seed)
    middle = [nn.BatchNorm1d(8)] if norm else []
    network = nn.SequentialCell(nn.Dense(30, 8), *middle, nn.ReLU(), nn.Dense(8, 1))
    for parameter in network.trainable_params():
        if "gamma" not in parameter.name:
            parameter.set_data(Tensor(rng.normal(0, 0.3, parameter.shape).astype(np.float32)))
    return network


class Scaled(nn.Cell):
    """A loss with a parameter that is not trained and has another value on each rank at first."""

    denominator = "rows"

    def __init__(self, scale):
        super().__init__()
        self.loss = nn.BCEWithLogitsLoss()
        self.scale = Parameter(Tensor([scale], ms.float32), name="scale", requires_grad=False)

    def construct(self, prediction, label):
        return self.loss(prediction * self.scale, label)


class Losses(Callback):
    """Notes the loss of every step; one rank may ask to stop."""

    def __init__(self, stop_at=None):
        self.losses, self.stop_at = [], stop_at

    def on_train_step_end(self, trainer):
        self.losses.extend(trainer.state.outputs.losses.tolist())
        if self.stop_at is not None and len(self.losses) >= self.stop_at:
            trainer.stop("enough")


class Trained:
    """What is left of the trainings of one process: every number of them."""

    def __init__(self, group):
        self.group, self.found = group, {}

    def build(self, *, seed=0, norm=False, metrics=("auc",), **options):
        network = make_network(seed, norm=norm)
        optimizer = nn.Adam(network.trainable_params(), 0.01)
        return Trainer(network, nn.BCEWithLogitsLoss(), optimizer, metrics=set(metrics), **options)

    def fit(self, name, trainer, dataset=None, *, stop_at=None, callbacks=(), **arguments):
        losses, before = Losses(stop_at), dataclasses.replace(trainer.state.progress)
        if dataset is None:
            x, y = data()
            dataset, arguments["batch_size"] = {"x": x, "y": y}, ROWS // self.group.size
        trainer.fit(dataset, callbacks=[losses, *callbacks], **{"epochs": 2, **arguments})
        progress, counters = trainer.state.progress, trainer.read_counters()
        counted = [getattr(progress, of) - getattr(before, of) for of in ("epoch", "global_step", "samples_seen")]
        self.found[f"{name}/losses"] = np.array(losses.losses)
        self.found[f"{name}/progress"] = np.array(counted)
        self.found[f"{name}/skipped"] = np.array([counters["skipped"], trainer.loss_scale or 0])
        self.found[f"{name}/history"] = np.array([v for k, v in sorted(trainer.history.history.items())])
        self.found[f"{name}/stop"] = np.array(trainer.state.stop_reason.kind)
        for parameter in [*trainer.network.get_parameters(), *trainer.optimizer.get_parameters()]:
            self.found[f"{name}/parameters/{parameter.name}"] = parameter.asnumpy().copy()


def slow_rank(trainer, x, y):
    """Train on data that rank 1 reads slowly; return the share of every process that waits, and the warnings."""
    warnings = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())

    def batches():
        for first in range(0, 256, 32):
            time.sleep(0.1 * trainer.group.rank)
            yield x[first : first + 32], y[first : first + 32]

    logger = logging.getLogger("trainer.run.run")
    training_run.MIN_WAIT_SECONDS = 0.2
    logger.addHandler(handler)
    trainer.fit(batches, 2, callbacks=[], sharded=True)
    logger.removeHandler(handler)
    return np.array(trainer.state.data_waits), np.array([text for text in warnings if "rank" in text])


def main(folder):
    group = jobs.member()
    run = Trained(group)
    rank, size = group.rank, group.size
    x, y = data()
    # Every rank begins with other weights: those of rank 0 count. The last step of the epoch has 57 rows.
    run.fit("accumulated", run.build(seed=rank, gradient_accumulation_steps=2, clip_norm=0.1), epochs=1)
    # Rows 64 to 95 of the second step overflow, all of them on one rank.
    bad = x.copy()
    bad[64:96, 3] = np.inf
    scaled = run.build(amp_level="O2", loss_scale=amp.DynamicLossScaler(1024.0, 2, 3))
    each = ROWS // size  # the batches of N processes are N parts of those of one
    arrays, skip = {"x": bad[:512], "y": y[:512]}, [SkipNonFinite(rollback=False)]
    run.fit("overflow", scaled, arrays, batch_size=each, shuffle=False, callbacks=skip)
    trainer = run.build()
    batches = [(x[first : first + each], y[first : first + each]) for first in range(0, 512, each)]
    run.fit("batches", trainer, batches, valid_dataset={"x": x[:510], "y": y[:510]}, batch_size=85, epochs=1)
    if size == 2:
        own = slice(0, 300) if rank == 0 else slice(300, None)
        rows = {"x": x[own], "y": y[own]}
        run.fit("own rows", trainer, rows, batch_size=each, shuffle=False, sharded=True)
        run.found["waits/shares"], run.found["waits/warnings"] = slow_rank(run.build(), x, y)
    # Seven batches, the last of 59 rows: two a step on two processes, and a step in which one has none.
    trainer = run.build(norm=True, metrics=("auc", "mae", "loss"))
    run.found["evaluated"] = np.array(sorted(trainer.evaluate({"x": x, "y": y}, batch_size=85).items()))
    run.found["predicted"] = trainer.predict({"x": x}, batch_size=85)
    parts = trainer.predict({"x": x}, batch_size=85, stream=True)
    run.found["predicted one by one"] = np.array([len(part) for part in parts])
    checkpoint = ModelCheckpoint(f"{folder}/snapshots_{size}", every=4)
    run.fit("normed", trainer, sink_size=1, stop_at=5 if rank == size - 1 else None, callbacks=[EMA(0.9), checkpoint])
    # of weights and statistics, as the last snapshot has them
    averages = trainer.parts["averages"].state_dict()["arrays"]
    run.found |= {f"normed/averages/{name}": value.copy() for name, value in averages.items()}
    run.found["normed/predictions"] = trainer.predict({"x": x}, batch_size=85)
    network, loss = make_network(), Scaled(1.0 + rank)
    run.fit("scaled loss", Trainer(network, loss, nn.SGD(network.trainable_params(), 0.1)), epochs=1)
    run.found["scaled loss/parameters/of the loss"] = loss.scale.asnumpy().copy()
    boosted = run.build(boost_level="O2", boost_config={"gradient_freezing": False})
    run.fit("adasum", boosted, {"x": x[:256], "y": y[:256]}, batch_size=each, epochs=1, sink_size=1)
    np.savez(f"{folder}/found_{size}_{rank}.npz", **run.found)


if __name__ == "__main__":
    main(sys.argv[1])
