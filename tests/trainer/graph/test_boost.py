"""Boost levels: what is on, what a frozen step leaves alone, and what resumes exactly."""

import itertools

import numpy as np
import pytest
from mindspore import Tensor, experimental, nn, ops

from trainer import Callback, ModelCheckpoint, Trainer
from trainer.embedding import Embedding
from trainer.errors import ConfigurationError
from trainer.graph.boost import (
    Adasum,
    BoostConfig,
    Centralize,
    Freezing,
    adasum,
    centralized_flags,
    layer_boundaries,
    slice_optimizer,
)

FREEZE = {"gradient_centralization": False, "freeze_share": 0.5, "freeze_depths": (0.7,)}


def boosted(network, make_optimizer=None, level="O1", **options):
    make_optimizer = make_optimizer or (lambda parameters: nn.Adam(parameters, 0.01))
    options.setdefault("boost_config", FREEZE)
    return Trainer(
        network,
        nn.BCEWithLogitsLoss(),
        make_optimizer(network.trainable_params()),
        boost_level=level,
        seed=2,
        **options,
    )


class TestConfiguration:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"level": "01"}, "boost_level takes 'O0', 'O1', 'O2'; received '01'; did you mean 'O1'"),
            (
                {"boost_config": {"freeze_shares": 0.5}},
                r"a field of boost_config takes .*; received 'freeze_shares'; did you mean 'freeze_share'",
            ),
            ({"boost_config": {"freeze_share": 1.0}}, r"freeze_share takes a number in \[0, 1\); received 1.0"),
            ({"boost_config": {"freeze_depths": (0.5, 1.5)}}, r"freeze_depths takes numbers in \(0, 1\)"),
            ({"boost_config": {"freeze_after": -1}}, "freeze_after takes a whole number >= 0; received -1"),
            ({"boost_config": 3}, "boost_config takes a BoostConfig or a dict; received 3"),
        ],
        ids=["level", "field", "share", "depth", "after", "kind"],
    )
    def test_mistakes_are_refused(self, options, message, mlp):
        with pytest.raises(ConfigurationError, match=message):
            boosted(mlp(), **options)

    def test_an_optimizer_that_cannot_be_divided_is_refused_with_a_way_out(self, mlp):
        make = lambda parameters: experimental.optim.Adam(parameters, 0.01)  # noqa: E731
        with pytest.raises(ConfigurationError, match=r"cannot divide .*Adam; use an nn optimizer.*gradient_freezing'"):
            boosted(mlp(), make)
        assert boosted(mlp(), make, boost_config={"gradient_freezing": False}).boost_parts == (
            "gradient_centralization",
        )

    def test_says_what_is_on(self, mlp, caplog):
        assert Trainer(mlp()).boost_parts == ()
        with caplog.at_level("INFO"):
            trainer = boosted(mlp(), level="O2", boost_config=BoostConfig(freeze_depths=(0.7,)))
        assert trainer.boost_parts == ("gradient_centralization", "gradient_freezing")
        assert "boost O2: centralizes the gradients of 2 weights" in caplog.text
        assert "freezes what comes before 3.weight in 70% of the calls" in caplog.text
        assert "adasum is off (one process)" in caplog.text

    def test_freezing_is_off_with_the_reason_once_sparse_tables_are_found(self, cancer, caplog):
        class Tabular(nn.Cell):
            def __init__(self):
                super().__init__()
                self.table = Embedding(4, mode="sparse")
                self.first, self.last = nn.Dense(120, 8), nn.Dense(8, 1)

            def construct(self, ids):
                return self.last(ops.relu(self.first(self.table(ids).reshape(-1, 120))))

        ids = (np.digitize(cancer["x"], [-1, 0, 1]) + 4 * np.arange(30)).astype(np.int32)
        data = {"ids": ids[:128], "y": cancer["y"][:128]}
        trainer = boosted(Tabular(), boost_config={})
        assert trainer.boost_parts == ("gradient_centralization", "gradient_freezing")
        off = "gradient_freezing (off: embedding tables train in whole steps)"
        with caplog.at_level("INFO"):
            for _ in range(2):
                trainer.fit(data, callbacks=[], batch_size=32, sink_size=1)
                assert trainer.boost_parts == ("gradient_centralization", off)
            trainer.evaluate(data, batch_size=32)
        assert caplog.text.count("gradient freezing is off: embedding tables train in whole steps") == 1

    def test_a_whole_step_cannot_be_boosted(self, linear):
        network = linear()
        step = nn.TrainOneStepCell(network, nn.SGD(network.trainable_params(), 0.1))
        with pytest.raises(ConfigurationError, match="boost_level='O1': without an optimizer"):
            Trainer(step, boost_level="O1")


class TestCentralization:
    def test_takes_the_mean_over_the_inputs_of_dense_and_convolution_weights(self):
        network = nn.SequentialCell(nn.Conv2d(3, 4, 3, has_bias=True), nn.Dense(5, 2), nn.Dense(1, 6))
        parameters = network.trainable_params()
        flags = centralized_flags(network, parameters)
        assert dict(zip([p.name for p in parameters], flags, strict=True)) == {
            "0.weight": True,
            "0.bias": False,
            "1.weight": True,
            "1.bias": False,
            "2.weight": False,  # one input: nothing would be left of its gradient
            "2.bias": False,
        }
        rng = np.random.default_rng(0)
        gradients = [rng.normal(size=p.shape).astype(np.float32) for p in parameters]
        found = Centralize(flags)(tuple(map(Tensor, gradients)))
        for gradient, flag, centred in zip(gradients, flags, found, strict=True):
            expected = gradient - gradient.mean(tuple(range(1, gradient.ndim)), keepdims=True) if flag else gradient
            np.testing.assert_allclose(centred.asnumpy(), expected, atol=1e-6)

    def test_embeddings_are_left_alone(self):
        table = nn.Embedding(10, 4)
        assert centralized_flags(table, table.trainable_params()) == (False,)

    def test_is_part_of_the_step(self, linear, batches):
        network = linear()
        before = network[0].weight.asnumpy().copy()
        trainer = boosted(network, lambda p: nn.SGD(p, 0.5), boost_config={"gradient_freezing": False})
        trainer.fit(batches(64, 3), callbacks=[], sink_size=1)
        moved = network[0].weight.asnumpy() - before
        assert abs(moved.mean()) < 1e-6 < np.abs(moved).max()


class TestFreezing:
    def test_the_schedule_is_of_seed_and_step_alone(self):
        schedule = [Freezing(1, 0.7, (3, 6)).depth(step) for step in range(2000)]
        assert schedule == [Freezing(1, 0.7, (3, 6)).depth(step) for step in range(2000)]
        assert schedule != [Freezing(2, 0.7, (3, 6)).depth(step) for step in range(2000)]
        assert set(schedule) == {0, 3, 6}
        assert abs(np.mean([depth > 0 for depth in schedule]) - 0.7) < 0.05
        assert {Freezing(1, 0.7, (3,), after=50).depth(step) for step in range(50)} == {0}

    def test_depths_are_whole_layers(self, mlp):
        parameters = mlp().trainable_params()
        assert [p.name for p in parameters] == ["0.weight", "0.bias", "1.gamma", "1.beta", "3.weight", "3.bias"]
        assert layer_boundaries(parameters, (0.2, 0.4, 0.6, 0.7, 0.99)) == (2, 4)

    @pytest.fixture(scope="class")
    @staticmethod
    def steps(mlp, batches, values, recorder):
        """Sixteen single steps with half of them frozen: what there was before and after each, and the trainer."""
        network = mlp()
        trainer = boosted(network, loss_scale=8)
        seen = recorder(lambda: values(network, trainer.optimizer))
        trainer.fit(batches(32, 16), callbacks=seen, sink_size=1)
        return seen.looks, trainer

    def test_frozen_steps_leave_leading_layers_and_their_moments_alone_and_train_the_others(self, steps):
        looks, trainer = steps
        depths = [trainer.boost.freezing.depth(step) for step in range(16)]
        assert set(depths) == {0, 4}
        for depth, before, after in zip(depths, looks, looks[1:], strict=False):
            for name in before:
                if "power" in name or "learning_rate" in name or "moving" in name or "global_step" in name:
                    continue
                leading = any(part in name for part in ("0.weight", "0.bias", "gamma", "beta"))
                unchanged = (before[name] == after[name]).all()
                assert unchanged == (leading and depth > 0), name
        assert int(trainer.optimizer.global_step.asnumpy()[0]) == 16
        assert int(trainer.builder.step.steps_done.asnumpy()) == 16

    def test_a_frozen_step_moves_the_others_as_without_boost(self, steps, mlp, batches, values):
        looks, trainer = steps
        frozen = [trainer.boost.freezing.depth(step) for step in range(16)].index(4)
        network = mlp()
        plain = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 0.01), loss_scale=8)
        for parameter in [*network.get_parameters(), *plain.optimizer.get_parameters()]:
            for place in (0, 1):
                if f"{place}.{parameter.name}" in looks[frozen]:
                    ops.assign(parameter, Tensor(looks[frozen][f"{place}.{parameter.name}"]))
        plain.fit([batches(32, 16)[frozen]], callbacks=[], sink_size=1)
        expected, found = values(network, plain.optimizer), looks[frozen + 1]
        for name in ("0.3.weight", "0.3.bias", "1.moment1.3.weight", "1.moment2.3.bias", "0.1.moving_mean"):
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-7, err_msg=name)

    @pytest.mark.long
    def test_sunk_calls_freeze_as_a_whole_and_are_compiled_ahead(self, mlp, batches, values):
        network = mlp()
        trainer = boosted(network)
        trainer.compile(batches(32, 16), sink_size=4)
        looks = []

        class Look(Callback):
            def on_train_step_begin(self, trainer):
                looks.append(values(network)["0.0.weight"])

            on_train_end = on_train_step_begin

        trainer.fit(batches(32, 16), 2, callbacks=Look(), sink_size=4)
        depths = [trainer.boost.freezing.depth(step) for step in range(0, 32, 4)]
        assert set(depths) == {0, 4}
        unchanged = [(before == after).all() for before, after in itertools.pairwise(looks)]
        assert unchanged == [depth > 0 for depth in depths]

    def test_an_overflow_in_a_frozen_step_counts_with_the_others(self, steps, mlp, batches, values, same):
        frozen = [Freezing(2, 0.5, (4,)).depth(step) for step in range(16)].index(4)
        trainer = steps[1]
        counters = trainer.read_counters()
        before = values(trainer.network, trainer.optimizer)
        trainer.state.progress.global_step = frozen
        trainer.fit(batches(32, 1, bad=[0]), callbacks=[], sink_size=1)
        assert trainer.read_counters()["skipped"] == counters["skipped"] + 1
        assert same(before, values(trainer.network, trainer.optimizer))

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("options", "sink_size", "step"),
        [({}, 2, 8), ({"gradient_accumulation_steps": 2}, 1, 3)],
        ids=["sunk", "accumulated"],
    )
    def test_resumes_bit_for_bit(self, options, sink_size, step, mlp, cancer, values, same, tmp_path):
        data = {name: column[:320] for name, column in cancer.items()}

        def run(network, folder, **more):
            trainer = boosted(network, **options)
            saving = ModelCheckpoint(folder, every=step, keep_last=None)
            trainer.fit(data, 2, callbacks=[saving], batch_size=32, sink_size=sink_size, **more)
            return values(network, trainer.optimizer, trainer.builder.step)

        whole = run(mlp(), tmp_path)
        resumed = run(mlp(1), tmp_path / "more", resume=tmp_path / f"step_{step:08d}")
        assert same(whole, resumed)

    def test_a_window_that_a_call_leaves_open_stays_as_it_began(self):
        freezing = Freezing(1, 0.5, (4,))
        one = next(step for step in range(100) if freezing.depth(step) != freezing.depth(step + 1))
        depth = freezing.next(one, ends_inside_accumulation=True)
        again = Freezing(1, 0.5, (4,))
        again.load_state_dict(freezing.state_dict())
        assert depth == again.next(one + 1, ends_inside_accumulation=False)
        assert again.next(one + 1, ends_inside_accumulation=False) != depth


@pytest.mark.long(but=["SGD", "Adam with groups"])
@pytest.mark.parametrize(
    "make",
    [
        lambda p: nn.SGD(p, 0.1, momentum=0.9, weight_decay=1e-3),
        lambda p: nn.Momentum(p, 0.1, 0.9),
        lambda p: nn.Adam([{"params": p[:3], "lr": 0.01, "weight_decay": 0.1}, {"params": p[3:]}], 0.02),
        lambda p: nn.AdamWeightDecay(p, 0.01, weight_decay=0.01),
        lambda p: nn.Adagrad(p, learning_rate=0.1),
        lambda p: nn.RMSProp(p, nn.ExponentialDecayLR(0.1, 0.9, 1)),
    ],
    ids=["SGD", "Momentum", "Adam with groups", "AdamWeightDecay", "Adagrad", "RMSProp"],
)
def test_a_divided_optimizer_updates_its_part_as_the_whole_one_would(make, mlp, values):
    rng = np.random.default_rng(0)
    networks = [mlp(), mlp()]
    whole, divided = (make(network.trainable_params()) for network in networks)
    part = slice_optimizer(divided, 2)
    first = values(networks[0], whole)
    for _ in range(2):
        gradients = tuple(Tensor(rng.normal(size=p.shape).astype(np.float32)) for p in whole.parameters)
        whole.compile_and_run(gradients)
        part.compile_and_run(gradients[2:])
    one, other = values(networks[0], whole), values(networks[1], divided)
    for name in one:
        leading = name.endswith(("0.weight", "0.bias"))
        expected = first[name] if leading else one[name]
        np.testing.assert_allclose(other[name], expected, rtol=1e-6, err_msg=name)
    assert len(divided.parameters) == 6


class TestAdasum:
    def reference(self, gradients):
        gradients = [np.asarray(gradient, np.float64) for gradient in gradients]
        while len(gradients) > 1:
            pairs = zip(gradients[0::2], gradients[1::2], strict=True)
            gradients = [
                a * (1 - a @ b / (2 * a @ a) if a @ a else 1) + b * (1 - a @ b / (2 * b @ b) if b @ b else 1)
                for a, b in pairs
            ]
        return gradients[0]

    def test_adds_what_is_orthogonal_averages_what_agrees_and_follows_the_formula(self):
        class Combine(nn.Cell):
            def construct(self, gradients):
                return adasum(gradients)

        combine = Combine()
        rng = np.random.default_rng(0)
        row = rng.normal(size=8)
        zero = np.zeros(8)
        for rows in (
            [row, row, row, row],
            [[1, 0, 0, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0, 0], [0, 0, 3, 0, 0, 0, 0, 0], zero],
            rng.normal(size=(4, 8)),
        ):
            found = combine.compile_and_run(Tensor(np.array(rows, np.float32))).asnumpy()
            np.testing.assert_allclose(found, self.reference(rows), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(self.reference([row] * 4), row)

    def test_needs_a_power_of_two(self):
        with pytest.raises(ConfigurationError, match="combines a power of two of processes; there are 3"):
            Adasum(3)
