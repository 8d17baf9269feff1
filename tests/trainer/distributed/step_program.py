"""Whole training steps that N processes and one run alike; run on every rank by test_steps.py, and by the test alone.

python step_program.py FOLDER
"""

import logging
import sys

import mindspore
import numpy as np
import pytest
from mindspore import nn, ops

from callbacks import ModelCheckpoint
from tests.trainer.distributed import jobs
from tests.trainer.distributed.fit_program import ROWS, Losses, data, make_network
from trainer import Trainer
from trainer.errors import ConfigurationError, TrainerError
from trainer.streams import ReplayStream

FEW = ROWS + 1  # rows of an epoch whose second step leaves a process without any


class Own(nn.Cell):
    """A training cell of the user's own, with a reducer of MindSpore's or without."""

    def __init__(self, network, optimizer, reducer):
        super().__init__(auto_prefix=False)
        self.network, self.optimizer = network, optimizer
        self.gradients = ops.value_and_grad(network, None, optimizer.parameters)
        self.reduces = reducer is not None
        if self.reduces:
            self.reducer = reducer

    def construct(self, x, y):
        loss, gradients = self.gradients(x, y)
        if self.reduces:
            gradients = (*self.reducer([*gradients]),)  # a list, as steps of users pass
        return ops.depend(loss, self.optimizer(gradients)), loss * 2


class Unreduced(nn.TrainOneStepCell):
    """A subclass that forgets its reducer."""

    def construct(self, x, y):
        loss = self.network(x, y)
        gradients = self.grad_no_sens(self.network, self.weights)(x, y)
        return ops.depend(loss, self.optimizer(gradients))


def with_loss(seed=0, *, norm=False):
    network = make_network(seed, norm=norm)
    network.update_parameters_name("inner.")
    return nn.WithLossCell(network, nn.BCEWithLogitsLoss()), nn.Adam(network.trainable_params(), 0.01)


def scaled_step():
    manager = nn.DynamicLossScaleUpdateCell(loss_scale_value=1024, scale_factor=2, scale_window=3)
    return nn.TrainOneStepWithLossScaleCell(*with_loss(), scale_sense=manager)


class Trained:
    """What is left of the trainings of one process: every number of them."""

    def __init__(self, group):
        self.group, self.found = group, {}

    def fit(self, name, step, rows=slice(None), *, callbacks=(), **arguments):
        trainer, losses = Trainer(step), Losses()
        x, y = data()
        arguments = {"batch_size": ROWS // self.group.size, "epochs": 2, **arguments}
        trainer.fit({"x": x[rows], "y": y[rows]}, callbacks=[losses, *callbacks], **arguments)
        self.found[f"{name}/losses"] = np.array(losses.losses)
        self.found[f"{name}/samples"] = np.array(trainer.state.progress.samples_seen)
        for parameter in step.get_parameters():
            self.found[f"{name}/parameters/{parameter.name}"] = parameter.asnumpy().copy()
        return trainer


def resumed(run, folder):
    """Train an epoch and a half, and the rest from the snapshot; keep the snapshot's folder."""
    snapshots = f"{folder}/snapshots_{run.group.size}"
    run.fit("interrupted", nn.TrainOneStepCell(*with_loss()), max_steps=13, callbacks=[ModelCheckpoint(snapshots)])
    run.fit("resumed", nn.TrainOneStepCell(*with_loss(seed=5)), resume=snapshots)


def of_two_processes(run, folder):
    """What needs several processes: MindSpore's context, rows of their own, and what is refused."""
    rank, size = run.group.rank, run.group.size
    mindspore.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
    run.fit("context", nn.TrainOneStepCell(*with_loss()))
    mindspore.reset_auto_parallel_context()
    own = slice(0, 300) if rank == 0 else slice(300, None)
    run.fit("own rows", nn.TrainOneStepCell(*with_loss()), own, sharded=True, shuffle=False)
    network, optimizer = with_loss()
    summed = nn.DistributedGradReducer(optimizer.parameters, mean=False, degree=size)
    with _warnings("trainer.distributed.step_reducer") as warnings:
        run.fit("summed", Own(network, optimizer, summed), max_steps=1, shuffle=False)
    run.found["summed/warnings"] = np.array(warnings)
    with pytest.raises(TrainerError) as error:
        run.fit("unreduced", Unreduced(*with_loss()))
    run.found["unreduced"] = np.array(str(error.value))
    with pytest.raises(ConfigurationError) as error:
        run.fit("refused", Own(*with_loss(), None))
    run.found["refused"] = np.array(str(error.value))


class _warnings(logging.Handler):
    """Collects the warnings of a logger."""

    def __init__(self, name):
        super().__init__(logging.WARNING)
        self.source, self.messages = logging.getLogger(name), []

    def emit(self, record):
        self.messages.append(record.getMessage())

    def __enter__(self):
        self.source.addHandler(self)
        return self.messages

    def __exit__(self, *_):
        self.source.removeHandler(self)


def main(folder):
    group = jobs.member()
    run = Trained(group)
    rank, size = group.rank, group.size
    # Every rank begins with other weights: those of rank 0 count. The last step of an epoch has 57 rows.
    trainer = run.fit("plain", nn.TrainOneStepCell(*with_loss(seed=rank)))
    x, y = data()
    trainer.builder.inference.use_eval_network(nn.WithEvalCell(trainer.network.network.backbone_network, nn.MAELoss()))
    run.found["evaluated"] = np.array(sorted(trainer.evaluate({"x": x, "y": y}, batch_size=85).items()))
    run.fit("single calls", nn.TrainOneStepCell(*with_loss()), slice(0, FEW), sink_size=1)
    run.fit("scaled", scaled_step())
    for name, steps in (("normed once", 1), ("normed", 2)):
        network, optimizer = with_loss(norm=True)
        reducer = nn.Identity() if size == 1 else nn.DistributedGradReducer(optimizer.parameters, True, size)
        run.fit(name, Own(network, optimizer, reducer), slice(0, FEW), shuffle=False, max_steps=steps)
    resumed(run, folder)
    streamed = nn.TrainOneStepCell(*with_loss())
    stream = ReplayStream({"x": x[:FEW], "y": y[:FEW]})
    Trainer(streamed).online_train(stream, batch_size=ROWS // size, callbacks=[])
    run.found |= {f"stream/parameters/{p.name}": p.asnumpy().copy() for p in streamed.get_parameters()}
    if size == 2:
        of_two_processes(run, folder)
    np.savez(f"{folder}/found_{size}_{rank}.npz", **run.found)


if __name__ == "__main__":
    main(sys.argv[1])
