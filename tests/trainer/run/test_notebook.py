"""A real notebook kernel: an interrupt in a cell ends the verb, says so, and the trainer goes on."""

from __future__ import annotations

import time
from xml.etree import ElementTree

import pytest

jupyter = pytest.importorskip("jupyter_client")

CELL = """
import time
import numpy as np
from mindspore import nn
from callbacks import ProgressBar
from trainer import Callback, Trainer

class Tell(Callback):
    def on_train_step_end(self, trainer):
        if trainer.state.progress.global_step % 10 == 3:
            print("training", flush=True)

    on_eval_step_end = lambda self, trainer: print("evaluating", flush=True)

rows = {"x": np.ones((320, 2), np.float32), "label": np.ones((320, 1), np.float32)}
network = nn.SequentialCell(nn.Dense(2, 1))
trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1))


def endless():
    while True:
        yield rows["x"][:32], rows["label"][:32]


def blocked():
    for _ in range(3):
        yield rows["x"][:32], rows["label"][:32]
    print("training", flush=True)
    time.sleep(600)
"""
OPTIONS = "batch_size=32, sink_size=1"


class Kernel:
    """A kernel with its client."""

    def __init__(self, folder):
        self.manager = jupyter.KernelManager(kernel_name="python3")
        self.manager.start_kernel(cwd=str(folder))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=120)

    def run(self, code, interrupt_at=None):
        """Run a cell; return its reply and what it shows: {"stdout": text, "stderr": text, "result": text}."""
        shown = {"stdout": "", "stderr": "", "result": "", "error": "", "displays": []}
        number = self.client.execute(code)
        interrupted = False
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            message = self.client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") != number:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                shown[content["name"]] += content["text"]
            elif kind == "execute_result":
                shown["result"] = content["data"]["text/plain"]
            elif kind in ("display_data", "update_display_data"):
                shown["displays"].append((content["transient"]["display_id"], content["data"]["text/html"]))
            elif kind == "error":
                shown["error"] = content["ename"]
            elif kind == "status" and content["execution_state"] == "idle":
                break
            if interrupt_at is not None and not interrupted and interrupt_at in shown["stdout"]:
                self.manager.interrupt_kernel()
                interrupted = True
        return shown

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    started = Kernel(tmp_path_factory.mktemp("notebook"))
    assert started.run(CELL)["error"] == ""
    yield started
    started.close()


@pytest.mark.parametrize("data", ["rows", "blocked"])
def test_an_interrupted_training_returns_its_history_without_an_error_and_goes_on(data, kernel):
    options = OPTIONS if data == "rows" else "sink_size=1"  # it makes batches itself
    shown = kernel.run(f"history = trainer.fit({data}, 10**6, callbacks=Tell(), {options})", interrupt_at="training")
    assert (shown["error"], shown["stderr"]) == ("", "")
    assert kernel.run("str(trainer.state.stop_reason), history is trainer.history")["result"] == (
        "('signal: interrupted', True)"
    )
    assert kernel.run(f"trainer.fit(rows, 1, callbacks=[], {OPTIONS}); sorted(trainer.history.history)")["error"] == ""


def test_the_bar_is_one_display_that_is_redrawn_and_wraps_between_its_parts(kernel):
    shown = kernel.run(f"trainer.fit(rows, 2, rows, callbacks=ProgressBar(refresh_seconds=0), {OPTIONS});")
    assert (shown["error"], shown["stderr"], shown["stdout"]) == ("", "", "")
    assert len({name for name, _ in shown["displays"]}) == 1
    last = ElementTree.fromstring(shown["displays"][-1][1])
    parts = ["".join(part.itertext()).strip() for part in last if part.get("style") == "white-space:nowrap"]
    assert parts[0].startswith("epoch ")
    assert any(part.startswith("val_loss ") for part in parts)
    assert "nowrap" not in last.get("style")
    assert "hidden" not in last.get("style")


def test_an_interrupted_evaluation_has_no_result_and_the_next_one_has(kernel):
    assert kernel.run("trainer.evaluate(endless, Tell())", interrupt_at="evaluating")["error"] == "KeyboardInterrupt"
    shown = kernel.run("sorted(trainer.evaluate(rows, batch_size=32))")
    assert (shown["error"], shown["result"]) == ("", "['loss']")
