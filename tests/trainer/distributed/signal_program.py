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
from mindspore import dataset, nn

from callbacks import ModelCheckpoint
from tests.trainer.distributed.fit_program import Clicks, clicks, data, make_network
from trainer import Trainer, checkpoint
from trainer.distributed.group import join
from trainer.streams import ReplayStream

BATCHES = 6  # that come before it blocks: three steps of two processes, of which the last ones are held back


def block():
    """Wait for ever; half a second later this process is told to end."""
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
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

    def run(self, name, verb, network, *arguments, **options):
        trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 0.01))
        root = self.folder / name.replace(" ", "_")
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
            "step": trainer.state.progress.global_step,
            "snapshot": None if snapshot is None else snapshot.step,
        }


def main(folder):
    group = join()
    folder = Path(folder)
    cases = Cases(folder, group)
    last = group.rank == 1
    rows = data()
    cases.run("iterable", "fit", make_network(), blocking(rows, last), sink_size=1)
    cases.run("tables", "fit", Clicks(), blocking(clicks(), last), sink_size=1)
    valid = blocking(rows, last, 2)
    arrays = {"x": rows[0][:96], "y": rows[1][:96]}
    cases.run("validation", "fit", make_network(), arrays, valid_dataset=valid, batch_size=8, epochs=2)
    x, y = rows[0][:96], rows[1][:96]
    quiet = ReplayStream({"x": x, "label": y}, rows_per_second=1e-3)
    if last:
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
    cases.run("stream", "online_train", make_network(), quiet, batch_size=8)
    (folder / f"found_{group.rank}.json").write_text(json.dumps(cases.found))
    # MindSpore waits outside Python for a pipeline: nothing gets it out of there.
    pipeline = dataset.GeneratorDataset(
        lambda: ((x.astype(np.float32), y) for x, y in zip(*rows, strict=True)) if not last else stuck(rows), ["x", "y"]
    )
    cases.run("pipeline", "fit", make_network(), pipeline.batch(8))


def stuck(rows):
    for number, row in enumerate(zip(*rows, strict=True)):
        if number == 40:
            block()
        yield row


if __name__ == "__main__":
    main(sys.argv[1])
