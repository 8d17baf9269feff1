"""A small real training run for callback tests: an MLP on scikit-learn's digits, driven step by step.

`Driver` offers callbacks the attributes a trainer has, around the trainer's own compiled step.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor, load_checkpoint, nn, ops, save_checkpoint
from mindspore import dtype as mstype

from callbacks import CallbackList, adapt
from trainer.limits import Limits
from trainer.program import Forward, StepOptions, SunkSteps, TrainStep
from trainer.state import Phase, State, StepOutputs, StopReason

BATCH = 64
STEPS = 8


class Chunk:
    def __init__(self, arrays, num_steps, index):
        self.arrays, self.num_steps, self.num_samples = arrays, num_steps, num_steps * BATCH
        self.position = {"row": index * BATCH}


class Programs:
    """The compiled cells, shared by all tests; `reset` puts the first weights back."""

    def __init__(self):
        self.network = nn.SequentialCell(nn.Dense(64, 32), nn.ReLU(), nn.Dense(32, 10))
        self.loss_fn = nn.CrossEntropyLoss()
        self.optimizer = nn.Adam(self.network.trainable_params(), learning_rate=0.01)
        step = TrainStep(
            Forward(self.network, self.loss_fn), self.optimizer, self.optimizer.parameters, StepOptions(guard=True)
        )
        self.step, self.sunk = step, SunkSteps(step, 4)
        self.first = {p.name: p.asnumpy().copy() for p in step.get_parameters()}

    def reset(self):
        for parameter in self.step.get_parameters():
            parameter.asnumpy()[...] = self.first[parameter.name]

    def counters(self):
        names = ("skipped", "consecutive", "longest_run")
        return {name: int(getattr(self.step, name).asnumpy()) for name in names}


class Driver:
    """What callbacks see of a trainer."""

    def __init__(self, programs, data, callbacks, run_dir=None, sink_size=1):
        self.programs, self.data, self.run_dir, self.sink_size = programs, data, run_dir, sink_size
        self.network, self.loss_fn, self.optimizer = programs.network, programs.loss_fn, programs.optimizer
        self.callbacks = CallbackList([adapt(callback) for callback in callbacks])
        self.state = State()
        self.sink_mode = "none" if sink_size == 1 else "graph"
        self.loss_scale = None
        self.rollbacks = 0
        self.copies = 0

    @property
    def learning_rate(self):
        return float(self.optimizer.learning_rate.asnumpy())

    @learning_rate.setter
    def learning_rate(self, value):
        ops.assign(self.optimizer.learning_rate, Tensor(value, mstype.float32))

    def stop(self, reason, kind="callback"):
        self.state.stop_reason = self.state.stop_reason or StopReason(kind, reason)

    def read_counters(self):
        self.copies += 1
        return self.programs.counters()

    def rollback(self):
        self.rollbacks += 1
        self.restore(self.state.snapshot)

    def save(self, root, background=False):
        path = Path(root) / f"step_{self.state.progress.global_step:08d}"
        path.mkdir(parents=True)
        save_checkpoint(self.programs.step, str(path / "all.ckpt"))
        state = {"progress": self.state.progress.state_dict(), "callbacks": self.callbacks.state_dict()}
        (path / "state.json").write_text(json.dumps(state))
        self.state.snapshot = path
        self.callbacks.call("on_save_checkpoint", self)
        return path

    def prune(self, root, keep):
        for entry in Path(root).iterdir():
            if entry.is_dir() and entry.name not in keep:
                for file in entry.iterdir():
                    file.unlink()
                entry.rmdir()

    def point(self, root, pointer, name):
        (Path(root) / pointer).write_text(name)

    def restore(self, path):
        for name, value in load_checkpoint(str(path / "all.ckpt")).items():
            ops.assign(self.programs.step.parameters_dict()[name], value)
        state = json.loads((path / "state.json").read_text())
        self.state.progress.load_state_dict(state["progress"])
        self.state.snapshot = path
        self.callbacks.load_state_dict(state["callbacks"])
        self.callbacks.call("on_load_checkpoint", self)

    def evaluate(self):
        self.callbacks.call("on_eval_begin", self)
        self.callbacks.call("on_eval_step_begin", self)
        x, y = self.data["valid"]
        logits = self.network(Tensor(x))
        self.callbacks.call("on_eval_step_end", self)
        loss = float(self.loss_fn(logits, Tensor(y)).asnumpy())
        accuracy = float((logits.asnumpy().argmax(1) == y).mean())
        prefix = "" if self.state.phase == Phase.EVALUATE else "val_"
        self.state.metrics = {f"{prefix}loss": loss, f"{prefix}accuracy": accuracy}
        self.callbacks.call("on_eval_end", self)
        return self.state.metrics

    def chunks(self, start):
        x, y = self.data["train"]
        for index in range(start, STEPS, self.sink_size):
            size = min(self.sink_size, STEPS - index)
            rows = slice(index * BATCH, (index + size) * BATCH)
            arrays = (x[rows], y[rows])
            if self.sink_size > 1:
                arrays = tuple(a.reshape(size, BATCH, *a.shape[1:]) for a in arrays)
            yield Chunk(arrays, size, index)

    def call_program(self, chunk):
        inputs = [Tensor(array) for array in chunk.arrays]
        if self.sink_size == 1:
            return self.programs.step.compile_and_run(Tensor(False), *inputs)[0]
        return self.programs.sunk.compile_and_run(Tensor(chunk.num_steps, mstype.int32), Tensor(False), *inputs)[0]

    def fit(self, epochs=2, valid=True, resume=None, fail_at=None, valid_steps=None):
        state, callbacks = self.state, self.callbacks
        state.phase, state.limits, state.total_steps = Phase.FIT, Limits(epochs=epochs), STEPS
        state.stop_reason = state.exception = None
        try:
            callbacks.call("setup", self)
            if resume is not None:
                self.restore(resume)
            callbacks.call("on_train_begin", self)
            while state.progress.epoch < epochs and state.stop_reason is None:
                self._epoch(valid, fail_at, valid_steps)
            if state.stop_reason is None:
                state.stop_reason = StopReason("limit", f"epochs={epochs}")
            callbacks.call("on_train_end", self)
        except Exception as error:
            state.exception = error
            callbacks.call_all("on_exception", self)
            raise
        finally:
            callbacks.call_all("teardown", self)
            state.phase = Phase.IDLE

    def _epoch(self, valid, fail_at, valid_steps):
        state, callbacks, progress = self.state, self.callbacks, self.state.progress
        if progress.step_in_epoch == 0:
            callbacks.call("on_train_epoch_begin", self)
        losses = []
        for chunk in self.chunks(progress.step_in_epoch):
            callbacks.call("on_train_step_begin", self)
            if fail_at is not None and progress.global_step >= fail_at:
                raise OSError("the disk is gone")
            state.outputs = StepOutputs(self.call_program(chunk), None, chunk, chunk.num_steps, chunk.num_samples)
            losses += list(state.outputs.losses)
            progress.step_in_epoch += chunk.num_steps
            progress.global_step += chunk.num_steps
            progress.samples_seen += chunk.num_samples
            callbacks.call("on_train_step_end", self)
            last = progress.step_in_epoch == STEPS
            if last:
                progress.epoch, progress.step_in_epoch = progress.epoch + 1, 0
                state.train_loss = float(np.mean(losses))
            if valid and (last if valid_steps is None else progress.global_step % valid_steps == 0):
                self.evaluate()
            if last:
                callbacks.call("on_train_epoch_end", self)
            callbacks.call("on_checkpoint", self)
            if state.stop_reason is not None:
                return

    def online(self, windows):
        """Train over the data once, closing a window after every step; `windows` gives their metrics."""
        state, callbacks = self.state, self.callbacks
        state.phase, state.limits, state.total_steps, state.stop_reason = Phase.ONLINE, Limits(), None, None
        callbacks.call("setup", self)
        callbacks.call("on_train_begin", self)
        for chunk, window in zip(self.chunks(0), windows, strict=False):
            callbacks.call("on_train_step_begin", self)
            state.outputs = StepOutputs(self.call_program(chunk), None, chunk, chunk.num_steps, chunk.num_samples)
            state.progress.global_step += chunk.num_steps
            state.progress.samples_seen += chunk.num_samples
            callbacks.call("on_train_step_end", self)
            state.window = window
            callbacks.call("on_window_end", self)
            callbacks.call("on_checkpoint", self)
            if state.stop_reason is not None:
                break
        state.stop_reason = state.stop_reason or StopReason("stream_end")
        callbacks.call("on_train_end", self)
        callbacks.call("teardown", self)


@pytest.fixture(scope="session")
def digits():
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x, y = (x / 16).astype(np.float32), y.astype(np.int32)
    return {"train": (x[: STEPS * BATCH], y[: STEPS * BATCH]), "valid": (x[-400:], y[-400:])}


@pytest.fixture(scope="session")
def programs():
    return Programs()


@pytest.fixture
def driver(programs, digits, tmp_path):
    """Return a function: callbacks, ... -> a `Driver` with the first weights."""

    def make(*callbacks, data=None, sink_size=1, run_dir=tmp_path):
        programs.reset()
        return Driver(programs, data or digits, callbacks, run_dir, sink_size)

    return make
