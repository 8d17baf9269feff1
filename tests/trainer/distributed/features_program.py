"""Features learn from rows that are divided among N processes, or read by all; run on every rank by test_features.py.

python features_program.py FOLDER
"""

import sys

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from callbacks import DriftMonitor, LambdaCallback
from tests.trainer.distributed import jobs
from tests.trainer.features.drifting_rows import drifting_rows
from trainer import Trainer, Window
from trainer.features import Bucketized, Categorical, FeatureEmbedding, Features, ListFeature, Numeric, RawFiles
from trainer.streams import FileStream, ReplayStream

ROWS, EACH = 400, 40  # rows; rows of a step, over all processes


class Net(nn.Cell):
    def __init__(self, features):
        super().__init__()
        self.embedding = FeatureEmbedding(features, 2)
        self.top = nn.Dense(8 + self.embedding.number_width, 1, weight_init="ones", bias_init="zeros")

    def construct(self, *columns):
        fields, numbers, _ = self.embedding(*columns)
        return self.top(ops.concat((fields.reshape(fields.shape[0], -1), numbers), 1)).reshape(-1)


class Dense(nn.Cell):
    """Without tables on the host, which have to know the ids of all processes before a step."""

    def __init__(self):
        super().__init__()
        self.vectors = nn.Embedding(64, 2, embedding_table="ones")
        self.top = nn.Dense(7, 1, weight_init="ones", bias_init="zeros")

    def construct(self, numbers, ids):
        fields = self.vectors(ops.cast(ids, ms.int32))
        return self.top(ops.concat((fields.reshape(fields.shape[0], -1), numbers), 1)).reshape(-1)


def make_trainer(divided=False, **options):
    features = Features(
        [
            Numeric("x", normalize="standard", missing="mean"),
            Bucketized("z", boundaries=4),
            Categorical("city", vocabulary="learn", min_count=5, max_size=9),
            Categorical("first", column="city", vocabulary="learn"),
            *([] if divided else [ListFeature("tags", separator="|", vocabulary="learn", max_length=4)]),
        ],
        label="y",
        **options,
    )
    net = Dense() if divided else Net(features)
    return Trainer(net, nn.BCEWithLogitsLoss(), nn.Adam(net.trainable_params(), 1e-2), features=features, seed=0)


def write_csv(path, rows):
    names = list(rows)
    lines = zip(*[["" if v is None or v != v else v for v in rows[name]] for name in names], strict=True)
    path.write_text("\n".join([",".join(names), *[",".join(map(str, line)) for line in lines]]) + "\n")


def main(folder):
    group, found = jobs.member(), {}
    rows, each = drifting_rows(ROWS, 40), EACH // group.size
    step = np.arange(ROWS) // each % group.size
    own = {name: np.array(column, object)[step == group.rank].tolist() for name, column in rows.items()}

    segments = folder / f"segments_{group.size}"
    segments.mkdir(exist_ok=True)  # complete before the first call, in which processes wait for each other
    write_csv(segments / f"part-{group.rank}.csv", own)

    def note(name, trainer):
        for key, array in trainer.features.transform(rows).items():
            found[f"{name}/{key}"] = array if isinstance(array, np.ndarray) else array[:].values
        for key, array in trainer.features.learned.state_dict()["arrays"].items():
            found[f"{name}/state/{key}"] = array
        found[f"{name}/predictions"] = trainer.predict(rows)

    options = {"batch_size": each, "shuffle": False, "callbacks": [], "epochs": 1}
    trainer = make_trainer(divided=True)
    trainer.fit(own, sharded=True if group.size > 1 else None, **options)
    note("own rows", trainer)
    path = folder / f"own_{group.size}_{group.rank}.csv"
    write_csv(path, own)
    trainer = make_trainer(divided=True)
    trainer.fit(RawFiles(path, in_memory=False), sharded=True if group.size > 1 else None, **options)
    note("own files", trainer)
    trainer = make_trainer()
    trainer.fit(rows, **options)
    note("all rows", trainer)
    trainer = make_trainer(update_every=130)
    trainer.online_train(ReplayStream(rows), callbacks=[], batch_size=each)
    note("online", trainer)
    trainer = make_trainer(divided=True)
    trainer.features.fit({name: column[: ROWS // 2] for name, column in rows.items()})
    monitors = [DriftMonitor(feature=name) for name in ("x", "city")]
    drifts = []
    keep = LambdaCallback(on_window_end=lambda t: drifts.append([t.state.window[monitor.key] for monitor in monitors]))
    stream = FileStream(segments, end="at_last")
    trainer.online_train(stream, callbacks=[*monitors, keep], batch_size=each, window=Window(rows=2 * EACH))
    stream.close()
    found["drift"], found["drifts"] = np.array(drifts), np.array([monitor.count for monitor in monitors])
    np.savez(f"{folder}/found_{group.size}_{group.rank}.npz", **found)


if __name__ == "__main__":
    from pathlib import Path

    main(Path(sys.argv[1]))
