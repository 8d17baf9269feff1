"""Trainings on data of which each process has a part, and on the steps' batches put together; run on every rank.

python divided_program.py FOLDER
"""

import itertools
import sys

import numpy as np
from mindspore import dataset, nn

from callbacks import Callback
from tests.trainer.distributed import jobs
from tests.trainer.distributed.columns_program import Bags, Histories, histories
from tests.trainer.distributed.fit_program import data, make_network
from tests.trainer.distributed.table_program import RULES, Clicks, clicks, content
from trainer import Trainer
from trainer.data.ragged import Ragged
from trainer.embedding import RowAdagrad

EACH = 8  # rows of a batch
FULL = {2: (7, 3), 3: (5, 2, 0)}  # batches of each rank; the third has none at all
SHORT = {2: (52, 19), 3: (36, 0, 13)}  # rows of each rank, the last batches of which are short


def batches_of(table, counts):
    """Return each rank's batches of `counts` rows, one part of the table after another."""
    parts, first = [], 0
    for rows in counts:
        ends = [*range(first, first + rows, EACH), first + rows]
        slices = [slice(a, b) for a, b in itertools.pairwise(ends)]
        parts.append([{name: column[one] for name, column in table.items()} for one in slices])
        first += rows
    return parts


def together(parts):
    """Return the batch of every step: those of all ranks that have one."""
    steps = []
    for number in range(max(map(len, parts))):
        own = [part[number] for part in parts if number < len(part)]
        steps.append({name: joined([batch[name] for batch in own]) for name in own[0]})
    return steps


def joined(columns):
    if not isinstance(columns[0], Ragged):
        return np.concatenate(columns)
    lists = [row for column in columns for row in np.split(column[:].values, column[:].offsets[1:-1])]
    return Ragged.of(lists, per_octave=2)


def whole(part):
    """Return a part as columns."""
    return {name: joined([batch[name] for batch in part]) for name in part[0]}


class Diary(Callback):
    """Notes losses, the own rows, and the steps of each call."""

    def __init__(self):
        self.losses, self.rows, self.steps = [], 0, []

    def on_train_step_end(self, trainer):
        outputs = trainer.state.outputs
        self.losses += outputs.losses.tolist()
        self.rows += outputs.chunk.num_samples
        self.steps.append(outputs.chunk.num_batches)


class Cases:
    """Trains on this process's part, or on all parts of `size` processes put together."""

    def __init__(self, size, rank, together):
        self.size, self.rank, self.together, self.found = size, rank, together, {}

    def run(self, name, network, parts, give=lambda part: lambda: iter(part), *, build=None, **options):
        trainer = Trainer(
            network,
            nn.BCEWithLogitsLoss(),
            nn.Adam(network.trainable_params(), 0.02),
            metrics={"auc", "loss"},
            seed=3,
            **(build or {}),
        )
        diary = Diary()
        data, sharded = (together(parts), None) if self.together else (give(parts[self.rank]), True)
        if isinstance(data, dict):
            options |= {"batch_size": EACH, "shuffle": False}
        trainer.fit(data, **{"epochs": 2, "sharded": sharded, "callbacks": [diary], **options})
        progress = trainer.state.progress
        self.found[f"{name}/losses"] = np.array(diary.losses)
        self.found[f"{name}/history"] = np.array([v for _, v in sorted(trainer.history.history.items())])
        self.found[f"{name}/progress"] = np.array([progress.epoch, progress.global_step, progress.samples_seen])
        self.found[f"{name}/own rows"] = np.array(diary.rows)
        self.found[f"{name}/calls"] = np.array(diary.steps)
        for parameter in network.get_parameters():
            self.found[f"{name}/parameters/{parameter.name}"] = parameter.asnumpy().copy()
        if trainer.tables is not None:
            self.found |= {f"{name}/rows/{key}": value for key, value in content(trainer).items()}
        return trainer


def pipeline(part):
    """Return a pipeline, which only the thread that runs graphs reads."""
    if not part:
        return lambda: iter(())
    rows = [(x, y) for batch in part for x, y in zip(batch["x"], batch["y"], strict=True)]
    return dataset.GeneratorDataset(rows, ["x", "y"], shuffle=False).batch(EACH)


def train(size, rank, *, together=False):
    """Return what is left of the trainings of `size` processes."""
    cases = Cases(size, rank, together)
    full = batches_of(clicks(), [EACH * count for count in FULL[size]])
    table = {name: column[300:] for name, column in clicks().items()}
    arrays = whole if size == 2 else lambda part: lambda: iter(part)  # arrays have a row at least
    trainer = cases.run("tables", Clicks(bias=RULES), full, arrays, valid_dataset=table, batch_size=50, sink_size=4)
    cases.found["tables/evaluated"] = np.array(sorted(trainer.evaluate(table, batch_size=50).items()))
    build = {"gradient_accumulation_steps": 3, "clip_norm": 0.1}
    cases.run("both", Clicks(RowAdagrad(), RULES), full, build=build, sink_size=2)
    x, y = data()
    short = batches_of({"x": x, "y": y}, SHORT[size])
    cases.run("accumulated", make_network(), short, pipeline, build={"gradient_accumulation_steps": 2}, sink_size=1)
    lists, label = histories()
    ragged = batches_of({"history": Ragged.of(lists[40:], per_octave=2), "label": label[40:]}, SHORT[size])
    cases.run("lists", Histories(sparse=True), ragged, sink_size=2, epochs=1)
    bags = batches_of({"history": Ragged.of(lists[:64]), "label": label[:64]}, [EACH * n for n in (4, 2, 0)[:size]])
    cases.run("bags", Bags(), bags, epochs=1, build={"gradient_accumulation_steps": 2})
    return cases.found


def main(folder):
    group = jobs.member()
    np.savez(f"{folder}/found_{group.size}_{group.rank}.npz", **train(group.size, group.rank))


if __name__ == "__main__":
    main(sys.argv[1])
