"""What one process refuses, or fails at, in a job: run on every rank by test_refusals.py.

python refusal_program.py FOLDER
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from mindspore import nn

from tests.trainer.distributed import jobs
from trainer import Trainer
from trainer.data import table_feed
from trainer.embedding import Embedding
from trainer.errors import CheckpointError, DataError, GraphError, TrainerError

ROWS, BATCH, CITIES = 64, 8, 50


class Network(nn.Cell):
    """A sparse table of users, beside a dense one of cities if `cities`."""

    def __init__(self, *, cities=True):
        super().__init__()
        self.users = Embedding(4, mode="sparse", name="users")
        self.cities = Embedding(4, capacity=CITIES, mode="dense", name="cities") if cities else None
        self.head = nn.Dense(4, 1)

    def construct(self, user, city):
        vectors = self.users(user)
        if self.cities is not None:
            vectors = vectors + self.cities(city)
        return self.head(vectors)


class Plain(nn.Cell):
    """No tables."""

    def __init__(self):
        super().__init__()
        self.head = nn.Dense(2, 1)

    def construct(self, x):
        return self.head(x)


def build(network):
    optimizer = nn.SGD(network.trainable_params(), 0.05)
    return Trainer(network, nn.BCEWithLogitsLoss(), optimizer, metrics={"loss"}, seed=1)


def clicks(bad_row=None):
    rng = np.random.default_rng(0)
    city = rng.integers(0, CITIES, ROWS)
    if bad_row is not None:
        city[bad_row] = 70
    return {"user": rng.integers(0, 900, ROWS), "city": city, "label": np.ones((ROWS, 1), np.float32)}


def batches(bad=None):
    """Return batches of two numbers; that of index `bad` has three."""
    rng = np.random.default_rng(0)
    widths = [3 if index == bad else 2 for index in range(6)]
    return [{"x": rng.random((4, width)).astype(np.float32), "label": np.ones((4, 1), np.float32)} for width in widths]


def refused(verb, *arguments, **options):
    with pytest.raises((DataError, GraphError)) as error:
        verb(*arguments, **options)
    return [str(error.value), error.value.rank]


def trains(trainer, data):
    before = trainer.state.progress.global_step
    trainer.fit(data, 1, batch_size=BATCH, callbacks=[], sink_size=1)
    return trainer.state.progress.global_step - before == ROWS // BATCH // trainer.group.size


def main(folder):
    group = jobs.member()
    table_feed.usable_cores = lambda: 2  # with a single core the processes would exchange ids on the graph's thread
    trainer, found = build(Network()), {}
    trainer.fit(clicks(), 1, batch_size=BATCH, callbacks=[])
    sound, bad = clicks(), clicks(bad_row=11)  # of the second batch, which is that of rank 1
    whole = trainer.evaluate(sound, batch_size=BATCH)["loss"]
    found["evaluate"] = refused(trainer.evaluate, bad, batch_size=BATCH)
    found["predict"] = refused(trainer.predict, {name: bad[name] for name in ("user", "city")}, batch_size=BATCH)
    found["fit"] = refused(trainer.fit, bad, 1, batch_size=BATCH, shuffle=False, callbacks=[])
    (Path(folder) / "file").touch()
    with pytest.raises(CheckpointError) as error:
        trainer.save(Path(folder) / "file")
    found["save"] = str(error.value)
    found["goes on"] = trainer.evaluate(sound, batch_size=BATCH)["loss"] == whole
    found["trains again"] = trains(trainer, sound) and trains(trainer, sound)
    parts = [{name: column[i : i + BATCH] for name, column in sound.items()} for i in range(0, ROWS, BATCH)]
    found["fewer batches"] = refused(trainer.fit, parts[: -2 * group.rank or None], 1, callbacks=[], sink_size=1)
    found["trains again"] &= trains(trainer, sound)
    plain = build(Plain())
    plain.evaluate(batches())
    found["no tables"] = refused(plain.evaluate, batches(bad=3))
    split = [{name: column[i : i + BATCH] for name, column in sound.items()} for i in range(0, ROWS, BATCH)]
    split[3] = {**split[3], "user": split[3]["user"] / 2}
    found["before the exchange"] = refused(trainer.evaluate, split)
    found |= cut_off(group, Path(folder))
    (Path(folder) / f"found_{group.size}_{group.rank}.json").write_text(json.dumps(found))


def cut_off(group, folder):
    """Train until an exchange inside a graph call fails on rank 1; return the errors' types and texts."""
    trainer, exchange, calls = build(Network(cities=False)), group.all_to_all, []

    def broken(parts, *, in_graph=False):
        calls.append(in_graph)
        if sum(calls) == 5:
            with pytest.raises(TypeError):
                exchange([None] * group.size, in_graph=in_graph)  # closes its connections
            raise TrainerError("the cable of rank 1 is cut")
        return exchange(parts, in_graph=in_graph)

    if group.rank == 1:
        group.all_to_all = broken
    with pytest.raises(TrainerError) as error:
        trainer.fit(clicks(), 1, batch_size=BATCH, callbacks=[], sink_size=2)
    (folder / f"failed_{group.rank}").touch()
    for rank in range(group.size):  # the job ends when one of them does
        jobs.wait_for((folder / f"failed_{rank}").exists)
    return {"cut off": [type(error.value).__name__, str(error.value)]}


if __name__ == "__main__":
    main(sys.argv[1])
