"""`Trainer(deterministic=True)`: the number of cores changes no bit of a training.

python test_deterministic.py: train on one core, and
python test_deterministic.py all: train on all of them, as usual, deterministically and as usual again; print what came
out. Processes of their own, because where MindSpore has run before, its convolutions keep the instructions they began
with.
"""

import hashlib
import json
import os
import subprocess
import sys

if __name__ == "__main__" and sys.argv[1:] != ["all"]:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import mindspore
import numpy as np
import pytest
from mindspore import nn, ops

from trainer import Trainer
from trainer.errors import ConfigurationError
from trainer.mindspore_internals import cpu_kernels

has_setting = pytest.mark.skipif(
    not cpu_kernels.can_plan_for_one_core(), reason="MindSpore's oneDNN has no setting for the number of threads"
)
CORES = os.sched_getaffinity(0)
X = np.random.default_rng(0).normal(size=(48, 6, 12, 12)).astype(np.float32)
Y = (np.arange(48) % 3).astype(np.int32)


class Net(nn.Cell):
    """Convolutions of every kind, a normalization, a recurrent and a dense layer."""

    def __init__(self):
        super().__init__()
        self.first = nn.SequentialCell(nn.Conv2d(6, 16, 3, pad_mode="same"), nn.BatchNorm2d(16), nn.ReLU())
        self.pool, self.flatten = nn.MaxPool2d(2, 2), nn.Flatten()
        self.strided, self.pointwise = nn.Conv2d(16, 8, 3, 2, pad_mode="valid"), nn.Conv2d(16, 8, 1)
        self.depthwise = nn.Conv2d(16, 16, 3, group=16)
        self.back = nn.Conv2dTranspose(16, 4, 3)
        self.line, self.solid = nn.Conv1d(16, 8, 3), nn.Conv3d(1, 4, 3)
        self.lstm = nn.LSTM(16, 8, batch_first=True)
        self.head = nn.Dense(8 * 4 + 8 * 36 + 16 * 36 + 4 * 36 + 8 * 36 + 4 * 576 + 8, 3)

    def construct(self, x):
        x = self.pool(self.first(x))
        rows = x.reshape(x.shape[0], 16, -1)
        parts = (self.strided(x), self.pointwise(x), self.depthwise(x), self.back(x), self.line(rows))
        parts += (self.solid(x.expand_dims(1)),)
        last = self.lstm(rows.transpose(0, 2, 1))[0][:, -1]
        return self.head(ops.concat((*[self.flatten(part) for part in parts], last), 1))


def train(**options):
    mindspore.set_seed(3)
    network = Net()
    optimizer = nn.Momentum(network.trainable_params(), 0.01, 0.9)
    trainer = Trainer(network, nn.CrossEntropyLoss(), optimizer, {"loss"}, seed=0, **options)
    losses = trainer.fit((X, Y), 2, (X, Y), batch_size=16, callbacks=[]).history
    arrays = {parameter.name: parameter.asnumpy() for parameter in network.get_parameters()}
    arrays["prediction"] = trainer.predict(X)
    found = {name: hashlib.sha256(array.tobytes()).hexdigest()[:12] for name, array in arrays.items()}
    return {**found, "losses": str(losses)}


@pytest.mark.long
@has_setting
@pytest.mark.skipif(len(CORES) < 2, reason="one core")
def test_all_cores_and_one_give_the_same_bits():
    command = [sys.executable, __file__]
    (one,), (plain, deterministic, again) = (
        json.loads(subprocess.run(own, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
        for own in (command, [*command, "all"])
    )
    assert deterministic == one != plain  # other programs of the process make no difference
    assert again == plain


class Dropping(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.SequentialCell(nn.Dense(3, 4), nn.Dropout(p=0.5), nn.Dense(4, 1))

    def construct(self, x):
        return self.layers(x)


def test_an_onednn_without_the_setting_is_refused_at_once(monkeypatch):
    monkeypatch.setattr(cpu_kernels, "can_plan_for_one_core", lambda: False)
    with pytest.raises(ConfigurationError, match=r"deterministic=True: the oneDNN .* no setting .* taskset -c 0"):
        Trainer(nn.Dense(3, 1), nn.MSELoss(), "adam", deterministic=True)


@has_setting
def test_what_cannot_be_repeated_is_refused_by_name():
    make = lambda **options: Trainer(Dropping(), nn.MSELoss(), "adam", deterministic=True, **options)  # noqa: E731
    with pytest.raises(ConfigurationError, match=r"nn\.Dropout draws masks .* add exact_resume=True"):
        make()
    with pytest.raises(ConfigurationError, match="uncompiled operators depend on the number of cores"):
        make(compile=False, exact_resume=True)
    with pytest.raises(ConfigurationError, match=r'lower precision, .* use amp_level="O0"'):
        make(exact_resume=True, amp_level="O2")
    make(exact_resume=True)
    with pytest.raises(TypeError, match="deterministic"):
        Trainer(Dropping(), nn.MSELoss(), "adam", deterministic="yes")


if __name__ == "__main__":
    runs = [{}, {"deterministic": True}, {}] if sys.argv[1:] == ["all"] else [{}]
    print(json.dumps([train(**options) for options in runs]))
