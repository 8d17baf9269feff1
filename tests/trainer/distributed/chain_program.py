"""Goes on with two trainings for some steps, on however many processes; each process notes the rows it was given.

python chain_program.py FOLDER STEPS_OF_FIT STEPS_OF_THE_STREAM [SERVERS]
"""

import sys
from pathlib import Path

import numpy as np
from mindspore import nn, ops

from callbacks import Callback, ModelCheckpoint
from tests.trainer.distributed import jobs
from tests.trainer.distributed.stream_program import Numbered, table
from trainer import Trainer, Window
from trainer.embedding import Embedding
from trainer.streams import Column, KafkaStream, Schema

FIT_ROWS = 281
TOPIC, PARTITIONS, ROWS, EACH = "clicks", 3, 500, 8
SCHEMA = Schema({"ids": Column("int64", (2,)), "number": "int32", "label": Column("float32", (1,))}, label="label")


def messages(partition):
    """Return the rows of a partition as Python values; partitions differ in length, and the last has none."""
    rng = np.random.default_rng(partition)
    numbers = [n for n in range(ROWS) if (n * n) % 7 % 4 % 2 == partition]
    return [{"ids": (rng.zipf(1.3, 2) % 5000).tolist(), "number": n, "label": [float(n % 3 == 0)]} for n in numbers]


class Clicks(nn.Cell):
    """A network on raw ids with dropout, given the number of each row as well."""

    def __init__(self):
        super().__init__()
        self.items = Embedding(4, mode="sparse", name="items")
        self.drop = nn.Dropout(p=0.3)
        self.head = nn.Dense(8, 1, weight_init="ones", bias_init="zeros")

    def construct(self, ids, number):
        return self.head(self.drop(ops.reshape(self.items(ids), (ids.shape[0], 8))))


class Ledger(Callback):
    """Appends the numbers of the rows trained on to a file of this process."""

    def __init__(self, folder, group):
        self.path = f"{folder}/rows_{group.size}_{group.rank}"

    def on_train_step_end(self, trainer):
        chunk = trainer.state.outputs.chunk
        if chunk.num_samples:
            with open(self.path, "ab") as file:
                file.write(chunk.rows(1)[: chunk.num_samples].astype(np.int64).tobytes())


def fit(folder, group, max_steps):
    """Train on arrays, in which the rows of a step are dealt to the processes; return the trainer."""
    network = Numbered()
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 0.01), seed=3)
    rows = {name: column[:FIT_ROWS] for name, column in table().items() if name != "time"}
    callbacks = [Ledger(folder, group), ModelCheckpoint(f"{folder}/snapshots")]
    trainer.fit(rows, batch_size=EACH, sink_size=2, max_steps=max_steps, callbacks=callbacks, resume="auto")
    return trainer


def train_on_stream(folder, group, max_steps, servers):
    """Train on a Kafka topic, with a table and dropout, and write down what every process ends with."""
    network = Clicks()
    optimizer = nn.Adam(network.trainable_params(), 0.05)
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), optimizer, metrics=["auc"], seed=3, exact_resume=True)
    stream = KafkaStream(TOPIC, SCHEMA, servers=servers, quota=16, group="chain")
    trainer.online_train(
        stream,
        [Ledger(folder, group), ModelCheckpoint(f"{folder}/snapshots")],
        sink_size=2,
        batch_size=EACH,
        window=Window(rows=100),
        max_steps=max_steps,
        idle_timeout=4.0,
        flush_after=3.0,
        resume="auto",
    )
    stream.close()
    held = trainer.tables.tables.take("test")["arrays"]
    found = {f"tables/{name}": np.array(array) for name, array in held.items()}  # of all processes, on rank 0
    found |= {parameter.name: parameter.asnumpy().copy() for parameter in network.get_parameters()}
    window = trainer.state.window
    found |= {f"window/{name}": np.array(value) for name, value in window.items() if name != "rows_per_second"}
    np.savez(f"{folder}/found_{group.size}_{group.rank}.npz", **found)


def main(folder, fit_steps, stream_steps, servers=None):
    group = jobs.member()
    for name in ("fit", "stream"):
        (Path(folder) / name).mkdir(exist_ok=True)
    if servers is not None:
        train_on_stream(f"{folder}/stream", group, int(stream_steps), servers)
    return fit(f"{folder}/fit", group, int(fit_steps))


if __name__ == "__main__":
    main(*sys.argv[1:])
