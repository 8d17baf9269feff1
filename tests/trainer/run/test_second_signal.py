"""A second signal ends the process at once, whatever it does, and leaves nothing half written under its name."""

from __future__ import annotations

import signal

import pytest

from trainer import checkpoint
from trainer.serving.published import GRAPH, VERSION, Current, Folder

pytestmark = pytest.mark.process

SCRIPT = """
import os, signal, sys, threading, time
from pathlib import Path
import numpy as np
from mindspore import nn
from trainer import Callback, Every, ModelCheckpoint, Trainer
from trainer.mindspore_internals.compiler_modules import api
from trainer.serving import Publish

PHASE, NUMBER, FOLDER = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])


def strike(*given, **named):
    '''Stand in for work that takes long: send both signals in the middle of it, and do not come back.'''
    for _ in range(2):
        os.kill(os.getpid(), NUMBER)
        time.sleep(0.02)
    time.sleep(20)
    print("still there", flush=True)


class Strike(Callback):
    def __init__(self, hook):
        setattr(self, hook, strike)


rows = {"x": np.ones((8, 2), np.float32), "label": np.ones((8, 1), np.float32)}
network = nn.SequentialCell(nn.Dense(2, 1))
trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1))
saving = ModelCheckpoint(FOLDER / "snapshots", every=1)
publishing = Publish(FOLDER / "published", every=1, batch=4)
options = {"batch_size": 4, "sink_size": 1}
trainer.fit(rows, 1, callbacks=[saving, publishing], **options)


def strike_at(where):
    '''Strike at the first rename below `where`, when something is written and not yet there under its name.'''

    def renaming(real):
        def rename(source, target, *given, **named):
            if str(where) in str(target):
                strike()
            return real(source, target, *given, **named)

        return rename

    os.replace, os.rename = renaming(os.replace), renaming(os.rename)


if PHASE == "compile":
    real_compile = api._cell_graph_executor.compile

    def compiling(*given, **named):
        threading.Thread(target=strike, daemon=True).start()
        compiled = real_compile(*given, **named)
        print("still there", flush=True)
        return compiled

    api._cell_graph_executor.compile = compiling
    other = nn.SequentialCell(*(nn.Dense(2, 2) for _ in range(20)), nn.Dense(2, 1))
    Trainer(other, nn.MSELoss()).evaluate(rows, batch_size=4)
elif PHASE == "evaluate":
    trainer.evaluate(rows, Strike("on_eval_step_end"), batch_size=4)
elif PHASE == "restore":
    trainer.fit(rows, 3, callbacks=[Strike("on_load_checkpoint"), saving], resume=FOLDER / "snapshots", **options)
else:
    callbacks = [saving, publishing]
    if PHASE == "train":
        callbacks.insert(0, Strike("on_train_step_end"))
    elif PHASE == "save":
        strike_at(FOLDER / "snapshots")
    elif PHASE == "publish":
        strike_at(FOLDER / "published")
    trainer.fit(rows, 3, callbacks=callbacks, **options)
print("not struck", flush=True)
"""
CASES = [
    *((phase, signal.SIGTERM) for phase in ("compile", "train", "evaluate", "save", "publish", "restore")),
    ("train", signal.SIGINT),
    ("save", signal.SIGINT),
]


@pytest.fixture(scope="module")
def ended(forks, tmp_path_factory, request):
    """For each case that is run its folder, exit code and output."""
    folder = tmp_path_factory.mktemp("struck")
    (folder / "script.py").write_text(SCRIPT)
    started = {}
    run = [item.callspec.params for item in request.session.items if item.path == request.path]
    for phase, number in [(case["phase"], case["number"]) for case in run]:
        own = folder / f"{phase}-{number:d}"
        own.mkdir()
        started[phase, number] = own, forks.start(folder / "script.py", phase, int(number), own)
    return {
        case: (own, process.wait(120), process.output.read_text() + process.errors.read_text())
        for case, (own, process) in started.items()
    }


@pytest.mark.long(but=["train-SIGTERM", "save-SIGINT"])
@pytest.mark.parametrize(("phase", "number"), CASES, ids=lambda value: getattr(value, "name", value))
def test_the_process_ends_at_once_and_nothing_half_written_bears_a_name(phase, number, ended):
    folder, code, output = ended[phase, number]
    # within a graph MindSpore makes SIGTERM of SIGINT
    assert code in ({143} if number == signal.SIGTERM else {130, 143}), output
    assert "struck" not in output
    assert "still there" not in output
    snapshots = checkpoint.available(folder / "snapshots")
    assert [entry.problem for entry in snapshots] == [None] * len(snapshots)
    assert checkpoint.find(folder / "snapshots").step >= 2
    current = Current.read(folder / "published")
    for kind, part in ((GRAPH, current.graph), *((VERSION, part) for part in current.chain)):
        Folder(folder / "published", kind, part).verify()
