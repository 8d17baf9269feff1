"""Several tasks, and lists of different lengths, on N processes and on one; run on every rank by test_columns.py.

python columns_program.py FOLDER
"""

import itertools
import json
import sys
from pathlib import Path

import numpy as np
from mindspore import Tensor, nn, ops

from callbacks import Callback
from tests.trainer.distributed import jobs
from tests.trainer.distributed.fit_program import data
from trainer import MultiTaskLoss, Trainer, Window
from trainer.data.ragged import Ragged
from trainer.embedding import Embedding, EmbeddingBag
from trainer.streams import Column, FileStream, ReplayStream, Schema

ROWS = 32  # of a step, over all processes
SEGMENTS = [(40, 64), (64, 88), (88, 108)]  # rows of each file of the stream
SCHEMA = Schema({"history": Column("int64", (None,), per_octave=2), "label": Column("float32", (1,))}, label="label")


def values(*shape, seed=1):
    return Tensor(np.random.default_rng(seed).normal(0, 0.3, shape).astype(np.float32))


class TwoHeads(nn.Cell):
    """Is a tumour benign; and, of the benign ones whose size is known, how large is it."""

    def __init__(self):
        super().__init__()
        self.body = nn.Dense(30, 4, weight_init=values(4, 30), bias_init="zeros", activation="relu")
        self.heads = nn.Dense(4, 2, weight_init=values(2, 4), bias_init="zeros")

    def construct(self, x):
        found = self.heads(self.body(x))
        return {"benign": found[:, :1], "size": found[:, 1:]}


def tumours():
    x, y = data()
    order = np.argsort(y[:96, 0], kind="stable")  # whole batches of one process have no benign tumour
    x[:96], y[:96] = x[order], y[order]
    size = x[:, 2:3] * 2
    size[::5] = np.nan
    return {"x": x[:192], "benign": y[:192], "size": size[:192]}


def two_tasks():
    losses = {"benign": nn.BCEWithLogitsLoss(), "size": nn.MSELoss(reduction="none")}
    return MultiTaskLoss(losses, {"size": 0.3}, {"size": "benign"}, ignore_nan=["size"])


class Histories(nn.Cell):
    """The sum of a history's vectors by its padded length: another length would be another network."""

    def __init__(self, sparse=False):
        super().__init__()
        dense = nn.Embedding(60, 3, embedding_table=values(60, 3))
        self.table = Embedding(3, mode="sparse", name="ids") if sparse else dense
        self.head = nn.Dense(3, 1, weight_init=values(1, 3), bias_init="zeros")

    def construct(self, history, history_mask):
        vectors = self.table(history) * ops.expand_dims(ops.cast(history_mask, self.head.weight.dtype), -1)
        return self.head(vectors.sum(1)) + history.shape[1] / 10


class Bags(nn.Cell):
    """The mean of a history's vectors, of ids one after another."""

    def __init__(self):
        super().__init__()
        self.bag = EmbeddingBag(3, combiner="mean", mode="sparse", name="ids")
        self.head = nn.Dense(3, 1, weight_init=values(1, 3), bias_init="zeros")

    def construct(self, history, history_offsets):
        return self.head(self.bag(history, None, history_offsets))


def histories():
    """Lists of one or two ids, from row 64 on of up to seven; one has 40."""
    rng = np.random.default_rng(0)
    lists = [rng.integers(0, 60, rng.integers(1, 3) if row < 64 else rng.integers(0, 8)) for row in range(144)]
    lists[100] = np.arange(40)
    return lists, np.array([[float(one.sum() % 2)] for one in lists], np.float32)


def write_segments(folder):
    folder.mkdir()
    rows = list(zip(*histories(), strict=True))
    for place, (first, last) in enumerate(SEGMENTS):
        part = [{"history": row.tolist(), "label": label.tolist()} for row, label in rows[first:last]]
        (folder / f"part-{place:03d}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    (folder / "_DONE").touch()


class Diary(Callback):
    """Notes losses, shapes, and what is known of the tasks."""

    def __init__(self):
        self.losses, self.shapes, self.tasks, self.windows, self.rows, self.batches = [], [], [], [], 0, []

    def on_train_step_end(self, trainer):
        outputs = trainer.state.outputs
        self.losses += outputs.losses.tolist()
        chunk = outputs.chunk
        self.shapes += [chunk.arrays[0].shape[2 if chunk.stacked else 1 :]] * chunk.num_batches
        self.rows += chunk.num_samples
        if "history_mask" in chunk.names:
            columns = chunk.arrays if chunk.stacked else [array[None] for array in chunk.arrays]
            for lists, masks, label in zip(*[column[: chunk.num_batches] for column in columns], strict=True):
                rows = [row[mask].tolist() for row, mask in zip(lists, masks, strict=True)]
                self.batches.append([rows, label.tolist()] if chunk.num_samples else [[], []])

    def on_train_epoch_end(self, trainer):
        self.tasks.append(list(trainer.state.task_losses.values()))

    def on_window_end(self, trainer):
        self.windows.append([value for name, value in sorted(trainer.state.window.items()) if "size" in name])


def run(found, name, network, loss, train, *, metrics=(), **options):
    trainer = Trainer(network, loss, nn.Adam(network.trainable_params(), 0.02), metrics=set(metrics), seed=3, **options)
    diary = Diary()
    train(trainer, diary)
    found[f"{name}/losses"] = np.array(diary.losses)
    found[f"{name}/shapes"] = np.array(diary.shapes)
    found[f"{name}/tasks"] = np.array(diary.tasks)
    found[f"{name}/windows"] = np.array(diary.windows)
    found[f"{name}/rows"] = np.array(diary.rows)
    for parameter in network.get_parameters():
        found[f"{name}/parameters/{parameter.name}"] = parameter.asnumpy().copy()
    return trainer, diary


def joined(folder):
    """Return the batches that two processes have trained on together, each pair as one."""
    both = [json.loads((folder / f"stream_{rank}.json").read_text()) for rank in range(2)]
    found = []
    for parts in zip(*both, strict=True):
        lists, labels = (list(itertools.chain(*(part[place] for part in parts))) for place in range(2))
        found.append({"history": Ragged.of(lists, per_octave=2), "label": np.array(labels, np.float32)})
    return found


def main(folder):
    group, found = jobs.member(), {}
    each = ROWS // group.size
    table = tumours()

    def fit(arrays, **options):
        options = {"epochs": 2, "batch_size": each, "shuffle": False, "sink_size": 1, **options}
        return lambda trainer, diary: trainer.fit(arrays, callbacks=[diary], **options)

    few = {name: column[:96] for name, column in table.items()}
    run(found, "tasks", TwoHeads(), two_tasks(), fit(few), metrics=["size_mae"], clip_norm=0.1)

    def online(trainer, diary):
        trainer.online_train(ReplayStream(table), [diary], batch_size=each, sink_size=2, window=Window(rows=96))

    trainer, _ = run(found, "tasks online", TwoHeads(), two_tasks(), online, metrics=["size_mae"])
    found["tasks/evaluated"] = np.array(sorted(trainer.evaluate(few, batch_size=32).items()))

    lists, label = histories()
    bce = nn.BCEWithLogitsLoss()
    arrays = {"history": Ragged.of(lists[64:128], per_octave=2, max_length=33), "label": label[64:128]}
    trainer, _ = run(found, "lists", Histories(sparse=True), bce, fit(arrays))
    found["lists/predicted"] = trainer.predict({"history": arrays["history"]}, batch_size=32)
    run(found, "bags", Bags(), bce, fit({"history": Ragged.of(lists[:ROWS]), "label": label[:ROWS]}))
    # Lists of one row come as an array: they are equally long.
    ends = [48, 64, 80, 81, 82, 98] if group.size == 2 else [48, 80, 82, 98]
    batches = [{"history": lists[a:b], "label": label[a:b]} for a, b in itertools.pairwise(ends)]
    run(found, "batches", Histories(), bce, fit(batches, batch_size=None))
    if group.size == 2:
        stream = FileStream(Path(folder) / "segments", SCHEMA)
        arguments = {"batch_size": 8, "sink_size": 2, "flush_after": 0.2}
        train = lambda trainer, diary: trainer.online_train(stream, [diary], **arguments)  # noqa: E731
        _, diary = run(found, "stream", Histories(sparse=True), bce, train)
        (Path(folder) / f"stream_{group.rank}.json").write_text(json.dumps(diary.batches))
    else:
        run(found, "stream", Histories(sparse=True), bce, fit(joined(Path(folder)), batch_size=None, epochs=1))
    # The file falls to rank 0: the other process makes all its rows up.
    only = FileStream(Path(folder) / "segments", SCHEMA, pattern="part-002*")
    few = {"batch_size": 8, "max_steps": 1, "flush_after": 0.2}
    run(found, "one sided", Histories(), bce, lambda trainer, diary: trainer.online_train(only, [diary], **few))
    np.savez(f"{folder}/found_{group.size}_{group.rank}.npz", **found)


if __name__ == "__main__":
    main(sys.argv[1])
