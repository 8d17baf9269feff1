"""Ranks given different things: each is refused on all of them; then rank 1 ends in the middle of a training.

python settings_program.py FOLDER
"""

import json
import sys
from pathlib import Path

import numpy as np
from mindspore import nn

from callbacks import Callback, ModelCheckpoint
from tests.trainer.distributed import jobs
from trainer import Trainer
from trainer.errors import CheckpointError, ConfigurationError

X = np.arange(160, dtype=np.float32).reshape(40, 4) / 100
Y = np.ones((40, 1), np.float32)


class Squared(nn.Dense):
    def construct(self, x):
        return super().construct(x) * 2


class Cubed(nn.Dense):
    def construct(self, x):
        return super().construct(x) + 3


Cubed.__qualname__ = Cubed.__name__ = "Squared"


class Leave(Callback):
    def on_train_step_end(self, trainer):
        if trainer.state.progress.global_step == 2:
            sys.exit(0)


def fit(
    network=nn.Dense, rate=0.01, x=X, rows=4, epochs=1, momentum=0.0, shuffle=True, callbacks=(), resume=None, **options
):
    net = network(4, 1, "zeros")
    optimizer = nn.SGD(net.trainable_params(), rate, momentum=momentum)
    trainer = Trainer(net, nn.MSELoss(), optimizer, **options)
    trainer.fit((x, Y), epochs, batch_size=rows, callbacks=list(callbacks), sink_size=1, shuffle=shuffle, resume=resume)
    return trainer.state.progress.global_step


def resume_from(place):
    try:
        fit(epochs=2, callbacks=[ModelCheckpoint(place)], resume="auto")
    except CheckpointError as error:
        return str(error)


def resume_apart(folder, rank):
    """Resume on rank 0 alone, as on machines without a shared file system; return the error.

    Then resume from a folder whose snapshot is damaged on rank 0, and missing on rank 1.
    """
    fit(callbacks=[ModelCheckpoint(f"{folder}/snapshots")])
    place = f"{folder}/{'nothing' if rank else 'snapshots'}"
    found = resume_from(place)
    if rank == 0:
        for file in Path(folder, "snapshots").glob("step_*/*"):
            file.write_bytes(b"damaged")
    return {"resume": found, "damaged": resume_from(place)}


def main(folder):
    rank = jobs.member().rank
    other = X.copy()
    other[0, 0] = -1
    cases = {
        "nothing": {},
        "seed": {"seed": rank},
        "learning rate": {"rate": 0.01 + 0.04 * rank},
        "momentum": {"momentum": 0.5 + 0.25 * rank},
        "shuffle": {"shuffle": rank == 0},
        "gradient_accumulation_steps": {"gradient_accumulation_steps": 1 + rank},
        "clip_norm": {"clip_norm": 1.0 + rank},
        "first batch": {"x": other if rank else X},
        "random batch": {"x": X[::-1] if rank else X},
        "batch_size": {"rows": 4 + rank},
        "epochs": {"epochs": 1 + rank},
        "code of the network": {"network": Cubed if rank else Squared},
    }
    found = {}
    for name, case in cases.items():
        try:
            found[name] = fit(**case)
        except ConfigurationError as error:
            found[name] = str(error)
    found |= resume_apart(folder, rank)
    with open(f"{folder}/found_{rank}.json", "w") as file:
        json.dump(found, file)
    fit(callbacks=[Leave()] if rank else [])


if __name__ == "__main__":
    main(sys.argv[1])
