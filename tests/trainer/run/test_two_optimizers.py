"""A generator and its critic, each with an optimizer, in one training cell."""

import numpy as np
import pytest
from mindspore import amp, nn, ops

from trainer import LambdaCallback, ModelCheckpoint, SkipNonFinite, TerminateOnNaN, Trainer
from trainer.errors import ConfigurationError

DATA = {name: np.random.default_rng(0).normal(size=(16, n)).astype(np.float32) for name, n in (("x", 3), ("z", 2))}


class Game(nn.Cell):
    """The whole training step: first the critic learns, then the generator."""

    def __init__(self, prefixes):
        super().__init__(auto_prefix=False)
        self.critic, self.generator, self.loss = nn.Dense(3, 1), nn.Dense(2, 3), nn.BCEWithLogitsLoss()
        if prefixes:
            self.critic.update_parameters_name("critic.")
            self.generator.update_parameters_name("generator.")
        self.slow, self.fast = (nn.Adam(cell.trainable_params(), 1e-2) for cell in (self.critic, self.generator))
        if prefixes:
            self.slow.update_parameters_name("critic.")
            self.fast.update_parameters_name("generator.")
        self.of_critic = ops.value_and_grad(self.judge, None, self.slow.parameters)
        self.of_generator = ops.value_and_grad(self.deceive, None, self.fast.parameters)

    def judge(self, x, z):
        real, made = self.critic(x), self.critic(self.generator(z))
        return self.loss(real, ops.ones_like(real)) + self.loss(made, ops.zeros_like(made))

    def deceive(self, z):
        made = self.critic(self.generator(z))
        return self.loss(made, ops.ones_like(made))

    def construct(self, x, z):
        judged, gradients = self.of_critic(x, z)
        judged = ops.depend(judged, self.slow(gradients))
        deceived, gradients = self.of_generator(z)
        return judged, ops.depend(deceived, self.fast(gradients))


def test_both_networks_learn_step_by_step_and_sunk(tmp_path):
    for sunk in (False, True):
        game = Game(prefixes=True)
        before = {p.name: p.asnumpy().copy() for p in game.trainable_params()}
        trainer = Trainer(game)
        saving = [ModelCheckpoint(tmp_path / str(sunk))]
        trainer.fit(DATA, 2, callbacks=saving, batch_size=4, dataset_sink_mode=sunk)
        assert np.isfinite(trainer.state.train_loss)
        unchanged = [p.name for p in game.trainable_params() if (p.asnumpy() == before[p.name]).all()]
        assert unchanged == ["critic.learning_rate", "generator.learning_rate"]
    assert (tmp_path / "True" / "last").exists()


class Scaled(nn.Cell):
    """A training step with a loss scale of its own."""

    def __init__(self):
        super().__init__(auto_prefix=False)
        self.network, self.loss = nn.Dense(3, 1), nn.MSELoss()
        self.optimizer = nn.SGD(self.network.trainable_params(), 0.01)
        self.scaler = amp.DynamicLossScaler(2.0**10, 2, 3)
        self.gradient = ops.value_and_grad(self.scaled_loss, None, self.optimizer.parameters)

    def scaled_loss(self, x):
        return self.scaler.scale(self.loss(self.network(x), x[:, :1]))

    def construct(self, x):
        loss, gradients = self.gradient(x)
        gradients = self.scaler.unscale(gradients)
        loss = ops.depend(loss, self.scaler.adjust(amp.all_finite(gradients)))
        return self.scaler.unscale(ops.depend(loss, self.optimizer(gradients)))


@pytest.mark.parametrize("release", ["0.6", "this"])
def test_a_loss_scale_of_the_cell_goes_on_after_a_resume(tmp_path, release):
    step, data = Scaled(), {"x": DATA["x"]}
    trainer = Trainer(step)
    trainer.fit(data, 2, callbacks=[], batch_size=4)
    if release == "0.6":  # which left it out
        scaler, step.scaler = step.scaler, None
        trainer.save(tmp_path)
        step.scaler = scaler
    else:
        trainer.save(tmp_path)
    assert (step.scaler.scale_value.item(), step.scaler.counter.item()) == (2.0**12, 2)
    again, seen = Scaled(), []
    note = LambdaCallback(on_train_begin=lambda _: seen.append(again.scaler.scale_value.item()))
    Trainer(again).fit(data, 3, callbacks=[note], batch_size=4, resume=tmp_path)
    assert seen == [2.0**12 if release == "this" else 2.0**10]


def test_names_that_clash_and_amp_levels_are_refused_with_the_cure():
    with pytest.raises(ConfigurationError, match=r"named 'weight'.*update_parameters_name\('generator.'\)"):
        Trainer(Game(prefixes=False))
    with pytest.raises(ConfigurationError, match=r"amp_level='O2'.*auto_mixed_precision\(network, 'O2'\)"):
        Trainer(Game(prefixes=True), amp_level="O2")


@pytest.mark.parametrize("callback", [TerminateOnNaN(), SkipNonFinite()])
def test_a_guard_of_updates_that_the_cell_applies_itself_is_refused(callback):
    with pytest.raises(ConfigurationError, match=r"TerminateOnNaN and SkipNonFinite .* whole training step"):
        Trainer(Game(prefixes=True)).fit(DATA, callbacks=[callback], batch_size=4)


def test_a_loss_of_a_stream_that_is_not_finite_is_told(caplog):
    batches = [(3e38 * np.sign(DATA["x"]), DATA["z"])] * 2
    trainer = Trainer(Game(prefixes=True))
    trainer.online_train(batches, callbacks=[])
    assert not np.isfinite(trainer.state.window["window_loss"])
    assert "the loss is" in caplog.text
