"""Batches of many sizes: filled up to a few with rows that weigh nothing, where rows are independent."""

import numpy as np
import pytest
from mindspore import Parameter, Tensor, amp, nn

from callbacks import LambdaCallback, ModelCheckpoint, SkipNonFinite
from tests.trainer.run.compiled_rows import compiled_for, note_rows
from trainer import Trainer
from trainer.embedding import Embedding, Eviction, MinSightings
from trainer.features import Features, Numeric

RATE = 0.5
SIZES = (20, 24, 9, 30, 13, 1, 24, 32, 9)
FEWER = (20, 24, 9, 13, 9, 24)
AS_THEY_ARE, FILLED_UP_TO = {20, 24}, {16, 32}


class Linear(nn.Cell):
    rows_are_independent = True

    def __init__(self, outputs=1):
        super().__init__()
        self.dense = nn.Dense(4, outputs, weight_init="zeros", bias_init="zeros")

    def construct(self, x):
        return self.dense(x) * note_rows(x.shape[0])


class Own(nn.BCEWithLogitsLoss):
    """A user's loss, of which nothing is known: it is trained batch by batch as they come."""

    denominator = "rows"


def rows_of(kind, count, rng):
    x = rng.standard_normal((count, 4)).astype(np.float32)
    if kind == "classes":
        return x, (x[:, :3] + 0.1 * rng.standard_normal((count, 3))).argmax(axis=1).astype(np.int32)
    value = x[:, :1] - 0.5 * x[:, 1:2]
    return x, value if kind == "value" else (value > 0).astype(np.float32)


def batches_of(kind, sizes=SIZES, seed=0):
    rng = np.random.default_rng(seed)
    return [rows_of(kind, size, rng) for size in sizes]


def descend(kind, batches, outputs):
    """Return the weights after gradient descent in float64, and the mean loss of every batch."""
    weight, bias, losses = np.zeros((outputs, 4)), np.zeros(outputs), []
    for x, label in batches:
        out = x.astype(np.float64) @ weight.T + bias
        if kind == "classes":
            shares = np.exp(out) / np.exp(out).sum(axis=1, keepdims=True)
            losses.append(-np.log(shares[np.arange(len(x)), label]).mean())
            slope = (shares - np.eye(outputs)[label]) / len(x)
        elif kind == "value":
            losses.append(((out - label) ** 2).mean())
            slope = 2 * (out - label) / out.size
        else:
            losses.append((np.logaddexp(0, out) - label * out).mean())
            slope = (1 / (1 + np.exp(-out)) - label) / out.size
        weight, bias = weight - RATE * slope.T @ x, bias - RATE * slope.sum(axis=0)
    return np.append(weight.ravel(), bias), losses


def values(network):
    return np.concatenate([np.array(p.asnumpy()).ravel() for p in network.trainable_params()])


def make(network, loss, optimizer=None, **options):
    return Trainer(network, loss, optimizer or nn.SGD(network.trainable_params(), RATE), **options)


# The step does not know the verb, and predictions are float32 before they come to a loss: no need to combine all.
CASES = [
    ("click", nn.BCEWithLogitsLoss(), 1, "O0", "online_train"),
    ("click", nn.BCEWithLogitsLoss(), 1, "O2", "fit"),
    ("value", nn.MSELoss(), 1, "O0", "fit"),
    ("classes", nn.CrossEntropyLoss(), 3, "O0", "fit"),
]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "loss", "outputs", "level", "verb"), CASES, ids=[f"{c[0]} {c[3]}" for c in CASES])
def test_few_programs_train_to_the_weights_of_the_batches_as_they_are(kind, loss, outputs, level, verb):
    compiled_for.clear()
    batches = batches_of(kind)
    trainer = make(Linear(outputs), loss, amp_level=level, loss_scale=64.0 if level == "O2" else None)
    losses = []
    noting = LambdaCallback(on_train_step_end=lambda t: losses.extend(t.state.outputs.losses.tolist()))
    getattr(trainer, verb)(batches, callbacks=[noting])
    assert set(compiled_for) == AS_THEY_ARE | FILLED_UP_TO
    weights, expected = descend(kind, batches, outputs)
    within = 1e-5 if level == "O0" else 3e-3
    np.testing.assert_allclose(losses, expected, rtol=within, atol=within)
    np.testing.assert_allclose(values(trainer.network), weights, rtol=within, atol=within)
    assert trainer.state.progress.samples_seen == sum(SIZES)
    assert trainer.state.progress.global_step == len(SIZES)


@pytest.mark.long
def test_windows_and_callbacks_see_the_rows_that_are_there():
    batches = [dict(zip(("x", "label"), batch, strict=True)) for batch in batches_of("click", FEWER)]
    results, shapes = {}, []
    noting = LambdaCallback(on_train_step_end=lambda t: shapes.append(t.state.outputs.predictions.shape))
    for loss in (nn.BCEWithLogitsLoss(), Own()):
        trainer = make(Linear(), loss)
        trainer.online_train(iter(batches), callbacks=[noting], window=40)
        results[type(loss)] = trainer.state.window
    ours, plain = results.values()
    assert shapes == [(size, 1) for size in FEWER] * 2
    for name in ("window_loss", "window_auc", "window_log_loss", "lifetime_auc"):
        assert ours[name] == pytest.approx(plain[name], rel=1e-5)


class Recommender(nn.Cell):
    rows_are_independent = True

    def __init__(self, **options):
        super().__init__()
        self.table = Embedding(4, name="items", mode="sparse", scale=0.5, padding=0, **options)
        self.dense = nn.Dense(12, 1, weight_init="ones", bias_init="zeros")

    def construct(self, ids):
        return self.dense(self.table(ids).reshape(-1, 12)) * note_rows(ids.shape[0])


def test_rows_of_a_table_may_need_more_room_when_filled_up():
    class Fields(nn.Cell):
        rows_are_independent = True

        def __init__(self):
            super().__init__()
            self.table, self.top = Embedding(4, mode="sparse", name="ids"), nn.Dense(32, 1)

        def construct(self, ids):
            return self.top(self.table(ids).reshape(-1, 32))

    rng, network = np.random.default_rng(7), Fields()
    batches = [(rng.integers(0, 9, (n, 8)), np.ones((n, 1), np.float32)) for n in (58, 45, 48, 56, 43, 61)]
    trainer = Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1))
    trainer.fit(batches, callbacks=[])
    assert trainer.builder.programs <= 4, "two sizes, one filled up and one for larger tables"


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [{"admission": MinSightings(2)}, {"eviction": Eviction("lfu"), "capacity": 40}],
    ids=["ids seen twice", "the rarest go"],
)
def test_made_up_rows_leave_no_trace_in_a_table(options):
    rng = np.random.default_rng(1)
    batches = [(rng.zipf(1.3, (size, 3)) % 60, rng.integers(0, 2, (size, 1)).astype(np.float32)) for size in FEWER * 3]
    ids = np.arange(60)
    found = []
    for loss in (nn.BCEWithLogitsLoss(), Own()):
        compiled_for.clear()
        network = Recommender(**options)
        trainer = make(network, loss, nn.Adam(network.trainable_params(), 0.01))
        trainer.fit(batches, callbacks=[])
        table = network.table.host_table()
        places = table.lookup(ids, None)
        known, rows = places > 0, table.store.read(places)
        found.append((known, table.counters, rows, values(network), set(compiled_for)))
    (known, counters, rows, dense, sizes), (plain_known, plain_counters, plain_rows, plain_dense, _) = found
    assert 60 > known.sum() > 20
    assert (known == plain_known).all()
    assert counters == plain_counters
    np.testing.assert_allclose(rows, plain_rows, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(dense, plain_dense, rtol=1e-4, atol=1e-5)
    assert sizes >= AS_THEY_ARE | {16}
    assert 13 not in sizes


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {"gradient_accumulation_steps": 4, "clip_norm": 0.05, "exact_resume": True},
        {"amp_level": "O2", "clip_value": 0.01},
    ],
    ids=["windows of micro-batches", "loss scale"],
)
def test_clipping_accumulation_guard_and_repeatable_dropout_keep_their_meaning(options):
    class Deep(nn.Cell):
        rows_are_independent = True

        def __init__(self):
            super().__init__()
            self.dropout = nn.Dropout(p=0.3)
            self.last = nn.Dense(4, 1, weight_init="ones", bias_init="zeros")

        def construct(self, x):
            return self.last(self.dropout(x) if drops else x)

    drops = "exact_resume" in options
    batches = batches_of("click", FEWER[:3] * 4)
    batches[8][0][3] = np.inf
    found = []
    for loss in (nn.BCEWithLogitsLoss(), Own()):
        scaler = amp.DynamicLossScaler(1024, 2, 1000) if "amp_level" in options else None
        trainer = make(Deep(), loss, loss_scale=scaler, **options)
        trainer.fit(batches, callbacks=[SkipNonFinite()])
        found.append((values(trainer.network), trainer.read_counters(), trainer.loss_scale))
    (weights, counters, scale), (plain, plain_counters, plain_scale) = found
    assert counters == plain_counters
    assert counters["skipped"] >= 1
    assert scale == plain_scale
    within = 2e-3 if "amp_level" in options else 2e-5
    np.testing.assert_allclose(weights, plain, rtol=within, atol=within)


@pytest.mark.long
@pytest.mark.parametrize("verb", ["fit", "online_train"])
def test_a_resumed_run_ends_with_the_same_bits(verb, tmp_path):
    sizes = (20, 20, 24, 41, 41, 41, 7, 7, 41, 1, 20)
    batches = batches_of("click", sizes)

    def trained(**options):
        network = Linear()
        trainer = make(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 0.01))
        getattr(trainer, verb)(batches, **options)
        return trainer

    whole = trained(callbacks=[ModelCheckpoint(tmp_path, every=1, keep_last=None)])
    for stop in (2, 6):
        compiled_for.clear()
        resumed = trained(callbacks=[], resume=tmp_path / f"step_{stop:08}")
        if stop == 6:  # what was filled up before is again; a stream's windows look at their first batch as it is
            assert not {41, 7 if verb == "fit" else 41} & set(compiled_for)
        assert resumed.state.progress.samples_seen == sum(sizes)
        assert values(resumed.network).tobytes() == values(whole.network).tobytes()


class Scaled(nn.Cell):
    def __init__(self, frozen=1):
        super().__init__()
        self.known = Parameter(Tensor(np.zeros(frozen, np.float32)), requires_grad=False)
        self.dense = nn.Dense(4, 1, weight_init="zeros")

    def construct(self, x, scale):
        return self.dense(x) * scale * note_rows(x.shape[0]) + self.known[0]


def test_a_column_of_one_number_a_batch_is_trained_and_evaluated_as_it_is(caplog):
    batches = [(x, np.float32(0.5), label) for x, label in batches_of("click", (8, 12, 5))]
    compiled_for.clear()
    trainer = make(Scaled(), nn.BCEWithLogitsLoss())
    trainer.fit(batches, 1, callbacks=[])
    trainer.evaluate(batches)
    assert set(compiled_for) == {8, 12, 5}


class ByBatch(nn.Cell):
    def __init__(self, how):
        super().__init__()
        self.dense = nn.Dense(4, 1, weight_init="ones", bias_init="ones")
        self.normalize = nn.BatchNorm1d(4) if how == "norm" else nn.Identity()
        self.rows_are_independent = how != "undeclared"

    def construct(self, x):
        return self.dense(self.normalize(x)) * note_rows(x.shape[0])


REASONS = {
    "norm": "because the network normalizes over the rows of a batch",
    "undeclared": "because ByBatch does not declare rows_are_independent = True; if no row",
    "loss": "because Own is not known to give a loss for each row; return one value per row",
}


@pytest.mark.long(but=["undeclared"])
@pytest.mark.parametrize("how", REASONS)
def test_what_is_not_declared_is_trained_as_it_is_and_the_reason_is_reported(how, caplog):
    compiled_for.clear()
    trainer = make(ByBatch(how), Own() if how == "loss" else nn.BCEWithLogitsLoss())
    trainer.online_train(iter(batches_of("click", SIZES[:5])), callbacks=[])
    assert set(compiled_for) == set(SIZES[:5])
    assert caplog.text.count("every number of rows is compiled") == 1
    assert f"20, 24, 9 so far, {REASONS[how]}" in caplog.text
    assert "batch_size" in caplog.text


def test_declared_weights_are_padded_with_zeros():
    """Batches of many sizes with a declared weight train as in float64."""
    features = Features([Numeric(name) for name in "abcd"], label="y", weight="w")
    compiled_for.clear()
    rng = np.random.default_rng(5)
    batches = [(x, y[:, 0], rng.integers(0, 9, len(x)).astype(np.float32)) for x, y in batches_of("click")]
    network = Linear()
    optimizer = nn.SGD(network.trainable_params(), RATE)
    Trainer(network, nn.BCEWithLogitsLoss(), optimizer, features=features).fit(batches, callbacks=[])
    assert set(compiled_for) == AS_THEY_ARE | FILLED_UP_TO
    weight, bias = np.zeros(4), 0.0
    for x, y, w in batches:
        slope = w * (1 / (1 + np.exp(-(x.astype(np.float64) @ weight + bias))) - y) / max(w.sum(), 1e-30)
        weight, bias = weight - RATE * slope @ x, bias - RATE * slope.sum()
    np.testing.assert_allclose(network.dense.weight.asnumpy()[0], weight, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sink_size", [1, 2])
@pytest.mark.parametrize("loss", [nn.L1Loss(), nn.L1Loss("sum")], ids=["mean", "sum"])
def test_a_loss_of_any_micro_batch_that_is_not_finite_skips_the_update(loss, sink_size):
    """The gradient of an absolute error is finite where the label, and so the loss, is not."""
    labels = np.zeros((16, 1), np.float32)
    labels[9] = np.inf  # in the third of four micro-batches
    network = nn.Dense(4, 1, weight_init="ones", bias_init="zeros")
    trainer = Trainer(network, loss, nn.SGD(network.trainable_params(), 0.5), gradient_accumulation_steps=2)
    weights = LambdaCallback(on_train_step_end=lambda trainer: found.append(network.weight.asnumpy().tolist()))
    found = []
    data = {"x": np.ones((16, 4), np.float32), "y": labels}
    callbacks = [SkipNonFinite(rollback=False), weights]
    trainer.fit(data, batch_size=4, shuffle=False, callbacks=callbacks, sink_size=sink_size)
    assert trainer.read_counters()["skipped"] == trainer.read_counters()["fatal"] == 1
    assert found[-1] == [[1 - 0.5 * (8 if loss.reduction == "sum" else 1)] * 4]
