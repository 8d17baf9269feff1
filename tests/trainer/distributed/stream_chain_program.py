"""Goes on with one training on a Kafka topic for some steps, on however many processes; each notes its rows.

python stream_chain_program.py FOLDER SERVERS MAX_STEPS
"""

import sys

import numpy as np
from mindspore import nn, ops

from callbacks import Callback, ModelCheckpoint
from trainer import Trainer, Window
from trainer.distributed.group import join
from trainer.embedding import Embedding
from trainer.streams import Column, KafkaStream, Schema

TOPIC, PARTITIONS, ROWS, EACH = "clicks", 4, 500, 8
SCHEMA = Schema({"ids": Column("int64", (2,)), "number": "int32", "label": Column("float32", (1,))}, label="label")


def messages(partition):
    """Return the rows of a partition as Python values; partitions differ in length, and the last has none."""
    rng = np.random.default_rng(partition)
    numbers = [n for n in range(ROWS) if (n * n) % 7 % PARTITIONS == partition]
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


def main(folder, servers, max_steps):
    group = join()
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
    return trainer


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
