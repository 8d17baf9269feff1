"""Goes on with one training for some steps, on however many processes; each notes the rows it was given.

python resume_program.py FOLDER MAX_STEPS
"""

import sys

import numpy as np
from mindspore import nn

from callbacks import Callback, ModelCheckpoint
from tests.trainer.distributed.fit_program import Clicks, clicks
from trainer import Trainer
from trainer.distributed.group import join

ROWS, EACH = 281, 8


class Ledger(Callback):
    """Appends the numbers of the rows trained on to a file of this process."""

    def __init__(self, folder, group):
        self.path, self.group = f"{folder}/rows_{group.size}_{group.rank}", group

    def on_train_step_end(self, trainer):
        chunk = trainer.state.outputs.chunk
        if chunk.num_samples:
            with open(self.path, "ab") as file:
                file.write(chunk.rows(1).astype(np.int64).tobytes())


class WithNumber(nn.Cell):
    """The network of raw ids, given the number of each row as well."""

    def __init__(self):
        super().__init__()
        self.clicks = Clicks()

    def construct(self, ids, number):
        return self.clicks(ids)


def main(folder, max_steps):
    group = join()
    network = WithNumber()
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 0.05), seed=3)
    ids, label = clicks(ROWS)
    trainer.fit(
        {"ids": ids, "number": np.arange(ROWS, dtype=np.int32), "label": label},
        batch_size=EACH,
        sink_size=2,
        max_steps=max_steps,
        callbacks=[Ledger(folder, group), ModelCheckpoint(f"{folder}/snapshots")],
        resume="auto",
    )
    return trainer


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
