"""A signal ends every verb whose data does not come, and a training leaves a snapshot of what it had done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from trainer import checkpoint

SCRIPT = """
import sys, threading, time
import numpy as np
import mindspore.dataset as ds
from mindspore import nn
from trainer import Callback, Every, ModelCheckpoint, Trainer
from trainer.embedding import Embedding

root, case, ready, steps_before = *sys.argv[1:4], int(sys.argv[4])
rng = np.random.default_rng(0)
DATA = {"x": rng.normal(size=(32, 3)).astype(np.float32), "y": rng.integers(0, 2, (32, 1)).astype(np.float32)}


def tell():
    while trainer.state.progress.global_step < steps_before:
        time.sleep(0.01)
    open(ready, "w").close()


def batches(count):
    def made():
        for _ in range(count):
            yield DATA["x"], DATA["y"]
        tell()
        threading.Event().wait()
    return made


def rows():
    for row in range(128):
        yield DATA["x"][row % 32], DATA["y"][row % 32]
    tell()
    time.sleep(10**6)


def pipeline():
    return ds.GeneratorDataset(rows, ["x", "y"], num_parallel_workers=1, shuffle=False).batch(32)


class Ask(Callback):
    def on_train_step_end(self, trainer):
        if trainer.state.progress.global_step == 3:
            trainer.evaluate(batches(1))["loss"]


class Ids(nn.Cell):
    def __init__(self):
        super().__init__()
        self.table, self.head = Embedding(4), nn.Dense(4, 1)

    def construct(self, x):
        return self.head(self.table(x))


network = Ids() if case == "peek" else nn.SequentialCell(nn.Dense(3, 1))
trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1))
save = ModelCheckpoint(root, every=10**6)
arrays = {"batch_size": 8, "sink_size": 1}
steps = Every(steps=2)
{
    "fit": lambda: trainer.fit(batches(3), 9, callbacks=save, sink_size=1),
    "fit_interrupted": lambda: trainer.fit(batches(3), 9, callbacks=save, sink_size=1),
    "validation": lambda: trainer.fit(DATA, 9, batches(1), steps, callbacks=save, **arrays),
    "callback": lambda: trainer.fit(DATA, 9, callbacks=[Ask(), save], **arrays),
    "online": lambda: trainer.online_train(batches(3), callbacks=save),
    "evaluate": lambda: trainer.evaluate(batches(2)),
    "predict": lambda: trainer.predict(batches(2)),
    "predict_interrupted": lambda: trainer.predict(batches(2)),
    "peek": lambda: trainer.fit(batches(0), callbacks=save),
    "compile": lambda: trainer.compile(batches(0)),
    "pipeline": lambda: trainer.fit(pipeline(), 9, callbacks=save, sink_size=1),
    "pipeline_validation": lambda: trainer.fit(DATA, 9, pipeline(), steps, callbacks=save, **arrays),
    "pipeline_twice": lambda: trainer.evaluate(pipeline()),
}[case]()
"""
# steps done when the data stops; finite data holds its newest batch back, as it may be the last of its epoch
STEPS = {"fit": 2, "fit_interrupted": 2, "validation": 2, "callback": 3, "online": 3, "pipeline": 3,
         "pipeline_validation": 2}  # fmt: skip
CASES = [*STEPS, "evaluate", "predict", "predict_interrupted", "peek", "compile", "pipeline_twice"]


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Each case in a process of its own, sent a signal while its data blocks: {case: (exit code, seconds, output)}."""
    folder = tmp_path_factory.mktemp("blocked")
    (folder / "script.py").write_text(SCRIPT)
    found = {}
    for first in range(0, len(CASES), 4):  # a few at a time: each is a MindSpore of its own
        started = {}
        for case in CASES[first : first + 4]:
            command = [sys.executable, str(folder / "script.py"), str(folder / case), case]
            command += [str(folder / f"{case}.ready"), str(STEPS.get(case, 0))]
            log = open(folder / f"{case}.log", "w")  # noqa: SIM115
            started[case] = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        for case, process in started.items():
            try:
                deadline = time.monotonic() + 90
                while not (folder / f"{case}.ready").exists() and process.poll() is None:
                    assert time.monotonic() < deadline, (folder / f"{case}.log").read_text()
                    time.sleep(0.05)
                time.sleep(0.5)  # until the main thread waits too
                began = time.monotonic()
                process.send_signal(signal.SIGINT if "interrupted" in case else signal.SIGTERM)
                if case.endswith("twice"):
                    time.sleep(0.5)
                    process.send_signal(signal.SIGTERM)
                with open(folder / f"{case}.log") as log:
                    found[case] = process.wait(30), time.monotonic() - began, log
                    found[case] = (*found[case][:2], log.read())
            except subprocess.TimeoutExpired:
                found[case] = None, 30.0, (folder / f"{case}.log").read_text()
            finally:
                process.kill()
                process.wait()
    return folder, found


@pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM")
@pytest.mark.parametrize("case", CASES)
def test_a_signal_ends_a_verb_whose_data_does_not_come(ended, case):
    folder, found = ended
    code, seconds, output = found[case]
    print(f"{case}: {seconds:.2f} s")
    expected = -signal.SIGINT if "interrupted" in case else -signal.SIGTERM if case == "compile" else 143
    assert code == expected, output
    if case in STEPS:
        snapshot = checkpoint.find(folder / case)
        assert snapshot.step == STEPS[case] == snapshot.state["progress"]["global_step"]


def test_a_child_made_by_fork_is_not_held_by_its_parents_handlers():
    from trainer.run.signals import StopOnSignal

    told = []
    with StopOnSignal(told.append):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        time.sleep(0.2)
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        time.sleep(0.2)
    assert told == []
