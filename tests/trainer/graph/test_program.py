"""The compiled step: accumulation, clipping, overflow and the graph loop, against NumPy and against themselves."""

import mindspore
import numpy as np
import pytest
from mindspore import amp, nn

from trainer import Trainer
from trainer.mindspore_internals.cell_structure import moving_statistics
from trainer.streams import ReplayStream

RATE = 0.5


def gradient_descent(cancer, weights, size, rows, change=lambda w, b: (w, b)):
    """Logistic regression by plain gradient descent over batches of `size` rows: the closed form, in float64."""
    weight, bias = (value.astype(np.float64) for value in weights)
    for first in range(0, rows, size):
        x, y = (cancer[name][first : min(first + size, rows)].astype(np.float64) for name in ("x", "y"))
        error = (1 / (1 + np.exp(-(x @ weight.T + bias))) - y) / len(y)
        dw, db = change(error.T @ x, error.sum(0))
        weight, bias = weight - RATE * dw, bias - RATE * db
    return weight, bias


def train_linear(linear, cancer, size, optimizer=None, **options):
    network = linear()
    first = [np.array(p.asnumpy()) for p in network.trainable_params()]
    optimizer = optimizer or nn.SGD
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), optimizer(network.trainable_params(), RATE), **options)
    trainer.fit(cancer, 1, callbacks=[], batch_size=size, shuffle=False, sink_size=1)
    return trainer, first, [p.asnumpy() for p in network.trainable_params()]


class TestAccumulation:
    def test_k_micro_batches_equal_one_batch_of_k_times_the_size(self, linear, cancer):
        # 569 rows, 4 x 32: four windows of 128 rows and a last one of two batches, 32 and 25 rows
        trainer, first, (weight, bias) = train_linear(linear, cancer, 32, gradient_accumulation_steps=4)
        expected = gradient_descent(cancer, first, 128, 569)
        np.testing.assert_allclose(weight, expected[0], atol=2e-6)
        np.testing.assert_allclose(bias, expected[1], atol=2e-6)
        assert trainer.state.progress.global_step == 5
        assert trainer.state.progress.samples_seen == 569

    def test_an_overflow_skips_the_whole_window_and_leaves_everything_as_it_was(self, mlp, batches, values, same):
        def run(data):
            network = mlp()
            optimizer = nn.Adam(network.trainable_params(), 0.01)
            trainer = Trainer(
                network,
                nn.BCEWithLogitsLoss(),
                optimizer,
                gradient_accumulation_steps=2,
                loss_scale=amp.DynamicLossScaler(1024, 2, 100),
            )
            trainer.fit(data, 1, callbacks=[], sink_size=2)
            return values(network, optimizer), trainer

        # the bad batch is the second of its window, so BatchNorm has already seen the first
        skipped, trainer = run(batches(32, 8, bad=[5]))
        left_out, _ = run([batch for index, batch in enumerate(batches(32, 8)) if index not in (4, 5)])
        assert same(skipped, left_out)
        assert trainer.loss_scale == 512
        assert trainer.read_counters() == {"skipped": 1, "fatal": 0, "consecutive": 0, "longest_run": 1}


class TestClipping:
    def test_by_norm(self, linear, cancer):
        def by_norm(dw, db):
            norm = np.sqrt((dw**2).sum() + (db**2).sum())
            assert norm > 0.05
            return dw * 0.05 / norm, db * 0.05 / norm

        _, first, (weight, bias) = train_linear(linear, {k: v[:128] for k, v in cancer.items()}, 64, clip_norm=0.05)
        expected = gradient_descent(cancer, first, 64, 128, by_norm)
        np.testing.assert_allclose(weight, expected[0], atol=1e-6)
        np.testing.assert_allclose(bias, expected[1], atol=1e-6)

    def test_by_value(self, linear, cancer):
        def by_value(dw, db):
            assert np.abs(dw).max() > 0.01
            return np.clip(dw, -0.01, 0.01), np.clip(db, -0.01, 0.01)

        _, first, (weight, _) = train_linear(linear, {k: v[:128] for k, v in cancer.items()}, 64, clip_value=0.01)
        np.testing.assert_allclose(weight, gradient_descent(cancer, first, 64, 128, by_value)[0], atol=1e-6)

    def test_clips_the_true_gradient_not_the_scaled_one(self, linear, cancer):
        data = {k: v[:128] for k, v in cancer.items()}
        _, _, (plain, _) = train_linear(linear, data, 64, clip_norm=0.05)
        _, _, (scaled, _) = train_linear(linear, data, 64, clip_norm=0.05, loss_scale=1024)
        np.testing.assert_allclose(scaled, plain, atol=1e-7)


class TestOverflow:
    @pytest.fixture(scope="class", params=["O0", "O2"])
    @staticmethod
    def run(request, mlp, batches, values, recorder):
        """Eight batches, number 3 bad, one step per call: what was there after each step."""
        network = mlp()
        optimizer = nn.Adam(network.trainable_params(), 0.01)
        trainer = Trainer(
            network,
            nn.BCEWithLogitsLoss(),
            optimizer,
            amp_level=request.param,
            loss_scale=amp.DynamicLossScaler(1024, 2, 3),
        )
        seen = recorder(lambda: {**values(network, optimizer), "scale": np.array(trainer.loss_scale)})
        trainer.fit(batches(32, 8, bad=[3]), 1, callbacks=seen, sink_size=1)
        return trainer, seen

    def test_leaves_parameters_optimizer_and_statistics_bit_identical(self, run, same):
        _, seen = run
        before, after = (dict(seen.looks[step]) for step in (3, 4))
        assert before.pop("scale") > after.pop("scale")
        assert any("moving_mean" in name for name in before)
        assert any("moment1" in name for name in before)
        assert same(before, after)

    def test_every_other_step_changes_them(self, run):
        _, seen = run
        for step in (0, 1, 2, 4, 5, 6, 7):
            before, after = seen.looks[step], seen.looks[step + 1]
            assert all(
                (before[name] != after[name]).any() for name in before if "moving" in name or "moment" in name
            ), step

    def test_halves_the_scale_and_grows_it_again(self, run):
        _, seen = run
        # a window of 3 good steps doubles it: after 3 good ones, then halved, then after 3 more
        assert [float(look["scale"]) for look in seen.looks] == [1024] * 3 + [2048] + [1024] * 3 + [2048, 2048]

    def test_is_counted(self, run):
        trainer, _ = run
        assert trainer.read_counters() == {"skipped": 1, "fatal": 0, "consecutive": 0, "longest_run": 1}
        assert trainer.state.skipped_steps == 1
        assert trainer.builder.step.bad_steps.asnumpy()[:2].tolist() == [3, -1]

    def test_a_static_scale_stays(self, linear, batches, values, same):
        network = linear()
        trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), RATE), loss_scale=512)
        before = values(network)
        trainer.fit(batches(32, 1, bad=[0]), 1, callbacks=[], sink_size=1)
        assert same(before, values(network))
        assert trainer.loss_scale == 512

    def test_sees_what_only_the_statistics_show(self, mlp, batches, values, same):
        # the layers before BatchNorm are not trained and ReLU stops the NaN: loss and gradients are finite
        network = mlp()
        optimizer = nn.SGD(network[3].trainable_params(), RATE)
        trainer = Trainer(network, nn.BCEWithLogitsLoss(), optimizer, loss_scale=512)
        before = values(network, optimizer)
        history = trainer.fit(batches(32, 1, bad=[0]), callbacks=[], sink_size=1)
        assert np.isfinite(history.history["loss"][0])
        assert same(before, values(network, optimizer))
        assert trainer.read_counters()["skipped"] == 1


class TestSunkSteps:
    def run(self, sink_size, mlp, data, values, recorder, **options):
        network = mlp()
        optimizer = nn.Adam(network.trainable_params(), 0.01)
        trainer = Trainer(network, nn.BCEWithLogitsLoss(), optimizer, **options)
        seen = recorder()
        trainer.fit(data, 1, callbacks=seen, batch_size=32, sink_size=sink_size, shuffle=False)
        return values(network, optimizer, trainer.builder.step), seen, trainer

    def test_equal_single_steps_in_every_bit(self, mlp, cancer, values, recorder, same):
        data = {name: column[: 7 * 32] for name, column in cancer.items()}
        single, singles, _ = self.run(1, mlp, data, values, recorder)
        sunk, chunks, trainer = self.run(4, mlp, data, values, recorder)
        assert same(single, sunk)
        assert singles.losses == chunks.losses
        assert (singles.steps, chunks.steps) == ([1, 2, 3, 4, 5, 6, 7], [4, 7])
        assert trainer.sink_mode == "graph loop of 4 steps"

    @pytest.mark.long
    def test_equal_single_steps_with_float16_overflow_and_a_short_last_batch(self, mlp, cancer, values, recorder, same):
        # 569 rows: 17 full batches of 32 and one of 25: chunks of 8, 8, 1 and the short batch; batch 5 holds a NaN
        data = {"x": cancer["x"].copy(), "y": cancer["y"]}
        data["x"][5 * 32 + 3, 7] = np.nan
        scaler = {"amp_level": "O2", "loss_scale": None}
        single, singles, _ = self.run(1, mlp, data, values, recorder, **scaler)
        sunk, chunks, trainer = self.run(8, mlp, data, values, recorder, **scaler)
        assert same(single, sunk)
        assert singles.losses == chunks.losses
        assert (len(chunks.losses), chunks.steps) == (18, [8, 16, 17, 18])
        assert trainer.read_counters()["skipped"] == 1
        assert trainer.loss_scale == 2.0**15
        assert all(np.isfinite(value).all() for value in sunk.values())


def test_moving_statistics_finds_what_a_forward_changes(mlp):
    assert {p.name for p in moving_statistics(mlp())} == {"1.moving_mean", "1.moving_variance"}


class TestPrograms:
    @pytest.mark.parametrize(("rate", "verb"), [(0.11, "fit"), (0.12, "online_train")])
    def test_a_guarded_step_calls_no_python(self, linear, cancer, tmp_path, rate, verb):
        """MindSpore computes a function without a result in a branch by calling Python in every step."""
        network = linear()
        optimizer = nn.SGD(network.trainable_params(), rate)  # of its own: the program must not be compiled already
        trainer = Trainer(network, nn.BCEWithLogitsLoss(), optimizer, amp_level="O2" if verb == "fit" else "O0")
        mindspore.set_context(save_graphs=2, save_graphs_path=str(tmp_path))
        try:
            data = {name: cancer[name][:32] for name in ("x", "y")}
            data = data if verb == "fit" else ReplayStream(data)
            getattr(trainer, verb)(data, callbacks=[], batch_size=16)
        finally:
            mindspore.set_context(save_graphs=0, save_graphs_path=".")
        programs = "".join(path.read_text() for path in tmp_path.rglob("*validate*.ir"))
        assert "Switch(" in programs
        assert "PyExecute(" not in programs
