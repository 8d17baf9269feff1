"""A signal ends every verb whose data does not come, and a training leaves a snapshot of what it had done."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from trainer import checkpoint

pytestmark = pytest.mark.process

SCRIPT = """
import json, os, signal, sys, threading, time
import numpy as np
import mindspore.dataset as ds
from mindspore import nn
from trainer import Callback, Every, ModelCheckpoint, Trainer
from trainer.embedding import Embedding

STEPS, *CASES = json.loads(sys.argv[1])
rng = np.random.default_rng(0)
DATA = {"x": rng.normal(size=(128, 3)).astype(np.float32), "y": rng.integers(0, 2, (128, 1)).astype(np.float32)}
told = []
BATCH = {name: column[:32] for name, column in DATA.items()}


def tell():
    '''Send this process its signal, once it has done what the data allows and waits.'''
    while trainer.state.progress.global_step < before + STEPS.get(case, 0):
        time.sleep(0.01)
    time.sleep(0.4)
    os.kill(os.getpid(), signal.SIGINT if "interrupted" in case else signal.SIGTERM)
    if case.endswith("twice"):
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)


def tell_once():
    if case not in told:
        told.append(case)
        threading.Thread(target=tell, daemon=True).start()


def batches(count):
    def made():
        for _ in range(count):
            yield BATCH["x"], BATCH["y"]
        tell_once()
        threading.Event().wait()
    return made


def rows():
    for row in range(128):
        yield DATA["x"][row], DATA["y"][row]
    tell_once()
    time.sleep(10**6)


def pipeline():
    return ds.GeneratorDataset(rows, ["x", "y"], num_parallel_workers=1, shuffle=False).batch(32)


class Ask(Callback):
    def on_train_step_end(self, trainer):
        if trainer.state.progress.global_step == before + 3:
            trainer.evaluate(batches(1))["loss"]


class Ids(nn.Cell):
    def __init__(self):
        super().__init__()
        self.table, self.head = Embedding(4), nn.Dense(4, 1)

    def construct(self, x):
        return self.head(self.table(x))


def build(network):
    return Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1))


def run(case):
    save = ModelCheckpoint(case, every=10**6)
    arrays = {"batch_size": 32, "sink_size": 1}
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


dense = build(nn.SequentialCell(nn.Dense(3, 1)))
for case in CASES:
    trainer = build(Ids()) if case == "peek" else dense
    before = trainer.state.progress.global_step
    with open(f"{case}.before", "w") as file:
        file.write(str(before))
    try:
        run(case)
    except (SystemExit, KeyboardInterrupt) as error:
        if case == CASES[-1]:
            raise
        code = getattr(error, "code", -signal.SIGINT)
    else:
        code = 0
    with open(f"{case}.code", "w") as file:
        file.write(str(code))
"""
# steps done when the data stops; finite data holds its newest batch back, as it may be the last of its epoch
STEPS = {"fit": 2, "fit_interrupted": 2, "validation": 2, "callback": 3, "online": 3, "pipeline": 3,
         "pipeline_validation": 2}  # fmt: skip
# Cases of one process, one after the other; the last one ends it. Nothing goes on after MindSpore's own waits.
PROCESSES = [
    [
        "fit",
        "validation",
        "callback",
        "online",
        "evaluate",
        "predict",
        "peek",
        "predict_interrupted",
        "fit_interrupted",
    ],
    ["compile"],
    ["pipeline"],
    ["pipeline_validation"],
    ["pipeline_twice"],
]
CASES = [case for cases in PROCESSES for case in cases]


@pytest.fixture(scope="module")
def ended(tmp_path_factory, forks, request):
    """The folder, and {case: (exit code, output)} of the cases that are run; each got a signal while data blocked."""
    folder = tmp_path_factory.mktemp("blocked")
    (folder / "script.py").write_text(SCRIPT)
    found = {}
    items = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    run = {item.callspec.params["case"] for item in items}
    processes = [cases for all_of_one in PROCESSES if (cases := [case for case in all_of_one if case in run])]
    started = [forks.start(folder / "script.py", json.dumps([STEPS, *cases]), cwd=folder) for cases in processes]
    for cases, process in zip(processes, started, strict=True):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(120)
        output = process.output.read_text() + process.errors.read_text()
        for case in cases[:-1]:
            code = folder / f"{case}.code"
            found[case] = int(code.read_text()) if code.exists() else None, output
        found[cases[-1]] = process.returncode, output
    return folder, found


@pytest.mark.long(but=["fit", "online", "predict_interrupted", "pipeline"])
@pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM")
@pytest.mark.parametrize("case", CASES)
def test_a_signal_ends_a_verb_whose_data_does_not_come(ended, case):
    folder, found = ended
    code, output = found[case]
    expected = -signal.SIGINT if "interrupted" in case else -signal.SIGTERM if case == "compile" else 143
    assert code == expected, output
    if case in STEPS:
        snapshot = checkpoint.find(folder / case)
        done = snapshot.step - int((folder / f"{case}.before").read_text())
        assert done == STEPS[case]
        assert snapshot.step == snapshot.state["progress"]["global_step"]


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
