"""`fit`: every way to pass network, loss and optimizer; limits, validation, history; nothing global changes."""

import gc
import os
import random
import weakref

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from trainer import Callback, Every, LambdaCallback, TerminateOnNaN, Trainer
from trainer.errors import ConfigurationError, DataError, GraphError

RATE = 0.5


@pytest.fixture(scope="module")
def reference(linear, batches):
    """Weights after four steps of network, loss and optimizer given apart."""
    network = linear()
    fit(Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), RATE)), batches(64, 4))
    return weight_of(network)


def weight_of(network):
    return np.array(network.trainable_params()[0].asnumpy())


def fit(trainer, data, sink_size=4, **options):
    return trainer.fit(
        data, options.pop("epochs", 1), callbacks=options.pop("callbacks", []), sink_size=sink_size, **options
    )


class WithLoss(nn.Cell):
    """Receives every column and returns loss and prediction."""

    def __init__(self, network, only_loss=False):
        super().__init__()
        self.network, self.loss, self.only_loss = network, nn.BCEWithLogitsLoss(), only_loss

    def construct(self, x, y):
        prediction = self.network(x)
        if self.only_loss:
            return self.loss(prediction, y)
        return self.loss(prediction, y), prediction


class UsersStep(nn.TrainOneStepCell):
    """A user's subclass that also counts its calls."""

    def __init__(self, network, optimizer):
        super().__init__(network, optimizer)
        self.calls = mindspore.Parameter(Tensor(0, mstype.int32), name="calls", requires_grad=False)

    def construct(self, *inputs):
        ops.assign_add(self.calls, ops.cast(1, mstype.int32))
        return super().construct(*inputs)


class PlainStep(nn.Cell):
    """A user's step that is no `TrainOneStepCell`: loss and gradients by hand; returns (loss, its double)."""

    def __init__(self, network, optimizer):
        super().__init__(auto_prefix=False)
        self.network, self.optimizer = network, optimizer
        self.gradients = ops.value_and_grad(network, None, optimizer.parameters)

    def construct(self, x, y):
        loss, gradients = self.gradients(x, y)
        self.optimizer(gradients)
        return loss, loss * 2


class TestWhatMayBePassed:
    @pytest.mark.long(but=["loss and prediction"])
    @pytest.mark.parametrize("only_loss", [True, False], ids=["loss", "loss and prediction"])
    def test_a_network_that_returns_its_loss(self, only_loss, linear, batches, reference):
        network = WithLoss(linear(), only_loss)
        history = fit(Trainer(network, optimizer=nn.SGD(network.trainable_params(), RATE)), batches(64, 4))
        np.testing.assert_allclose(weight_of(network), reference, atol=1e-7)
        assert 0.3 < history.history["loss"][0] < 0.8

    @pytest.mark.long(but=["UsersStep"])
    @pytest.mark.parametrize("kind", [nn.TrainOneStepCell, UsersStep, PlainStep])
    def test_a_network_that_is_a_whole_step(self, kind, linear, batches, reference):
        network = WithLoss(linear(), only_loss=True)
        step = kind(network, nn.SGD(network.trainable_params(), RATE))
        trainer = Trainer(step)
        history = fit(trainer, batches(64, 4))
        np.testing.assert_allclose(weight_of(network), reference, atol=1e-7)
        assert trainer.state.progress.global_step == 4
        assert 0.3 < history.history["loss"][0] < 0.8
        if kind is UsersStep:
            assert int(step.calls.asnumpy()) == 4

    @pytest.mark.long(but=["cell"])
    @pytest.mark.parametrize("scale", ["cell", "tensor"])
    def test_train_one_step_with_loss_scale_cell(self, scale, linear, batches, reference):
        network = WithLoss(linear(), only_loss=True)
        sense = nn.DynamicLossScaleUpdateCell(1024, 2, 1000) if scale == "cell" else Tensor(1024.0, mstype.float32)
        step = nn.TrainOneStepWithLossScaleCell(network, nn.SGD(network.trainable_params(), RATE), sense)
        fit(Trainer(step), batches(64, 5, bad=[2])[:2] + batches(64, 5, bad=[2])[2:3] + batches(64, 4)[2:])
        # the bad batch in the middle changed nothing
        np.testing.assert_allclose(weight_of(network), reference, atol=1e-7)
        assert step.scale_sense.asnumpy() == (512 if scale == "cell" else 1024)
        assert "get_overflow_status" not in vars(step)

    def test_several_labels_go_to_a_loss_that_takes_them(self, linear, cancer, batches):
        class Weighted(nn.Cell):
            def construct(self, prediction, label, weight):
                return (ops.binary_cross_entropy_with_logits(prediction, label, weight, ops.ones_like(weight))).mean()

        network = linear()
        before = weight_of(network)
        trainer = Trainer(network, Weighted(), nn.SGD(network.trainable_params(), RATE))
        data = {**{name: column[:128] for name, column in cancer.items()}, "weight": np.zeros((128, 1), np.float32)}
        fit(trainer, data, batch_size=64)
        assert (weight_of(network) == before).all()
        assert trainer.evaluate(data, batch_size=64)["loss"] == 0


class TestRefused:
    def test_a_loss_without_an_optimizer_cannot_be_fitted(self, linear, batches):
        with pytest.raises(ConfigurationError, match=r"fit: .*loss_fn was given without an optimizer"):
            fit(Trainer(linear(), nn.BCEWithLogitsLoss()), batches(64, 1))

    def test_two_runs_at_once(self, linear, batches):
        network = linear()
        trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), RATE))

        class Again(Callback):
            def on_train_begin(self, trainer):
                trainer.fit(batches(64, 1))

        with pytest.raises(ConfigurationError, match="busy with fit; one run at a time"):
            fit(trainer, batches(64, 1), callbacks=Again())
        assert trainer.state.phase == "idle"

    def test_a_refused_run_changes_nothing_of_the_one_that_goes_on(self, linear, batches):
        def again(trainer):
            for verb in (trainer.fit, trainer.online_train):
                with pytest.raises(ConfigurationError, match="busy with fit; one run at a time"):
                    verb(batches(64, 1))
            steps.append(trainer.state.progress.step_in_epoch)

        steps = []
        network = linear()
        trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), RATE))
        fit(trainer, batches(64), callbacks=LambdaCallback(on_train_step_end=again), sink_size=1)
        assert steps == list(range(1, 10))

    def test_a_loss_of_one_value_a_row(self, linear, batches):
        network = linear()
        trainer = Trainer(network, nn.BCEWithLogitsLoss(reduction="none"), nn.SGD(network.trainable_params(), RATE))
        with pytest.raises(GraphError, match=r"loss must be one number.*received one of shape \(64, 1\).*reduction="):
            fit(trainer, batches(64, 1), sink_size=1)

    def test_a_network_that_does_not_fit_the_columns_says_what_it_was_fed(self, linear, batches):
        network = linear()
        trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), RATE))
        narrow = [(x[:, :29], y) for x, y in batches(64, 1)]
        with pytest.raises(GraphError, match=r"column_0: float32\[64, 29\], column_1: float32\[64, 1\]"):
            fit(trainer, narrow, sink_size=1)


@pytest.fixture(scope="module")
def trained(linear, cancer):
    """One trainer, and a function that fits it once more on eight batches of 64 and the short one of 57."""
    network = linear()
    trainer = Trainer(
        network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.05), metrics={"auc"}, seed=5
    )
    fit(trainer, cancer, batch_size=64, sink_size=1)
    return trainer


class Steps(Callback):
    def __init__(self):
        self.validations, self.epochs = [], []

    def on_eval_end(self, trainer):
        self.validations.append(trainer.state.progress.step_in_epoch)

    def on_train_epoch_end(self, trainer):
        self.epochs.append(trainer.state.train_loss)


class TestLimits:
    def test_epochs_count_from_this_call(self, trained, cancer):
        before = (trained.state.progress.epoch, trained.state.progress.global_step)
        history = fit(trained, cancer, batch_size=64, epochs=2, sink_size=1)
        assert trained.state.progress.epoch == before[0] + 2
        assert trained.state.progress.global_step == before[1] + 18
        assert str(trained.state.stop_reason).startswith("limit: epochs=")
        assert history.stop_reason == str(trained.state.stop_reason)
        assert len(history.history["loss"]) == 2

    def test_max_steps_ends_exactly_there(self, trained, cancer):
        before = trained.state.progress.global_step
        fit(trained, cancer, batch_size=64, epochs=100, max_steps=13, sink_size=1)
        assert trained.state.progress.global_step == before + 13
        assert "steps=" in str(trained.state.stop_reason)

    def test_max_steps_ends_exactly_there_inside_a_sunk_call(self, linear, batches):
        network = linear()
        trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), RATE))
        fit(trainer, batches(64, 8), epochs=9, max_steps=11, sink_size=4)
        assert trainer.state.progress.global_step == 11
        assert (trainer.state.progress.epoch, trainer.state.progress.step_in_epoch) == (1, 3)

    def test_max_time(self, trained, cancer):
        fit(trained, cancer, batch_size=64, epochs=10**6, max_time=0.05, sink_size=1)
        assert "seconds=0.05" in str(trained.state.stop_reason)

    @pytest.mark.parametrize("max_steps", [-1, 2.5, "5"])
    def test_max_steps_is_refused_by_its_own_name_in_a_later_call_too(self, trained, cancer, max_steps):
        fit(trained, cancer, batch_size=64, max_steps=2)
        with pytest.raises(ConfigurationError, match=f"^max_steps takes .* >= 0 or None; received {max_steps!r}"):
            fit(trained, cancer, batch_size=64, max_steps=max_steps)

    def test_a_callback_stops_after_its_step(self, trained, cancer):
        class Stop(Callback):
            def on_train_step_end(self, trainer):
                if trainer.state.progress.step_in_epoch == 3:
                    trainer.stop("enough")

        before = trained.state.progress.global_step
        fit(trained, cancer, batch_size=64, epochs=5, callbacks=Stop(), sink_size=1)
        assert trained.state.progress.global_step == before + 3
        assert str(trained.state.stop_reason) == "user: enough"


class TestValidation:
    def test_at_each_epoch_end_before_the_epoch_hook(self, trained, cancer):
        seen = Steps()
        history = fit(trained, cancer, batch_size=64, epochs=2, valid_dataset=cancer, callbacks=seen, sink_size=1)
        assert seen.validations == [0, 0]
        assert len(history.history["val_loss"]) == len(history.history["val_auc"]) == 2
        assert trained.state.metrics.keys() == {"val_loss", "val_auc"}
        assert history.history["val_auc"][-1] > 0.97

    @pytest.mark.parametrize("every", [4, Every(steps=4), Every(samples=256)], ids=str)
    def test_when_due_counted_from_the_start_of_the_run(self, every, trained, cancer):
        seen = Steps()
        trained.state.progress.global_step, trained.state.progress.samples_seen = 4, 256
        data = {name: column[:512] for name, column in cancer.items()}
        fit(
            trained, data, batch_size=64, epochs=1, valid_dataset=cancer, valid_every=every, callbacks=seen, sink_size=1
        )
        assert seen.validations == [4, 0]

    def test_arrays_beside_batches_take_the_batch_size(self, trained, cancer, batches):
        for train, valid in ((batches(64), cancer), (cancer, batches(64))):
            history = fit(trained, train, batch_size=64, valid_dataset=valid, sink_size=1)
            assert history.history["val_auc"][0] > 0.97


class TestHistory:
    def test_the_epoch_loss_is_weighted_by_samples(self, trained, cancer, recorder):
        seen, epochs = recorder(), Steps()
        history = fit(trained, cancer, batch_size=64, callbacks=[seen, epochs], shuffle=False, sink_size=1)
        expected = np.average(seen.losses, weights=[64] * 8 + [57])
        assert epochs.epochs[0] == pytest.approx(expected, rel=1e-6)
        assert abs(expected - np.mean(seen.losses)) > 1e-5
        assert history.history["loss"] == epochs.epochs

    def test_no_batch_is_kept_after_its_step(self, trained, cancer):
        batches, alive = [], []

        class Watch(Callback):
            def on_train_step_end(self, trainer):
                alive.append(sum(reference() is not None for reference in batches))
                batches.append(weakref.ref(trainer.state.outputs.chunk.arrays[0]))

        fit(trained, cancer, batch_size=64, callbacks=Watch(), sink_size=1)
        assert max(alive) <= 1


class TestNothingGlobalChanges:
    @pytest.mark.parametrize("mode", [mindspore.GRAPH_MODE, mindspore.PYNATIVE_MODE], ids=["graph", "pynative"])
    def test_generators_environment_and_context(self, mode, trained, cancer):
        import mindspore.dataset as ms_dataset

        before_mode = mindspore.get_context("mode")
        mindspore.set_context(mode=mode)
        pipeline = ms_dataset.NumpySlicesDataset(cancer, shuffle=True).batch(64)
        try:
            watched = lambda: (  # noqa: E731
                random.getstate(),
                [part.tolist() if hasattr(part, "tolist") else part for part in np.random.get_state()],
                mindspore.get_seed(),
                ms_dataset.config.get_seed(),
                dict(os.environ),
                os.getcwd(),
                {key: mindspore.get_context(key) for key in ("mode", "device_target", "deterministic", "save_graphs")},
            )
            before = watched()
            history = fit(trained, pipeline, valid_dataset=cancer, batch_size=64, sink_size=1)
            assert history.history["val_auc"][0] > 0.97
            trained.predict(cancer["x"])
            assert watched() == before
        finally:
            mindspore.set_context(mode=before_mode)

    def test_training_modes_are_put_back_as_they_were(self, mlp, cancer):
        network = mlp()
        network.set_train(False)
        network[1].set_train(True)
        trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.05))
        during = []

        class Look(Callback):
            def on_train_step_end(self, trainer):
                during.append([cell.training for cell in network])

            def on_eval_step_end(self, trainer):
                during.append([cell.training for cell in network])

        data = {name: column[:64] for name, column in cancer.items()}
        fit(trainer, data, batch_size=64, valid_dataset=data, callbacks=Look(), sink_size=1)
        assert during == [[True] * 4, [False] * 4]
        assert (network.training, [cell.training for cell in network]) == (False, [False, True, False, False])
        trainer.predict(cancer["x"][:64])
        assert (network.training, [cell.training for cell in network]) == (False, [False, True, False, False])

        class Fail(Callback):
            def on_train_step_end(self, trainer):
                raise KeyError("boom")

        with pytest.raises(KeyError):
            fit(trainer, data, batch_size=64, callbacks=Fail(), sink_size=1)
        assert (network.training, [cell.training for cell in network]) == (False, [False, True, False, False])


class TestCompile:
    @pytest.mark.long(but=["4"])
    @pytest.mark.parametrize("sink_size", [1, 4])
    def test_ahead_of_time_changes_nothing_and_is_what_fit_runs(self, sink_size, mlp, batches, values, same):
        gc.collect()  # MindSpore compiles again if programs of an earlier test are released before `fit`
        network = mlp()
        optimizer = nn.Adam(network.trainable_params(), 0.01)
        trainer = Trainer(network, nn.BCEWithLogitsLoss(), optimizer, loss_scale=8)
        before = values(network, optimizer)
        trainer.compile(batches(64, 8), [TerminateOnNaN()], sink_size=sink_size)
        assert same(before, values(network, optimizer))
        assert trainer.state.progress.global_step == 0
        assert not network.training

        compiled = trainer.builder.programs
        fit(trainer, batches(64, 8), callbacks=[TerminateOnNaN()], sink_size=sink_size)
        assert trainer.builder.programs == compiled
        fit(trainer, batches(32, 8), callbacks=[TerminateOnNaN()], sink_size=sink_size)
        assert trainer.builder.programs == compiled + 1

    def test_says_what_is_wrong(self, linear, batches):
        network = linear()
        trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), RATE))
        with pytest.raises(ConfigurationError, match="would use up the generator; pass a function"):
            trainer.compile(batch for batch in batches(64))
        with pytest.raises(DataError, match="received 1 columns"):
            trainer.compile([(x,) for x, _ in batches(64)])
        with pytest.raises(GraphError, match=r"column_0: float32\[64, 29\]"):
            trainer.compile([(x[:, :29], y) for x, y in batches(64)], sink_size=1)


class TestWaitingForData:
    def run(self, linear, cancer, seconds, monkeypatch):
        import time

        monkeypatch.setattr("trainer.run.run.MIN_WAIT_SECONDS", 0.1)
        network = linear()

        def slow():
            for _ in range(6):
                time.sleep(seconds)
                yield cancer["x"][:32], cancer["y"][:32]

        trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1))
        trainer.fit(slow, 3, callbacks=[])
        return trainer

    def test_a_source_that_keeps_the_run_waiting_is_reported_once(self, linear, cancer, monkeypatch, caplog):
        trainer = self.run(linear, cancer, 0.1, monkeypatch)
        assert trainer.state.data_wait > 1 / 3
        assert caplog.text.count("of the time is spent waiting for IterableSource") == 1

    def test_a_quick_source_is_not_complained_of(self, linear, cancer, caplog, monkeypatch):
        self.run(linear, cancer, 0.0, monkeypatch)
        assert "spent waiting" not in caplog.text

    def test_the_step_that_compiles_is_work_also_where_it_is_the_only_one(self, linear, cancer):
        network = linear()
        trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1))
        trainer.fit((cancer["x"][:32], cancer["y"][:32]), 1, batch_size=32, callbacks=[])
        assert 0 < trainer.state.data_wait < 1 / 3
