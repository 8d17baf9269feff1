import mindspore.train as ms_train
import numpy as np
import pytest
from mindspore import nn

from callbacks import Callback, CallbackList, EarlyStopping, LambdaCallback, ModelCheckpoint, ReduceLROnPlateau
from trainer.embedding import Embedding
from trainer.errors import ConfigurationError
from trainer.run.monitors import check_monitors, produced_metrics
from trainer.serving import Publish, ServedModel
from trainer.trainer import Trainer


def feed(values):
    """Return a callback that replaces the validation accuracy by `values`, in turn."""
    iterator = iter(values)
    return LambdaCallback(on_eval_end=lambda trainer: trainer.state.metrics.update(val_auc=next(iterator)))


def test_stops_after_patience_measurements_without_improvement(fit):
    stopping = EarlyStopping("val_auc", patience=2, min_delta=0.05)
    trainer = fit(feed([0.5, 0.6, 0.62, 0.64, 0.9]), stopping, epochs=5)
    assert trainer.state.progress.epoch == 4
    assert (stopping.best, stopping.best_step) == (0.6, 16)
    assert trainer.state.stop_reason.kind == "callback"
    assert "val_auc has not improved in 2 measurements (best 0.6 at step 16" in trainer.state.stop_reason.detail


def test_nan_is_no_improvement(fit):
    trainer = fit(feed([float("nan")] * 5), EarlyStopping("val_auc", patience=2), epochs=5)
    assert trainer.state.progress.epoch == 2


NAN = float("nan")


@pytest.mark.parametrize(
    ("values", "options", "epochs"),
    [
        # a baseline that is not beaten uses up patience; what improves on the best does not stop, as in Keras
        ([0.1, 0.2, 0.3, 0.2], {"patience": 2, "baseline": 0.9}, 4),
        ([0.1, 0.2, 0.3, 0.4], {"patience": 1, "baseline": 0.9}, 4),
        ([0.5, 0.6, 0.4, 0.7], {"patience": 0}, 3),
        ([0.9, 0.1, 0.1, 0.2, 0.1], {"patience": 1, "start_from_epoch": 2}, 5),
        ([0.5, NAN, 0.6, 0.7], {"check_finite": True}, 2),
        ([0.5, 0.7, 0.8, 0.9], {"stopping_threshold": 0.7}, 3),
        ([0.5, 0.6, 0.1, 0.9], {"divergence_threshold": 0.2}, 3),
    ],
)
def test_options_of_keras_and_lightning_mean_what_they_mean_there(fit, values, options, epochs):
    trainer = fit(feed(values), EarlyStopping("val_auc", **options), epochs=len(values))
    assert trainer.state.progress.epoch == epochs


def test_the_epochs_to_start_from_are_those_of_the_call(fit):
    fit(LambdaCallback(), epochs=3)
    stopping = EarlyStopping("val_auc", patience=1, start_from_epoch=2)
    trainer = fit(feed([0.9, 0.1, 0.1, 0.2, 0.1]), stopping, epochs=5, fresh=False)
    assert trainer.state.progress.epoch == 3 + 5


def test_a_stream_has_no_epochs_to_start_from():
    with pytest.raises(ConfigurationError, match="which has no epochs"):
        EarlyStopping("window_auc", start_from_epoch=2)


def test_the_best_weights_come_back_after_the_run(fit):
    seen = {}

    def remember(trainer):
        seen[trainer.state.progress.global_step] = {
            p.name: p.asnumpy().copy() for p in trainer.network.get_parameters()
        }

    stopping = EarlyStopping("val_auc", 2, restore_best=True)
    trainer = fit(LambdaCallback(on_eval_end=remember), feed([0.9, 0.1, 0.1]), stopping, epochs=3)
    for parameter in trainer.network.get_parameters():
        np.testing.assert_array_equal(parameter.asnumpy(), seen[8][parameter.name])
        assert np.abs(parameter.asnumpy() - seen[24][parameter.name]).max() > 0


def test_the_best_weights_are_published_and_the_last_ones_saved(fit, cancer, tmp_path):
    stopping, publish = EarlyStopping("val_auc", 2, restore_best=True), Publish(tmp_path / "served", every=3600)
    trainer = fit(publish, ModelCheckpoint(tmp_path), feed([0.9, 0.1, 0.1]), stopping, epochs=3)
    best = trainer.predict({"x": cancer["valid"]["x"]})
    with ServedModel(tmp_path / "served", follow=False) as model:
        np.testing.assert_allclose(model.predict(cancer["valid"]["x"]), best, rtol=1e-5)
    trainer.load(tmp_path / "step_00000024", weights_only=True)
    assert np.abs(trainer.predict({"x": cancer["valid"]["x"]}) - best).max() > 0.1


def test_the_patience_used_up_survives_a_resume(fit):
    first = EarlyStopping("val_auc", patience=3)
    fit(feed([0.9, 0.1, 0.1]), first, epochs=3)
    second = EarlyStopping("val_auc", patience=3)
    second.load_state_dict(first.state_dict())
    assert (second.best, second.best_step, second.wait) == (0.9, 8, 2)
    other = EarlyStopping("val_loss", patience=3)
    other.load_state_dict(first.state_dict())
    assert (other.best, other.best_step, other.wait) == (None, None, 0)


@pytest.mark.parametrize(
    ("stopping", "more"),
    [({"patience": 2}, {"patience": 3}), ({"stopping_threshold": 0.0}, {"stopping_threshold": 0.95})],
)
def test_a_run_that_it_has_ended_is_not_trained_on_by_a_resume(fit, tmp_path, stopping, more):
    def run(options, **resume):
        scores = feed([0.9, 0.1, 0.2])
        return fit(scores, EarlyStopping("val_auc", **options), ModelCheckpoint(tmp_path), epochs=5, **resume)

    stopped = run(stopping).state
    ended = stopped.progress.epoch, stopped.stop_reason
    resumed = run(stopping, resume=tmp_path).state
    assert (resumed.progress.epoch, resumed.stop_reason) == ended
    assert run(more, resume=tmp_path).state.progress.epoch > ended[0]


def test_the_training_loss_and_a_window_metric_can_be_watched(fit, online):
    trainer = fit(EarlyStopping("loss", patience=1, min_delta=100.0), epochs=5, valid=False)
    assert trainer.state.progress.epoch == 2
    trainer = online(
        [{"window_auc": value} for value in (0.6, 0.7, 0.6, 0.5, 0.9)], EarlyStopping("window_auc", patience=2)
    )
    assert trainer.state.progress.global_step == 4


class Steps:
    """A metric of a user that declares no direction, unless it is given one: how often it was updated."""

    def __init__(self, **attributes):
        vars(self).update(attributes)

    def clear(self):
        self.count = 0

    def update(self, predictions, labels):
        self.count += 1

    def eval(self):
        return self.count


def test_a_metric_says_which_direction_is_better_whatever_its_name(cancer):
    metrics = {
        **{"accuracy_gap": "mae", "loss_free": "auc", "theirs": ms_train.F1(), "distance": ms_train.MSE()},
        **{"all": "binary", "mine": Steps(higher_is_better=True), "unknown": Steps()},
    }
    network = nn.SequentialCell(nn.Dense(30, 1))
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params()), metrics=metrics)
    modes = {
        **{"val_accuracy_gap": "min", "val_loss_free": "max", "val_theirs": "max", "val_distance": "min"},
        **{"val_all_auc": "max", "val_all_log_loss": "min", "val_mine": "max", "val_loss": "min", "loss": "min"},
        **{"val_loss_free_3": "max"},  # of one label
    }
    produced = produced_metrics(trainer.metrics, trainer.tasks, ("",), None)
    for name, mode in modes.items():
        stopping, checkpoint = EarlyStopping(name), ModelCheckpoint(monitor=name)
        trainer.callbacks = CallbackList([stopping, checkpoint])
        check_monitors(trainer.callbacks, produced)
        assert (stopping.watched.mode, checkpoint.watched.mode) == (mode, mode), name
    for name in ("val_unknown", "val_all_calibration"):
        trainer.callbacks = CallbackList([EarlyStopping(name)])
        with pytest.raises(ValueError, match=rf"cannot tell whether more or less of '{name}' is better.*mode='min'"):
            check_monitors(trainer.callbacks, produced)
        given = EarlyStopping(name, mode="max")
        trainer.callbacks = CallbackList([given])
        check_monitors(trainer.callbacks, produced)
        assert given.watched.mode == "max"


@pytest.mark.parametrize(("name", "mode"), [("window_log_loss", "min"), ("lifetime_auc", "max"), ("lag", "min")])
def test_values_of_a_window_say_it_too(online, name, mode):
    stopping = EarlyStopping(name, patience=100)
    online([None, None], stopping)
    assert stopping.watched.mode == mode
    assert stopping.best is not None or name == "lag"


@pytest.mark.parametrize("name", ["los", "my_score"])
def test_a_metric_of_the_users_own_is_watched_whatever_its_name_looks_like(cancer, name):
    network = nn.SequentialCell(nn.Dense(30, 1))
    optimizer = nn.Adam(network.trainable_params(), learning_rate=0.01)
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), optimizer, metrics={name: "auc"})
    stopping = EarlyStopping(f"val_{name}", mode="max", min_delta=1.0, patience=1)
    trainer.fit(cancer["train"], 5, valid_dataset=cancer["valid"], callbacks=stopping, batch_size=64)
    assert (trainer.state.progress.epoch, stopping.best_step) == (2, 8)


@pytest.mark.parametrize("kind", [EarlyStopping, ReduceLROnPlateau, ModelCheckpoint])
def test_a_misspelt_name_with_a_mode_is_refused_before_training(fit, kind):
    with pytest.raises(
        ValueError, match=rf"{kind.__name__}\(monitor='val_los'\): no metric .* did you mean 'val_loss'"
    ):
        fit(kind(monitor="val_los", mode="min"))
    assert fit.trainer.state.progress.global_step == 0


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"monitor": {"val_loss": 1.0}}, r"Own\.monitor takes the name of a metric, or None; received \{'val_loss': 1"),
        (
            {"monitor": "val_loss", "use_directions": lambda self, each: None},
            r"Own\.use_directions.* replaced by use_direction",
        ),
    ],
)
def test_a_callback_of_the_users_own_that_monitors_several_metrics_is_refused(fit, attributes, said):
    with pytest.raises(ConfigurationError, match=said):
        fit(type("Own", (Callback,), attributes)())


def test_best_weights_of_a_network_with_tables_are_refused_before_training():
    network = nn.SequentialCell(Embedding(2), nn.Dense(2, 1), nn.Flatten(0))
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params()))
    rows = {"id": np.arange(8), "y": np.zeros(8, np.float32)}
    with pytest.raises(
        ConfigurationError,
        match=r"would not restore the rows of sparse tables .*ModelCheckpoint\(folder, monitor='loss'",
    ):
        trainer.fit(rows, batch_size=8, callbacks=[EarlyStopping("loss", restore_best=True)])
    assert trainer.state.progress.global_step == 0
