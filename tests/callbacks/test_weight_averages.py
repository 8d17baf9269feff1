"""Averages of weights: against NumPy, in validation, snapshots and published models."""

import contextlib

import mindspore as ms
import numpy as np
import onnxruntime
import pytest
from mindspore import nn

from callbacks import EMA, SWA, EarlyStopping, LambdaCallback, ModelCheckpoint, SkipNonFinite
from trainer import Trainer
from trainer.errors import CheckpointError, ConfigurationError
from trainer.serving import Publish, ServedModel, export_model

RNG = np.random.default_rng(0)
DATA = {"x": RNG.normal(size=(48, 4)).astype(np.float32), "y": RNG.normal(size=(48, 1)).astype(np.float32)}
FIRST = None


def make(**options):
    """A trainer whose network has moving statistics; the same weights each time."""
    global FIRST
    network = nn.SequentialCell(nn.Dense(4, 4), nn.BatchNorm1d(4), nn.Dense(4, 1))
    FIRST = FIRST or [parameter.asnumpy().copy() for parameter in network.get_parameters()]
    for parameter, value in zip(network.get_parameters(), FIRST, strict=True):
        parameter.asnumpy()[...] = value
    options = {"seed": 0, **options}  # the order of the rows, whatever seed an earlier test has set
    return Trainer(network, nn.MSELoss(), nn.Momentum(network.trainable_params(), 0.05, 0.9), **options)


def weights(trainer):
    return {p.name: p.asnumpy().copy() for p in trainer.network.get_parameters()}


def averages(trainer):
    with trainer.averaged_weights():
        return weights(trainer)


def fit(trainer, *callbacks, **options):
    options = {"epochs": 2, "batch_size": 4, "sink_size": 1, **options}
    return trainer.fit(DATA, callbacks=list(callbacks), **options)


@pytest.fixture(scope="module")
def history_of_weights():
    """The weights after each of 24 steps of a plain training."""
    seen = []
    trainer = make()
    fit(trainer, LambdaCallback(on_train_step_end=lambda trainer: seen.append(weights(trainer))))
    return seen


def expected(history, rule):
    if isinstance(rule, SWA):
        counted = history[rule.start :: rule.every]
        return {name: np.mean([step[name] for step in counted], 0) for name in history[0]}
    result = dict(history[0])
    for done, step in enumerate(history):
        after = max(done - rule.start, 0)
        decay = min(rule.decay, after / (9 + after))
        result = {name: decay * result[name] + (1 - decay) * step[name] for name in result}
    return result


@pytest.mark.long(but=["rule0-options0"])
@pytest.mark.parametrize(
    ("rule", "options"),
    [
        (EMA(0.9), {}),
        (EMA(0.9), {"sink_size": 5}),
        (EMA(0.5, start=10), {"sink_size": 12}),
        (SWA(12, 4), {"sink_size": 6}),
        (SWA(3), {}),
    ],
)
def test_averages_are_those_of_every_step_and_training_is_what_it_is_without_them(rule, options, history_of_weights):
    trainer = make()
    fit(trainer, rule, **options)
    for name, value in expected(history_of_weights, rule).items():
        np.testing.assert_allclose(averages(trainer)[name], value, rtol=2e-5, atol=1e-6, err_msg=name)
    for name, value in history_of_weights[-1].items():
        np.testing.assert_array_equal(weights(trainer)[name], value, err_msg=name)


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    """A trainer after 24 steps with snapshots at 12 and 24, validation and publication."""
    folder = tmp_path_factory.mktemp("run")
    trainer = make(run_dir=folder)
    history = fit(
        trainer, ModelCheckpoint(keep_last=None), EMA(0.95), Publish(folder / "published", 1e-3), valid_dataset=DATA
    )
    return trainer, history, folder


def test_validation_and_published_models_use_the_averages(averaged):
    trainer, history, folder = averaged
    with trainer.averaged_weights():
        loss = trainer.evaluate(DATA, batch_size=4)["loss"]
        predictions = trainer.predict(DATA["x"])
    assert history.history["val_loss"][-1] == pytest.approx(loss, rel=1e-6)
    assert trainer.evaluate(DATA, batch_size=4)["loss"] != pytest.approx(loss, rel=1e-3)
    with ServedModel(folder / "published", follow=False) as model:
        np.testing.assert_allclose(model.predict(DATA["x"]), predictions, rtol=1e-5, atol=1e-6)


def test_a_resumed_run_has_the_same_averages_bit_by_bit(averaged):
    whole, _, folder = averaged
    trainer = make()
    fit(trainer, EMA(0.95), resume=folder / "checkpoints" / "step_00000012")
    for name, value in averages(whole).items():
        np.testing.assert_array_equal(averages(trainer)[name], value, err_msg=name)


def test_the_averages_of_a_snapshot_are_loaded_where_that_is_asked_for(averaged):
    whole, _, folder = averaged
    trainer = make()
    trainer.load(folder / "checkpoints", weights_only=True, averaged=True)
    for name, value in averages(whole).items():
        np.testing.assert_array_equal(weights(trainer)[name], value, err_msg=name)
    trainer.load(folder / "checkpoints", weights_only=True)
    for name, value in weights(whole).items():
        np.testing.assert_array_equal(weights(trainer)[name], value, err_msg=name)


def test_a_training_after_a_load_goes_on_with_the_averages_of_the_snapshot(averaged):
    whole, _, folder = averaged
    trainer = make()
    trainer.load(folder / "checkpoints" / "step_00000012")
    fit(trainer, EMA(0.95), epochs=1)
    for name, value in averages(whole).items():
        np.testing.assert_array_equal(averages(trainer)[name], value, err_msg=name)


def test_the_averages_of_a_loaded_snapshot_are_used_before_a_training(averaged):
    whole, _, folder = averaged
    trainer = make()
    trainer.load(folder / "checkpoints")
    for name, value in averages(whole).items():
        np.testing.assert_array_equal(averages(trainer)[name], value, err_msg=name)
    for name, value in weights(whole).items():
        np.testing.assert_array_equal(weights(trainer)[name], value, err_msg=name)


def test_a_load_in_a_training_leaves_later_averages_alone(averaged):
    """They are those of the training, which goes on after it."""
    _, _, folder = averaged
    trainer, snapshot = make(), folder / "checkpoints" / "step_00000012"
    fit(trainer, EMA(0.9), LambdaCallback(on_train_begin=lambda trainer: trainer.load(snapshot)))
    ended, begun = averages(trainer), {}
    fit(trainer, EMA(0.9), LambdaCallback(on_train_begin=lambda trainer: begun.update(averages(trainer))), epochs=1)
    for name, value in ended.items():
        np.testing.assert_array_equal(begun[name], value, err_msg=name)


def test_averages_of_another_rule_do_not_count_as_samples(averaged):
    """A training after a load begins anew, a resume is refused."""
    _, _, folder = averaged
    path, seen = folder / "checkpoints" / "step_00000012", []
    trainer = make()
    trainer.load(path)
    fit(trainer, SWA(start=0), LambdaCallback(on_train_step_end=lambda t: seen.append(weights(t))), epochs=1)
    for name, value in expected(seen, SWA(start=0)).items():
        np.testing.assert_allclose(averages(trainer)[name], value, rtol=2e-5, atol=1e-6, err_msg=name)
    with pytest.raises(CheckpointError, match=r"averages by the rule .* cannot go on by"):
        fit(make(), SWA(start=0), epochs=3, resume=path)


@pytest.mark.long
def test_snapshots_with_and_without_averages_are_exchanged(averaged, tmp_path):
    _, _, folder = averaged
    snapshot = folder / "checkpoints" / "step_00000012"
    trainer = make(run_dir=tmp_path)
    trainer.load(snapshot)
    fit(trainer, resume=snapshot)
    trainer = make(run_dir=tmp_path)
    fit(trainer, ModelCheckpoint(), epochs=1)
    at_12 = weights(trainer)
    again = make()
    seen = []
    fit(
        again,
        EMA(0.9),
        LambdaCallback(on_train_step_end=lambda trainer: seen.append(averages(trainer))),
        resume=tmp_path / "checkpoints",
    )
    assert len(seen) == 12
    assert not np.array_equal(seen[0]["0.weight"], at_12["0.weight"])  # the average begins after the first update


def test_averages_may_stay_in_the_network(history_of_weights):
    trainer = make()
    fit(trainer, rule := EMA(0.9, replace_at_end=True))
    np.testing.assert_allclose(
        weights(trainer)["0.weight"], expected(history_of_weights, rule)["0.weight"], rtol=2e-5, atol=1e-6
    )


@pytest.mark.long
def test_an_update_that_is_skipped_adds_nothing():
    trainer = make()
    data = {"x": DATA["x"].copy(), "y": DATA["y"]}
    data["x"][-1] = np.nan
    trainer.fit(data, callbacks=[EMA(0.9), SkipNonFinite()], batch_size=4, shuffle=False, sink_size=1)
    assert trainer.read_counters()["skipped"] == 1
    assert all(np.isfinite(value).all() for value in averages(trainer).values())
    assert int(trainer.builder.average.updates.asnumpy()) == 11


def test_what_cannot_be_averaged_is_refused():
    with pytest.raises(ConfigurationError, match="a run accepts EMA or SWA, not both"):
        fit(make(), EMA(), SWA(1))
    network = nn.Dense(4, 1)
    step = nn.TrainOneStepCell(
        nn.WithLossCell(network, nn.MSELoss()), nn.SGD(network.trainable_params(), ms.Tensor(0.1))
    )
    with pytest.raises(ConfigurationError, match="the network is a whole training step"):
        fit(Trainer(step), EMA())
    with pytest.raises(ConfigurationError, match=r"EMA\(decay=...\) takes a number in \(0, 1\)"):
        EMA(1.0)


@pytest.mark.long
def test_the_best_averages_are_restored_where_a_validation_measured_them():
    trainer = make()
    stopping = EarlyStopping("val_loss", patience=1, mode="max", restore_best=True)
    fit(trainer, EMA(0.9, replace_at_end=True), stopping, valid_dataset=DATA, epochs=3)
    assert stopping.best_step < trainer.state.progress.global_step, "what was best is not the last"
    assert trainer.evaluate(DATA, batch_size=4)["loss"] == pytest.approx(stopping.best, rel=1e-6)


@pytest.mark.long
def test_an_exported_model_has_the_averages(tmp_path):
    trainer = make()
    fit(trainer, EMA(0.9))
    rows = {"x": DATA["x"]}
    export_model(trainer, tmp_path / "model", rows)
    session = onnxruntime.InferenceSession(tmp_path / "model" / "network.onnx", providers=["CPUExecutionProvider"])
    (answers,) = session.run(None, {session.get_inputs()[0].name: rows["x"]})
    with trainer.averaged_weights():
        averaged = trainer.predict(rows)
    np.testing.assert_allclose(answers, averaged, rtol=1e-5, atol=1e-6)
    assert np.abs(answers - trainer.predict(rows)).max() > 1e-3


@pytest.mark.long(but=["min-False", "max-True"])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_best_averages_are_those_that_are_tested_and_published(mode, replace, tmp_path):
    """What is best may be the last: the weights are then those of the training, and not what was measured."""
    trainer = make(run_dir=tmp_path)
    best = ModelCheckpoint(monitor="val_loss", mode=mode, restore_best=True)
    history = fit(trainer, EMA(0.9, replace_at_end=replace), best, Publish(), valid_dataset=DATA, epochs=2)
    values = history.history["val_loss"]
    measured = {"min": min, "max": max}[mode](values)
    assert (measured == values[-1]) == (mode == "min")
    with ServedModel(tmp_path / "published", follow=False) as model:
        served = model.predict(DATA["x"])
    assert np.square(served - DATA["y"]).mean() == pytest.approx(measured, rel=1e-5)
    assert trainer.evaluate(DATA, batch_size=4)["loss"] == pytest.approx(measured, rel=1e-6)
    with trainer.averaged_weights():
        assert trainer.evaluate(DATA, batch_size=4)["loss"] == pytest.approx(measured, rel=1e-6)


def test_early_stopping_ends_with_averages_that_were_best_at_the_last_step():
    trainer = make()
    stopping = EarlyStopping("val_loss", patience=9, restore_best=True)
    fit(trainer, EMA(0.9), stopping, valid_dataset=DATA)
    assert stopping.best_step == trainer.state.progress.global_step
    assert trainer.evaluate(DATA, batch_size=4)["loss"] == pytest.approx(stopping.best, rel=1e-6)


def test_weights_that_are_loaded_are_averaged_anew(averaged):
    _, _, folder = averaged
    trainer = make()
    fit(trainer, EMA(0.9))
    trainer.load(folder / "checkpoints", weights_only=True)
    for name, value in weights(trainer).items():
        np.testing.assert_array_equal(averages(trainer)[name], value, err_msg=name)


@pytest.mark.parametrize("verb", ["load", "resume"])
def test_a_snapshot_without_averages_leaves_none_of_an_earlier_training(verb, tmp_path):
    trainer, begun = make(), {}
    fit(trainer, epochs=1)
    trainer.save(tmp_path)
    saved = weights(trainer)
    fit(trainer, EMA(0.9))
    if verb == "load":
        trainer.load(tmp_path)
        begun = averages(trainer)
    else:
        note = LambdaCallback(on_train_begin=lambda trainer: begun.update(averages(trainer)))
        fit(trainer, EMA(0.9), note, resume=tmp_path)
    for name, value in saved.items():
        np.testing.assert_array_equal(begun[name], value, err_msg=name)


@pytest.mark.parametrize("fails", [False, True])
def test_weights_are_back_for_the_hooks_that_follow_a_validation_that_was_interrupted(fails):
    trainer, seen = make(), {}

    def interrupt(trainer):
        if fails:
            raise OSError("the disk is away")
        trainer.stop("SIGTERM", kind="signal")

    def see(name):
        return lambda trainer: seen.update({name: weights(trainer)})

    hook = "on_exception" if fails else "on_train_epoch_end"
    observer = LambdaCallback(on_train_step_end=see("trained"), on_eval_step_begin=interrupt, **{hook: see("after")})
    with pytest.raises(OSError, match="away") if fails else contextlib.nullcontext():
        fit(trainer, EMA(0.9), observer, valid_dataset=DATA)
    for name, value in seen["trained"].items():
        np.testing.assert_array_equal(seen["after"][name], value, err_msg=name)


def test_a_rollback_goes_back_to_the_averages_of_the_snapshot(tmp_path):
    trainer, seen = make(), {}
    rows = {name: column.copy() for name, column in DATA.items()}
    rows["x"][24:32] = np.nan  # the steps 7 and 8, where the weights are already far away

    def diverge(trainer):
        seen[trainer.state.progress.global_step] = averages(trainer)
        if trainer.state.progress.global_step == 5:
            trainer.network[2].weight.asnumpy()[...] = 1e6

    saver, skipping = ModelCheckpoint(tmp_path, every=4), SkipNonFinite(max_consecutive=2, every=1)
    observer = LambdaCallback(on_train_step_end=diverge, order=-1)
    undone = LambdaCallback(on_checkpoint=lambda trainer: seen.update(last=averages(trainer)))
    callbacks = [EMA(0.9), saver, observer, skipping, undone]
    trainer.fit(rows, 1, batch_size=4, sink_size=1, shuffle=False, max_steps=8, callbacks=callbacks)
    assert skipping.skipped[-1]["step"] == 8
    for name, value in seen[4].items():
        np.testing.assert_array_equal(seen["last"][name], value, err_msg=name)
