"""Two processes publish in parts, with faults on one of them; run on every rank by test_publishing.py, and by it alone.

python publish_program.py FOLDER [RANK MOMENT]

With a rank and a moment, that rank is killed while it writes its second version.
"""

import errno
import json
import logging
import os
import signal
import sys
from pathlib import Path

import numpy as np
from mindspore import nn

from callbacks import EMA, Callback, Every
from tests.trainer.distributed import jobs
from tests.trainer.distributed.table_program import Clicks, build, clicks
from trainer import Trainer
from trainer.checkpoint import durable
from trainer.embedding import Eviction
from trainer.errors import CheckpointError
from trainer.serving.publisher import Publish
from trainer.serving.served_model import ServedModel

STEP = 32


class Faults(Callback):
    """Lets a rank fail at some steps: step -> (rank, moment).

    A moment is the name of a file that cannot be written then.
    """

    def __init__(self, group, at, fail):
        self.group, self.at, self.fail, self.now = group, at, fail, None
        self._write, self._step = durable.write_file, 0
        durable.write_file = self._write_file

    def on_train_step_end(self, trainer):
        self._step += 1
        rank, moment = self.at.get(self._step, (None, None))
        self.now = moment if rank == self.group.rank else None

    def _write_file(self, path, blocks):
        if self.now is not None and self.now in path.name:
            path.write_bytes(b"half")
            self.fail()
        return self._write(path, blocks)

    def teardown(self, trainer):
        durable.write_file = self._write


def no_space():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Compares(Callback):
    """Notes after each step which version there is, and whether a server has its rows."""

    def __init__(self, group, publish):
        self.group, self.publish, self.model, self.found = group, publish, None, []

    def on_train_step_end(self, trainer):
        problem = None
        try:
            self.publish.wait()
        except CheckpointError as error:
            problem = str(error)
        self.group.wait_for_all()
        held = trainer.tables.tables.take("test")  # of all processes, on rank 0
        if not self.group.is_main:
            return
        self.model = self.model or ServedModel(self.publish.root, follow=False)
        self.model.refresh()
        current = self.model.current
        body = json.loads((self.publish.root / current.chain[-1].name / "manifest.json").read_bytes())["version"]
        note = {"version": current.version, "chain": len(current.chain), "problem": problem}
        note |= {"parts": body.get("parts"), "files": sorted(body["files"]), "same": self._same(held)}
        self.found.append(note)

    def _same(self, held):
        """Return whether the served rows are those that are trained, and no others."""
        for name, table in self.model.graph.tables.items():
            arrays = {key: np.asarray(held["arrays"][f"{name}/{key}"]) for key in ("rows", "ids", "values")}
            own = arrays["rows"] > 0
            ids, rows = table.map.items()
            order, expected = np.argsort(ids), np.argsort(arrays["ids"][own])
            if not np.array_equal(ids[order], arrays["ids"][own][expected]):
                return False
            values = arrays["values"][own][expected][:, : table.spec.dim]
            if not np.array_equal(table.store.read(rows[order])[:, : table.spec.dim], values):
                return False
        return True


def new_trainer():
    return build(Clicks(bias={"capacity": 300, "eviction": Eviction("lru")}))


def fit(trainer, group, steps, callbacks):
    data = {name: column[: STEP * steps] for name, column in clicks().items()}
    trainer.fit(data, 1, batch_size=STEP // group.size, sink_size=1, callbacks=callbacks)


def main(folder, *killed):
    group, folder = jobs.member(), Path(folder)
    if killed:
        rank, moment = int(killed[0]), killed[1]
        faults = Faults(group, {2: (rank, moment)}, lambda: os.kill(os.getpid(), signal.SIGKILL))
        publish = Publish(folder / "served", every=Every(steps=1), batch=8, on_error="raise")
        fit(new_trainer(), group, 8, [faults, publish, Compares(group, publish)])
        return
    trainer, found = new_trainer(), {}
    publish = Publish(folder / "served", every=Every(steps=1), batch=100, compact=2, keep=20)
    failing = {3: (1, "rows.1.safetensors"), 5: (0, "current.json"), 9: (1, "full.1.safetensors")}
    faults = Faults(group, failing, no_space)
    compares = Compares(group, publish)
    fit(trainer, group, 15, [faults, publish, compares])
    found["steps"] = compares.found
    questions = {key: clicks()[key] for key in ("user", "items")}
    found["predicted"] = trainer.predict(questions, batch_size=50).tolist()
    found |= other_ways(folder, group, trainer, questions)
    found["normed"] = normed(folder, group)
    (folder / f"found_{group.size}_{group.rank}.json").write_text(json.dumps(found))


def other_ways(folder, group, trainer, questions):
    """Publish with on_error="raise", and to a folder that rank 1 cannot write to."""
    found = {}
    publish = Publish(folder / "raised", every=Every(steps=1), batch=100, on_error="raise")
    faults = Faults(group, dict.fromkeys(range(2, 9), (1, "rows.1.safetensors")), no_space)
    try:
        fit(trainer, group, 6, [faults, publish])
    except CheckpointError as error:
        found["raised"] = str(error)
    found["trained"] = trainer.state.progress.global_step
    warnings = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())
    logging.getLogger("trainer").addHandler(handler)
    access = os.access
    os.access = lambda path, mode: (
        "gathered" not in str(path) and access(path, mode) if group.rank else access(path, mode)
    )
    publish = Publish(folder / "gathered", every=Every(steps=1), batch=100)
    compares = Compares(group, publish)
    fit(trainer, group, 3, [publish, compares])
    os.access = access
    logging.getLogger("trainer").removeHandler(handler)
    found["gathered"], found["warnings"] = compares.found, [text for text in warnings if "cannot write to" in text]
    other = new_trainer()
    other.init_from(folder / "served")
    found["initial"] = other.predict(questions, batch_size=50).tolist()
    return found


def normed(folder, group):
    """Publish a network without tables whose processes have statistics of their own; return what it predicts."""
    x = np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)
    network = nn.SequentialCell(nn.BatchNorm1d(2), nn.Dense(2, 1))
    trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.01))
    rows = {"x": x, "y": x.sum(1, keepdims=True)}
    callbacks = [EMA(0.5), Publish(folder / "normed", every=Every(steps=1), batch=8)]
    trainer.fit(rows, batch_size=16 // group.size, shuffle=False, callbacks=callbacks)
    with trainer.averaged_weights():
        return trainer.predict({"x": x}, batch_size=8).tolist()


if __name__ == "__main__":
    main(*sys.argv[1:])
