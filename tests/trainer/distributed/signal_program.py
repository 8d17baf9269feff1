"""Trainings in which one of the processes waits for data that never comes, and is sent SIGTERM then.

python signal_program.py FOLDER
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
from mindspore import dataset, nn, ops

from callbacks import ModelCheckpoint
from tests.trainer.distributed import jobs
from tests.trainer.distributed.fit_program import data, make_network
from trainer import Trainer, checkpoint
from trainer.embedding import Embedding
from trainer.run import signals
from trainer.streams import ReplayStream

BATCHES = 6  # that come before it blocks: three steps of two processes, of which the last ones are held back


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


def tell():
    """Let this process be told to end, half a second later."""
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()


class Quiet(ReplayStream):
    """A stream of which no row comes; once it `tells`, its process is told to end while it waits."""

    tells = False

    def poll(self, max_rows, timeout):
        if self.tells:
            self.tells = False
            tell()
        return super().poll(max_rows, timeout)


def block():
    """Wait for ever; half a second later this process is told to end."""
    tell()
    while True:
        time.sleep(0.05)


def blocking(columns, blocks, batches=BATCHES):
    """Return a function that gives batches of 8 rows; it blocks after some, or ends after twice as many."""

    def make():
        for number in range(2 * batches):
            if blocks and number == batches:
                block()
            yield tuple(column[8 * number : 8 * number + 8] for column in columns)

    return make


class Cases:
    """Runs trainings that a signal ends, and notes how each process saw it."""

    def __init__(self, folder, group):
        self.folder, self.group, self.found = folder, group, {}

    def run(self, name, verb, trainer, *arguments, **options):
        root, before = self.folder / name.replace(" ", "_"), trainer.state.progress.global_step
        code = 0
        try:
            getattr(trainer, verb)(*arguments, callbacks=[ModelCheckpoint(root)], **options)
        except SystemExit as error:
            code = error.code
        self.group.any(False)  # rank 0 has written then
        snapshot = checkpoint.find(root) if checkpoint.available(root) else None
        self.found[name] = {
            "code": code,
            "stop": trainer.state.stop_reason.kind,
            "step": trainer.state.progress.global_step - before,
            "snapshot": None if snapshot is None else snapshot.step - before,
        }


def build(network):
    return Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 0.01))


def main(folder):
    group = jobs.member()
    folder = Path(folder)
    cases = Cases(folder, group)
    last = group.rank == 1
    rows = data()
    trainer = build(make_network())
    quiet = Quiet({"x": rows[0][:96], "label": rows[1][:96]}, rows_per_second=1e-3)
    quiet.tells = last
    cases.run("stream", "online_train", trainer, quiet, batch_size=8)
    cases.run("iterable", "fit", trainer, blocking(rows, last), sink_size=1)
    cases.run("tables", "fit", build(Clicks()), blocking(clicks(), last), sink_size=1)
    valid = blocking(rows, last, 2)
    arrays = {"x": rows[0][:96], "y": rows[1][:96]}
    often = {"valid_dataset": valid, "valid_every": 2}  # within the first epoch, at which a pipeline begins
    cases.run("validation", "fit", trainer, arrays, batch_size=8, sink_size=1, **often)
    (folder / f"found_{group.rank}.json").write_text(json.dumps(cases.found))
    # MindSpore waits outside Python for a pipeline: nothing gets it out of there.
    pipeline = dataset.GeneratorDataset(lambda: stuck(rows) if last else zip(*rows, strict=True), ["x", "y"])
    signals.JOB_GRACE_SECONDS = 2.0
    cases.run("pipeline", "fit", trainer, pipeline.batch(8), sink_size=1)


def stuck(rows):
    for number, row in enumerate(zip(*rows, strict=True)):
        if number == 40:
            block()
        yield row


if __name__ == "__main__":
    main(sys.argv[1])
