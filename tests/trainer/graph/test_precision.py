"""Mixed precision: what each level lowers, what is refused, and every kind of loss scale."""

import logging

import numpy as np
import pytest
from mindspore import Parameter, Tensor, amp, nn, ops
from mindspore import dtype as mstype

from trainer import Trainer
from trainer.errors import ConfigurationError
from trainer.graph import precision
from trainer.graph.dropout import repeatable
from trainer.graph.graph_call import GraphCall
from trainer.graph.precision import AllFinite

HALF, SINGLE = mstype.float16, mstype.float32


class Layers(nn.Cell):
    """One cell of each kind the levels tell apart."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(30, 8)
        self.batch_norm = nn.BatchNorm1d(8)
        self.tail = nn.SequentialCell(nn.LayerNorm((8,)), nn.Sigmoid(), nn.Dense(8, 1))

    def construct(self, x):
        return self.tail(self.batch_norm(self.dense(x)))


def dtypes(network):
    """Return the compute dtype of each leaf: "half", "single", or "-" where it follows its input."""
    kinds = {}
    for name, cell in network.cells_and_names():
        if type(cell) in (nn.Dense, nn.BatchNorm1d, nn.LayerNorm, nn.Sigmoid):
            kinds[name.replace(".cast_cell", "")] = (
                "half" if getattr(cell, "fp16", False) else "single" if getattr(cell, "fp32", False) else "-"
            )
    return [kinds[name] for name in ("dense", "batch_norm", "tail.0", "tail.1", "tail.2")]


def converted(**options):
    network = Layers()
    names = [p.name for p in network.get_parameters()]
    Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1), **options)
    assert [p.name for p in network.get_parameters()] == names
    assert {p.dtype for p in network.get_parameters()} == {SINGLE}
    return network


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"amp_level": "O0"}, ["-", "-", "-", "-", "-"]),
        ({"amp_level": "auto"}, ["-", "-", "-", "-", "-"]),  # on CPU
        ({"amp_level": "O1"}, ["half", "-", "-", "-", "half"]),
        ({"amp_level": "O1", "amp_white_list": [nn.LayerNorm]}, ["-", "-", "half", "-", "-"]),
        ({"amp_level": "O2"}, ["half", "single", "single", "half", "half"]),
        ({"amp_level": "O2", "amp_black_list": [nn.Sigmoid]}, ["half", "half", "half", "single", "half"]),
        ({"amp_level": "O2", "keep_batchnorm_fp32": False}, ["half", "half", "single", "half", "half"]),
        ({"amp_level": "O3"}, ["half", "half", "half", "half", "half"]),
        ({"amp_level": "O3", "keep_batchnorm_fp32": True}, ["half", "single", "half", "half", "half"]),
    ],
    ids=lambda value: " ".join(str(v) for v in value.values()) if isinstance(value, dict) else "",
)
def test_each_level_lowers_the_cells_it_names(options, expected):
    assert dtypes(converted(**options)) == expected


def test_a_lowered_network_really_computes_in_float16(cancer):
    x = Tensor(cancer["x"][:16])
    plain, lowered = Layers(), converted(amp_level="O2")
    for ours, theirs in zip(plain.get_parameters(), lowered.get_parameters(), strict=True):
        theirs.set_data(Tensor(ours.asnumpy()))
    exact, half = plain.set_train(False)(x), lowered.set_train(False)(x)
    assert (exact.dtype, half.dtype) == (SINGLE, HALF)
    assert 0 < np.abs(exact.asnumpy() - half.asnumpy()).max() < 5e-3


class TestConvertedTwice:
    def test_by_mindspore_is_refused_with_the_reason(self):
        network = amp.auto_mixed_precision(Layers(), "O2")
        with pytest.raises(ConfigurationError, match=r"already converted \(by mindspore.amp to O2\).*amp_level='O0'"):
            Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1), amp_level="O2")
        Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1))

    def test_by_hand_is_refused_and_names_the_cell(self):
        network = Layers()
        network.tail[2].to_float(HALF)
        with pytest.raises(ConfigurationError, match=r"cell 'tail.2' has to_float"):
            Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1), amp_level="O1")

    def test_by_another_trainer_alike_is_fine_and_changes_nothing(self):
        network = converted(amp_level="O2")
        before = [cell for _, cell in network.cells_and_names()]
        Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1), amp_level="O2")
        assert [cell for _, cell in network.cells_and_names()] == before

    def test_by_another_trainer_otherwise_is_refused(self):
        network = converted(amp_level="O1")
        with pytest.raises(ConfigurationError, match="already converted to O1 by another Trainer"):
            Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1), amp_level="O2")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"amp_dtype": "bfloat16", "amp_level": "O1"}, "bfloat16.*does not run on CPU.*use amp_dtype='float16'"),
        ({"amp_level": "o2"}, "amp_level takes 'O0', 'O1', 'O2', 'O3', 'auto'; received 'o2'; did you mean 'O2'"),
        ({"amp_dtype": "float61", "amp_level": "O1"}, "float61.*did you mean 'float16'"),
        ({"amp_white_list": ["Dense"], "amp_level": "O1"}, "takes Cell classes such as nn.Dense; received 'Dense'"),
        ({"loss_scale": 0.5}, "a number >= 1; received 0.5"),
        ({"loss_scale": "dynamic"}, "loss_scale takes a number >= 1, an amp.LossScaler"),
    ],
    ids=["bfloat16", "level", "dtype", "list", "small scale", "word"],
)
def test_what_cannot_work_is_refused_at_construction(options, message, linear):
    network = linear()
    with pytest.raises(ConfigurationError, match=message):
        Trainer(network, nn.BCEWithLogitsLoss(), nn.SGD(network.trainable_params(), 0.1), **options)


class TestLossScale:
    def scaler(self, loss_scale=None, level="O0"):
        return precision.make_scaler(loss_scale, precision.resolve(level))

    def test_levels_bring_their_own(self):
        assert [self.scaler(level=level) for level in ("O0", "O1", "O3")] == [None, None, None]
        own = self.scaler(level="O2")
        assert isinstance(own, amp.DynamicLossScaler)
        assert own.scale_value.asnumpy() == 2.0**16
        assert self.scaler(False, "O2") is None

    def test_numbers_scalers_and_managers(self):
        number = self.scaler(128)
        assert isinstance(number, amp.StaticLossScaler)
        assert number.scale_value.asnumpy() == 128
        for given in (amp.StaticLossScaler(8.0), amp.DynamicLossScaler(8.0, 2, 10)):
            assert self.scaler(given) is given
        fixed = self.scaler(amp.FixedLossScaleManager(256))
        assert isinstance(fixed, amp.StaticLossScaler)
        assert fixed.scale_value.asnumpy() == 256
        dynamic = self.scaler(amp.DynamicLossScaleManager(2.0**10, 4, 50))
        assert isinstance(dynamic, amp.DynamicLossScaler)
        assert dynamic.scale_value.asnumpy() == 1024
        assert (float(dynamic.scale_factor), int(dynamic.scale_window)) == (4, 50)


_divide = ops.MultitypeFuncGraph("divide")


@_divide.register("Tensor", "Tensor")
def _divide_tensor(scale, value):
    return value / scale


class Halving(amp.LossScaler):
    """A user's scaler: halves on overflow, never grows, counts its adjustments."""

    def __init__(self):
        self.scale_value = Parameter(Tensor(64.0, SINGLE), name="halving", requires_grad=False)
        self.adjustments = Parameter(Tensor(0, mstype.int32), name="adjustments", requires_grad=False)

    def scale(self, inputs):
        return inputs * self.scale_value

    def unscale(self, inputs):
        return ops.HyperMap()(ops.partial(_divide, self.scale_value.value()), inputs)

    def adjust(self, grads_finite):
        ops.assign_add(self.adjustments, ops.cast(1, mstype.int32))
        ops.assign(self.scale_value, ops.select(grads_finite, self.scale_value.value(), self.scale_value / 2))
        return True


def trained(linear, data, optimizer=None, **options):
    network = linear()
    optimizer = (optimizer or nn.SGD)(network.trainable_params(), 0.5)
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), optimizer, **options)
    trainer.fit(data, 1, callbacks=[], sink_size=1)
    return trainer, network[0].weight.asnumpy()


@pytest.fixture(scope="module")
def unscaled(linear, batches):
    return trained(linear, batches(64, 3))[1]


def test_a_users_own_scaler_scales_unscales_and_is_adjusted(linear, batches, unscaled):
    trainer, weight = trained(linear, batches(64, 4, bad=[3]), loss_scale=Halving())
    np.testing.assert_allclose(weight, unscaled, atol=1e-7)
    assert int(trainer.scaler.adjustments.asnumpy()) == 4
    assert trainer.loss_scale == 32


@pytest.mark.long(but=["dynamic"])
@pytest.mark.parametrize("manager", ["fixed", "fixed, drops", "dynamic"])
def test_gradients_are_unscaled_once_whatever_scale_the_optimizer_has(manager, linear, batches, unscaled):
    # users of Model build the optimizer with the manager's scale when the manager does not drop overflow updates
    managers = {
        "fixed": (amp.FixedLossScaleManager(1024, drop_overflow_update=False), 1024),
        "fixed, drops": (amp.FixedLossScaleManager(1024, drop_overflow_update=True), 1),
        "dynamic": (amp.DynamicLossScaleManager(1024, 2, 1000), 1024),
    }
    loss_scale_manager, optimizer_scale = managers[manager]
    _, weight = trained(
        linear,
        batches(64, 3),
        lambda parameters, rate: nn.SGD(parameters, rate, loss_scale=optimizer_scale),
        loss_scale_manager=loss_scale_manager,
        clip_norm=1e6,
    )
    np.testing.assert_allclose(weight, unscaled, atol=1e-7)


class Recurrent(nn.Cell):
    """Three steps of a recurrent cell between two layers that are lowered."""

    def __init__(self, kind):
        super().__init__()
        self.first, self.cell, self.top = nn.Dense(5, 5), kind(5, 4), nn.Dense(4, 1)
        self.has_memory = kind is nn.LSTMCell

    def construct(self, x):
        x = self.first(x)
        state = ops.zeros((x.shape[0], 4), x.dtype)
        memory = state
        for place in range(3):
            if self.has_memory:
                state, memory = self.cell(x[:, place], (state, memory))
            else:
                state = self.cell(x[:, place], state)
        return self.top(state)


@pytest.mark.long(but=["GRUCell-O2"])
@pytest.mark.parametrize(
    ("kind", "level"), [(nn.LSTMCell, "O2"), (nn.GRUCell, "O2"), (nn.RNNCell, "O1"), (nn.LSTMCell, "O3")]
)
def test_recurrent_cells_stay_in_float32_and_the_network_trains(kind, level, caplog):
    network = Recurrent(kind)
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    with caplog.at_level(logging.INFO):
        trainer = Trainer(network, nn.MSELoss(), optimizer, amp_level=level)
    assert f"{kind.__name__}: kept in float32" in caplog.text
    x = np.random.default_rng(0).normal(size=(8, 3, 5)).astype(np.float32)
    before = network.cell.weight_ih.asnumpy().copy()
    trainer.fit((x, np.ones((8, 1), np.float32)), 2, callbacks=[], batch_size=4, sink_size=1)
    assert np.isfinite(trainer.state.train_loss)
    assert (network.cell.weight_ih.asnumpy() != before).any()


@pytest.fixture(scope="module")
def all_finite():
    call = GraphCall(_Two())
    return lambda *values: bool(call(*map(Tensor, values)).asnumpy())


class _Two(AllFinite):
    def construct(self, first, second, other):
        return super().construct((first, second), other)


GOOD = np.full((3, 2), 3e38, np.float32)  # their sum is infinite
ONE = np.ones((), np.float16)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_entry_that_is_not_finite_is_seen(all_finite, value):
    bad = GOOD.copy()
    bad[2, 0] = value
    assert not all_finite(bad, ONE, True)
    assert not all_finite(GOOD, np.float16(value).reshape(()), True)


def test_large_numbers_are_finite(all_finite):
    assert all_finite(GOOD, -ONE * np.float16(65504), True)


def test_what_else_has_to_be_true_counts(all_finite):
    assert not all_finite(GOOD, ONE, False)


@pytest.mark.parametrize("options", [{"amp_level": "O1"}, {"amp_level": "O2"}, {"exact_resume": True}])
def test_a_layer_that_a_sequence_applies_twice_is_still_applied_twice(options):
    relu, norm, dropout = nn.ReLU(), nn.LayerNorm((4,)), nn.Dropout(p=0.5)
    shared = [norm, relu, dropout]
    network = nn.SequentialCell(nn.Dense(4, 4), *shared, nn.Dense(4, 4), *shared)
    rows = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    expected = Trainer(network).predict(rows)
    np.testing.assert_allclose(Trainer(network, **options).predict(rows), expected, atol=0.02)
    assert len(network.cell_list) == 8
    assert repeatable(network) == ("exact_resume" in options)
