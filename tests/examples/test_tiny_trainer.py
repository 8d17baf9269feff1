"""The trainer on a few pages has the bits of `Trainer`, on finite data and on a stream, resumed or not."""

import json

import numpy as np
import pytest
from mindspore import nn, set_seed

from examples.tiny_trainer import Arrays, Folder, Position, TinyTrainer
from trainer import Trainer
from trainer.streams import Column, FileStream, Schema

ROWS = 300


@pytest.fixture(scope="module")
def columns():
    x = np.random.default_rng(0).normal(size=(ROWS, 6)).astype(np.float32)
    return x, (x[:, :2].sum(1, keepdims=True) > 0).astype(np.float32)


def parts():
    set_seed(1)
    network = nn.SequentialCell(nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, 1))
    # `Trainer` computes some losses of MindSpore's by fewer operators, within rounding; not this one
    return network, nn.MSELoss(), nn.Adam(network.trainable_params(), 1e-2)


def bits(network, optimizer):
    values = {value.name: value.asnumpy().copy() for value in [*network.get_parameters(), *optimizer.get_parameters()]}
    assert any(name.startswith("moment1") for name in values)
    return values


def stopped_and_resumed(train, tmp_path):
    """Return the bits and losses of a training that stops after 7 steps, is saved, and resumed by another process."""
    first = TinyTrainer(*parts(), sink_size=4, on_chunk=lambda trainer: trainer.global_step >= 7)
    train(first)
    first.save(tmp_path)
    network, loss, optimizer = parts()
    second = TinyTrainer(network, loss, optimizer, sink_size=4)
    assert second.load(tmp_path)
    assert second.position == first.position
    assert second.position != Position()
    train(second)
    return bits(network, optimizer), second.losses


@pytest.fixture(scope="module")
def of_arrays(columns):
    """What `Trainer` makes of two epochs, the last batch of each a short one."""
    network, loss, optimizer = parts()
    trainer = Trainer(network, loss, optimizer, seed=3)
    trainer.fit(columns, epochs=2, batch_size=32, shuffle=True, sink_size=4, callbacks=[])
    return bits(network, optimizer), trainer.state.train_loss


def test_finite_data_give_the_bits_of_the_trainer_also_when_resumed(columns, of_arrays, tmp_path):
    network, loss, optimizer = parts()
    data = Arrays(columns, 32, seed=3)
    losses = TinyTrainer(network, loss, optimizer, sink_size=4).fit(data, epochs=2)
    wanted, mean = of_arrays
    resumed, again = stopped_and_resumed(lambda trainer: trainer.fit(data, epochs=2), tmp_path)
    for made in (bits(network, optimizer), resumed):
        assert made.keys() == wanted.keys()
        for name, value in wanted.items():
            np.testing.assert_array_equal(made[name], value, name)
    assert losses == again
    rows = np.array([32] * 9 + [12])
    assert np.average(losses[10:], weights=rows) == pytest.approx(mean, rel=1e-6)


def test_a_stream_gives_the_bits_of_the_trainer_also_when_resumed(columns, tmp_path):
    segments = tmp_path / "rows"
    segments.mkdir()
    lines = [json.dumps({"inputs": x.tolist(), "label": y.tolist()}) for x, y in zip(*columns, strict=True)]
    for number, first in enumerate(range(0, ROWS, 100)):  # batches of 32 begin in one file and end in another
        (segments / f"{number}.jsonl").write_text("\n".join(lines[first : first + 100]) + "\n")
    network, loss, optimizer = parts()
    schema = Schema({"inputs": Column("float32", (6,)), "label": Column("float32", (1,))}, label="label")
    stream = FileStream(segments, schema, end="at_last")
    Trainer(network, loss, optimizer).online_train(stream, [], batch_size=32, max_steps=9, sink_size=4)
    wanted = bits(network, optimizer)
    resumed, losses = stopped_and_resumed(lambda trainer: trainer.online_train(Folder(segments, 32)), tmp_path / "at")
    assert len(losses) == ROWS // 32
    for name, value in wanted.items():
        np.testing.assert_array_equal(resumed[name], value, name)


def test_a_damaged_snapshot_is_named_and_not_used(columns, tmp_path, capsys):
    trainer = TinyTrainer(*parts(), sink_size=4)
    trainer.save(tmp_path)
    trainer.global_step = 1
    with open(trainer.save(tmp_path) / "parameters.npz", "r+b") as file:
        file.write(b"damage")
    assert trainer.load(tmp_path)
    assert trainer.global_step == 0
    assert "step_00000001 is damaged" in capsys.readouterr().out


def test_it_is_read_in_one_sitting(project_root):
    assert len((project_root / "examples" / "tiny_trainer.py").read_text().splitlines()) <= 300
