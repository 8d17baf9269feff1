"""Workers forked from a process that has run graphs: they may do anything but run graphs themselves."""

import os
import signal

import numpy as np
import pytest
from mindspore import nn

from trainer import Callback, ModelCheckpoint, Trainer, checkpoint

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def trainer(linear):
    network = linear()
    return Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1))


def in_a_child(work):
    """Return the text that `work` returns in a forked process, "" where that ends without a word."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            os.write(writer, str(work()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    text = os.read(reader, 4096).decode()
    os.close(reader)
    os.waitpid(child, 0)
    return text


class Fork(Callback):
    """Forks a worker at every third step."""

    def __init__(self):
        self.answers = []

    def on_train_step_end(self, trainer):
        if trainer.state.progress.global_step % 3 == 0:
            matrix = np.eye(200) * trainer.state.progress.global_step
            self.answers.append(in_a_child(lambda: int((matrix @ matrix).sum())))


@pytest.mark.long
def test_workers_that_do_sums_disturb_neither_the_run_nor_its_snapshots(trainer, batches, tmp_path):
    fork = Fork()
    trainer.fit(batches(64), 1, callbacks=[fork, ModelCheckpoint(tmp_path, every=3, background=True)], sink_size=1)
    assert fork.answers == [str(200 * step**2) for step in range(3, trainer.state.progress.global_step + 1, 3)]
    assert checkpoint.find(tmp_path).step == trainer.state.progress.global_step


def test_a_graph_in_a_forked_process_is_refused_instead_of_waiting_for_ever(trainer, batches):
    def predict():
        try:
            return trainer.evaluate(batches(64), callbacks=[])
        except ValueError as error:
            return error

    trainer.evaluate(batches(64), callbacks=[])
    assert f"this process was forked from process {os.getpid()}" in in_a_child(predict)
