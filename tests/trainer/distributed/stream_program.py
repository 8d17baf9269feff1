"""Trainings on streams that N processes and one do alike; run on every rank by test_streams.py, and by the test alone.

python stream_program.py FOLDER
"""

import json
import resource
import sys
import threading
import time
from pathlib import Path

import numpy as np
from mindspore import nn, ops
from mindspore.train import MAE

from callbacks import Callback, ModelCheckpoint
from tests.trainer.distributed import jobs
from tests.trainer.distributed.fit_program import data, make_network
from trainer import Trainer, Window
from trainer.checkpoint.saver import Saver
from trainer.embedding import Embedding
from trainer.errors import CheckpointError, ConfigurationError, DataError
from trainer.state import State
from trainer.streams import Column, FileStream, ReplayStream, Schema

SEGMENTS = [90, 70, 100, 60, 80, 9]  # rows of each
BATCH = 16
SCHEMA = Schema(
    {"x": Column("float32", (30,)), "number": "int32", "time": "float64", "label": Column("float32", (1,))},
    label="label",
    event_time="time",
)


def table():
    x, y = data()
    number = np.arange(len(x), dtype=np.int32)
    return {"x": x, "number": number, "time": number * 1.0, "label": y}


def write_segments(folder, sizes, overflowing=None):
    """Write the first rows of the table as segments; the folder is complete.

    The row `overflowing` has a number whose square is infinite.
    """
    folder.mkdir()
    columns, first = table(), 0
    if overflowing is not None:
        columns["x"][overflowing, 3] = 3e25
    for place, size in enumerate(sizes):
        rows = [{name: column[at].tolist() for name, column in columns.items()} for at in range(first, first + size)]
        (folder / f"part-{place:03d}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        first += size
    (folder / "_DONE").touch()


class Numbered(nn.Cell):
    """A network that is given the number of each row as well."""

    def __init__(self):
        super().__init__()
        self.network = make_network()

    def construct(self, x, number):
        return self.network(x)


class WithTable(nn.Cell):
    """A network that looks the row's number up in a table as well."""

    def __init__(self):
        super().__init__()
        self.network = make_network()
        self.items = Embedding(1, mode="sparse", name="items")

    def construct(self, x, number):
        return self.network(x) + ops.reshape(self.items(number), (-1, 1))


class Diary(Callback):
    """Notes the rows of every step with their predictions, and the windows; one rank may ask to stop."""

    def __init__(self, stop_at=None):
        self.steps, self.windows, self.predicted, self.losses, self.stop_at = [], [], [], [], stop_at

    def on_train_step_end(self, trainer):
        outputs = trainer.state.outputs
        rows = outputs.chunk.rows(1)[: outputs.chunk.num_samples]
        self.steps.append(rows.tolist())
        self.predicted += outputs.predictions.reshape(-1)[: len(rows)].tolist()
        self.losses += outputs.losses.tolist()
        if self.stop_at is not None and trainer.state.progress.global_step >= self.stop_at:
            trainer.stop("enough")

    def on_window_end(self, trainer):
        self.windows.append({**trainer.state.window, "after": trainer.state.progress.global_step})


class FullDisk(Callback):
    """Lets no file of rank 0 grow beyond a few bytes, from the third step to the fourth."""

    def on_train_step_begin(self, trainer):
        step = trainer.state.progress.global_step
        if trainer.group.is_main and step in (3, 4):
            most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            if step == 4:
                while any(thread.name == "snapshot-writer" for thread in threading.enumerate()):
                    time.sleep(0.01)  # until the write has failed
            resource.setrlimit(resource.RLIMIT_FSIZE, (64 if step == 3 else most, most))


class Grows(Callback):
    """Appends rows to this process's first segment, which it has left: 10 on rank 0, 7 on rank 1.

    The stream ends once they are counted, so that the window of the last step shows them on any machine.
    """

    def __init__(self, folder, stream, last_step):
        self.folder, self.stream, self.last_step = folder, stream, last_step

    def on_train_step_begin(self, trainer):
        step, rank = trainer.state.progress.global_step, trainer.group.rank
        rows = 10 - 3 * rank
        if step == 3:
            path = self.folder / f"part-{rank:03d}.jsonl"
            with path.open("a") as file:
                file.writelines(path.read_text().splitlines(keepends=True)[:rows])
        elif step == self.last_step:
            until = time.monotonic() + 60
            while self.stream.late_rows() < rows and time.monotonic() < until:
                time.sleep(0.01)
            (self.folder / "_DONE").touch()


class Latest(ReplayStream):
    """A stream that begins behind its newest row, as a topic with start="latest", unless it seeks."""

    exhausted = False

    def __init__(self, table):
        super().__init__(table)
        self.seek({"table": [0, self.rows]})

    def poll(self, max_rows, timeout=0.0):
        return super().poll(max_rows, timeout) if self.position()["table"][0] == 0 else None


class Commits(FileStream):
    """Notes what it was told to be safe, and when."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.commits = []

    def commit(self, position):
        self.commits.append(position)


def build(network, metrics=("auc",)):
    metrics = metrics if isinstance(metrics, dict) else list(metrics)
    return Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 0.01), metrics=metrics)


def parameters(trainer):
    cells = [trainer.network, trainer.optimizer, *([trainer.builder.step] if trainer.builder.step else [])]
    return {id(parameter): parameter for cell in cells for parameter in cell.get_parameters()}


class Trained:
    """What is left of the trainings of one process."""

    def __init__(self, group):
        self.group, self.found = group, {}
        self.shared = build(Numbered())
        self.first = {key: held.asnumpy().copy() for key, held in parameters(self.shared).items()}

    def renewed(self):
        """Return the one trainer whose programs are compiled once, as if it had never trained."""
        trainer = self.shared
        for key, held in parameters(trainer).items():
            # on CPU this is a live view
            held.asnumpy()[...] = self.first.get(key, -1 if held.name == "trainer.bad_steps" else 0)
        trainer.state, trainer.saver = State(), Saver(trainer.group, trainer)
        return trainer

    def train(self, name, stream, *, stop_at=None, callbacks=(), trainer=None, **arguments):
        trainer = trainer or self.renewed()
        network, diary = trainer.network, Diary(stop_at)
        arguments = {"batch_size": BATCH, "window": Window(rows=100), **arguments}
        trainer.online_train(stream, [diary, *callbacks], **arguments)
        self.found[name] = {
            "steps": diary.steps,
            "predicted": diary.predicted,
            "windows": diary.windows,
            "losses": diary.losses,
            "open": trainer.state.window,
            "progress": trainer.state.progress.state_dict(),
            "stop": trainer.state.stop_reason.kind,
            "skipped": trainer.state.skipped_steps,
            "parameters": [p.asnumpy().reshape(-1).tolist() for p in network.trainable_params()],
        }
        return trainer

    def refused(self, name, kind, stream, **options):
        network = Numbered()
        trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 0.01), **options)
        try:
            trainer.online_train(stream, [], batch_size=BATCH, max_steps=3)
        except kind as error:
            self.found[name] = str(error)


def main(folder):
    group = jobs.member()
    run = Trained(group)
    folder = Path(folder)
    # The only segment falls to rank 0: the others never have a row of their own.
    run.train("one sided", FileStream(folder / "segments", SCHEMA, pattern="part-002*"), flush_after=0.2)
    replayed = {name: column[:500] for name, column in table().items()}
    run.train("replayed", ReplayStream(replayed), batch_size=2 * BATCH // group.size, sink_size=4)
    if group.size > 1:
        stream = Commits(folder / "segments", SCHEMA)
        snapshots = ModelCheckpoint(folder / "snapshots", every=5, background=True)
        run.train("files", stream, callbacks=[snapshots])
        run.found["files"]["commits"] = stream.commits
        twice = FileStream(folder / "segments", SCHEMA)
        run.train("stopped", twice, stop_at=3 if group.rank else None)
        run.train("went on", twice)
        # The last batch of rank 0 is short, and rank 1 has none: what it makes up is larger than all that there is.
        with_table = build(WithTable())
        run.train("tables", FileStream(folder / "uneven", SCHEMA), trainer=with_table)
        # No row comes, so that it is not known which columns feed the table.
        silent = FileStream(folder / "silent", SCHEMA)
        run.train("silent", silent, trainer=build(WithTable()), idle_timeout=0.3)
        run.train("out of time", silent, trainer=build(WithTable()), max_time=0.3)
        snapshots = ModelCheckpoint(folder / "begun")
        run.train("begun", ReplayStream(replayed), trainer=build(WithTable()), callbacks=[snapshots], max_steps=3)
        resumed = {"resume": folder / "begun", "idle_timeout": 0.3}
        run.train("resumed", Latest(replayed), trainer=build(WithTable()), **resumed)
        run.train("spoilt", FileStream(folder / "spoilt", SCHEMA))
        run.train("seconds", FileStream(folder / "segments", SCHEMA), window=Window(seconds=0.05))
        run.train("event time", FileStream(folder / "segments", SCHEMA), window=Window(event_time=100))
        idle = FileStream(folder / "followed", SCHEMA)
        run.train("idle", idle, idle_timeout=0.7, flush_after=0.2, sink_size=4)
        shuffled = np.random.default_rng(group.rank).permutation(500)
        own = ReplayStream({name: column[shuffled] for name, column in replayed.items()})
        run.refused("other rows", DataError, own)
        batches = ({name: column[:BATCH] for name, column in replayed.items()} for _ in range(3))
        run.refused("generator", ConfigurationError, batches)
        try:
            full = [FullDisk(), ModelCheckpoint(folder / "full", every=4, background=True)]
            run.train("full", FileStream(folder / "segments", SCHEMA), trainer=with_table, callbacks=full, sink_size=1)
        except CheckpointError as error:
            run.found["full"] = str(error)
        run.train("spoilt tables", FileStream(folder / "spoilt", SCHEMA), trainer=with_table)
        late = FileStream(folder / "late", SCHEMA, poll_interval=0.01)
        grows = Grows(folder / "late", late, last_step=16)
        run.train("late", late, callbacks=[grows], window=Window(rows=34 * 16), sink_size=1)
        run.refused("foreign", ConfigurationError, ReplayStream(replayed), metrics={"error": MAE()})
    (folder / f"found_{group.size}_{group.rank}.json").write_text(json.dumps(run.found))


if __name__ == "__main__":
    main(sys.argv[1])
