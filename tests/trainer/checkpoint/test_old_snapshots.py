"""Snapshots written by earlier versions load, and training goes on from them as it did then."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor, nn

from trainer import Trainer
from trainer.embedding import Embedding
from trainer.streams import ReplayStream

SNAPSHOTS = Path(__file__).parents[2] / "data" / "snapshots_0_1_0"
EXPECTED = json.loads((SNAPSHOTS / "expected.json").read_text())


def set_weights(cell, seed):
    random = np.random.default_rng(seed)
    for parameter in cell.get_parameters():
        if parameter.name.endswith("weight"):
            parameter.set_data(Tensor((random.standard_normal(parameter.shape) * 0.1).astype(np.float32)))


class Plain(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first = nn.Dense(8, 12)
        self.norm = nn.BatchNorm1d(12)
        self.drop = nn.Dropout(p=0.2)
        self.last = nn.Dense(12, 3)
        set_weights(self.first, 1)
        set_weights(self.last, 2)

    def construct(self, x):
        return self.last(self.drop(self.norm(self.first(x))))


class Clicks(nn.Cell):
    def __init__(self):
        super().__init__()
        self.taste = Embedding(4, mode="sparse")
        self.bias = Embedding(1, mode="sparse")
        self.top = nn.Dense(8, 1)
        set_weights(self.top, 4)

    def construct(self, ids):
        return (self.top(self.taste(ids).reshape(-1, 8)) + self.bias(ids).sum(axis=1)).reshape(-1)


def clicks():
    random = np.random.default_rng(1)
    ids = random.zipf(1.5, (1024, 2)) % 200
    label = ((ids[:, 0] * 7 + ids[:, 1]) % 5 < 2).astype(np.float32)
    return {"ids": ids, "user": ids[:, 0], "label": label, "time": np.arange(1024.0)}


@pytest.fixture
def snapshots(tmp_path):
    return Path(shutil.copytree(SNAPSHOTS, tmp_path / "snapshots"))


def test_a_fit_goes_on_with_loss_scale_accumulation_dropout_and_batch_norm(snapshots):
    random = np.random.default_rng(0)
    x = random.standard_normal((160, 8)).astype(np.float32)
    net = Plain()
    trainer = Trainer(
        net,
        nn.CrossEntropyLoss(),
        nn.Adam(net.trainable_params(), 1e-2),
        amp_level="O2",
        exact_resume=True,
        seed=3,
        gradient_accumulation_steps=2,
    )
    data = {"x": x, "y": x[:, :3].argmax(axis=1).astype(np.int32)}
    trainer.fit(data, 3, callbacks=[], batch_size=16, sink_size=2, resume=snapshots / "offline")
    expected = EXPECTED["offline"]
    assert trainer.state.progress.global_step == expected["step"]
    assert trainer.state.train_loss == pytest.approx(expected["loss"], rel=1e-4)
    np.testing.assert_allclose(net.trainable_params()[0].asnumpy().ravel()[:8], expected["dense"], rtol=1e-3, atol=1e-6)


def test_a_stream_goes_on_with_its_tables_and_position_and_empty_windows(snapshots, caplog):
    net = Clicks()
    trainer = Trainer(net, nn.BCEWithLogitsLoss(), nn.Adam(net.trainable_params(), 1e-2), seed=3, metrics=["auc/user"])
    stream = ReplayStream(clicks(), event_time="time")
    trainer.online_train(stream, [], sink_size=2, batch_size=64, window=256, resume=snapshots / "online")
    expected = EXPECTED["online"]
    assert trainer.state.progress.global_step == expected["step"]
    assert trainer.state.progress.samples_seen == expected["rows"]
    assert "windows were written by an earlier version" in caplog.text
    assert 0 < trainer.state.window["lifetime_rows"] < expected["rows"]
    np.testing.assert_allclose(trainer.predict(clicks()["ids"][:8]), expected["predictions"], rtol=1e-3, atol=1e-6)
