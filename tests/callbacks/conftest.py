"""Real training runs for callback tests: a small network on scikit-learn's breast cancer data, 8 batches per epoch.

Trainers are shared, since each compiles its programs once; a fresh run puts the first weights and counters back.
"""

import numpy as np
import pytest
from mindspore import nn

from callbacks import LambdaCallback
from trainer.checkpoint.saver import Saver
from trainer.state import State
from trainer.trainer import Trainer

BATCH = 64
STEPS = 8


class Shared:
    """One trainer and what is needed to begin again."""

    def __init__(self, **options):
        self.network = nn.SequentialCell(nn.Dense(30, 8), nn.ReLU(), nn.Dense(8, 1))
        optimizer = nn.Adam(self.network.trainable_params(), learning_rate=0.01)
        self.trainer = Trainer(self.network, nn.BCEWithLogitsLoss(), optimizer, metrics={"auc"}, **options)
        self.first = {id(p): p.asnumpy().copy() for cell in (self.network, optimizer) for p in cell.get_parameters()}

    def renew(self):
        trainer = self.trainer
        cells = [trainer.network, trainer.optimizer, *([trainer.builder.step] if trainer.builder.step else [])]
        for parameter in {id(p): p for cell in cells for p in cell.get_parameters()}.values():
            # On CPU this is a live view, and much faster than an assignment.
            empty = -1 if parameter.name == "trainer.bad_steps" else 0
            parameter.asnumpy()[...] = self.first.get(id(parameter), empty)
        trainer.state, trainer.saver = State(), Saver(trainer.group, trainer)
        return trainer


@pytest.fixture(scope="session")
def shared():
    """Trainers by kind: their compiled programs differ."""
    made = {}

    def get(kind, **options):
        if kind not in made:
            made[kind] = Shared(**options)
        return made[kind]

    return get


@pytest.fixture(scope="session")
def cancer():
    """{"train": {x [512, 30] float32, y [512, 1] float32}, "valid": the other 57 rows}."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    x, y = ((x - x.mean(0)) / x.std(0)).astype(np.float32), y[:, None].astype(np.float32)
    rows = STEPS * BATCH
    return {"train": {"x": x[:rows], "y": y[:rows]}, "valid": {"x": x[rows:], "y": y[rows:]}}


def failing_at(step):
    def fail(trainer):
        if trainer.state.progress.global_step == step:
            raise OSError("the disk is gone")

    return LambdaCallback(on_train_step_begin=fail)


@pytest.fixture
def fit(shared, cancer, tmp_path):
    """Return a function: callbacks, options of `Trainer.fit` -> the trainer after the run.

    `fresh=False` goes on with weights and counters of the run before; `fail_at` raises OSError after that many steps.
    """

    def run(*callbacks, valid=True, fresh=True, data=None, sink_size=1, run_dir=tmp_path, fail_at=None, **options):
        policies = {getattr(callback, "non_finite", "") for callback in callbacks} - {""}
        known = shared(policies.pop() if policies else "plain")
        trainer = known.renew() if fresh else known.trainer
        trainer.run_dir = run_dir
        run.trainer = trainer
        if fail_at is not None:
            callbacks = (*callbacks, failing_at(fail_at))
        trainer.fit(
            data or cancer["train"],
            **{"epochs": 2, "batch_size": BATCH, **options},
            valid_dataset=cancer["valid"] if valid else None,
            callbacks=callbacks,
            shuffle=False,
            sink_size=sink_size,
        )
        return trainer

    return run


@pytest.fixture
def online(shared, cancer, tmp_path):
    """Return a function: windows, callbacks -> the trainer after a stream of one batch per window.

    Each of `windows` takes the place of what its window measured; None leaves that.
    """

    def run(windows, *callbacks):
        trainer = shared("online").renew()
        trainer.run_dir = tmp_path
        given = iter(windows)

        def replace(trainer):
            trainer.state.window = next(given) or trainer.state.window

        train = cancer["train"]
        batches = [
            {name: train[name][first : first + BATCH] for name in train}
            for first in range(0, len(windows) * BATCH, BATCH)
        ]
        trainer.online_train(batches, [LambdaCallback(order=-100, on_window_end=replace), *callbacks], window=BATCH)
        return trainer

    return run
